//! Programs that would end of this library are executed without it: it is left out of their environment.
//!
//! A program of another C library (musl) ends where a library is loaded that does not fit it, and one with AddressSanitizer
//! where another library is loaded before that. `outlast run` loads nothing into such a program, but children inherit the
//! variable of their parent.

use crate::program::{self, Program};
use crate::sys::execute::{self, File, Texts};
use crate::{marks, sys};
use std::ffi::CStr;

/// The loader's variable.
const VARIABLE: &[u8] = b"LD_PRELOAD=";
/// Longer ones are passed on as they are.
const VALUE_BYTES: usize = 2048;
/// Longer paths are not looked at.
const PATH_BYTES: usize = 1024;
/// Scripts for scripts: as deep as the kernel goes.
const SCRIPTS_MAX: usize = 5;
/// Where programs are looked for if nothing says so.
const FOLDERS: &CStr = c"/bin:/usr/bin";

/// Executes a file by `call`, with this environment or with that which it needs.
pub fn execute<T>(file: Option<&CStr>, environment: Texts, call: impl FnOnce(Texts) -> T) -> T {
    let own = execute::own().filter(|_| !marks::is_silent());
    let names_it = |own: &CStr| {
        let (place, variable) = execute::find(environment, VARIABLE)?;
        let value = variable.to_bytes().get(VARIABLE.len()..)?;
        paths(value).any(|path| path == own.to_bytes()).then_some((place, value))
    };
    let found = own.and_then(|own| Some((own, names_it(own)?)));
    match (found, file) {
        (Some((own, (place, value))), Some(file)) if does_end(file) => {
            let mut room = [0; VALUE_BYTES];
            match without(own.to_bytes(), value, &mut room) {
                Ok(rest) => execute::with_other(environment, place, rest, call),
                Err(TooLong) => call(environment),
            }
        }
        _ => call(environment),
    }
}

/// The same, of a file that is looked for in the folders of PATH unless its name has a slash.
pub fn execute_found<T>(name: Option<&CStr>, environment: Texts, call: impl FnOnce(Texts) -> T) -> T {
    let mut room = [0; PATH_BYTES];
    // Most often there is nothing to look for.
    let is_named = execute::find(environment, VARIABLE).is_some() && !marks::is_silent();
    let file = name.filter(|_| is_named).and_then(|name| search(name, &mut room));
    execute(file, environment, call)
}

fn paths(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| matches!(byte, b':' | b' ')).filter(|path| !path.is_empty())
}

/// The variable is longer than there is room for.
#[derive(Debug, PartialEq, Eq)]
struct TooLong;

/// The variable without one path. None: no other is left.
fn without<'a>(own: &[u8], value: &[u8], room: &'a mut [u8]) -> Result<Option<&'a CStr>, TooLong> {
    let mut length = 0;
    let mut put = |bytes: &[u8]| {
        room.get_mut(length..length + bytes.len()).ok_or(TooLong)?.copy_from_slice(bytes);
        length += bytes.len();
        Ok(())
    };
    let mut before = VARIABLE;
    for path in paths(value).filter(|path| *path != own) {
        put(before)?;
        put(path)?;
        before = b":";
    }
    put(b"\0")?;
    let is_empty = before == VARIABLE;
    let text = room.get(..length).and_then(|text| CStr::from_bytes_with_nul(text).ok()).ok_or(TooLong)?;
    Ok(Some(text).filter(|_| !is_empty))
}

/// Whether the program would end of this library.
fn does_end(file: &CStr) -> bool {
    let _errno = sys::Errno::keep();
    let mut program = File::open(file).map(|file| program::look_at(&file));
    for _ in 0..SCRIPTS_MAX {
        match program {
            Some(Program::Script(path)) => {
                let interpreter = CStr::from_bytes_until_nul(&path).ok().and_then(File::open);
                program = interpreter.map(|file| program::look_at(&file));
            }
            _ => break,
        }
    }
    program == Some(Program::Ends)
}

