//! Carrying `outlast lab` out: programs, faults, signals, exit code.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::LabArgs;
use super::topology::{Topology, build};
use crate::command::Process;
use crate::fault::{Fault, Role};
use crate::plan::{Event, FaultPlan, Menu, Stop};
use crate::{Error, Host, Lab, Schedule, Service, Target, sys};

/// How long a program may take to end after it was told to.
const GRACE: Duration = Duration::from_secs(2);
/// How often the lab looks whether a signal has arrived while it waits for a service.
const SIGNAL_CHECK: Duration = Duration::from_secs(1);
/// Steps drawn at a time with `--random`.
const RANDOM_STEPS: usize = 1000;

/// What the user is told, with the time since the client was started. Errors of writing are ignored: nobody is
/// left to be told.
struct Diary {
    start: Instant,
    quiet: bool,
}

impl Diary {
    fn say(&self, what: impl std::fmt::Display) {
        if self.quiet {
            return;
        }
        // In one piece, or what the programs write to the same place gets into it.
        let line = format!("[{:9.3}s] {what}\n", self.start.elapsed().as_secs_f64());
        let _ = io::stderr().write_all(line.as_bytes());
    }
}

pub(super) fn run(args: &LabArgs, quiet: bool) -> anyhow::Result<i32> {
    let signals =
        sys::signal_file(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP]).context("cannot watch for signals")?;
    let lab = Lab::new("cli")?;
    let topology = build(&lab, args)?;
    let (relay, server) = match start_services(args, &topology, &signals)? {
        Started::Services { relay, server } => (relay, server),
        Started::Told(signal) => return Ok(128 + signal),
    };
    let mut target = topology.target.clone();
    for (role, service) in [(Role::Relay, &relay), (Role::Server, &server)] {
        if let Some(service) = service {
            target = target.with_service(role, service);
        }
    }
    check_faults(args, &target)?;
    let client = start_client(args, &topology)?;
    if let Some(client) = &client {
        target = target.with_process(Role::Client, client);
    }
    let diary = Diary { start: Instant::now(), quiet };
    diary.say(format_args!("{}: ready", topology.drawing));
    if client.is_none() {
        for host in [&topology.client, &topology.server] {
            diary.say(format_args!("in {}: ip netns exec {} COMMAND", host.name(), host.namespace()));
        }
        diary.say("Ctrl-C ends the lab");
    }
    let stop = Stop::new();
    let code = std::thread::scope(|scope| {
        for schedule in &args.faults {
            let (target, stop, diary) = (&target, &stop, &diary);
            scope.spawn(move || {
                let told = |phase| diary.say(format_args!("{phase}: {}", schedule.fault));
                if let Err(error) = schedule.run(target, stop, told) {
                    diary.say(format_args!("{} ends: {error}", schedule.fault));
                }
            });
        }
        if args.random {
            scope.spawn(|| random_faults(args.seed, &target, &stop, &diary));
        }
        let code = wait(&signals, client.as_ref(), &diary);
        stop.pull();
        code
    });
    drop(lab);
    code
}

/// Refuses faults that do not suit the hosts before the client has done anything.
fn check_faults(args: &LabArgs, target: &Target) -> anyhow::Result<()> {
    for Schedule { fault, .. } in &args.faults {
        let hits_client =
            matches!(fault, Fault::Freeze(Role::Client) | Fault::Kill(Role::Client) | Fault::Suspend);
        if !hits_client || args.command.is_empty() {
            fault.check(target).map_err(|error| match error {
                Error::TargetLacks { fault: name, needs, .. } => {
                    Error::Invalid(format!("`{name}` needs {needs}: {}", hint(*fault)))
                }
                other => other,
            })?;
        }
    }
    Ok(())
}

/// What option supplies the part that a fault needs.
fn hint(fault: Fault) -> &'static str {
    match fault {
        Fault::Roam => "add --two-paths",
        Fault::NatRebind | Fault::NatForget => "add --nat",
        Fault::Freeze(Role::Relay) | Fault::Kill(Role::Relay) => "add --relay COMMAND",
        Fault::Freeze(Role::Server) | Fault::Kill(Role::Server) => "add --server COMMAND",
        _ => "give the client a command after `--`",
    }
}

/// What has come of starting the services.
enum Started {
    Services {
        relay: Option<Service>,
        server: Option<Service>,
    },
    /// This signal told the lab to end meanwhile.
    Told(i32),
}

fn start_services(args: &LabArgs, topology: &Topology, signals: &File) -> anyhow::Result<Started> {
    let server = args.server.as_ref().map(|command| start_service(&topology.server, command)).transpose()?;
    if server.is_some() {
        let problem = match wait_for_service(&topology.server, args.server_wait, signals)? {
            Wait::Signal(signal) => return Ok(Started::Told(signal)),
            Wait::Ready => None,
            Wait::NotListening => Some("accepts no TCP connections"),
            Wait::NotAtRest => Some("has not come to rest"),
        };
        if let Some(problem) = problem {
            let wait = humantime::format_duration(args.server_wait);
            let warning = format!("the server {problem} after {wait}; going on\n");
            let _ = io::stderr().write_all(warning.as_bytes());
        }
    }
    let relay = match (&args.relay, &topology.relay) {
        (Some(command), Some(host)) => Some(start_service(host, command)?),
        _ => None,
    };
    if let Some(host) = topology.relay.as_ref().filter(|_| relay.is_some())
        && let Wait::Signal(signal) = wait_for_service(host, args.server_wait, signals)?
    {
        return Ok(Started::Told(signal));
    }
    Ok(Started::Services { relay, server })
}

