//! Another binary takes over: the [keeper](crate::keeper) executes it, and passes on what is left. Should it end before it
//! listens, or not listen in time, its keeper executes the old one again.

use crate::left::{Known, Left};
use crate::settings;
use crate::signals::{self, Mask};
use crate::sys;
use outlast_restart::board::{Board, UpgradeEnd, WhyNot};
use std::ffi::{CStr, CString, OsString, c_char};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// What the new binary's keeper has to know: see [`Upgrade::write`].
const VARIABLE: &str = "OUTLAST_UPGRADE";
/// What the kernel says of a file that was replaced.
const REPLACED: &[u8] = b" (deleted)";

/// One that is not over.
#[derive(Debug)]
pub struct Upgrade {
    /// Its number on the board; 0: it was undone.
    wish: u32,
    /// The file of the old binary.
    old: Option<RawFd>,
    known: Known,
    /// Those of the program as it was first started: a script's interpreter is given others.
    arguments: Vec<CString>,
}

impl Upgrade {
    /// The one that has brought about this process.
    pub fn found() -> Option<Self> {
        let text = std::env::var_os(VARIABLE)?;
        // SAFETY: before the program begins, there is one thread.
        unsafe { std::env::remove_var(VARIABLE) };
        Self::read(text.as_bytes())
    }

    /// Numbers on one line, behind which are the arguments: of each its length, a space, and itself.
    fn read(text: &[u8]) -> Option<Self> {
        let end = text.iter().position(|&byte| byte == b'\n')?;
        let mut parts = std::str::from_utf8(text.get(..end)?).ok()?.split(' ');
        let (wish, old) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok());
        let known = parts.filter_map(|part| {
            let (number, inode) = part.split_once('=')?;
            Some((number.parse().ok()?, inode.parse().ok()?))
        });
        let (known, mut arguments, mut rest) = (known.collect(), Vec::new(), text.get(end + 1..)?);
        while !rest.is_empty() {
            let space = rest.iter().position(|&byte| byte == b' ')?;
            let length: usize = std::str::from_utf8(rest.get(..space)?).ok()?.parse().ok()?;
            let end = space + 1 + length;
            arguments.push(CString::new(rest.get(space + 1..end)?).ok()?);
            rest = rest.get(end..)?;
        }
        Some(Self { wish, old, known, arguments })
    }

    fn write(&self) -> Vec<u8> {
        let old = self.old.map_or("-".to_owned(), |old| old.to_string());
        let known = self.known.iter().map(|(number, inode)| format!(" {number}={inode}"));
        let mut text = format!("{} {old}{}\n", self.wish, known.collect::<String>()).into_bytes();
        for argument in &self.arguments {
            text.extend(format!("{} ", argument.as_bytes().len()).into_bytes());
            text.extend(argument.as_bytes());
        }
        text
    }

    /// Descriptors that were open before the program was first started.
    pub fn known(&self) -> &Known {
        &self.known
    }

    /// Why the new binary is waited for no longer, if so.
    pub fn is_over(&self) -> Option<WhyNot> {
        self.board()?.upgrade_is_over(self.wish)
    }

    /// The new binary serves.
    pub fn succeeded(self) {
        self.note(UpgradeEnd::Done);
        if let Some(old) = self.old {
            sys::close(old, false);
        }
    }

    fn board(&self) -> Option<&'static Board> {
        settings::board().filter(|_| self.wish != 0)
    }

    fn note(&self, end: UpgradeEnd) {
        if let Some(board) = self.board() {
            board.note_upgrade(self.wish, end);
        }
    }

    /// The new binary does not serve: executes the old one. Returns why that does not run.
    pub fn undo(self, why: WhyNot, left: &Left, known: &Known, mask: Mask) -> io::Error {
        self.note(UpgradeEnd::undone(why));
        let Some(old) = self.old else { return io::Error::other("it is no longer there") };
        let undone = Self { wish: 0, old: None, known: known.clone(), arguments: self.arguments };
        sys::say(&format!("{why}: back to the old one"));
        sys::set_inherited(old, false);
        run(Program::Open(old), &undone, left, mask)
    }
}

