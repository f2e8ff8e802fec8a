//! The programs that run on the two hosts: a server, and a client with three sessions at once (streaming both ways,
//! ping-pong, mostly idle). Every byte is checked, and what is left when the sessions have ended.

use super::certificates;
use super::leaks::Holdings;
use super::pattern::{check, fill};
use outlast_session::proto::Psk;
use outlast_session::{Config, Error, LinkMode, Security, Targets, blocking, tokio as otokio};
use std::io::{BufRead, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const UP: u8 = 1;
const DOWN: u8 = 2;
const CHUNK_BYTES: usize = 24_000;
const OPEN_PATIENCE: Duration = Duration::from_secs(30);

/// `MODE`, `MODE psk` or `MODE tls FOLDER` (with `cert.der` and `key.der` in it).
pub fn config(settings: &str) -> Arc<Config> {
    let words: Vec<&str> = settings.split_whitespace().collect();
    let security = match words[1..] {
        [] => Security::Open,
        ["psk"] => Security::Psk(Psk::from_bytes(&[7; 32]).unwrap()),
        ["tls", folder] => Security::Tls(certificates::read(Path::new(folder))),
        ref other => panic!("no security {other:?}"),
    };
    Arc::new(Config {
        ack: words[0].parse().unwrap(),
        security,
        detect_timeout: Duration::from_millis(800),
        // Shorter than the pause before the kernel repeats a SYN: more links for more breakages.
        handshake_timeout: Duration::from_millis(300),
        backoff_base: Duration::from_millis(10),
        backoff_max: Duration::from_millis(100),
        window_buffer_bytes: 256 << 10,
        ..Config::default()
    })
}

/// Set when the parent says so on standard input.
fn stop_flag() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().lock().lines().next();
        flag.store(true, Ordering::Relaxed);
    });
    stop
}

/// Server, warmed up: once the parent says that the sessions have ended, nothing of them may be left.
fn check_when_stopped() {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let before = receiver.recv().unwrap();
        let _ = std::io::stdin().lock().lines().next();
        Holdings::assert_nothing_is_left(before, "server");
        println!("DONE");
    });
    sender.send(Holdings::settled()).unwrap();
}

/// `mode` is that of the last link, from before the session ended.
fn report(what: &str, info: &outlast_session::Info, mode: Option<LinkMode>) {
    println!(
        "REPORT {what} outages={} longest_ms={} resent={} written={} read={} mode={}",
        info.outages,
        info.pause_longest_ms,
        info.resent_bytes,
        info.written_bytes,
        info.read_bytes,
        mode.map_or("none", LinkMode::name)
    );
}

pub mod threads {
    use super::*;