/// What ended the wait for a service.
enum Wait {
    Ready,
    NotListening,
    NotAtRest,
    Signal(i32),
}

/// Waits until a service accepts connections, and until nothing that was started with it is still on its way there, or a
/// signal arrives.
fn wait_for_service(host: &Host, wait: Duration, signals: &File) -> anyhow::Result<Wait> {
    let deadline = Instant::now() + wait;
    let mut listens = false;
    loop {
        let slice = SIGNAL_CHECK.min(deadline.saturating_duration_since(Instant::now()));
        if !listens {
            listens = host.wait_for_listener(None, slice)?;
        } else if host.wait_until_at_rest(slice)? {
            return Ok(Wait::Ready);
        }
        if let Some(signal) = next_signal(signals) {
            return Ok(Wait::Signal(signal));
        }
        if Instant::now() >= deadline {
            return Ok(if listens { Wait::NotAtRest } else { Wait::NotListening });
        }
    }
}

/// What a service writes goes to standard error: standard output belongs to the client.
fn start_service(host: &Host, command: &str) -> anyhow::Result<Service> {
    let (host, command) = (host.clone(), command.to_owned());
    let service = Service::start(move || {
        let mut shell = host.command("sh");
        shell.args(["-c", &command]).stdin(Stdio::null());
        if let Ok(stderr) = io::stderr().as_fd().try_clone_to_owned() {
            shell.stdout(Stdio::from(stderr));
        }
        shell.spawn()
    })?;
    Ok(service)
}

fn start_client(args: &LabArgs, topology: &Topology) -> anyhow::Result<Option<Process>> {
    let Some((program, arguments)) = args.command.split_first() else { return Ok(None) };
    Ok(Some(topology.client.command(program).args(arguments).in_foreground().spawn()?))
}

/// Waits for the client to end or for a signal to end everything; returns the exit code.
fn wait(signals: &File, client: Option<&Process>, diary: &Diary) -> anyhow::Result<i32> {
    let ended =
        client.map(|client| sys::pidfd(client.id())).transpose().context("cannot watch the client")?;
    let mut told: Option<(i32, Instant)> = None;
    loop {
        let left = told.map_or(Duration::from_secs(3600), |(_, when)| GRACE.saturating_sub(when.elapsed()));
        let watched = ended.as_ref().map_or(signals.as_fd(), OwnedFd::as_fd);
        sys::poll_readable([signals.as_fd(), watched], left).context("cannot wait")?;
        if let Some(status) = client.map(Process::try_wait).transpose()?.flatten() {
            let code = exit_code(status);
            diary.say(format_args!("the client has ended with exit code {code}"));
            return Ok(told.map_or(code, |(signal, _)| 128 + signal));
        }
        if let Some(signal) = next_signal(signals) {
            let Some(client) = client.filter(|_| told.is_none()) else { return Ok(128 + signal) };
            let _ = client.thaw().and_then(|()| client.signal(signal));
            told = Some((signal, Instant::now()));
        }
        if let Some((signal, _)) = told.filter(|(_, when)| when.elapsed() >= GRACE) {
            return Ok(128 + signal);
        }
    }
}

/// The number of the signal that has arrived, if any.
fn next_signal(mut signals: &File) -> Option<i32> {
    const RECORD_LEN: usize = 128;
    let mut record = [0; RECORD_LEN];
    signals.read_exact(&mut record).ok()?;
    Some(i32::from_ne_bytes([record[0], record[1], record[2], record[3]]))
}

fn exit_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1)
}

fn random_faults(seed: u64, target: &Target, stop: &Stop, diary: &Diary) {
    let all = Fault::all().iter().filter_map(|(words, _)| words.parse::<Fault>().ok());
    let suits = |fault: &Fault| *fault != Fault::Kill(Role::Client) && fault.check(target).is_ok();
    let menu = Menu {
        faults: all.filter(suits).collect(),
        after: Duration::from_millis(200)..=Duration::from_secs(2),
        lasts: Duration::from_millis(50)..=Duration::from_secs(2),
    };
    diary.say(format_args!("random faults, seed {seed}"));
    let told = |event: Event<'_>| diary.say(event);
    for seed in seed.. {
        let done = FaultPlan::random(seed, RANDOM_STEPS, &menu).and_then(|plan| plan.run(target, stop, told));
        if let Err(error) = done {
            return diary.say(format_args!("random faults end: {error}"));
        }
        if stop.wait(Duration::ZERO) {
            return;
        }
    }
}
