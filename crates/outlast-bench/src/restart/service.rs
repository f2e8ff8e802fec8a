//! A server under test: started, found, told to die, ended.

use crate::ground::{End, Ground};
use crate::launch::{Launch, Program};
use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// For a server to begin, or to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// The sizes of files that the example server has.
pub const FILE_BYTES: [usize; 4] = [1 << 10, 10 << 10, 100 << 10, 1 << 20];

#[derive(Clone, Debug, Default)]
struct Told {
    address: Option<SocketAddr>,
    generation: u32,
    /// The processes of all generations so far.
    served: Vec<u32>,
    is_over: bool,
}

/// A service with whatever processes it has.
pub struct Service {
    program: Program,
    address: SocketAddr,
    told: Arc<(Mutex<Told>, Condvar)>,
    serving: Arc<AtomicU32>,
}

impl Service {
    /// Starts a program that says where it listens, and each generation with its process.
    pub fn start(launch: Launch) -> Result<Self> {
        let told = Arc::new((Mutex::new(Told::default()), Condvar::new()));
        let serving = Arc::new(AtomicU32::new(0));
        let (shared, pid) = (Arc::clone(&told), Arc::clone(&serving));
        let program = launch.follow(move |line| {
            let mut told = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
            match line {
                Some(line) => {
                    if let Some(address) = line.strip_prefix("listening on ") {
                        told.address = address.parse().ok();
                    } else if let Some((number, process)) =
                        line.strip_prefix("generation ").and_then(|rest| rest.split_once(' '))
                    {
                        told.generation = number.parse().unwrap_or(told.generation);
                        let process = process.parse().unwrap_or(0);
                        told.served.push(process);
                        pid.store(process, Ordering::SeqCst);
                    }
                }
                None => told.is_over = true,
            }
            shared.1.notify_all();
        })?;
        let address = wait(&told, |told| told.address.is_some()).context("a server does not listen")?;
        Ok(Self { program, address: address.address.context("a server ended at once")?, told, serving })
    }

    /// The example server in C.
    pub fn httpd(ground: &Ground, programs: &Programs, outlast: bool) -> Result<Self> {
        let program = programs.folder.join(if outlast { "httpd-outlast" } else { "httpd" });
        let address = format!("{}:0", ground.server_address());
        let launch = Launch::new(ground, End::Server, program).arguments([address.into(), programs.files()]);
        let service = Self::start(launch)?;
        if outlast {
            service.wait_generation(1)?;
        }
        Ok(service)
    }

    /// The server of this program.
    pub fn own(ground: &Ground, cores: Option<&[usize]>, more: &[&str]) -> Result<Self> {
        let mut launch = Launch::this(ground, End::Server)?;
        if let Some(cores) = cores {
            launch = launch.on(cores);
        }
        let address = format!("{}:0", ground.server_address());
        let launch = launch.inside(ground.scratch()).arguments(["restart-serve", "--address", &address]);
        let service = Self::start(launch.arguments(more))?;
        service.wait_generation(1)?;
        Ok(service)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The process that was started.
    pub fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// Until this generation serves, or a later one.
    pub fn wait_generation(&self, generation: u32) -> Result<()> {
        wait(&self.told, |told| told.generation >= generation)
            .map(drop)
            .with_context(|| format!("generation {generation} does not begin"))
    }

    /// Until the next generation stands by.
    pub fn wait_standby(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            // The process itself, who serves, who stands by, and perhaps the dead that are being dumped.
            let mut family = crate::process::family(self.pid());
            let told = self.told.0.lock().unwrap_or_else(PoisonError::into_inner);
            family.retain(|pid| *pid != self.pid() && !told.served.contains(pid));
            if !family.is_empty() {
                break;
            }
            drop(told);
            ensure!(Instant::now() < deadline, "nobody stands by");
            std::thread::sleep(Duration::from_micros(500));
        }
        // Until that sleeps.
        std::thread::sleep(Duration::from_millis(3));
        Ok(())
    }

    /// Sends a signal to the process that serves.
    pub fn crash(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.serving.load(Ordering::SeqCst)).ok().and_then(Pid::from_raw);
        // One that is dying already has no successor that is known yet.
        match kill_process(pid.context("nobody serves")?, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error).context("cannot kill a server"),
        }
    }
}

fn wait(told: &(Mutex<Told>, Condvar), is_so: impl Fn(&Told) -> bool) -> Result<Told> {
    let guard = told.0.lock().unwrap_or_else(PoisonError::into_inner);
    let (guard, _) = told
        .1
        .wait_timeout_while(guard, PATIENCE, |told| !is_so(told) && !told.is_over)
        .unwrap_or_else(PoisonError::into_inner);
    ensure!(is_so(&guard), if guard.is_over { "it has ended" } else { "it does not in 10 s" });
    Ok(guard.clone())
}

impl Drop for Service {
    fn drop(&mut self) {
        // In order: the process that was started takes its generations along.
        if let Some(pid) = i32::try_from(self.pid()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let deadline = Instant::now() + PATIENCE;
        while !self.program.has_ended() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The example server in C, built with Outlast and without, and files for it.
pub struct Programs {
    folder: PathBuf,
}

impl Programs {
    /// Builds it, and the library, from the sources that this program was built from. `OUTLAST_BUILT` says that the
    /// library is there.
    pub fn build(scratch: &Path) -> Result<Self> {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let this = std::env::current_exe().context("cannot find this program")?;
        let beside = this.parent().context("this program is nowhere")?;
        let target = beside.parent().context("this program is nowhere")?;
        if std::env::var_os("OUTLAST_BUILT").is_none() {
            let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            cargo.args(["build", "--quiet", "--offline", "-p", "outlast-c", "--target-dir"]).arg(target);
            if beside.file_name().is_some_and(|name| name == "release") {
                cargo.arg("--release");
            }
            run(cargo.current_dir(&sources))?;
        }
        let folder = scratch.join("httpd");
        std::fs::create_dir_all(folder.join("files"))?;
        let mut make = Command::new("make");
        make.arg("-C").arg(sources.join("examples/httpd"));
        make.arg(format!("OUT={}", folder.display())).arg(format!("OUTLAST_LIB={}", beside.display()));
        run(&mut make)?;
        let programs = Self { folder };
        for bytes in FILE_BYTES {
            std::fs::write(programs.files().join(bytes.to_string()), super::answer::pattern(bytes))?;
        }
        Ok(programs)
    }

    fn files(&self) -> PathBuf {
        self.folder.join("files")
    }
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