/// Whether there is a program to execute at `path`, or where this one was.
pub fn can_execute(path: &Path) -> Result<(), WhyNot> {
    let path = if path.as_os_str().is_empty() { own_path() } else { Ok(path.to_owned()) };
    path.and_then(|path| sys::can_execute(&CString::new(path.into_os_string().into_vec())?))
        .map_err(|error| cannot_run(&error))
}

fn cannot_run(error: &io::Error) -> WhyNot {
    WhyNot::CannotRun { code: error.raw_os_error().unwrap_or(libc::EIO) }
}

/// Executes the program at `path`, or that which now is where this one was. Returns why it does not run.
pub fn execute(wish: u32, path: &Path, left: &Left, known: &Known, mask: Mask) -> io::Error {
    let old = sys::open_path(c"/proc/self/exe");
    let arguments =
        std::env::args_os().filter_map(|argument| CString::new(argument.into_vec()).ok()).collect();
    let mut upgrade = Upgrade { wish, old, known: known.clone(), arguments };
    if let Some((old, inode)) = old.and_then(|old| Some((old, sys::inode(old)?))) {
        upgrade.known.insert(old, inode);
    }
    let is_other = !path.as_os_str().is_empty();
    let path = if path.as_os_str().is_empty() { own_path() } else { Ok(path.to_owned()) };
    let why = match path {
        Ok(path) => run(Program::At(path, is_other), &upgrade, left, mask),
        Err(error) => error,
    };
    upgrade.note(UpgradeEnd::undone(cannot_run(&why)));
    if let Some(old) = old {
        sys::close(old, false);
    }
    why
}

/// Where this program's file was, whether or not another one is there now.
fn own_path() -> io::Result<PathBuf> {
    let path = std::fs::read_link("/proc/self/exe")?.into_os_string().into_vec();
    let path = path.strip_suffix(REPLACED).unwrap_or(&path);
    Ok(OsString::from_vec(path.to_vec()).into())
}

enum Program {
    /// Whether it is called by its path, or by what this one is called: some do what their name says.
    At(PathBuf, bool),
    Open(RawFd),
}

fn run(program: Program, upgrade: &Upgrade, left: &Left, mask: Mask) -> io::Error {
    let mut arguments = upgrade.arguments.clone();
    let variables =
        std::env::vars_os().map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat());
    let state = [VARIABLE.as_bytes(), b"=", &upgrade.write()].concat();
    let variables: Vec<CString> = variables.chain([state]).flat_map(CString::new).collect();
    let path = match &program {
        Program::At(path, _) => CString::new(path.as_os_str().as_bytes()).unwrap_or_default(),
        Program::Open(_) => CString::default(),
    };
    if let (Program::At(_, true), Some(name)) = (&program, arguments.first_mut()) {
        name.clone_from(&path);
    }
    let mut passed_on: Vec<RawFd> = left.numbers().collect();
    passed_on.extend(upgrade.old);
    passed_on.extend(settings::board_descriptor());
    for &number in &passed_on {
        sys::set_inherited(number, true);
    }
    let held = mask.restore().and_then(|()| {
        match program {
            Program::At(..) => execute_at(None, &path, &arguments, &variables),
            Program::Open(file) => execute_at(Some(file), &path, &arguments, &variables),
        };
        let why = io::Error::last_os_error();
        signals::hold_all().map(|_| why)
    });
    for number in passed_on {
        sys::set_inherited(number, false);
    }
    held.unwrap_or_else(|error| error)
}

fn execute_at(file: Option<RawFd>, path: &CStr, arguments: &[CString], variables: &[CString]) {
    let list = |texts: &[CString]| -> Vec<*const c_char> {
        texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
    };
    sys::execute(file, path, &list(arguments), &list(variables));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_passed_on_arrives() {
        let known = Known::from([(0, 7), (2, 9), (700, 1 << 40)]);
        let arguments = vec![c"server".to_owned(), CString::default(), c"two\nlines \xff".to_owned()];
        for old in [None, Some(44)] {
            let upgrade = Upgrade { wish: 3, old, known: known.clone(), arguments: arguments.clone() };
            let read = Upgrade::read(&upgrade.write()).unwrap();
            assert_eq!((read.wish, read.old, &read.known, &read.arguments), (3, old, &known, &arguments));
        }
        assert!(Upgrade::read(b"").is_none() && Upgrade::read(b"3 -\n9 short").is_none());
    }
}
