//! Making links when nothing goes as it should.

use super::*;
use crate::engine::gap::{self, Gap};
use crate::engine::{Engine, Link};
use crate::error::Error;
use crate::proto::{
    Decoded, Hello, Intent, LastWord, Message, Refusal, SecurityKind, Welcome, decode, refuse,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::net::{TcpListener, TcpStream};
use std::sync::Weak;

#[test]
fn a_thread_that_cannot_be_started_is_tried_again() {
    within(|| {
        let mut pair = Pair::new(quick(LinkMode::Inband));
        for _ in 0..2 {
            gap::next_time(Gap::StartsThread, pair.client.engine(), || true);
        }
        pair.cut();
        pair.round_trip(1);
        assert_eq!(pair.client.info().outages, 1);
    });
}

/// Asked where it is, the thread that starts others needs a descriptor, too. No test runs beside this one in its process.
#[test]
fn without_descriptors_attempts_are_made_now_and_then() {
    within(|| {
        let mut pair = Pair::new(quick(LinkMode::Kernel));
        (&pair.server).write_all(b"x").unwrap();
        let limits = getrlimit(Resource::Nofile);
        // More than those that are open already are refused.
        setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..limits }).unwrap();
        pair.cut();
        std::thread::sleep(Duration::from_millis(100));
        let before = used();
        std::thread::sleep(Duration::from_millis(1000));
        let used = used() - before;
        setrlimit(Resource::Nofile, limits).unwrap();
        assert!(used < Duration::from_millis(300), "{used:?}");
        pair.client.read_exact(&mut [0]).unwrap();
        pair.round_trip(1);
    });
}

/// The processor time of this process.
fn used() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap()
}

#[test]
fn a_network_change_during_an_attempt_is_not_slept_over() {
    within(|| {
        let slow = Duration::from_secs(100_000);
        let mut pair = Pair::new(Config { backoff_base: slow, backoff_max: slow, ..quick(LinkMode::Inband) });
        let client = pair.client.engine().clone();
        // The second attempt would be followed by a long pause.
        gap::next_time(Gap::Attempts, &client.clone(), || true);
        gap::next_time(Gap::Attempts, &client.clone(), move || {
            client.interrupt_backoff();
            true
        });
        pair.cut();
        pair.round_trip(1);
    });
}

/// A timer of tokio's takes a millisecond at the least, even one that is due: a resume takes a tenth of that.
#[test]
fn a_task_that_has_nothing_to_wait_for_sets_no_timer() {
    let pair = Pair::new(quick(LinkMode::Inband));
    let engine = pair.client.engine();
    // Without timers: whoever sets one panics.
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(engine.outage().waited(engine, Duration::ZERO));
}

/// The same for tasks, and with a SYN under way that was lost: it is not waited for.
#[test]
fn a_task_does_not_sleep_over_a_network_change_either() {
    within(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let slow = Duration::from_secs(100_000);
            let config = Config { backoff_base: slow, backoff_max: slow, ..quick(LinkMode::Inband) };
            let server = Server::new();
            let client =
                crate::tokio::Session::connect_with(&server.targets(), &Arc::new(config)).await.unwrap();
            client.end_writing().unwrap();
            let mut first = tokio::task::spawn_blocking(move || (server.welcome(), server)).await.unwrap();
            client.established().await.unwrap();
            let engine = client.engine().clone();
            gap::next_time(Gap::Attempts, &engine.clone(), || true);
            gap::next_time(Gap::Attempts, &engine.clone(), move || {
                engine.interrupt_backoff();
                true
            });
            client.engine().lost(&client.engine().link().unwrap(), "cut");
            first.0 = tokio::task::spawn_blocking(move || first.1.welcome()).await.unwrap();
            client.kill();
        });
    });
}

/// A server that does as it is told.
struct Server(TcpListener);

impl Server {
    fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    fn targets(&self) -> Targets {
        Targets::from(self.0.local_addr().unwrap())
    }

    fn hello(&self) -> (TcpStream, Hello) {
        let (mut stream, _) = self.0.accept().unwrap();
        let mut input = vec![0; 512];
        let count = stream.read(&mut input).unwrap();
        match decode(&input[..count]) {
            Ok(Decoded::Message { message: Message::Hello(hello), .. }) => (stream, hello),
            other => panic!("{other:?}"),
        }
    }

    fn welcome(&self) -> TcpStream {
        let (mut stream, hello) = self.hello();
        stream.write_all(&Message::Welcome(Welcome::to_new(&hello)).to_bytes()).unwrap();
        stream
    }

    fn refuse(&self, refusal: Refusal) -> Hello {
        let (mut stream, hello) = self.hello();
        stream.write_all(&refuse(refusal)).unwrap();
        // The client closes when it has read that.
        let _ = stream.read_to_end(&mut Vec::new());
        hello
    }
}

