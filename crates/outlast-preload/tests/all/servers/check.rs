//! What is looked at for one line of the table.

use super::row::{Kept, Row, Talk};
use super::running::Running;
use super::talk::{Client, Fate};
use crate::common::{PATIENCE, children, eventually, eventually_or, family, kill};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Idle connections while a process is killed.
pub const IDLE: usize = 20;
/// Whoever comes while a master is killed may be with a worker that ends with it, also without us.
const SOON: Duration = Duration::from_secs(2);
/// A connection that takes so long is as bad as one that is refused.
const LATE: Duration = Duration::from_secs(8);
/// Between two clients.
const PACE: Duration = Duration::from_millis(4);
/// For one of two servers, before it is the other one's turn.
const SLICE: Duration = Duration::from_millis(100);

/// Which processes are killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    Master,
    Worker,
    All,
}

/// What was found out.
#[derive(Debug, Default)]
pub struct Line {
    pub processes: usize,
    pub exit: i32,
    /// For each kill: connections that were refused, and idle ones that go on.
    pub crashes: Vec<(Victim, u32, usize)>,
    /// For each pair of measurements: requests in a second without us, and with us.
    pub load: Vec<(f64, f64)>,
}

/// What has become of clients that came meanwhile.
#[derive(Debug, Default)]
struct Seen {
    refused: AtomicU32,
    answered: AtomicU32,
}

fn await_serving(row: &Row, server: &Running) {
    eventually("it does not serve", || {
        let mut client = Client::connect(row.talk, server.port, SOON).ok()?;
        (client.ask() == Fate::Answered).then_some(())
    });
}

/// Its processes, its exit code, and how many processes it leaves.
fn plain(row: &Row, is_supervised: bool) -> (Vec<String>, i32, usize) {
    let mut server = Running::start(row, is_supervised);
    await_serving(row, &server);
    let shape = server.settled();
    if is_supervised {
        check_warnings(row, &server);
    }
    let (code, left) = server.stop();
    (shape, code, left)
}

/// What cannot be kept is said, once; and nothing else.
fn check_warnings(row: &Row, server: &Running) {
    let (words, is_said) = match (row.warning, row.talk) {
        (Some(words), _) => (&[words][..], true),
        (None, Talk::Tls) => (&["connections with TLS are not kept"][..], true),
        (None, Talk::Bytes { .. }) => {
            (&["do not begin with a clear HTTP/1 request", "another program is executed"][..], !row.is_unsaid)
        }
        (None, Talk::Http(_) | Talk::HttpOnce(_)) => (&[][..], false),
    };
    let is_expected = |line: &&String| words.iter().any(|words| line.contains(words));
    let warnings = || {
        let log = server.log().into_iter();
        log.filter(|line| line.contains(" WARN ") && line.contains(row.name)).collect::<Vec<String>>()
    };
    if is_said {
        // Some have a process for each client, that is not known any more when it has ended.
        let mut client = Client::connect(row.talk, server.port, PATIENCE).unwrap();
        client.ask();
        eventually("it is not said what is not kept", || {
            warnings().iter().any(|line| is_expected(&line)).then_some(())
        });
    }
    let warnings = warnings();
    let expected = warnings.iter().filter(is_expected).count();
    let is_once = words.iter().all(|words| warnings.iter().filter(|line| line.contains(words)).count() <= 1);
    assert!(expected == warnings.len() && is_once, "something is warned of: {warnings:#?}");
}

/// The processes that are killed.
fn victims(row: &Row, server: &Running, victim: Victim) -> Vec<u32> {
    let main = server.main();
    match victim {
        Victim::Master => vec![main],
        Victim::All => [vec![main], family(main)].concat(),
        Victim::Worker => {
            let named = row.worker.unwrap_or_default();
            let is_one = |pid: &u32| {
                let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                name.starts_with(named)
            };
            // The last one: some have helpers that begin before.
            vec![eventually("it has no worker", || family(main).into_iter().rev().find(is_one))]
        }
    }
}

