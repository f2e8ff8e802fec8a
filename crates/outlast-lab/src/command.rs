//! Programs that run in a host, and the guards that end them.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};

use crate::error::{Context, Result};
use crate::host::Host;
use crate::netns::c_path;
use crate::sys::{self, ChildSetup};

/// A program to be run in a host: like [`std::process::Command`], with the host's network and names.
///
/// Started programs lead a process group of their own, and are killed when this process ends, however it ends.
#[derive(Debug)]
pub struct LabCommand {
    host: Host,
    command: Command,
    prepared: bool,
    own_group: bool,
}

impl LabCommand {
    pub(crate) fn new(host: Host, program: &OsStr) -> Self {
        Self { host, command: Command::new(program), prepared: false, own_group: true }
    }

    /// Adds an argument.
    pub fn arg(&mut self, arg: impl AsRef<OsStr>) -> &mut Self {
        self.command.arg(arg);
        self
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(&mut self, args: impl IntoIterator<Item = A>) -> &mut Self {
        self.command.args(args);
        self
    }

    /// Sets an environment variable.
    pub fn env(&mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Self {
        self.command.env(key, value);
        self
    }

    /// Removes an environment variable.
    pub fn env_remove(&mut self, key: impl AsRef<OsStr>) -> &mut Self {
        self.command.env_remove(key);
        self
    }

    /// Sets the working directory.
    pub fn current_dir(&mut self, dir: impl AsRef<Path>) -> &mut Self {
        self.command.current_dir(dir);
        self
    }

    /// Sets the standard input.
    pub fn stdin(&mut self, stdin: impl Into<Stdio>) -> &mut Self {
        self.command.stdin(stdin);
        self
    }

    /// Sets the standard output.
    pub fn stdout(&mut self, stdout: impl Into<Stdio>) -> &mut Self {
        self.command.stdout(stdout);
        self
    }

    /// Sets the standard error output.
    pub fn stderr(&mut self, stderr: impl Into<Stdio>) -> &mut Self {
        self.command.stderr(stderr);
        self
    }

    /// Leaves the program in this process's group, so that it can read from the terminal. Only the program
    /// itself is then ended by its guard, not its descendants (they go with the lab).
    pub fn in_foreground(&mut self) -> &mut Self {
        self.own_group = false;
        self
    }

    /// The command underneath, for what is not offered here. Start it through this type, not through that.
    pub fn as_std_mut(&mut self) -> &mut Command {
        &mut self.command
    }

    /// Starts the program. The guard kills it when dropped.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn(&mut self) -> Result<Process> {
        let started = self.start();
        let child = started.context(|| {
            let program = self.command.get_program().to_string_lossy();
            format!("cannot start `{program}` in host {}", self.host.name())
        })?;
        let inner = Arc::new(ProcessInner {
            pid: child.id(),
            group: self.own_group,
            child: Mutex::new(Some(child)),
            status: OnceLock::new(),
        });
        self.host.lab().register_process(Arc::downgrade(&inner));
        Ok(Process { inner })
    }

    fn start(&mut self) -> io::Result<Child> {
        if !self.prepared {
            let namespace = self.host.netns().duplicate()?;
            let hosts_file = c_path(&self.host.hosts_file())?;
            if self.own_group {
                std::os::unix::process::CommandExt::process_group(&mut self.command, 0);
            }
            sys::prepare_child(&mut self.command, ChildSetup { namespace, hosts_file });
            self.prepared = true;
        }
        let command = std::mem::replace(&mut self.command, Command::new(""));
        let (command, result) = spawn_on_lasting_thread(command);
        self.command = command;
        result
    }

    /// Runs the program to its end and returns what it wrote.
    ///
    /// # Errors
    /// When it cannot be started or waited for.
    pub fn output(&mut self) -> Result<Output> {
        self.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let process = self.spawn()?;
        let (out, err) = (process.take_stdout(), process.take_stderr());
        let read = std::thread::scope(|scope| {
            let stdout = scope.spawn(|| read_all(out));
            let stderr = read_all(err);
            let stdout =
                stdout.join().unwrap_or_else(|_| Err(io::Error::other("the reading thread panicked")));
            Ok((stdout?, stderr?))
        });
        let (stdout, stderr) = read.context(|| "cannot read what a program writes".to_owned())?;
        Ok(Output { status: process.wait()?, stdout, stderr })
    }

    /// Runs the program to its end.
    ///
    /// # Errors
    /// When it cannot be started or waited for.
    pub fn status(&mut self) -> Result<ExitStatus> {
        self.spawn()?.wait()
    }
}

fn read_all(pipe: Option<impl Read>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    pipe.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut bytes))?;
    Ok(bytes)
}

type Job = (Command, mpsc::Sender<(Command, io::Result<Child>)>);