    pub fn server(address: &str, settings: &str) {
        let config = config(settings);
        let listener = blocking::Listener::bind_with(address, &config).unwrap();
        let targets: Targets = address.parse().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| warm_up(&targets, &config));
            serve(listener.accept().unwrap());
        });
        check_when_stopped();
        println!("READY");
        for session in listener.incoming() {
            let session = session.unwrap();
            std::thread::spawn(move || serve(session));
        }
    }

    /// Nothing breaks yet, but the programs are impatient and the machine may be busy.
    fn open(targets: &Targets, config: &Arc<Config>) -> blocking::Session {
        let began = Instant::now();
        loop {
            match blocking::Session::connect_with(targets, config) {
                Err(Error::Connect { .. }) if began.elapsed() < OPEN_PATIENCE => {}
                opened => return opened.unwrap(),
            }
        }
    }

    /// Starts what stays for good: helper, sockets for datagrams and routes, the rings' pool.
    fn warm_up(targets: &Targets, config: &Arc<Config>) {
        let mut session = open(targets, config);
        session.write_all(b"E").unwrap();
        session.finish().unwrap();
        assert_eq!(session.read(&mut [0]).unwrap(), 0);
    }

    fn serve(mut session: blocking::Session) {
        let mut kind = [0];
        session.read_exact(&mut kind).unwrap();
        if kind[0] == b'E' {
            let mut buffer = [0; 4096];
            loop {
                let count = session.read(&mut buffer).unwrap();
                if count == 0 {
                    return session.finish().unwrap();
                }
                session.write_all(&buffer[..count]).unwrap();
            }
        }
        let ended = Arc::new(AtomicBool::new(false));
        let (mut writer, flag) = (session.try_clone().unwrap(), ended.clone());
        let down = std::thread::spawn(move || {
            let mut offset = 0;
            let mut chunk = vec![0; CHUNK_BYTES];
            while !flag.load(Ordering::Relaxed) {
                fill(DOWN, offset, &mut chunk);
                writer.write_all(&chunk).unwrap();
                offset += chunk.len() as u64;
            }
            writer
        });
        let mut offset = 0;
        let mut buffer = vec![0; 70_000];
        loop {
            let count = session.read(&mut buffer).unwrap();
            if count == 0 {
                break;
            }
            check("server", UP, offset, &buffer[..count]);
            offset += count as u64;
        }
        ended.store(true, Ordering::Relaxed);
        let mut writer = down.join().unwrap();
        writer.write_all(&offset.to_be_bytes()).unwrap();
        writer.finish().unwrap();
    }

    pub fn client(address: &str, settings: &str) {
        let targets: Targets = address.parse().unwrap();
        let config = config(settings);
        let stop = stop_flag();
        warm_up(&targets, &config);
        let before = Holdings::settled();
        let start = |kind: u8| {
            let mut session = open(&targets, &config);
            session.write_all(&[kind]).unwrap();
            session
        };
        let (stream, ping, idle) = (start(b'S'), start(b'E'), start(b'E'));
        println!("READY");
        let clones = [&stream, &ping, &idle].map(|session| session.try_clone().unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for session in clones {
                    session.established().unwrap();
                }
                println!("WELCOMED");
            });
            scope.spawn(|| echo(ping, "ping", Duration::ZERO, &stop));
            scope.spawn(|| echo(idle, "idle", Duration::from_millis(150), &stop));
            streaming(stream, &stop);
        });
        Holdings::assert_nothing_is_left(before, "client");
        println!("DONE");
    }

    fn streaming(mut session: blocking::Session, stop: &AtomicBool) {
        let mut writer = session.try_clone().unwrap();
        std::thread::scope(|scope| {
            let up = scope.spawn(move || {
                let mut offset = 0;
                let mut chunk = vec![0; 50_001];
                while !stop.load(Ordering::Relaxed) {
                    fill(UP, offset, &mut chunk);
                    writer.write_all(&chunk).unwrap();
                    offset += chunk.len() as u64;
                }
                let mode = writer.info().mode;
                writer.shutdown(std::net::Shutdown::Write).unwrap();
                (offset, mode)
            });
            let mut offset = 0;
            let mut held: Vec<u8> = Vec::new();
            let mut buffer = vec![0; 70_000];
            loop {
                let count = session.read(&mut buffer).unwrap();
                if count == 0 {
                    break;
                }
                offset = checked(&mut held, &buffer[..count], offset);
            }
            let (sent, mode) = up.join().unwrap();
            assert_eq!(u64::from_be_bytes(held.try_into().unwrap()), sent, "bytes that arrived");
            report("stream", &session.info(), mode);
        });
    }

    fn echo(mut session: blocking::Session, what: &str, pause: Duration, stop: &AtomicBool) {
        let mut offset = 0u64;
        while !stop.load(Ordering::Relaxed) {
            let mut message = vec![0; 1 + (offset % 300) as usize];
            fill(UP, offset, &mut message);
            session.write_all(&message).unwrap();
            let mut answer = vec![0; message.len()];
            session.read_exact(&mut answer).unwrap();
            check(what, UP, offset, &answer);
            offset += message.len() as u64;
            std::thread::sleep(pause);
        }
        let mode = session.info().mode;
        session.shutdown(std::net::Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        session.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty(), "{what}: bytes after the last answer");
        report(what, &session.info(), mode);
    }
}

/// Checks everything but the last eight bytes, which may be the count.
fn checked(held: &mut Vec<u8>, fresh: &[u8], offset: u64) -> u64 {
    held.extend_from_slice(fresh);
    let sure = held.len().saturating_sub(8);
    check("client", DOWN, offset, &held[..sure]);
    held.drain(..sure);
    offset + sure as u64
}

pub mod tasks {
    use super::*;

    fn run(work: impl std::future::Future<Output = ()>) {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap()
            .block_on(work);
    }

    pub fn server(address: &str, settings: &str) {
        run(async {
            let config = config(settings);
            let listener = otokio::Listener::bind_with(address, &config).await.unwrap();
            let targets: Targets = address.parse().unwrap();
            tokio::join!(warm_up(&targets, &config), async { serve(listener.accept().await.unwrap()).await });
            check_when_stopped();
            println!("READY");
            loop {
                let session = listener.accept().await.unwrap();
                tokio::spawn(serve(session));
            }
        });
    }

    async fn open(targets: &Targets, config: &Arc<Config>) -> otokio::Session {
        let began = Instant::now();
        loop {
            match otokio::Session::connect_with(targets, config).await {
                Err(Error::Connect { .. }) if began.elapsed() < OPEN_PATIENCE => {}
                opened => return opened.unwrap(),
            }
        }
    }

