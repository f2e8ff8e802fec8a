//! A server below `outlast run` with default flags, or as it is.

use super::row::Row;
use crate::common::{children, eventually, family, folder, free_port, holds, kill};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Between two looks at what should not change any more.
const SETTLES: Duration = Duration::from_millis(250);
/// So many looks after the first one find the same.
const SAME_LOOKS: usize = 3;
/// For processes that end a little after their master.
const ENDS: Duration = Duration::from_secs(3);

/// One that was started. It is killed, with all below it, when this goes.
pub struct Running {
    child: Child,
    is_supervised: bool,
    log: Arc<Mutex<Vec<String>>>,
    pub port: u16,
    folder: PathBuf,
}

/// The program, as it was built with this test.
fn outlast() -> PathBuf {
    let beside = || {
        let test = std::env::current_exe().unwrap();
        test.parent().unwrap().parent().unwrap().join("outlast")
    };
    let found = std::env::var_os("OUTLAST_BINARY").map_or_else(beside, PathBuf::from);
    assert!(found.is_file(), "there is no {}: cargo build -p outlast -p outlast-preload", found.display());
    found
}

impl Running {
    pub fn start(row: &Row, is_supervised: bool) -> Self {
        let port = free_port();
        let folder = folder(&format!("{}-{port}", row.name));
        let command = (row.make)(&folder, port);
        let mut started = if is_supervised {
            let mut started = Command::new(outlast());
            started.args(["run", "--name", &format!("{}-{port}", row.name), "--"]).arg(command.get_program());
            started
        } else {
            Command::new(command.get_program())
        };
        started.args(command.get_args());
        started.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        started.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).current_dir(&folder);
        // Some signal their group.
        let mut child = started.process_group(0).spawn().unwrap();
        let (log, output) = (Arc::new(Mutex::new(Vec::new())), child.stderr.take().unwrap());
        let heard = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                heard.lock().unwrap().push(String::from_utf8_lossy(&line).into_owned());
            }
        });
        Self { child, is_supervised, log, port, folder }
    }

    /// The process of `outlast run`, or the server itself.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The process that was started as the program.
    pub fn main(&self) -> u32 {
        let pid = self.pid();
        if self.is_supervised { eventually("no program", || children(pid).first().copied()) } else { pid }
    }

    /// What was said, by it and by us.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// What its processes are called, and how they are below each other.
    pub fn shape(&self) -> Vec<String> {
        let mut found: Vec<String> = self.places().into_iter().map(|(_, place)| place).collect();
        found.sort();
        found
    }

    /// What a process of it is called, and how far it is below the first.
    pub fn place(&self, pid: u32) -> String {
        eventually("it has gone", || self.places().into_iter().find(|(one, _)| *one == pid)).1
    }

    fn places(&self) -> Vec<(u32, String)> {
        fn below(pid: u32, depth: usize, found: &mut Vec<(u32, String)>) {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            // One that has died is none, whether its parent has buried it or not.
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('Z')) {
                return;
            }
            found.push((pid, format!("{depth} {}", name.trim_end())));
            children(pid).into_iter().for_each(|child| below(child, depth + 1, found));
        }
        let mut found = Vec::new();
        match self.is_supervised {
            true => children(self.pid()).into_iter().for_each(|pid| below(pid, 0, &mut found)),
            false => below(self.pid(), 0, &mut found),
        }
        found
    }

    /// The same, when no more come or go: also on a busy machine, where what served a client takes a while to end.
    pub fn settled(&self) -> Vec<String> {
        let (mut last, mut same) = (Vec::new(), 0);
        eventually("its processes come and go", || {
            std::thread::sleep(SETTLES);
            let now = self.shape();
            same = if last == now { same + 1 } else { 0 };
            last = now;
            (same >= SAME_LOOKS && !last.is_empty()).then(|| last.clone())
        })
    }

    /// Told to end: its exit code, and how many of its processes are left then.
    pub fn stop(&mut self) -> (i32, usize) {
        let all = family(self.pid());
        kill(self.pid(), libc::SIGTERM);
        let code = code(eventually("it does not end", || self.child.try_wait().unwrap()));
        let left = || {
            let lives = |pid: &&u32| Path::new(&format!("/proc/{pid}/exe")).read_link().is_ok();
            all.iter().filter(lives).count()
        };
        // Some are on their way out.
        let deadline = Instant::now() + ENDS;
        while left() > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        (code, left())
    }

    /// Whether the supervisor has copies of all these connections, which are told by the ports of the clients.
    pub fn holds(&self, clients: &[u16]) -> bool {
        holds(self.pid(), self.port, clients)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let below = family(self.pid());
        let _ = self.child.kill();
        let _ = self.child.wait();
        below.into_iter().for_each(|pid| kill(pid, libc::SIGKILL));
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// As a shell tells it.
fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
}
