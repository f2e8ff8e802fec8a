//! What happens to a program that is kept running, in the log.

use super::manager::Manager;
use super::{Plan, names, state, why_not};
use crate::narrate::seconds;
use outlast_restart::board::{Backend, Board, Past, Sign, UpgradeEnd, WhyNot};
use outlast_restart::policy::Inheritance;
use outlast_restart::supervisor::{Event, NotKept, Readiness, Untold};
use std::time::Duration;

/// Of a refused request, so much is in the log.
const REQUEST_SHOWN_BYTES: usize = 80;

/// Tells people, and the service manager what is worth a line there. `old` is how an old program is that an upgrade was to
/// take the place of, if it does not serve.
pub fn log(plan: &Plan, board: &Board, manager: Manager, old: Option<&str>, event: Event) {
    let name = &plan.name;
    match event {
        Event::Started { pid, run } => {
            tracing::info!(pid, run, "{name} is started");
            manager.status(&format!("{name} is started (process {pid})"));
        }
        // That it is started says it all.
        Event::Ready if plan.settings.readiness == Readiness::Started => {}
        Event::Ready => {
            tracing::info!("{name} is ready");
            manager.status(&format!("{name} serves"));
        }
        Event::Crashed { death, pause, restarts } => {
            let when = if pause.is_zero() { String::new() } else { format!(" in {}", seconds(pause)) };
            let (intensity, window) = intensity(plan);
            let lost = lost(board.backend());
            let line = format!(
                "{name} has {death}: it is started again{when} (restart {restarts} of {intensity} within {window}){lost}"
            );
            // Only --restart always starts it again then: it is no crash.
            if plan.settings.success.contains(&death) {
                tracing::info!("{line}");
            } else {
                tracing::warn!("{line}");
            }
            manager.status(&line);
        }
        Event::CannotStart { code, pause } => {
            let (_, why) = why_not(plan, code);
            tracing::warn!("{why}: it is tried again in {}", seconds(pause));
        }
        Event::Succeeded { death, pid } => {
            tracing::warn!("{name} has {death}: its successor goes on (process {pid})");
        }
        Event::InBackground { pid } => {
            tracing::info!("{name} has gone into the background: process {pid} is kept running from here on");
        }
        Event::Vanished => {
            tracing::warn!(
                "{name} went into the background before, and now nobody of it is there: that counts as a crash"
            );
        }
        Event::PartEnded { pid, death, kept, closed } => {
            let how = death.map_or_else(|| "has ended".to_owned(), |death| format!("has {death}"));
            match kept + closed {
                0 => tracing::warn!("{name}: process {pid} {how}"),
                _ => tracing::warn!(
                    "{name}: process {pid} {how}; of its connections {kept} idle ones are held open, {closed} closed"
                ),
            }
        }
        Event::PartFinished { pid, kept, closed } => tracing::warn!(
            "{name}: process {pid}, left of the crashed one, is ended; of its connections {kept} idle ones are held open, {closed} \
             closed"
        ),
        Event::Finishing { pid, count, limit } => tracing::info!(
            "{name}: {} of the crashed one may finish what clients wait for, {} at most; the next one is started meanwhile",
            state::commands_of(pid, count),
            seconds(limit)
        ),
        Event::Awaits { pid, count } => {
            tracing::warn!(
                "{name} is started when that has ended: it uses the library, and serves on. This supervisor ends it when it is \
                 told to end itself ({})",
                state::commands_of(pid, count)
            );
            manager.status(&format!("waits for the end of an earlier {name}, which serves (process {pid})"));
        }
        Event::LeftAlone { pid, count } => tracing::info!(
            "{name}: left of the crashed one, and not ended as clients are with it: {}",
            state::commands_of(pid, count)
        ),
        Event::LetGo { sockets, waits: false } => tracing::warn!(
            "{name} seems not to start while its port is in use: its listening sockets ({sockets}), which were kept open, are closed \
             now (with --preload never, none are kept). New clients are refused until it listens"
        ),
        Event::LetGo { sockets, waits: true } => tracing::warn!(
            "{name} runs and does not listen. It may wait until nobody listens at its port: its listening sockets ({sockets}), which \
             were kept open, are closed now (with --preload never, none are kept). New clients are refused until it listens"
        ),
        Event::LeftToOthers { sockets } => tracing::info!(
            "{name}: another program listens at the same port (SO_REUSEPORT). It gets all new clients until {name} listens again: the \
             listening sockets ({sockets}) of the one that crashed are closed"
        ),
        Event::NotKept { kind } => tracing::warn!("{name}: {}", not_kept(kind)),
        Event::HoldsNothing { pid, why: why @ Untold::Hidden } => tracing::warn!(
            "{name} is started again when it crashes, but its listening sockets and connections, if it has some, are closed then: \
             {} {}",
            state::commands_of(pid, 1),
            untold(why)
        ),
        Event::HoldsNothing { pid, why } => tracing::warn!(
            "{name} is started again when it crashes, but its listening sockets and connections are closed then: {}, which \
             listens, {}",
            state::commands_of(pid, 1),
            untold(why)
        ),
        Event::HoldsNoConnections { pid, why } => tracing::warn!(
            "the listening sockets of {name} are kept over a crash, but its connections are closed: {}, which may serve some, {}",
            state::commands_of(pid, 1),
            untold(why)
        ),
        Event::KeepsFewer { limit } => tracing::warn!(
            "{name} has more idle connections than can be kept over a crash with the descriptors that this process may \
             have: the oldest are not kept{} (ulimit -Hn, in a unit LimitNOFILE)",
            if limit == 0 { String::new() } else { format!(", about {limit} are") }
        ),
        Event::ListensElsewhere { closed } => tracing::warn!(
            "{name} was started again and does not listen any more where {closed} idle connections had come to: they are closed"
        ),
        Event::TookOver { pid, count, sockets: 0 } => tracing::warn!(
            "an earlier {name} still ran without its supervisor, and none of its listening sockets could be had: clients \
             may be refused for a moment; {} told to end",
            state::commands_of(pid, count)
        ),
        Event::TookOver { pid, count, sockets } => tracing::warn!(
            "{name} has got {sockets} listening sockets of an earlier one that still ran without its supervisor, so that \
             nobody is refused: {} told to end",
            state::commands_of(pid, count)
        ),
        Event::RolledBack { death, pid } => {
            tracing::warn!("the new binary of {name} has {death}: the old one keeps serving (process {pid})");
        }
        Event::Upgrade { wish } => match board.upgrade_end(wish) {
            Some(UpgradeEnd::Done) => tracing::info!("{name} is upgraded"),
            Some(UpgradeEnd::Failed { why: WhyNot::Unanswered, .. }) => {
                tracing::error!("nobody knows whether {name} is upgraded: {}", WhyNot::Unanswered);
            }
            Some(UpgradeEnd::Failed { why: WhyNot::OldKilled, .. }) => {
                let why = WhyNot::OldKilled;
                tracing::error!("{name} is not upgraded: {why}; its state and connections are lost");
            }
            Some(UpgradeEnd::Failed { why: WhyNot::Stopped, .. }) => {
                tracing::warn!("{name} is not upgraded: {}", WhyNot::Stopped);
            }
            Some(UpgradeEnd::Failed { why, untouched: false }) if old.is_some() => {
                let (why, old) = (crate::exit::clean(&why.to_string()), old.unwrap_or_default());
                tracing::warn!("{name} is not upgraded: {why}; {old}");
            }
            Some(UpgradeEnd::Failed { why, .. }) => {
                let why = crate::exit::clean(&why.to_string());
                tracing::warn!("{name} is not upgraded, and the old one keeps serving: {why}");
            }
            None => {}
        },
        Event::LeftBehind { pid } => {
            let what = state::command_of(pid);
            tracing::warn!(
                "{name} has ended and left process {pid} ({what}) in the background, which is not kept running: \
                 have it stay in the foreground"
            );
        }
        Event::Generation { number } => {
            let past = board.generations();
            let this = past.iter().find(|past| past.number == number);
            let pause = this.map_or(Duration::ZERO, |past| past.pause);
            if board.backend() == Backend::Roles {
                // One process of several, whose generations are told apart below.
                return log_role(name, this);
            }
            let last = past.iter().rev().find(|past| past.number + 1 == number && past.ended_ms.is_some());
            match last {
                // Without a pause it was started again, which was said, or it is not known.
                Some(last) if !pause.is_zero() => {
                    let cause = state::cause(last.cause);
                    let seen = match this.map(|this| this.sign) {
                        Some(Sign::Listens) => ": it has listened again since",
                        _ => ",",
                    };
                    tracing::warn!(
                        "{name}: generation {number} serves{seen} {pause:.1?} after the last one's end ({cause})"
                    );
                }
                _ => tracing::info!("{name}: generation {number} serves"),
            }
        }
        Event::ListensAgain { number, pause } => tracing::warn!(
            "{name}: generation {number} listens at all of its addresses again, {pause:.1?} after the last one's end"
        ),
        Event::Quarantined { number } => log_quarantined(name, board, number),
        Event::Inherits { inheritance } => log_inheritance(plan, board, inheritance),
        Event::Remaining { pid, count, number } => {
            tracing::warn!(
                "{name} has ended, but not {}: told to end ({})",
                state::commands_of(pid, count),
                names::signal_name(number)
            );
        }
        Event::RemainingKilled { pid, count, before_start } => {
            let why = if before_start { "in the way of the next start" } else { "--stop-timeout" };
            tracing::warn!("{} of {name}: not ended in time ({why}), killed", state::commands_of(pid, count));
        }
        Event::Stopping { number, .. } => {
            tracing::info!("{name} is told to end ({})", names::signal_name(number));
        }
        Event::Killed => {
            tracing::warn!("{name} has not ended in time (--stop-timeout): it is killed, with all below it");
        }
        Event::NotReady => {
            let limit = seconds(plan.settings.start_timeout.unwrap_or_default());
            tracing::warn!("{name} is not ready after {limit} (--start-timeout): it is killed");
        }
        Event::Silent => {
            let limit = seconds(plan.settings.watchdog_timeout.unwrap_or_default());
            tracing::warn!("{name} has sent no WATCHDOG=1 for {limit} (--watchdog): it hangs, and is killed");
        }
        _ => {}
    }
}

