//! Whether a program could be run, found out without running it: in the system's own words.

use super::elf::{self, Kind};
use super::launch::Launch;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use std::io;
use std::path::{Path, PathBuf};

/// Where programs are searched for if nothing is said: as the C library does.
const PATH: &str = "/bin:/usr/bin";

/// Whether the program can be executed.
///
/// # Errors
/// As its start would give it.
pub fn executable(launch: &Launch) -> io::Result<()> {
    // Relative to where it runs.
    let from = launch.directory.as_deref().unwrap_or_else(|| Path::new(""));
    let mut failed = io::Error::from(rustix::io::Errno::NOENT);
    for file in candidates(launch) {
        let file = from.join(file);
        match may_execute(&file) {
            Ok(()) => return has_interpreter(from, &file),
            // One that is not ours to execute does not hide another one behind it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => failed = error,
            Err(_) => {}
        }
    }
    Err(failed)
}

fn candidates(launch: &Launch) -> Vec<PathBuf> {
    let program = Path::new(&launch.program);
    if program.as_os_str().as_encoded_bytes().contains(&b'/') {
        return vec![program.into()];
    }
    let path = launch.variable("PATH").unwrap_or_else(|| PATH.into());
    std::env::split_paths(&path).map(|folder| folder.join(program)).collect()
}

fn may_execute(file: &Path) -> io::Result<()> {
    if std::fs::metadata(file)?.is_dir() {
        return Err(rustix::io::Errno::ACCESS.into());
    }
    Ok(accessat(CWD, file, Access::EXEC_OK, AtFlags::EACCESS)?)
}

/// What a script's first line, or the header of machine code, names to run it.
fn has_interpreter(from: &Path, file: &Path) -> io::Result<()> {
    let interpreter = match elf::kind(file) {
        Ok(Kind::Script(interpreter, _)) => Some(interpreter),
        Ok(Kind::Elf(elf)) => elf.loader,
        // The shell is tried with whatever else it is; and to be executed it need not be readable.
        Ok(Kind::Unknown) | Err(_) => None,
    };
    interpreter.map_or(Ok(()), |interpreter| may_execute(&from.join(interpreter)))
}

/// Whether a file can be appended to, or made. It is neither opened nor made.
///
/// # Errors
/// As opening it would give it.
pub fn writable(file: &Path) -> io::Result<()> {
    match std::fs::metadata(file) {
        Ok(metadata) if metadata.is_dir() => Err(rustix::io::Errno::ISDIR.into()),
        Ok(_) => Ok(accessat(CWD, file, Access::WRITE_OK, AtFlags::EACCESS)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or_else(|| Path::new("."));
            Ok(accessat(CWD, folder, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)?)
        }
        Err(error) => Err(error),
    }
}
