//! The example with a master and three workers, in a group of processes of its own.

use super::family::{children, eventually, send, send_to_group};
use super::{PATIENCE, example};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// What it has said.
#[derive(Default)]
struct Heard {
    /// Who has said last that it serves, by the number of the process, and its generation.
    serving: BTreeMap<usize, (u32, u32)>,
    /// Already killed by a test.
    taken: Vec<u32>,
    /// How far conversations are.
    questions: BTreeMap<u64, u64>,
    wrong: Vec<String>,
    complaints: Vec<String>,
}

pub struct Program {
    child: Child,
    pub address: SocketAddr,
    heard: Arc<Mutex<Heard>>,
}

impl Heard {
    /// Such as "worker 1 generation 7 1234", "conversation 3 has 100 questions".
    fn hear(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            [role @ ("master" | "worker"), index, "generation", generation, pid] => {
                let process = index.parse::<usize>().unwrap() + usize::from(role == "worker");
                self.serving.insert(process, (pid.parse().unwrap(), generation.parse().unwrap()));
            }
            ["conversation", name, "has", count, "questions"] => {
                self.questions.insert(name.parse().unwrap(), count.parse().unwrap());
            }
            _ => self.wrong.push(line.to_owned()),
        }
    }
}

impl Program {
    pub fn start(name: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(example(name));
        Self::of(command.args(arguments))
    }

    /// As root of a container, which may not look into processes of others.
    pub fn start_in_container(name: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new("setpriv");
        command.arg("--bounding-set=-all,+setuid,+setgid,+kill").arg(example(name)).args(arguments);
        Self::of(&mut command)
    }

    /// One with a supervisor's board.
    pub fn start_below(board: &OwnedFd, name: &str, arguments: &[&str]) -> Self {
        // Copies made by `dup` are inherited by whoever is executed.
        let number = rustix::io::dup(board).unwrap();
        let mut command = Command::new(example(name));
        let variable = outlast_restart::board::ENVIRONMENT;
        command.args(arguments).env(variable, std::os::fd::AsRawFd::as_raw_fd(&number).to_string());
        Self::of(&mut command)
    }

    fn of(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = said.next().unwrap().unwrap();
        let address = first.strip_prefix("listening on ").unwrap().parse().unwrap();
        let heard = Arc::new(Mutex::new(Heard::default()));
        let hears = Arc::clone(&heard);
        std::thread::spawn(move || {
            for line in said.map_while(Result::ok) {
                hears.lock().unwrap().hear(&line);
            }
        });
        let (mut complaints, hears) = (child.stderr.take().unwrap(), Arc::clone(&heard));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = complaints.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
                hears.lock().unwrap().complaints.push(text);
            }
        });
        let program = Self { child, address, heard };
        eventually("all serve", || program.heard().serving.len() == 4);
        program
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap()
    }

    /// The root.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Who serves as the process with this number.
    pub fn serving(&self, process: usize) -> u32 {
        self.heard().serving[&process].0
    }

    /// How many there were before, and it.
    pub fn generations(&self, process: usize) -> u32 {
        self.heard().serving[&process].1
    }

    /// As [`serving`](Self::serving), if it was not taken before.
    pub fn take_serving(&self, process: usize) -> Option<u32> {
        let mut heard = self.heard();
        let pid = heard.serving[&process].0;
        if heard.taken.contains(&pid) {
            return None;
        }
        heard.taken.push(pid);
        Some(pid)
    }

    /// The parent of who serves, once somebody stands by as well, and sleeps.
    pub fn zygote(&self, process: usize) -> u32 {
        let mut found = 0;
        eventually("one serves, and one stands by", || {
            let serving = self.serving(process);
            children(self.pid()).iter().any(|zygote| {
                found = zygote.pid;
                let (its, others): (Vec<_>, Vec<_>) =
                    children(zygote.pid).into_iter().partition(|child| child.pid == serving);
                its.len() == 1 && others.len() == 1 && others.iter().all(|child| child.state == 'S')
            })
        });
        found
    }

    /// Kills who serves, which is `serving`. Who serves then.
    pub fn dies(&self, process: usize, serving: u32) -> u32 {
        send(serving, libc::SIGKILL);
        eventually("another one serves", || self.serving(process) != serving);
        self.serving(process)
    }

    /// As [`dies`](Self::dies). None if it was too often for the program.
    pub fn try_dies(&mut self, process: usize, serving: u32) -> Option<u32> {
        send(serving, libc::SIGKILL);
        let mut has_ended = false;
        eventually("another one serves, or none", || {
            has_ended = self.child.try_wait().unwrap().is_some();
            has_ended || self.serving(process) != serving
        });
        (!has_ended).then(|| self.serving(process))
    }

    /// How often it was asked, in hundreds, as each conversation tells them.
    pub fn questions(&self) -> u64 {
        self.heard().questions.values().sum()
    }

    /// All conversations go on.
    pub fn goes_on(&self) {
        let before = self.heard().questions.clone();
        eventually("all conversations go on", || {
            let heard = self.heard();
            let further = heard
                .questions
                .iter()
                .filter(|(name, count)| before.get(name).is_none_or(|before| *count > before));
            further.count() == 6 || !heard.wrong.is_empty()
        });
        self.nothing_is_wrong();
    }

    pub fn nothing_is_wrong(&self) {
        assert_eq!(self.heard().wrong, [""; 0]);
    }

    /// On its standard error, before long.
    pub fn said(&self, what: &str) -> bool {
        let deadline = Instant::now() + Duration::from_secs(2);
        while Instant::now() < deadline {
            if self.heard().complaints.concat().contains(what) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        eprintln!("it has said {:?}", self.heard().complaints.concat());
        false
    }

    pub fn tell(&mut self, line: &str) {
        self.child.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
    }

    /// Its exit code.
    pub fn ended(&mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// All processes of the program, also those that are not buried.
    pub fn group(&self) -> Vec<u32> {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let group = self.pid().to_string();
        let is_of = |pid: &u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(')')
                .is_some_and(|(_, rest)| rest.split_ascii_whitespace().nth(2) == Some(&group))
        };
        pids.filter(is_of).collect()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() || !self.group().is_empty() {
            send_to_group(self.pid(), libc::SIGKILL);
        }
        let _ = self.child.wait();
    }
}
