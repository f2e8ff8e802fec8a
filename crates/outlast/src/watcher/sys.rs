//! System calls without a safe face.

use rustix::fs::{FileType, fstat};
use std::ffi::CString;
use std::os::fd::{AsFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// A standard error for a process that outlives this one: ours, if that is a file or the journal. Whoever reads it
/// otherwise, as a script or a terminal does, would wait for that process.
pub fn lasting_stderr() -> Stdio {
    let stderr = std::io::stderr();
    let lasts = fstat(&stderr).is_ok_and(|stat| {
        let journal = format!("{}:{}", stat.st_dev, stat.st_ino);
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            || std::env::var("JOURNAL_STREAM").is_ok_and(|stream| stream == journal)
    });
    let ours = lasts.then(|| stderr.as_fd().try_clone_to_owned().ok()).flatten();
    ours.map_or_else(Stdio::null, Stdio::from)
}

/// Has a process be in a session of its own from its first moment on, as what ends a group of processes is not for it, and
/// ignore what tells processes to end, until it does otherwise: a service manager tells all of a service at once, also one
/// that has just been started.
pub fn stand_apart(command: &mut Command, signals: [i32; 3]) {
    let prepare = move || {
        rustix::process::setsid()?;
        for signal in signals {
            // SAFETY: a system call with two numbers.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
        Ok(())
    };
    // SAFETY: between fork and exec it makes system calls only, and allocates nothing.
    unsafe { command.pre_exec(prepare) };
}

/// Warns in the log of the relay that has died, or else in the system's.
pub fn warn(text: &str) {
    tracing::warn!("{text}");
    let has_log = fstat(std::io::stderr())
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) != FileType::CharacterDevice);
    let Ok(text) = CString::new(text) else { return };
    if has_log {
        return;
    }
    // SAFETY: the format takes one text, which is one, and ends.
    unsafe { libc::syslog(libc::LOG_DAEMON | libc::LOG_WARNING, c"outlast: %s".as_ptr(), text.as_ptr()) };
}

/// Closes every descriptor but the standard ones: what the relay's own parent has left open is not for the watcher to
/// hold. Call it before anything else is opened.
pub fn close_all_but_standard() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let open: Vec<RawFd> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for descriptor in open.into_iter().filter(|descriptor| *descriptor > libc::STDERR_FILENO) {
        // SAFETY: nothing in this process has been given one of these: it has just started and has opened nothing, but
        // for the folder that was read, which is closed already.
        unsafe { libc::close(descriptor) };
    }
}
