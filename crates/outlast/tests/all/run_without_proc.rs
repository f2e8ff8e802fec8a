//! Where `/proc` is not mounted, processes cannot be looked at.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

use crate::common::restarts::ends;
use crate::common::{Outlast, folder};
use std::process::{Command, Stdio};

#[test]
fn a_stop_works_where_proc_is_not_mounted() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can make a namespace");
        return;
    }
    let folder = folder();
    let mut command = Command::new("unshare");
    let hide = "mount -t tmpfs none /proc && exec \"$0\" \"$@\"";
    command.args(["--mount", "--propagation", "private", "sh", "-c", hide, env!("CARGO_BIN_EXE_outlast")]);
    let program = "trap 'echo told >&2; exit 0' TERM; echo begun $$ >&2; while :; do sleep 0.05; done";
    command.args(["run", "--name", "blind", "--preload", "never", "--", "sh", "-c", program]);
    command.env("XDG_RUNTIME_DIR", folder.path()).env_remove("OUTLAST_LOG").stdin(Stdio::null());
    command.stderr(Stdio::piped());
    let mut outlast = Outlast::from(command);
    let begun = outlast.wait_for("begun");
    outlast.signal("TERM");
    outlast.wait_for("told");
    assert_eq!(outlast.ended().code(), Some(0), "{}", outlast.said());
    ends(begun.trim_start_matches("begun ").parse().unwrap());
}
