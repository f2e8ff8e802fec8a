//! A process that is stopped at each of its system calls, or instructions, to be killed there (ptrace(2)).

use std::collections::BTreeSet;
use std::io;

type Pid = libc::pid_t;

/// All threads of a process. To be used by the thread that has made it, and no other: that is whom the kernel tells.
pub struct Tracer {
    pid: Pid,
    threads: BTreeSet<Pid>,
    /// Those that stand still, or are about to, until [`Tracer::resume`].
    stopped: BTreeSet<Pid>,
    /// By which signal it has ended, if it has ended by one.
    pub ended_by: Option<i32>,
}

/// What it has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// So far as it was to run. It stands still.
    Stop,
    /// Whoever watches has had enough.
    Over,
    /// It has ended, and its parent has been told so.
    End,
}

/// How far a stop is from the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The beginning or the end of a system call.
    SystemCall,
    Instruction,
    /// None, until it ends.
    Free,
}

/// Whoever reaches no stop meanwhile, some 20 ms, waits within a system call.
const LOOKS_UNTIL_IT_WAITS: u32 = 400;

const OPTIONS: i32 = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;

fn ptrace(request: libc::c_uint, thread: Pid, data: i32) -> io::Result<()> {
    let data = std::ptr::without_provenance_mut::<libc::c_void>(usize::try_from(data).unwrap());
    // SAFETY: none of the requests used here reads or writes memory of this process.
    let result = unsafe { libc::ptrace(request, thread, std::ptr::null_mut::<libc::c_void>(), data) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl Tracer {
    /// From here on. It stands still until it is told to run. None if it has ended.
    pub fn of(pid: u32) -> Option<Self> {
        let pid = Pid::try_from(pid).unwrap();
        let mut tracer = Self { pid, threads: BTreeSet::new(), stopped: BTreeSet::new(), ended_by: None };
        loop {
            let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
            let tasks = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok());
            // Those that are started by others that are watched are watched, too.
            let new: Vec<Pid> = tasks.filter(|thread| !tracer.threads.contains(thread)).collect();
            if new.is_empty() {
                return Some(tracer);
            }
            for thread in new {
                let seized = ptrace(libc::PTRACE_SEIZE, thread, OPTIONS)
                    .and_then(|_| ptrace(libc::PTRACE_INTERRUPT, thread, 0));
                match seized {
                    Ok(_) => {
                        tracer.threads.insert(thread);
                    }
                    // It has ended meanwhile, and is listed no more.
                    Err(_) if thread != pid => {}
                    Err(_) => return None,
                }
            }
        }
    }

    /// Runs it for so many stops of any of its threads (of the first thread only, where these are instructions).
    pub fn run(&mut self, step: Step, stops: u64, mut over: impl FnMut() -> bool) -> Reached {
        self.resume(step, 0);
        let mut seen = 0;
        let mut idle = 0;
        loop {
            let Some((thread, status)) = wait(libc::WNOHANG) else {
                idle += 1;
                // From one instruction to the next one it is always on its way, but in a system call that waits.
                let may_be_over = step != Step::Instruction || idle > LOOKS_UNTIL_IT_WAITS;
                if may_be_over && over() {
                    return Reached::Over;
                }
                if idle > 20 {
                    std::thread::sleep(std::time::Duration::from_micros(50));
                }
                continue;
            };
            idle = 0;
            if !libc::WIFSTOPPED(status) {
                self.threads.remove(&thread);
                if thread == self.pid {
                    self.ended_by = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
                    return Reached::End;
                }
                continue;
            }
            self.threads.insert(thread);
            let signal = libc::WSTOPSIG(status);
            let has_event = status >> 16 != 0;
            let is_syscall = signal == libc::SIGTRAP | 0x80;
            let is_step =
                step == Step::Instruction && thread == self.pid && signal == libc::SIGTRAP && !has_event;
            if (step == Step::SystemCall && is_syscall) || is_step {
                seen += 1;
                if seen >= stops {
                    self.stopped.insert(thread);
                    return Reached::Stop;
                }
            }
            let passed_on = if has_event || is_syscall || signal == libc::SIGTRAP { 0 } else { signal };
            self.go(thread, step, passed_on);
        }
    }

    /// Runs it until it stands at a beginning or an end of a system call where `is_there` holds.
    pub fn run_to(&mut self, mut is_there: impl FnMut() -> bool) -> Reached {
        loop {
            let mut looks = 0;
            // What it does can be seen before it stands still behind that.
            let waits = || {
                looks += 1;
                looks > LOOKS_UNTIL_IT_WAITS && is_there()
            };
            match self.run(Step::SystemCall, 1, waits) {
                Reached::Stop if !is_there() => {}
                reached => return reached,
            }
        }
    }

    fn resume(&mut self, step: Step, signal: i32) {
        for thread in std::mem::take(&mut self.stopped) {
            self.go(thread, step, signal);
        }
    }

    fn go(&self, thread: Pid, step: Step, signal: i32) {
        let request = match step {
            Step::SystemCall => libc::PTRACE_SYSCALL,
            Step::Instruction if thread == self.pid => libc::PTRACE_SINGLESTEP,
            Step::Instruction | Step::Free => libc::PTRACE_CONT,
        };
        // It may have been killed meanwhile.
        let _ = ptrace(request, thread, signal);
    }

    /// Kills it, and waits until its parent can bury it.
    pub fn kill(mut self) {
        // SAFETY: takes integers.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        while self.run(Step::Free, u64::MAX, || false) != Reached::End {}
    }

    /// Lets it go on by itself, if it stands still; otherwise it dies.
    pub fn release(mut self) {
        if self.stopped.len() < self.threads.len() {
            return self.kill();
        }
        for thread in std::mem::take(&mut self.stopped) {
            // It may have been killed meanwhile.
            let _ = ptrace(libc::PTRACE_DETACH, thread, 0);
        }
    }

    /// The threads that stand still, or are about to.
    pub fn standing(&self) -> Vec<i32> {
        self.stopped.iter().copied().collect()
    }

    /// Whether one of these has ended, and the process has not.
    pub fn has_lost(&self, threads: &[i32]) -> bool {
        threads.iter().any(|thread| !self.threads.contains(thread))
    }

    /// Has the kernel send this signal to the thread that stands still, as for a fault, and runs it until it has died of it.
    pub fn fault(&mut self, signal: i32, over: impl FnMut() -> bool) -> Reached {
        self.resume(Step::Free, signal);
        self.run(Step::Free, u64::MAX, over)
    }
}

/// A thread that is traced by the calling one, and what has happened to it.
fn wait(flags: i32) -> Option<(Pid, i32)> {
    let mut status = 0;
    // SAFETY: fills a local.
    let thread = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD | flags) };
    (thread > 0).then_some((thread, status))
}
