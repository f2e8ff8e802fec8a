//! Helper processes: started at one of the ends, on its cores, killed with their guard.

use crate::ground::{End, Ground};
use crate::place;
use anyhow::{Context, Result, bail};
use outlast_lab::{LabCommand, Process};
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

enum Running {
    InLab(Process),
    Here(Child),
}

impl Running {
    fn pid(&self) -> u32 {
        match self {
            Running::InLab(process) => process.id(),
            Running::Here(child) => child.id(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        match self {
            Running::InLab(process) => process.kill(),
            Running::Here(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

/// A program that runs beside the experiment.
pub struct Program {
    running: Running,
}

impl Program {
    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        match &mut self.running {
            Running::InLab(process) => !matches!(process.try_wait(), Ok(None)),
            Running::Here(child) => !matches!(child.try_wait(), Ok(None)),
        }
    }
}

/// This program once more, in a hidden role, that is talked to by lines.
pub struct Helper {
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    program: Program,
}

impl Helper {
    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// The next line that it prints.
    pub fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.stdout.read_line(&mut line).context("cannot hear a helper")? == 0 {
            bail!("a helper process ended too early; what it said is above");
        }
        Ok(line.trim().to_owned())
    }

    /// Tells it to go on.
    pub fn say(&mut self, line: &str) -> Result<()> {
        writeln!(self.stdin, "{line}").and_then(|()| self.stdin.flush()).context("cannot talk to a helper")
    }
}

/// How to start a program.
pub struct Launch<'a> {
    ground: &'a Ground,
    end: End,
    cores: Vec<usize>,
    program: OsString,
    arguments: Vec<OsString>,
    folder: Option<PathBuf>,
    quiet: bool,
}

impl<'a> Launch<'a> {
    /// A program at an end, on the cores of that end.
    pub fn new(ground: &'a Ground, end: End, program: impl AsRef<OsStr>) -> Self {
        Self {
            ground,
            end,
            cores: ground.cores_of(end).to_vec(),
            program: program.as_ref().to_owned(),
            arguments: Vec::new(),
            folder: None,
            quiet: true,
        }
    }

    /// This program.
    pub fn this(ground: &'a Ground, end: End) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        Ok(Self { quiet: false, ..Self::new(ground, end, program) })
    }

    /// More arguments.
    pub fn arguments<A: AsRef<OsStr>>(mut self, more: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(more.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// On other cores than those of its end.
    pub fn on(mut self, cores: &[usize]) -> Self {
        self.cores = cores.to_vec();
        self
    }

    /// In a folder.
    pub fn inside(mut self, folder: &Path) -> Self {
        self.folder = Some(folder.to_owned());
        self
    }

    /// Starts it, and hands on each line that it prints, and then that there are no more.
    pub fn follow(self, mut each: impl FnMut(Option<&str>) + Send + 'static) -> Result<Program> {
        let program = self.program.clone();
        let mut running = self
            .spawn(Stdio::null, Stdio::piped, Stdio::inherit)
            .with_context(|| format!("cannot start {}", program.display()))?;
        let stdout = match &mut running {
            Running::InLab(process) => process.take_stdout(),
            Running::Here(child) => child.stdout.take(),
        };
        let lines = BufReader::new(stdout.context("a program has no output")?).lines();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                each(Some(&line));
            }
            each(None);
        });
        Ok(Program { running })
    }

    /// Starts it without input and output.
    pub fn start(self) -> Result<Program> {
        let (program, quiet) = (self.program.clone(), self.quiet);
        let running = self
            .spawn(Stdio::null, Stdio::null, move || if quiet { Stdio::null() } else { Stdio::inherit() });
        Ok(Program { running: running.with_context(|| format!("cannot start {}", program.display()))? })
    }

    /// Starts it to be talked to.
    pub fn start_helper(self) -> Result<Helper> {
        let mut running =
            self.spawn(Stdio::piped, Stdio::piped, Stdio::inherit).context("cannot start a helper")?;
        let pipes = match &mut running {
            Running::InLab(process) => (process.take_stdin(), process.take_stdout()),
            Running::Here(child) => (child.stdin.take(), child.stdout.take()),
        };
        let (Some(stdin), Some(stdout)) = pipes else { bail!("a helper has no pipes") };
        Ok(Helper { stdin, stdout: BufReader::new(stdout), program: Program { running } })
    }

    fn spawn(
        self,
        stdin: fn() -> Stdio,
        stdout: fn() -> Stdio,
        stderr: impl Fn() -> Stdio,
    ) -> Result<Running> {
        let (cores, batch) = (self.cores, self.ground.batch);
        let prepare = move |command: &mut Command| {
            let settle = move || {
                place::pin(&cores)?;
                if batch { place::run_in_batches() } else { place::run_as_usual() }
            };
            // SAFETY: two system calls on what is on the stack; nothing is allocated between fork and exec.
            unsafe { command.pre_exec(settle) };
        };
        if let Some(host) = self.ground.host(self.end) {
            let mut command: LabCommand = host.command(&self.program);
            if let Some(folder) = &self.folder {
                command.as_std_mut().current_dir(folder);
            }
            command.args(&self.arguments).stdin(stdin()).stdout(stdout()).stderr(stderr());
            prepare(command.as_std_mut());
            return Ok(Running::InLab(command.spawn()?));
        }
        let mut command = Command::new(&self.program);
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        command.args(&self.arguments).stdin(stdin()).stdout(stdout()).stderr(stderr());
        prepare(&mut command);
        // SAFETY: one system call without memory: the helper goes when this process does.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            })
        };
        Ok(Running::Here(command.spawn()?))
    }
}