/// The kernel kills our children when the *thread* that started them ends, so a thread that never ends does it.
fn spawn_on_lasting_thread(command: Command) -> (Command, io::Result<Child>) {
    static SPAWNER: OnceLock<mpsc::Sender<Job>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, jobs) = mpsc::channel::<Job>();
        let serve = move || {
            for (mut command, reply) in jobs {
                let result = command.spawn();
                let _ = reply.send((command, result));
            }
        };
        // When the thread cannot start, the channel closes and spawning reports it.
        let _ = std::thread::Builder::new().name("outlast-spawner".to_owned()).spawn(serve);
        sender
    });
    let gone = || io::Error::other("the thread that starts programs could not be started");
    let (reply, result) = mpsc::channel();
    if let Err(mpsc::SendError((command, _))) = spawner.send((command, reply)) {
        return (command, Err(gone()));
    }
    result.recv().unwrap_or_else(|_| (Command::new(""), Err(gone())))
}

pub(crate) struct ProcessInner {
    pid: u32,
    group: bool,
    /// Taken when it has been reaped: from then on the number may belong to somebody else.
    child: Mutex<Option<Child>>,
    /// How it ended, once it has been reaped.
    status: OnceLock<ExitStatus>,
}

impl ProcessInner {
    fn lock(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn signal(&self, signal: i32) -> io::Result<()> {
        let child = self.lock(); // held, so that nobody reaps it meanwhile and frees its number
        if child.is_none() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        self.signal_unreaped(signal)
    }

    fn signal_unreaped(&self, signal: i32) -> io::Result<()> {
        let pid = i32::try_from(self.pid).map_err(io::Error::other)?;
        sys::kill(if self.group { -pid } else { pid }, signal)
    }

    /// Kills the program with its group and reaps it.
    pub(crate) fn end(&self) {
        let mut child = self.lock();
        if let Some(mut unreaped) = child.take() {
            let _ = self.signal_unreaped(libc::SIGKILL);
            if let Ok(status) = unreaped.wait() {
                let _ = self.status.set(status);
            }
        }
    }

    /// How it ended, `None` while it runs. Waits for its end with `block`. Another thread may end and reap it meanwhile.
    fn status(&self, block: bool) -> io::Result<Option<ExitStatus>> {
        let seen = sys::wait_without_reaping(self.pid, block);
        let _reaped = self.lock(); // until a thread that reaps it has noted how it ended
        self.status.get().map_or(seen, |status| Ok(Some(*status)))
    }
}

impl Drop for ProcessInner {
    fn drop(&mut self) {
        self.end();
    }
}

/// A program that runs in a host. Dropping it kills the program with everything in its process group;
/// so does dropping the lab. Clones are handles to the same program, which ends with the last of them.
#[derive(Clone)]
pub struct Process {
    inner: Arc<ProcessInner>,
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Process({})", self.inner.pid)
    }
}

impl Process {
    fn lock(&self) -> MutexGuard<'_, Option<Child>> {
        self.inner.lock()
    }

    /// Its process number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.inner.pid
    }

    /// Sends a signal to the program's process group.
    ///
    /// # Errors
    /// When it has ended.
    pub fn signal(&self, signal: i32) -> Result<()> {
        self.inner.signal(signal).context(|| format!("cannot send signal {signal} to process {}", self.id()))
    }

    /// Kills the program with its process group, as `kill -9` does, and waits until it is gone.
    pub fn kill(&self) {
        self.inner.end();
    }

    /// Stops the program (SIGSTOP) and waits until every thread of it stands still.
    ///
    /// # Errors
    /// When it has ended.
    pub fn freeze(&self) -> Result<()> {
        self.signal(libc::SIGSTOP)?;
        crate::process::wait_until_stopped(self.id());
        Ok(())
    }

    /// Lets a frozen program go on (SIGCONT).
    ///
    /// # Errors
    /// When it has ended.
    pub fn thaw(&self) -> Result<()> {
        self.signal(libc::SIGCONT)
    }

    /// Waits until the program ends, by itself or by [`Self::kill`]. Its descendants live on until the guard is dropped.
    ///
    /// # Errors
    /// When it has been waited for by other means.
    pub fn wait(&self) -> Result<ExitStatus> {
        let ended = self.inner.status(true);
        let ended = ended.and_then(|status| status.ok_or_else(|| io::Error::from_raw_os_error(libc::ECHILD)));
        ended.context(|| format!("cannot wait for process {}", self.id()))
    }

    /// How the program ended, if it has.
    ///
    /// # Errors
    /// When it has been waited for by other means.
    pub fn try_wait(&self) -> Result<Option<ExitStatus>> {
        self.inner.status(false).context(|| format!("cannot wait for process {}", self.id()))
    }

    /// Its standard input, if it was piped and not taken before.
    pub fn take_stdin(&self) -> Option<ChildStdin> {
        self.lock().as_mut()?.stdin.take()
    }

    /// Its standard output, if it was piped and not taken before.
    pub fn take_stdout(&self) -> Option<ChildStdout> {
        self.lock().as_mut()?.stdout.take()
    }

    /// Its standard error output, if it was piped and not taken before.
    pub fn take_stderr(&self) -> Option<ChildStderr> {
        self.lock().as_mut()?.stderr.take()
    }
}