/// The program has ended, and is not started again: connections that were held open for its next process have none.
pub fn log_closed(name: &str, count: u32) {
    match count {
        0 => {}
        1 => tracing::warn!(
            "{name} has ended and is not started again: 1 idle connection that was held open is closed"
        ),
        _ => tracing::warn!(
            "{name} has ended and is not started again: {count} idle connections that were held open are closed"
        ),
    }
}

/// Why a process does not tell what it does.
fn untold(why: Untold) -> &'static str {
    match why {
        Untold::WithoutC => "does not use the C library for that, as Go programs",
        Untold::Secure => {
            "was executed with an effective user other than its real one, so that the system loads no library into it: a \
             server that is started as the user that it becomes is kept"
        }
        Untold::Capable => {
            "was executed with capabilities of its file (getcap), so that the system loads no library into it: a server that is \
             started with them (AmbientCapabilities= in a unit) is kept"
        }
        Untold::Hidden => {
            "was executed with rights that `outlast run` does not have (setuid, or file capabilities, see getcap(8)), so that the \
             system loads no library into it: a server whose rights `outlast run` has itself is kept (AmbientCapabilities= in a \
             unit)"
        }
        Untold::Forbids => {
            "has forbidden itself system calls (seccomp) before it listened, among them those by which its sockets are known: \
             a server that listens first is kept"
        }
        Untold::OtherNetwork => {
            "is in another network namespace than `outlast run`, which it does not reach from there: start `outlast run` \
             within that one (`ip netns exec NAME outlast run ...`)"
        }
        Untold::NotLoaded => {
            "was executed without the environment of the program, by which the library is loaded (LD_PRELOAD), or is \
             linked statically, with another C library than the GNU one, or with AddressSanitizer"
        }
    }
}