    async fn warm_up(targets: &Targets, config: &Arc<Config>) {
        let mut session = open(targets, config).await;
        session.write_all(b"E").await.unwrap();
        session.finish().await.unwrap();
        assert_eq!(session.read(&mut [0]).await.unwrap(), 0);
    }

    async fn serve(mut session: otokio::Session) {
        let mut kind = [0];
        session.read_exact(&mut kind).await.unwrap();
        if kind[0] == b'E' {
            let mut buffer = [0; 4096];
            loop {
                let count = session.read(&mut buffer).await.unwrap();
                if count == 0 {
                    return session.finish().await.unwrap();
                }
                session.write_all(&buffer[..count]).await.unwrap();
            }
        }
        let ended = Arc::new(AtomicBool::new(false));
        let flag = ended.clone();
        let (mut reader, mut writer) = session.into_split();
        let down = tokio::spawn(async move {
            let mut offset = 0;
            let mut chunk = vec![0; CHUNK_BYTES];
            while !flag.load(Ordering::Relaxed) {
                fill(DOWN, offset, &mut chunk);
                writer.write_all(&chunk).await.unwrap();
                offset += chunk.len() as u64;
            }
            writer
        });
        let mut offset = 0;
        let mut buffer = vec![0; 70_000];
        loop {
            let count = reader.read(&mut buffer).await.unwrap();
            if count == 0 {
                break;
            }
            check("server", UP, offset, &buffer[..count]);
            offset += count as u64;
        }
        ended.store(true, Ordering::Relaxed);
        let mut writer = down.await.unwrap();
        writer.write_all(&offset.to_be_bytes()).await.unwrap();
        writer.session().finish().await.unwrap();
    }

    pub fn client(address: &str, settings: &str) {
        let stop = stop_flag();
        run(async {
            let targets: Targets = address.parse().unwrap();
            let config = config(settings);
            warm_up(&targets, &config).await;
            let before = Holdings::settled();
            let mut sessions = Vec::new();
            for kind in *b"SEE" {
                let mut session = open(&targets, &config).await;
                session.write_all(&[kind]).await.unwrap();
                sessions.push(session);
            }
            println!("READY");
            let idle =
                tokio::spawn(echo(sessions.pop().unwrap(), "idle", Duration::from_millis(150), stop.clone()));
            let ping = tokio::spawn(echo(sessions.pop().unwrap(), "ping", Duration::ZERO, stop.clone()));
            streaming(sessions.pop().unwrap(), stop).await;
            idle.await.unwrap();
            ping.await.unwrap();
            Holdings::assert_nothing_is_left(before, "client");
            println!("DONE");
        });
    }

    async fn streaming(session: otokio::Session, stop: Arc<AtomicBool>) {
        let (mut reader, mut writer) = session.into_split();
        let up = tokio::spawn(async move {
            let mut offset = 0;
            let mut chunk = vec![0; 50_001];
            while !stop.load(Ordering::Relaxed) {
                fill(UP, offset, &mut chunk);
                writer.write_all(&chunk).await.unwrap();
                offset += chunk.len() as u64;
            }
            let mode = writer.session().info().mode;
            writer.shutdown().await.unwrap();
            (offset, mode)
        });
        let mut offset = 0;
        let mut held: Vec<u8> = Vec::new();
        let mut buffer = vec![0; 70_000];
        loop {
            let count = reader.read(&mut buffer).await.unwrap();
            if count == 0 {
                break;
            }
            offset = checked(&mut held, &buffer[..count], offset);
        }
        let (sent, mode) = up.await.unwrap();
        assert_eq!(u64::from_be_bytes(held.try_into().unwrap()), sent, "bytes that arrived");
        report("stream", &reader.session().info(), mode);
    }

    async fn echo(mut session: otokio::Session, what: &'static str, pause: Duration, stop: Arc<AtomicBool>) {
        let mut offset = 0u64;
        while !stop.load(Ordering::Relaxed) {
            let mut message = vec![0; 1 + (offset % 300) as usize];
            fill(UP, offset, &mut message);
            session.write_all(&message).await.unwrap();
            let mut answer = vec![0; message.len()];
            session.read_exact(&mut answer).await.unwrap();
            check(what, UP, offset, &answer);
            offset += message.len() as u64;
            tokio::time::sleep(pause).await;
        }
        let mode = session.info().mode;
        session.shutdown().await.unwrap();
        let mut rest = Vec::new();
        session.read_to_end(&mut rest).await.unwrap();
        assert!(rest.is_empty(), "{what}: bytes after the last answer");
        report(what, &session.info(), mode);
    }
}