const HOUR_MS: u64 = 3_600_000;

/// The session fails as its patience is over.
fn patience_ends(client: &mut Session) {
    let error = client.read(&mut [0]).unwrap_err();
    let error = error.get_ref().and_then(|error| error.downcast_ref::<Error>()).cloned();
    assert!(matches!(error, Some(Error::PatienceExhausted { .. })), "{error:?}");
}

#[test]
fn patience_ends_before_a_long_pause_that_a_server_asks_for() {
    within(|| {
        let server = Server::new();
        let patience = crate::config::Patience::For(Duration::from_millis(300));
        let config = Arc::new(Config { patience, ..quick(LinkMode::Inband) });
        let mut client = Session::connect_with(&server.targets(), &config).unwrap();
        client.write_all(b"x").unwrap();
        let first = server.welcome();
        client.established().unwrap();
        client.engine().lost(&client.engine().link().unwrap(), "cut");
        drop(first);
        let refusing = std::thread::spawn(move || {
            while server.refuse(Refusal::Draining { retry_after_ms: HOUR_MS }).intent == Intent::Resume {}
        });
        patience_ends(&mut client);
        drop(refusing);
    });
}

#[test]
fn patience_ends_under_an_attempt_that_takes_longer() {
    within(|| {
        let server = Server::new();
        let patience = crate::config::Patience::For(Duration::from_millis(300));
        let handshake_timeout = Duration::from_millis(HOUR_MS);
        let config = Arc::new(Config { patience, handshake_timeout, ..quick(LinkMode::Inband) });
        let mut client = Session::connect_with(&server.targets(), &config).unwrap();
        client.write_all(b"x").unwrap();
        let first = server.welcome();
        client.established().unwrap();
        client.engine().lost(&client.engine().link().unwrap(), "cut");
        drop(first);
        // The kernel takes the next connection, and nobody answers it.
        patience_ends(&mut client);
        drop(server);
    });
}

#[test]
fn patience_ends_under_an_attempt_that_was_begun_beside_the_link() {
    within(|| {
        let server = Server::new();
        let patience = crate::config::Patience::For(Duration::from_millis(300));
        let config = Arc::new(Config { patience, ..quick(LinkMode::Inband) });
        let mut client = Session::connect_with(&server.targets(), &config).unwrap();
        client.write_all(b"x").unwrap();
        let first = server.welcome();
        client.established().unwrap();
        // An attempt beside the link is under way, and never ends.
        assert!(client.engine().begin_reconnecting());
        client.engine().lost(&client.engine().link().unwrap(), "cut");
        drop(first);
        patience_ends(&mut client);
        drop(server);
    });
}

#[test]
fn a_task_that_waits_for_its_next_attempt_ends_with_its_session() {
    within(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = Server::new();
            let config = Arc::new(quick(LinkMode::Inband));
            let client = crate::tokio::Session::connect_with(&server.targets(), &config).await.unwrap();
            client.end_writing().unwrap();
            let (first, server) =
                tokio::task::spawn_blocking(move || (server.welcome(), server)).await.unwrap();
            client.established().await.unwrap();
            let engine: Weak<Engine> = client.engine().weak();
            let link: Arc<Link> = client.engine().link().unwrap();
            client.engine().lost(&link, "cut");
            drop((first, link));
            tokio::task::spawn_blocking(move || server.refuse(Refusal::Draining { retry_after_ms: HOUR_MS }))
                .await
                .unwrap();
            // The refusal is acted on.
            while client.engine().ctl().client.owes_abort() || client.info().mode.is_some() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            // What the server would have to hear of is not what is looked at.
            client.engine().fail(Error::Expired { id: client.id(), keep: Duration::ZERO, unacked_bytes: 0 });
            drop(client);
            while engine.strong_count() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
    });
}

#[test]
fn a_server_that_asks_an_opening_for_time_gets_it() {
    within(|| {
        let server = Server::new();
        let mut client =
            Session::connect_with(&server.targets(), &Arc::new(quick(LinkMode::Inband))).unwrap();
        client.write_all(b"x").unwrap();
        // Somebody has to find the answer.
        let reader = client.try_clone().unwrap();
        std::thread::spawn(move || reader.established());
        let (mut first, _) = server.hello();
        let refused = Instant::now();
        first.write_all(&refuse(Refusal::Draining { retry_after_ms: 400 })).unwrap();
        let _second = server.welcome();
        assert!(refused.elapsed() >= Duration::from_millis(390), "after {:?}", refused.elapsed());
    });
}