/// Kills some of its processes while clients come: how many were refused, and how many idle ones go on.
fn crash(row: &Row, victim: Victim) -> (Victim, u32, usize) {
    let server = Running::start(row, true);
    await_serving(row, &server);
    let mut shape = server.settled();
    let mut idle: Vec<Client> = Vec::new();
    if !matches!(row.kept, Kept::NoneIdle(_)) {
        idle.extend((0..IDLE).map(|_| Client::connect(row.talk, server.port, PATIENCE).unwrap()));
        assert!(idle.iter_mut().all(|client| client.ask() == Fate::Answered), "not answered");
    }
    if matches!(row.kept, Kept::All) {
        let ports: Vec<u16> = idle.iter().map(Client::port).collect();
        eventually("the supervisor has no copies of idle connections", || server.holds(&ports).then_some(()));
    }
    let (seen, is_over) = (Seen::default(), AtomicBool::new(false));
    let kept = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                come(row, server.port, &seen);
            }
        });
        // Whatever fails, whoever comes must not come for ever.
        let _over = Over(&is_over);
        let more = |count: u32| {
            let before = seen.answered.load(Ordering::SeqCst);
            eventually("nobody is answered", || {
                (seen.answered.load(Ordering::SeqCst) > before + count).then_some(())
            });
        };
        more(2);
        let before = family(server.pid());
        let killed = victims(row, &server, victim);
        if victim == Victim::Worker && !row.replaces_workers {
            let place = server.place(killed[0]);
            let index = shape.iter().position(|one| *one == place);
            shape.remove(index.unwrap());
        }
        killed.iter().for_each(|&pid| kill(pid, libc::SIGKILL));
        if victim != Victim::Worker {
            let is_new = |pid: &u32| !before.contains(pid);
            eventually("it is not started again", || children(server.pid()).iter().any(is_new).then_some(()));
        } else if row.warning.is_none() {
            let pid = format!("process {} ", killed[0]);
            eventually("a worker's crash is not told", || {
                server.log().iter().any(|line| line.contains(&pid)).then_some(())
            });
        }
        more(5);
        let kept = idle.iter_mut().filter_map(|client| {
            let fate = client.ask();
            assert_ne!(
                fate,
                Fate::Silent,
                "an idle connection is neither answered nor ended: {:#?}",
                server.log()
            );
            (fate == Fate::Answered).then_some(())
        });
        kept.count()
    });
    if kept < IDLE && matches!(row.kept, Kept::All) {
        eprintln!("{}: {kept} of {IDLE} go on after {victim:?} was killed: {:#?}", row.name, server.log());
    }
    drop(idle);
    let is_restored = || (server.shape() == shape).then_some(());
    eventually_or(is_restored, || {
        let now = server.shape();
        let log = server.log();
        format!(
            "its processes after {victim:?} was killed are not as before: {now:?}, not {shape:?}: {log:#?}"
        )
    });
    // One kill is one crash, and whoever comes from now on is answered: none waits for a process that is gone.
    if victim != Victim::Worker {
        let starts = server.log().iter().filter(|line| line.contains("it is started again")).count();
        // A second one may be needed, where it cannot listen yet.
        assert!((1..=2).contains(&starts), "{victim:?} was killed once: {:#?}", server.log());
    }
    for _ in 0..5 {
        let mut client = Client::connect(row.talk, server.port, PATIENCE).unwrap();
        let fate = client.ask();
        assert_eq!(fate, Fate::Answered, "after {victim:?} was killed and replaced: {:#?}", server.log());
    }
    (victim, seen.refused.load(Ordering::SeqCst), kept)
}

/// Ends what goes on until this goes.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// One client.
fn come(row: &Row, port: u16, seen: &Seen) {
    match Client::connect(row.talk, port, LATE) {
        Ok(mut client) => {
            client.be_patient(SOON);
            let answered = client.ask() == Fate::Answered;
            seen.answered.fetch_add(u32::from(answered), Ordering::SeqCst);
        }
        Err(error) => {
            use std::io::ErrorKind::{ConnectionRefused, TimedOut, WouldBlock};
            let refused = matches!(error.kind(), ConnectionRefused | TimedOut | WouldBlock);
            seen.refused.fetch_add(u32::from(refused), Ordering::SeqCst);
        }
    }
    std::thread::sleep(PACE);
}

/// Requests in a second.
fn load(row: &Row, server: &Running) -> f64 {
    let (began, mut count) = (Instant::now(), 0u32);
    let mut client = None;
    while began.elapsed() < SLICE {
        let mut current = match client.take() {
            Some(client) => client,
            None => Client::connect(row.talk, server.port, PATIENCE).unwrap(),
        };
        let answered = current.ask() == Fate::Answered;
        count += u32::from(answered);
        // Some end a connection after so many requests.
        let goes_on = answered
            && match row.talk {
                Talk::Http(_) => true,
                Talk::Bytes { then: (say, _), .. } => !say.is_empty(),
                Talk::HttpOnce(_) | Talk::Tls => false,
            };
        client = goes_on.then_some(current);
    }
    f64::from(count) / began.elapsed().as_secs_f64()
}

/// One line of the table.
pub fn check(row: &Row, repetitions: usize) -> Line {
    let (alone, below) = (plain(row, false), plain(row, true));
    assert_eq!(alone, below, "processes, exit code and what is left, without and with us");
    let mut line = Line { processes: below.0.len(), exit: below.1, ..Line::default() };
    let victims = [Some(Victim::Master), row.worker.map(|_| Victim::Worker), Some(Victim::All)];
    // One process is all of them.
    let victims = victims.into_iter().flatten().filter(|&victim| victim != Victim::All || below.0.len() > 1);
    for victim in victims {
        let (_, refused, kept) = crash(row, victim);
        line.crashes.push((victim, refused, kept));
        assert!(refused == 0 || row.refuses, "{victim:?} is killed: {refused} clients are refused");
        let expected = match row.kept {
            Kept::All => IDLE,
            Kept::None(_) if victim == Victim::Master && row.has_sessions => IDLE,
            // Those of other workers go on, and workers of a killed master finish what is under way.
            Kept::None(_) if victim != Victim::All && below.0.len() > 1 => kept,
            Kept::None(_) | Kept::NoneIdle(_) => 0,
        };
        assert_eq!(kept, expected, "{victim:?} is killed: idle connections of {IDLE} that go on");
    }
    if repetitions > 0 {
        let (alone, below) = (Running::start(row, false), Running::start(row, true));
        [&alone, &below].into_iter().for_each(|server| await_serving(row, server));
        let pair = |number: usize| {
            // Each is first as often as the other.
            if number.is_multiple_of(2) {
                let first = load(row, &alone);
                (first, load(row, &below))
            } else {
                let first = load(row, &below);
                (load(row, &alone), first)
            }
        };
        line.load = (0..repetitions).map(pair).collect();
    }
    line
}