/// Whose clients have to connect again after a crash.
fn not_kept(kind: NotKept) -> &'static str {
    match kind {
        NotKept::Tls => {
            "connections with TLS are not kept over a crash, as their keys are in the process that dies: clients connect \
             again (the listening sockets are kept; behind a proxy that ends TLS, idle HTTP/1 connections are, too)"
        }
        NotKept::Http2 => {
            "connections with HTTP/2 are not kept over a crash: clients connect again (the listening sockets and idle \
             HTTP/1 connections are kept)"
        }
        NotKept::Other => {
            "connections that do not begin with a clear HTTP/1 request (databases, mail, others) are not kept over a crash: \
             clients connect again (the listening sockets are kept)"
        }
        NotKept::Switched => {
            "connections that go over from HTTP/1 to another protocol (WebSocket) are not kept over a crash: clients \
             connect again (the listening sockets and idle HTTP/1 connections are kept)"
        }
        NotKept::Executed => {
            "connections for each of which another program is executed (as sshd and inetd do) end with that program, and are not \
             kept if it crashes: clients connect again (the listening sockets are kept)"
        }
        NotKept::Sandbox => {
            "idle connections are not kept over a crash, as the program allows itself few system calls only (seccomp): \
             clients connect again (the listening sockets are kept)"
        }
    }
}

