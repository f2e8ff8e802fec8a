//! Programs that would end of this library are executed without it: it is left out of their environment.
//!
//! A program of another C library (musl) ends where a library is loaded that does not fit it, and one with AddressSanitizer
//! where another library is loaded before that. `outlast run` loads nothing into such a program, but children inherit the
//! variable of their parent.

use crate::program::{self, Program};
use crate::sys::execute::{self, File, Texts};
use crate::sys::room::{self, LINE_BYTES_MAX, PATH_BYTES};
use crate::{marks, sys};
use libc::c_char;
use std::ffi::CStr;

/// The loader's variable.
const VARIABLE: &[u8] = b"LD_PRELOAD=";
/// Scripts for scripts: as deep as the kernel goes.
const SCRIPTS_MAX: usize = 5;
/// Where programs are looked for if nothing says so.
const FOLDERS: &CStr = c"/bin:/usr/bin";

/// Executes a file by `call`, with this environment or with that which it needs.
pub fn execute<T>(file: *const c_char, environment: Texts, call: impl FnOnce(Texts) -> T) -> T {
    marks::on_execute();
    match needed(file, environment, false) {
        Some((_room, other)) => call(other),
        None => call(environment),
    }
}

/// The same, of a file that is looked for in the folders of PATH unless its name has a slash.
pub fn execute_found<T>(name: *const c_char, environment: Texts, call: impl FnOnce(Texts) -> T) -> T {
    marks::on_execute();
    match needed(name, environment, true) {
        Some((_room, other)) => call(other),
        None => call(environment),
    }
}

/// The environment that the program needs, and the room that it is in. None: this one will do.
///
/// Never inlined: what this needs of a small stack is free again when the program is executed.
#[inline(never)]
fn needed(file: *const c_char, environment: Texts, is_looked_for: bool) -> Option<(room::Taken, Texts)> {
    if marks::is_silent() {
        return None;
    }
    let _errno = sys::Errno::keep();
    let own = execute::own()?.to_bytes();
    let (place, variable) = execute::find(environment, VARIABLE)?;
    let value = variable.to_bytes().get(VARIABLE.len()..)?;
    if !paths(value).any(|path| path == own) {
        return None;
    }
    let file = execute::path(file)?;
    let mut room = room::take()?;
    let room::Contents { path, value: rest, line, texts } = &mut *room;
    let file = if is_looked_for { search(file, path)? } else { file };
    if !does_end(file, line) {
        return None;
    }
    let rest = without(own, value, rest).ok()?;
    let other = execute::with_other(environment, place, rest, texts)?;
    Some((room, other))
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
fn does_end(file: &CStr, line: &mut [u8; LINE_BYTES_MAX]) -> bool {
    let mut program = File::open(file).map(|file| program::look_at(&file, line));
    for _ in 0..SCRIPTS_MAX {
        if program != Some(Program::Script) {
            break;
        }
        let interpreter = CStr::from_bytes_until_nul(line).ok().and_then(File::open);
        program = interpreter.map(|file| program::look_at(&file, line));
    }
    program == Some(Program::Ends)
}

/// The file that the C library would find.
fn search<'a>(name: &'a CStr, room: &'a mut [u8; PATH_BYTES]) -> Option<&'a CStr> {
    let name_bytes = name.to_bytes();
    if name_bytes.contains(&b'/') {
        return Some(name);
    }
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
        found = CStr::from_bytes_with_nul(path).is_ok_and(execute::is_program);
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
        let mut room = [std::ptr::null(); room::VARIABLES_MAX + 1];
        let mut with = |list: &[*const c_char], by| {
            let all = execute::with_other(list.as_ptr(), place, by, &mut room)?;
            Some(
                [&b"A="[..], b"LD_PRELOAD=", b"B="]
                    .map(|name| execute::find(all, name).map(|(_, text)| text.to_str().unwrap().to_owned())),
            )
        };
        let [a, b] = ["A=1", "B=2"].map(|text| Some(text.to_owned()));
        let other = with(&list, Some(c"LD_PRELOAD=/x.so"));
        assert_eq!(other, Some([a.clone(), Some("LD_PRELOAD=/x.so".into()), b.clone()]));
        assert_eq!(with(&list, None), Some([a, None, b]));
        // Too many.
        let mut many = vec![texts[0].as_ptr(); 2000];
        many.push(std::ptr::null());
        assert_eq!(with(&many, None), None);
        // Its end is not there.
        assert_eq!(execute::find(std::ptr::without_provenance(8), VARIABLE), None);
    }

    #[test]
    fn programs_are_found_as_the_c_library_finds_them() {
        let mut room = [0; PATH_BYTES];
        let shell = search(c"sh", &mut room).unwrap().to_str().unwrap().to_owned();
        assert!(shell.ends_with("/sh") && std::path::Path::new(&shell).exists(), "{shell}");
        assert!(search(c"no-such-program", &mut room).is_none());
        assert_eq!(search(c"./no/such", &mut room), Some(c"./no/such"));
        for path in [c"/bin/sh", c"/no/such", c"/etc/passwd", c"/bin"] {
            assert!(!does_end(path, &mut [0; LINE_BYTES_MAX]), "{path:?}");
        }
    }

    #[test]
    fn a_folder_of_the_programs_name_is_no_program() {
        // The C library goes on to the next folder of PATH.
        assert!(!execute::is_program(c"/bin") && execute::is_program(c"/bin/sh"));
        assert!(!execute::is_program(c"/etc/passwd") && File::open(c"/bin").is_none());
    }
}