/// PROTOCOL 3.14: a process that gives another one's session up does not know which server has it.
#[test]
fn a_last_word_reaches_the_server_that_has_the_session() {
    within(|| {
        let (stranger, server) = (Server::new(), Server::new());
        let targets: Targets = [&stranger, &server]
            .map(|server| server.0.local_addr().unwrap().to_string())
            .join(",")
            .parse()
            .unwrap();
        let word = LastWord { id: crate::engine::new_session_id(), security: SecurityKind::Open, key: None };
        let id = word.id();
        let says = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(crate::tokio::say_last_word(word, "killed", &targets, &Arc::default()))
        });
        let heard = stranger.refuse(Refusal::UnknownSession);
        assert_eq!((heard.id, heard.intent), (id, Intent::Abort));
        // It is busy, and asked again: so are all.
        server.refuse(Refusal::Draining { retry_after_ms: 1 });
        stranger.refuse(Refusal::UnknownSession);
        server.refuse(Refusal::Ended { offset: 0 });
        assert!(says.join().unwrap(), "the server has answered");
    });
}

#[test]
fn a_last_word_that_no_server_knows_the_session_of_is_said_once() {
    within(|| {
        let servers = [Server::new(), Server::new()];
        let targets: Targets = servers
            .each_ref()
            .map(|server| server.0.local_addr().unwrap().to_string())
            .join(",")
            .parse()
            .unwrap();
        let word = LastWord { id: crate::engine::new_session_id(), security: SecurityKind::Open, key: None };
        let says = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(crate::tokio::say_last_word(word, "killed", &targets, &Arc::default()))
        });
        for server in &servers {
            server.refuse(Refusal::UnknownSession);
        }
        assert!(says.join().unwrap(), "all have answered");
    });
}

fn targets_of(servers: &[&Server]) -> Targets {
    let texts = servers.iter().map(|server| server.0.local_addr().unwrap().to_string());
    Targets::new(texts).unwrap()
}

/// PROTOCOL 3.15: what a server has, and no Welcome of it, is not sent to the next one.
#[test]
fn a_session_with_several_servers_sends_nothing_before_its_welcome() {
    within(|| {
        let servers = [Server::new(), Server::new()];
        let targets = targets_of(&[&servers[0], &servers[1]]);
        let client = std::thread::spawn(move || {
            let mut client = Session::connect_with(&targets, &Arc::new(quick(LinkMode::Inband))).unwrap();
            client.write_all(b"once").unwrap();
            client.flush().unwrap();
            client.established().unwrap();
            client
        });
        // It has the session, and ends before it has said so.
        let (first, hello) = servers[0].hello();
        assert!(!hello.carries_early_data(), "epoch {}", hello.epoch);
        let mut rest = [0; 8];
        first.set_nonblocking(true).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert!((&first).read(&mut rest).is_err(), "nothing follows the Hello");
        drop(first);
        let second = servers[1].welcome();
        second.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut frame = [0; 20];
        (&second).read_exact(&mut frame).unwrap();
        assert_eq!(&frame[16..], b"once");
        client.join().unwrap().kill();
    });
}

/// PROTOCOL 3.15: nobody waits for a server that has no room while another one has.
#[test]
fn a_session_is_opened_at_the_next_server_if_the_first_is_busy() {
    within(|| {
        let servers = [Server::new(), Server::new()];
        let targets = targets_of(&[&servers[0], &servers[1]]);
        let began = Instant::now();
        let client = std::thread::spawn(move || {
            let client = Session::connect_with(&targets, &Arc::new(quick(LinkMode::Inband))).unwrap();
            client.established().unwrap();
            client
        });
        servers[0].refuse(Refusal::Busy { retry_after_ms: 3_000 });
        let _second = servers[1].welcome();
        let client = client.join().unwrap();
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        client.kill();
    });
}

/// PROTOCOL 3.15: resumes begin at the server that has the session, openings at one that answers.
#[test]
fn a_silent_server_costs_one_session_its_time() {
    within(|| {
        let (silent, server) = (Server::new(), Server::new());
        let targets = targets_of(&[&silent, &server]);
        let silent_for = Duration::from_millis(400);
        let config = Arc::new(Config { handshake_timeout: silent_for, ..quick(LinkMode::Inband) });
        let opened = |targets: Targets| {
            let (config, began) = (config.clone(), Instant::now());
            let client = std::thread::spawn(move || Session::connect_with(&targets, &config).unwrap());
            let link = server.welcome();
            (client.join().unwrap(), link, began.elapsed())
        };
        let (first, link, took) = opened(targets.clone());
        assert!(took >= silent_for, "{took:?}");
        let (second, _link, took) = opened(targets.clone());
        assert!(took < silent_for, "the next session waited as well: {took:?}");
        let began = Instant::now();
        first.engine().lost(&first.engine().link().unwrap(), "cut");
        drop(link);
        let _resumed = server.welcome();
        assert!(began.elapsed() < silent_for, "a resume: {:?}", began.elapsed());
        first.kill();
        second.kill();
    });
}