/// The file that the C library would find.
fn search<'a>(name: &'a CStr, room: &'a mut [u8; PATH_BYTES]) -> Option<&'a CStr> {
    let name_bytes = name.to_bytes();
    if name_bytes.contains(&b'/') {
        return Some(name);
    }
    let _errno = sys::Errno::keep();
    let folders = execute::variable(c"PATH").unwrap_or(FOLDERS);
    let mut found = false;
    for folder in folders.to_bytes().split(|byte| *byte == b':') {
        // An empty one is the present one.
        let folder = if folder.is_empty() { b"." } else { folder };
        let length = folder.len() + 1 + name_bytes.len();
        let Some(path) = room.get_mut(..=length) else { continue };
        let (begin, end) = path.split_at_mut(folder.len());
        begin.copy_from_slice(folder);
        let [slash, end @ .., zero] = end else { continue };
        (*slash, *zero) = (b'/', 0);
        end.copy_from_slice(name_bytes);
        found = CStr::from_bytes_with_nul(path).is_ok_and(|path| File::open(path).is_some());
        if found {
            break;
        }
    }
    CStr::from_bytes_until_nul(room).ok().filter(|_| found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_libraries_stay_in_the_variable() {
        let rest = |value: &str, room: usize| {
            let mut room = vec![0; room];
            let rest = without(b"/lib/ours.so", value.as_bytes(), &mut room)?;
            Ok(rest.map(|rest| rest.to_str().unwrap().to_owned()))
        };
        assert_eq!(rest("/lib/ours.so", 100), Ok(None));
        assert_eq!(rest(" :/lib/ours.so:", 100), Ok(None));
        assert_eq!(rest("/lib/ours.so:/a.so /b.so", 100), Ok(Some("LD_PRELOAD=/a.so:/b.so".into())));
        assert_eq!(
            rest("/a.so:/lib/ours.so:/lib/ours.so.1", 100),
            Ok(Some("LD_PRELOAD=/a.so:/lib/ours.so.1".into()))
        );
        // With room for the last zero, and without.
        assert_eq!(rest("/lib/ours.so:/a.so", 17), Ok(Some("LD_PRELOAD=/a.so".into())));
        assert_eq!(rest("/lib/ours.so:/a.so", 16), Err(TooLong));
    }

    #[test]
    fn an_environment_is_the_same_but_for_one_variable() {
        let texts = [c"A=1", c"LD_PRELOAD=/ours.so", c"B=2"];
        let list: Vec<_> = texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect();
        let (place, found) = execute::find(list.as_ptr(), VARIABLE).unwrap();
        assert_eq!((place, found), (1, texts[1]));
        assert!(
            execute::find(list.as_ptr(), b"C=").is_none() && execute::find(std::ptr::null(), b"A=").is_none()
        );
        let has = |all: Texts| {
            [&b"A="[..], b"LD_PRELOAD=", b"B="]
                .map(|name| execute::find(all, name).map(|(_, text)| text.to_str().unwrap().to_owned()))
        };
        let [a, b] = ["A=1", "B=2"].map(|text| Some(text.to_owned()));
        let other = execute::with_other(list.as_ptr(), place, Some(c"LD_PRELOAD=/x.so"), has);
        assert_eq!(other, [a.clone(), Some("LD_PRELOAD=/x.so".into()), b.clone()]);
        assert_eq!(execute::with_other(list.as_ptr(), place, None, has), [a, None, b]);
        // Too many.
        let mut many = vec![texts[0].as_ptr(); 2000];
        many.push(std::ptr::null());
        assert!(execute::with_other(many.as_ptr(), 0, None, |all| all == many.as_ptr()));
    }

    #[test]
    fn programs_are_found_as_the_c_library_finds_them() {
        let mut room = [0; PATH_BYTES];
        let shell = search(c"sh", &mut room).unwrap().to_str().unwrap().to_owned();
        assert!(shell.ends_with("/sh") && std::path::Path::new(&shell).exists(), "{shell}");
        assert!(search(c"no-such-program", &mut room).is_none());
        assert_eq!(search(c"./no/such", &mut room), Some(c"./no/such"));
        assert!(!does_end(c"/bin/sh") && !does_end(c"/no/such") && !does_end(c"/etc/passwd"));
    }
}