/// What a program is started again without that has lived on by itself until now.
fn lost(backend: Backend) -> &'static str {
    match backend {
        Backend::None => "",
        Backend::Exec => "; its listening sockets stay open",
        Backend::Library | Backend::Roles => "; its connections and state are lost",
    }
}

/// A request that nobody deals with any more: whose, and how it begins.
fn log_quarantined(name: &str, board: &Board, number: u32) {
    let (count, kept) = board.quarantined();
    let after = count.checked_sub(number).and_then(|after| usize::try_from(after).ok());
    let Some(request) = after.and_then(|after| kept.iter().rev().nth(after)) else { return };
    let shown = request.bytes.get(..REQUEST_SHOWN_BYTES).unwrap_or(&request.bytes).escape_ascii();
    let cut = if request.length as usize > REQUEST_SHOWN_BYTES { " ..." } else { "" };
    tracing::warn!(
        "{name}: a request from {} was in flight in too many crashes, and is refused ({} bytes): \"{shown}\"{cut}",
        crate::exit::clean(&request.peer),
        request.length,
    );
}

/// How many crashes are tolerated, and within which period.
pub fn intensity(plan: &Plan) -> (usize, String) {
    let policy = &plan.settings.policy;
    (policy.intensity, seconds(Duration::from_millis(policy.intensity_window_ms)))
}

/// How much the next generation of a crashing server takes over, and what happens past the next limit.
fn log_inheritance(plan: &Plan, board: &Board, inheritance: Inheritance) {
    let (name, (intensity, window)) = (&plan.name, intensity(plan));
    let so_often = format!("{name} crashes more than {intensity} times within {window}");
    let next = format!("after {intensity} more");
    match inheritance {
        Inheritance::Everything => {
            tracing::info!(
                "{name} has not crashed for long: its next generation takes over everything again"
            );
        }
        // That has no state to be suspected.
        Inheritance::WithoutSuspectState if board.backend() == Backend::Exec => {
            tracing::warn!("{so_often}: its connections are kept this time; {next} they are closed");
        }
        Inheritance::WithoutSuspectState => tracing::warn!(
            "{so_often}: dropping shared state that cannot be verified; {next} connections are closed"
        ),
        Inheritance::Listeners => tracing::warn!(
            "{so_often}, again: its connections are closed, and only its listening sockets are kept; {next} it ends, and is \
             restarted from scratch"
        ),
    }
}

/// A process of several has come to serve, or does so again.
fn log_role(name: &str, serving: Option<&Past>) {
    match serving {
        Some(Past { role, pid, pause, .. }) if !pause.is_zero() => {
            tracing::warn!(pid, "{name}: {role} has crashed, and serves again after {pause:.1?}");
        }
        Some(Past { role, pid, .. }) => tracing::info!(pid, "{name}: {role} serves"),
        None => {}
    }
}
