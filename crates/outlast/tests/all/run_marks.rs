//! Memory that another user has made, and called as a supervisor's is: what root runs next does nothing for it.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::restarts::is_running;
use crate::common::{Outlast, command, eventually, folder, output};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

const NOBODY: u32 = 65534;

/// A process of this user, which takes memory from another one or from its own as the first argument says: by mapping it, or by
/// a descriptor that it keeps. Or one of another user that has mapped it itself.
const DAEMON: &str = r#"
import mmap, os, socket, sys
how, called, user = sys.argv[1], sys.argv[2], int(sys.argv[3])
HOLD = """
import mmap, os, signal, sys, time
signal.alarm(120)
fd = int(sys.argv[1])
if sys.argv[2] == "mapped": m = mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ); os.close(fd)
print("ready", flush=True)
time.sleep(120)
"""
def become(user):
    os.setgroups([]); os.setgid(user); os.setuid(user)
a, b = socket.socketpair()
if os.fork() == 0:
    become(65533 if how.startswith("stranger's") else user)
    fd = os.memfd_create(called); os.ftruncate(fd, 4096)
    socket.send_fds(a, [b"x"], [fd]); os._exit(0)
fd = socket.recv_fds(b, 1, 1)[1][0]
os.wait()
become(user)
os.set_inheritable(fd, True)
os.execv(sys.executable, [sys.executable, "-c", HOLD, str(fd), how.split()[1]])
"#;

struct Daemon(Child);

impl Daemon {
    fn start(user: u32, how: &str, called: &str) -> Self {
        let mut command = Command::new("/usr/bin/python3");
        command
            .args(["-c", DAEMON, how, called, &user.to_string()])
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }

    /// Whether it was not told to end.
    fn lives(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        assert!(std::env::var_os("OUTLAST_REQUIRE_LAB").is_none(), "this test needs root");
        let _ = writeln!(std::io::stderr(), "SKIPPED: only root can become another user");
    }
    is_root
}

/// By which the supervisor's memory is known, as every user can find out.
fn key(pid: u32, name: &str) -> String {
    let maps = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let links = maps.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let begin = format!("/memfd:outlast-board:{pid}:");
    let mut keys = links.filter_map(|link| {
        let rest = link.to_str()?.strip_prefix(&begin)?;
        Some(rest.trim_end_matches(" (deleted)").to_owned())
    });
    let key = keys.next().unwrap();
    assert!(key.ends_with(name), "{key}");
    key
}

#[test]
fn a_process_that_has_taken_memory_of_another_user_is_not_ended_for_its_name() {
    if !is_root() {
        return;
    }
    // As a control, memory of its own user is a trace. Who may not ask who has made what is mapped takes that for none.
    for (user, begin, how, lives) in [
        (0, "custody", "stranger's mapped", true),
        (0, "board", "stranger's held", true),
        (0, "custody", "own mapped", false),
        (0, "board", "own held", false),
        (NOBODY, "custody", "stranger's mapped", true),
        (NOBODY, "board", "stranger's held", true),
        (NOBODY, "custody", "own mapped", true),
        (NOBODY, "board", "own held", false),
    ] {
        let folder = folder();
        std::os::unix::fs::chown(folder.path(), Some(user), Some(user)).unwrap();
        let command = |arguments: &[&str]| {
            let mut command = command(folder.path(), arguments);
            command.uid(user).gid(user).stderr(Stdio::piped()).current_dir("/");
            command
        };
        let mut first = Outlast::from(command(&["run", "--name", "marks", "--", "sleep", "600"]));
        let pid = first.pid();
        eventually("no program", || {
            let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
            children.ok().filter(|all| !all.is_empty())
        });
        let called = format!("outlast-{begin}:{pid}:{}", key(pid, "marks"));
        let mut daemon = Daemon::start(user, how, &called);
        first.signal("KILL");
        first.ended();
        let run = ["run", "--name", "marks", "--stop-timeout", "2s", "--", "true"];
        let next = command(&run).output().unwrap();
        assert_eq!(next.status.code(), Some(0), "{}", String::from_utf8_lossy(&next.stderr));
        assert_eq!(daemon.lives(), lives, "{user} {begin} {how}");
    }
}

#[test]
fn what_is_left_is_ended_whoever_has_mapped_memory_that_is_called_like_its_board() {
    if !is_root() {
        return;
    }
    let folder = folder();
    let script = "trap '' TERM; echo begun $$ >&2; while :; do sleep 0.02; done";
    let mut first =
        Outlast::start(folder.path(), &["run", "--name", "mapped board", "--", "sh", "-c", script]);
    let begun = first.wait_for("begun");
    let left: u32 = begun.trim_start_matches("begun ").parse().unwrap();
    let pid = first.pid();
    let mut stranger = Daemon::start(
        65533,
        "stranger's mapped",
        &format!("outlast-board:{pid}:{}", key(pid, "mapped board")),
    );
    first.signal("KILL");
    first.ended();
    let next =
        output(folder.path(), &["run", "--name", "mapped board", "--stop-timeout", "100ms", "--", "true"]);
    assert_eq!(next.status.code(), Some(0), "{}", String::from_utf8_lossy(&next.stderr));
    let is_left = is_running(left);
    let _ = Command::new("kill").args(["-KILL", &left.to_string()]).stderr(Stdio::null()).status();
    assert!(!is_left && stranger.lives());
}
