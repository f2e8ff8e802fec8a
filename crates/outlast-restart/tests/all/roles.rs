//! Programs of several processes: whatever of them dies, what they say to each other and to clients comes once, byte by byte.
//! `OUTLAST_CRASHES=n` says how often, `OUTLAST_SEED=n` when.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]
#![allow(clippy::print_stdout, reason = "a test")]

use crate::common::family::{eventually, send};
use crate::common::program::Program;
use crate::common::{PATIENCE, Random, number};
use outlast_restart::board::{Backend, Board, Cause};
use outlast_restart::policy::Policy;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const CRASHES: u64 = 375;
const CLIENTS: u64 = 4;
/// A root, and for each of four processes a zygote, one that serves and one that stands by.
const PROCESSES: usize = 1 + 4 * 3;

fn client(address: SocketAddr, seed: u64, stop: &AtomicBool, heard: &AtomicU64) {
    let mut random = Random(seed);
    let mut stream = BufReader::new(TcpStream::connect(address).unwrap());
    stream.get_ref().set_read_timeout(Some(PATIENCE)).unwrap();
    while !stop.load(Ordering::Relaxed) {
        let length = usize::try_from(random.below(3000)).unwrap();
        let line: String =
            (0..length).map(|place| char::from(b'a' + u8::try_from(place % 26).unwrap())).collect();
        stream.get_mut().write_all(format!("{line}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_line(&mut answer).unwrap();
        let backwards: String = line.chars().rev().collect();
        assert!(answer.trim_end() == backwards, "seed {seed}: another answer than expected");
        heard.fetch_add(1, Ordering::Relaxed);
    }
}

/// While `work` goes on, and everything is right and goes further afterwards.
fn while_all_talk(program: &Program, seed: u64, work: impl FnOnce()) {
    let (stop, heard) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (stop, heard) = (&stop, &heard);
            scope.spawn(move || client(program.address, seed * 100 + number, stop, heard));
        }
        work();
        let before = heard.load(Ordering::Relaxed);
        eventually("clients are answered", || heard.load(Ordering::Relaxed) > before + 10 * CLIENTS);
        program.goes_on();
        stop.store(true, Ordering::Relaxed);
    });
    println!("{} lines heard, {} questions asked", heard.load(Ordering::Relaxed), program.questions());
}

#[test]
fn whatever_dies_every_message_comes_once() {
    let program = Program::start("roles", &["127.0.0.1:0"]);
    let (seed, crashes) = (number("OUTLAST_SEED", 1), number("OUTLAST_CRASHES", CRASHES));
    while_all_talk(&program, seed, || {
        let mut random = Random(seed);
        let mut killed = 0;
        while killed < crashes {
            // Both ends of a channel at once, now and then.
            let process = usize::try_from(random.below(4)).unwrap();
            let victims = if random.below(4) == 0 { vec![0, process.max(1)] } else { vec![process] };
            for victim in victims {
                if let Some(pid) = program.take_serving(victim) {
                    // Not SEGV: one that is sent only takes the handler of the standard library away.
                    send(
                        pid,
                        [libc::SIGKILL, libc::SIGABRT, libc::SIGILL]
                            [usize::try_from(random.below(3)).unwrap()],
                    );
                    killed += 1;
                }
            }
            std::thread::sleep(Duration::from_micros(500 + random.below(7000)));
        }
    });
    program.nothing_is_wrong();
    eventually("nobody is left of the dead", || program.group().len() == PROCESSES);
    println!("{crashes} crashes, seed {seed}");
}

