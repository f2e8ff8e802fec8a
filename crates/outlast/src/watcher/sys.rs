//! System calls without a safe face.

use std::os::fd::RawFd;

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
