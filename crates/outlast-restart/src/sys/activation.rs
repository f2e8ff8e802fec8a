//! Sockets that a service manager passes to this process for the program (sd_listen_fds(3)).
//!
//! The descriptors from 3 on stay open in this process, and every program that it starts has them. They are meant for the
//! process whose number is in `LISTEN_PID`, and no program knows its number before there is a process: it is written there
//! between fork and exec, into room that was made before.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Whom the sockets are for.
const FOR: &str = "LISTEN_PID";
/// The same of newer managers, by the number of its pidfd's file. Who finds none takes the other one.
const FOR_PIDFD: &str = "LISTEN_PIDFDID";
/// Digits of a process number, and the end of the text.
const ROOM: usize = 11;

unsafe extern "C" {
    /// environ(7).
    static mut environ: *const *const libc::c_char;
}

/// What a program is executed with, all of it made before the fork.
struct Image {
    program: CString,
    _arguments: Vec<CString>,
    _environment: Vec<CString>,
    /// `LISTEN_PID=`, and room.
    told: Vec<u8>,
    /// Of the lists above, each with a null at its end. The last one is [`Image::told`] and its null.
    argument_list: Vec<*const libc::c_char>,
    environment_list: Vec<*const libc::c_char>,
}

// SAFETY: the pointers are into strings of the same value that do not move, and nobody else has them.
unsafe impl Send for Image {}
// SAFETY: as above; it is changed through an exclusive reference only.
unsafe impl Sync for Image {}

/// Has the program find the sockets that were passed to this process, if there are some, as its own. To be called when all
/// else of the command is said: nothing that is done in the new process comes after this. The command's own `arg0` and
/// `env_clear` cannot be asked for, and have no effect then.
///
/// # Errors
/// An argument or a variable has a zero in it.
pub(crate) fn pass_on(command: &mut Command) -> io::Result<()> {
    let own = super::process::pid().to_string();
    let variable = |name: &str| -> Option<OsString> {
        let given = command.get_envs().find(|(given, _)| *given == name);
        given.map_or_else(|| std::env::var_os(name), |(_, value)| value.map(OsStr::to_owned))
    };
    // Others are for somebody else, and no program takes them for its own.
    if variable(FOR).as_deref() != Some(OsStr::new(&own)) || variable("LISTEN_FDS").is_none() {
        return Ok(());
    }
    command.env_remove(FOR_PIDFD);
    let mut image = Image::of(command)?;
    // SAFETY: between fork and exec it writes to memory that was made before, and makes system calls; the search for the
    // program uses the stack only (exec(3)).
    unsafe { command.pre_exec(move || Err(image.execute())) };
    Ok(())
}

impl Image {
    fn of(command: &Command) -> io::Result<Self> {
        let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL));
        let mut known: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => known.insert(name.to_owned(), value.to_owned()),
                None => known.remove(name),
            };
        }
        known.remove(OsStr::new(FOR));
        let variables =
            known.iter().map(|(name, value)| text(&[name.as_bytes(), b"=", value.as_bytes()].concat()));
        let environment = variables.collect::<io::Result<Vec<_>>>()?;
        let program = text(command.get_program().as_bytes())?;
        let arguments = command.get_args().map(|argument| text(argument.as_bytes()));
        let arguments =
            std::iter::once(Ok(program.clone())).chain(arguments).collect::<io::Result<Vec<_>>>()?;
        let mut told = format!("{FOR}=").into_bytes();
        told.resize(told.len() + ROOM, 0);
        let end = [std::ptr::null()];
        let argument_list = arguments.iter().map(|text| text.as_ptr()).chain(end).collect();
        let told_text = told.as_ptr().cast();
        let environment_list =
            environment.iter().map(|text| text.as_ptr()).chain([told_text]).chain(end).collect();
        Ok(Self {
            program,
            _arguments: arguments,
            _environment: environment,
            told,
            argument_list,
            environment_list,
        })
    }

    /// Becomes the program. Returns why it does not.
    fn execute(&mut self) -> io::Error {
        write_number(self.told.get_mut(FOR.len() + 1..).unwrap_or_default(), super::process::pid());
        // SAFETY: lists of strings that end, which end with a null, and live. This process has one thread, and ends where
        // it is not the program; the program is looked for where the program's own environment says.
        unsafe {
            environ = self.environment_list.as_ptr();
            libc::execvp(self.program.as_ptr(), self.argument_list.as_ptr());
        }
        io::Error::last_os_error()
    }
}

/// The number in decimal, with a zero behind it.
fn write_number(room: &mut [u8], number: i32) {
    let mut rest = number.unsigned_abs();
    let digits = std::iter::successors(Some(rest / 10), |rest| (*rest > 0).then_some(rest / 10));
    let count = digits.take_while(|rest| *rest > 0).count() + 1;
    for place in room.iter_mut().take(count).rev() {
        *place = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
    }
    if let Some(end) = room.get_mut(count) {
        *end = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_without_an_allocation() {
        for number in [1, 9, 10, 99, 100, 32_768, 4_194_304, i32::MAX] {
            let mut room = *b"xxxxxxxxxxx";
            write_number(&mut room, number);
            let text = std::ffi::CStr::from_bytes_until_nul(&room).unwrap().to_str().unwrap();
            assert_eq!(text, number.to_string());
        }
    }

    #[test]
    fn sockets_of_somebody_else_are_left_alone() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $LISTEN_PID $LISTEN_PIDFDID $LISTEN_FDS"]);
        command.envs([("LISTEN_PID", "1"), ("LISTEN_PIDFDID", "2"), ("LISTEN_FDS", "1")]);
        pass_on(&mut command).unwrap();
        assert_eq!(command.output().unwrap().stdout, b"1 2 1\n");
        // For this process: for whom it starts, each.
        command.env("LISTEN_PID", std::process::id().to_string());
        command.args(["name"]).env("OTHER", "kept").env_remove("HOME");
        let mut same = Command::new("sh");
        same.args(["-c", "echo $$ $LISTEN_PID $LISTEN_PIDFDID $LISTEN_FDS $0 $OTHER ${HOME-none}", "name"]);
        same.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))).env_remove("HOME");
        pass_on(&mut same).unwrap();
        for _ in 0..2 {
            let said = String::from_utf8(same.output().unwrap().stdout).unwrap();
            let words: Vec<&str> = said.split_whitespace().collect();
            assert_eq!((words[0], &words[2..]), (words[1], &["1", "name", "kept", "none"][..]), "{said}");
        }
        let mut none = Command::new("/no/such/program");
        none.envs([("LISTEN_PID", std::process::id().to_string()), ("LISTEN_FDS", "1".into())]);
        pass_on(&mut none).unwrap();
        assert_eq!(none.output().unwrap_err().raw_os_error(), Some(libc::ENOENT));
    }
}