#[test]
fn those_that_recover_together_begin_anew_together() {
    let program = Program::start("roles", &["127.0.0.1:0", "together"]);
    while_all_talk(&program, 2, || {
        for _ in 0..30 {
            let before = [0, 1, 2, 3].map(|process| program.serving(process));
            send(before[2], libc::SIGKILL);
            eventually("all workers begin again", || {
                (1..4).all(|process| program.serving(process) != before[process])
            });
            // Some crash by themselves, too.
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    program.nothing_is_wrong();
    let workers = program.generations(1);
    assert!(workers >= 30, "{workers}");
    assert!(program.generations(0) < workers, "the master does not belong to them");
}

#[test]
fn a_process_without_its_zygote_goes_on_and_is_started_anew_in_the_end() {
    let program = Program::start("roles", &["127.0.0.1:0"]);
    for process in [0, 2] {
        let zygote = program.zygote(process);
        let first = program.serving(process);
        send(zygote, libc::SIGKILL);
        eventually("the zygote is gone", || !program.group().contains(&zygote));
        program.goes_on();
        let second = program.dies(process, first);
        program.goes_on();
        assert!(program.said("which starts its generations, is gone"), "it is told");
        // Nobody stands by now.
        program.dies(process, second);
        assert!(program.said("and nothing is left of it: it is started again"), "it is told");
        program.goes_on();
        let third = program.serving(process);
        // It recovers as before.
        program.dies(process, third);
        program.goes_on();
    }
    program.nothing_is_wrong();
    eventually("nobody is left of the dead", || program.group().len() == PROCESSES);
}

/// The root learns of all of that at once, and each generation goes on as the process that it is: beside a second one, messages
/// would be split among the two.
#[test]
fn processes_that_lose_their_zygotes_at_once_go_on_and_are_not_started_beside_themselves() {
    let program = Program::start("roles", &["127.0.0.1:0"]);
    program.goes_on();
    let zygotes = [0, 1, 2, 3].map(|process| program.zygote(process));
    send(program.pid(), libc::SIGSTOP);
    for zygote in zygotes {
        send(zygote, libc::SIGKILL);
    }
    send(program.pid(), libc::SIGCONT);
    eventually("the zygotes are gone", || zygotes.iter().all(|zygote| !program.group().contains(zygote)));
    for _ in 0..3 {
        program.goes_on();
    }
    for process in [3, 1] {
        let first = program.serving(process);
        let second = program.dies(process, first);
        program.goes_on();
        // Nobody stands by now.
        program.dies(process, second);
        program.goes_on();
    }
}

/// The root cannot look into them, and they cannot send it signals.
#[test]
fn so_do_those_that_have_given_up_the_roots_privileges() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root can give up its privileges");
        return;
    }
    for manner in ["nobody", "nobody together"] {
        let arguments: Vec<&str> = ["127.0.0.1:0"].into_iter().chain(manner.split(' ')).collect();
        let program = Program::start_in_container("roles", &arguments);
        program.goes_on();
        for process in [2, 0] {
            // Also of those that have died before.
            eventually("nobody is left of the dead", || program.group().len() == PROCESSES);
            let zygote = program.zygote(process);
            send(zygote, libc::SIGKILL);
            eventually("the zygote is gone", || !program.group().contains(&zygote));
            for _ in 0..3 {
                program.goes_on();
            }
            assert!(program.group().len() < PROCESSES, "{manner}: it was started beside itself");
            let first = program.serving(process);
            let second = program.dies(process, first);
            program.goes_on();
            program.dies(process, second);
            program.goes_on();
        }
        let before = [1, 2, 3].map(|process| program.serving(process));
        send(before[0], libc::SIGKILL);
        let begin = if manner.contains("together") { 1..4 } else { 1..2 };
        eventually("one begins again, or all", || {
            begin.clone().all(|process| program.serving(process) != before[process - 1])
        });
        program.nothing_is_wrong();
        eventually("nobody is left of the dead", || program.group().len() == PROCESSES);
    }
}

#[test]
fn a_message_that_crashes_whoever_deals_with_it_can_be_answered_all_the_same() {
    let program = Program::start("roles", &["127.0.0.1:0", "poison"]);
    program.goes_on();
    program.goes_on();
    let generations = program.generations(0);
    assert!(generations > 3, "{generations}");
}

#[test]
fn without_the_root_all_end() {
    let mut program = Program::start("roles", &["127.0.0.1:0"]);
    program.goes_on();
    send(program.pid(), libc::SIGKILL);
    program.ended();
    eventually("nobody is left", || program.group().is_empty());
    assert!(program.said("the process that looks after master is gone: it ends"));
}

#[test]
fn without_the_root_all_end_also_whoever_has_lost_a_zygote_before() {
    let mut program = Program::start("roles", &["127.0.0.1:0"]);
    let (zygote, first) = (program.zygote(1), program.serving(1));
    send(zygote, libc::SIGKILL);
    eventually("the zygote is gone", || !program.group().contains(&zygote));
    program.dies(1, first);
    assert!(program.said("which starts its generations, is gone"), "it is told");
    send(program.pid(), libc::SIGKILL);
    program.ended();
    eventually("nobody is left", || program.group().is_empty());
}

#[test]
fn one_that_crashes_too_often_ends_all_loudly() {
    let mut program = Program::start("roles", &["127.0.0.1:0", "strict"]);
    let mut serving = program.serving(2);
    while let Some(next) = program.try_dies(2, serving) {
        serving = next;
    }
    assert_eq!(program.ended(), Some(128 + libc::SIGKILL));
    assert!(program.said("worker 1 has been killed by SIGKILL, and is not restarted"));
    assert!(program.said("worker 1 has ended with code 137: so does the program"));
    eventually("nobody is left", || program.group().is_empty());
}

#[test]
fn a_stop_signal_ends_all() {
    for (signal, code) in [(libc::SIGTERM, 143), (libc::SIGINT, 130)] {
        let mut program = Program::start("roles", &["127.0.0.1:0"]);
        program.goes_on();
        // Also where a zygote is gone.
        send(program.zygote(1), libc::SIGKILL);
        send(program.pid(), signal);
        assert_eq!(program.ended(), Some(code));
        eventually("nobody is left", || program.group().is_empty());
    }
}

#[test]
fn the_end_of_the_first_role_is_the_end() {
    let mut program = Program::start("roles", &["127.0.0.1:0"]);
    program.goes_on();
    program.tell("end\n");
    assert_eq!(program.ended(), Some(0));
    eventually("nobody is left", || program.group().is_empty());
}

#[test]
fn a_supervisor_sees_all_and_whose_they_are() {
    let (memory, board) =
        Board::create(&Policy { intensity: 20, intensity_window_ms: 20, ..Policy::default() }).unwrap();
    let program = Program::start_below(&memory, "roles", &["127.0.0.1:0"]);
    program.goes_on();
    for process in 0..4 {
        program.dies(process, program.serving(process));
    }
    assert_eq!(board.backend(), Backend::Roles);
    let names = ["master", "worker 0", "worker 1", "worker 2"];
    eventually("all deaths are on the board", || {
        let past = board.generations();
        let dead = past.iter().filter(|past| past.cause == Cause::Killed).map(|past| past.role.as_str());
        dead.collect::<BTreeSet<_>>() == BTreeSet::from(names)
    });
    let past = board.generations();
    let serve = past.iter().filter(|past| past.ended_ms.is_none()).map(|past| past.role.as_str());
    assert_eq!(serve.collect::<BTreeSet<_>>(), BTreeSet::from(names));
    let wish = board.want_upgrade("/bin/true".as_ref(), PATIENCE);
    send(program.pid(), outlast_restart::supervisor::upgrade_signal());
    eventually("it is refused", || board.upgrade_outcome(wish) == Some(false));
    assert!(program.said("a program with roles cannot be upgraded without a restart"));
    program.goes_on();
}
