//! A server under `outlast run`: its address, who serves, and how often it has crashed.

use crate::program::Host;
use crate::screen::command_line;
use crate::stage::wait_for_port;
use anyhow::{Context, Result, bail, ensure};
use outlast_admin::Page;
use outlast_admin::program::Program;
use rustix::process::{Pid, Signal, kill_process};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A supervisor answers at once; so late, it is stuck.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// Tolerates all that is done here. The servers use the library themselves.
const PATIENT: [&str; 8] =
    ["--preload", "never", "--intensity", "20", "--window", "1ms", "--hang-timeout", "200ms"];
/// As a service manager does it: started again at once, whatever happens.
const PLAIN: [&str; 12] = [
    "--preload",
    "never",
    "--restart",
    "always",
    "--intensity",
    "20",
    "--window",
    "1ms",
    "--backoff-min",
    "0s",
    "--backoff-max",
    "0s",
];

/// Whether it keeps its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Under {
    /// It uses the library.
    Outlast,
    /// It is started again, and that is all.
    PlainRestart,
}

/// A server with its supervisor. Ends when dropped.
#[derive(Debug)]
pub struct Server {
    pub address: SocketAddr,
    pub under: Under,
    /// The command that it was started with.
    pub command_line: String,
    supervisor: Child,
    admin: PathBuf,
}

/// Who serves now.
#[derive(Clone, Copy, Debug)]
pub struct Serving {
    pub pid: Pid,
    /// How many have crashed before it.
    pub crashes: u64,
    /// From the crash of the last one until this one ran with all connections.
    pub pause: Option<Duration>,
}

impl Server {
    /// Starts `program`, which is told its address by `{}` in an argument.
    pub fn start(
        outlast: &Path,
        folder: &Path,
        under: Under,
        program: &Path,
        arguments: &[&str],
    ) -> Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, outlast_lab::free_port()?));
        let admin = folder.join(format!("restart-{}.sock", address.port()));
        // Whatever becomes of this program, the supervisor ends in order, with all below it.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "--"]);
        let flags = if under == Under::Outlast { &PATIENT[..] } else { &PLAIN[..] };
        let words =
            ["run"].iter().chain(flags).chain(&["--stop-timeout", "2s", "--log", "error", "--admin-socket"]);
        let mut words: Vec<String> = words.map(|&word| word.to_owned()).collect();
        words.extend([admin.display().to_string(), "--".to_owned(), program.display().to_string()]);
        words.extend(arguments.iter().map(|text| text.replace("{}", &address.to_string())));
        command.arg(outlast).args(&words);
        let command_line = shown(folder, program, &words);
        let log = std::fs::File::create(folder.join(format!("restart-{}.log", address.port())))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0);
        let supervisor = command.spawn().context("cannot start outlast run")?;
        let server = Self { address, under, command_line, supervisor, admin };
        wait_for_port(&Host::Here, address.port())?;
        server.wait_for(None)?;
        Ok(server)
    }

    fn program(&self) -> Result<Program> {
        let status = outlast_admin::client::status(&self.admin, ANSWER_TIMEOUT);
        match status.context("the supervisor does not answer")?.page {
            Page::Program(program) => Ok(program),
            _ => bail!("the supervisor runs no program"),
        }
    }

    /// Who serves, if somebody does.
    pub fn serving(&self) -> Result<Option<Serving>> {
        let program = self.program()?;
        let starts = program.starts.last().map_or(0, |start| u64::from(start.number));
        Ok(match self.under {
            Under::PlainRestart => process(program.main_pid).map(|pid| Serving {
                pid,
                crashes: starts.saturating_sub(1),
                pause: None,
            }),
            Under::Outlast => {
                ensure!(
                    starts <= 1,
                    "{} did not outlast a crash: it was restarted from scratch",
                    self.address
                );
                let last = program.generations.last().filter(|last| last.ended_ms.is_none());
                last.and_then(|last| {
                    let pause = (last.pause_ns > 0).then(|| Duration::from_nanos(last.pause_ns));
                    let crashes = u64::from(last.number).saturating_sub(1);
                    Some(Serving { pid: process(last.pid)?, crashes, pause })
                })
            }
        })
    }

    /// Waits until somebody else serves than this one.
    pub fn wait_for(&self, but: Option<Pid>) -> Result<Serving> {
        let deadline = Instant::now() + END_TIMEOUT;
        loop {
            if let Some(serving) = self.serving()?.filter(|serving| Some(serving.pid) != but) {
                return Ok(serving);
            }
            if Instant::now() > deadline {
                bail!("nobody serves at {} any more", self.address);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// None for 0.
fn process(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

/// As one would type it in the folder of the scene, with the folder of the program in the search path.
fn shown(folder: &Path, program: &Path, words: &[String]) -> String {
    let programs = program.parent().unwrap_or(program);
    let short = |word: &String| {
        word.replace(&format!("{}/", folder.display()), "").replace(&format!("{}/", programs.display()), "")
    };
    let words: Vec<String> = std::iter::once("outlast".to_owned()).chain(words.iter().map(short)).collect();
    command_line("", &words)
}

impl Drop for Server {
    fn drop(&mut self) {
        let deadline = Instant::now() + END_TIMEOUT;
        let pid = process(self.supervisor.id());
        let told = pid.is_some_and(|pid| kill_process(pid, Signal::TERM).is_ok());
        while told && matches!(self.supervisor.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.supervisor.kill();
        let _ = self.supervisor.wait();
    }
}
