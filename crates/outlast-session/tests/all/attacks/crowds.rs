//! Crowds that connect and say nothing, or next to nothing, and come again when they are turned away.

use super::ALONE;
use super::floods::many_descriptors;
use super::raw::{Raw, Victim, bytes_of, fresh_id, hello, newcomer};
use crate::common::{psk, quick, within};
use outlast_session::proto::{Message, Refusal};
use outlast_session::{Config, Security, Targets, blocking, tokio as async_face};
use socket2::{Domain, Socket, Type};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Sockets of a crowd; `OUTLAST_CROWD` for more.
fn crowd_size() -> usize {
    std::env::var("OUTLAST_CROWD").map_or(1_500, |text| text.parse().unwrap())
}

/// Sockets that stay silent, or say the beginning of a Hello; whoever is thrown out comes again.
struct Crowd {
    stop: Arc<AtomicBool>,
    standing: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Crowd {
    /// From `blocks` networks of 24 bits, one address each.
    fn gather(target: SocketAddr, blocks: u8, speaks: bool) -> Self {
        let (stop, standing) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (told, counted) = (stop.clone(), standing.clone());
        let size = crowd_size();
        let thread = std::thread::spawn(move || {
            let half = bytes_of(&hello(fresh_id()));
            let mut sockets: Vec<(Socket, usize)> =
                (0..size).map(|number| (stand(target, number, blocks), 0)).collect();
            counted.store(size, Ordering::Release);
            while !told.load(Ordering::Relaxed) {
                for (number, (socket, said)) in sockets.iter_mut().enumerate() {
                    let mut byte = [std::mem::MaybeUninit::uninit()];
                    if speaks && *said < 20 && socket.send(&half[*said..=*said]).is_ok() {
                        *said += 1;
                    }
                    match socket.recv(&mut byte) {
                        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                        _ => (*socket, *said) = (stand(target, number, blocks), 0),
                    }
                }
                // The honest need a core, too.
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let crowd = Self { stop, standing, thread: Some(thread) };
        while crowd.standing.load(Ordering::Acquire) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Silent connections stay in the kernel for a second (TCP_DEFER_ACCEPT).
        std::thread::sleep(Duration::from_millis(1_200));
        crowd
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}

fn stand(target: SocketAddr, number: usize, blocks: u8) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let from = Ipv4Addr::new(127, 9, (number % usize::from(blocks)) as u8, 1);
    socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
    socket.set_nonblocking(true).unwrap();
    let _ = socket.connect(&target.into());
    socket
}

/// What a silent connection holds, it would hold for longer than any test takes.
fn patient(security: Security) -> Config {
    Config { handshake_timeout: Duration::from_secs(600), security, ..quick() }
}

/// The session's next byte needs a new link.
fn resume(session: &mut blocking::Session) {
    while !session.passivate().unwrap() {
        std::thread::sleep(Duration::from_millis(1));
    }
    session.write_all(b"again").unwrap();
    let mut echo = [0; 5];
    session.read_exact(&mut echo).unwrap();
    assert_eq!(&echo, b"again");
}

/// Whoever has a session here resumes it, and strangers open new ones, whatever stands at the door: also from the
/// address of the crowd.
#[test]
fn silent_crowds_block_neither_resumes_nor_newcomers() {
    let _alone = ALONE.write();
    within(|| {
        many_descriptors();
        for (security, blocks, speaks) in
            [(Security::Open, 1, false), (Security::Psk(psk(1)), 1, false), (Security::Psk(psk(1)), 20, true)]
        {
            let victim = Victim::new(patient(security.clone()));
            let near = Arc::new(Config { security: security.clone(), ..quick() });
            let local_address = Some(SocketAddr::from(([127, 9, 0, 1], 0)));
            let beside = Arc::new(Config { security, local_address, ..quick() });
            let mut sessions = [&near, &beside].map(|config| newcomer(victim.address(), config).unwrap());
            let crowd = Crowd::gather(victim.address(), blocks, speaks);
            for _ in 0..5 {
                sessions.iter_mut().for_each(resume);
            }
            newcomer(victim.address(), &near).unwrap();
            drop(crowd);
            assert!(victim.refused("crowded_out") > 0, "nobody was turned away");
            victim.unharmed();
        }
    });
}

/// The same with tasks.
#[test]
fn silent_crowds_do_not_block_tasks_either() {
    let _alone = ALONE.write();
    within(|| {
        many_descriptors();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let security = Security::Psk(psk(1));
        let config = Arc::new(patient(security.clone()));
        let listener = runtime.block_on(async_face::Listener::bind_with("127.0.0.1:0", &config)).unwrap();
        let address = listener.local_addr();
        let listener = Arc::new(listener);
        let accepting = listener.clone();
        runtime.spawn(async move {
            while let Ok(mut session) = accepting.accept().await {
                tokio::spawn(async move {
                    let mut five = [0; 5];
                    while session.read_exact(&mut five).await.is_ok() {
                        session.write_all(&five).await.unwrap();
                        session.flush().await.unwrap();
                    }
                });
            }
        });
        let config = Arc::new(Config { security, ..quick() });
        let mut session = blocking::Session::connect_with(&Targets::from(address), &config).unwrap();
        session.established().unwrap();
        let crowd = Crowd::gather(address, 20, true);
        for _ in 0..5 {
            resume(&mut session);
        }
        newcomer(address, &config).unwrap();
        drop(crowd);
        assert_eq!(session.info().outages, 0);
        // A closed listener ends what stands at its door, too.
        listener.stop_listening();
        runtime.shutdown_background();
    });
}

/// An application that takes no sessions holds up newcomers, who are told, and nobody else.
#[test]
fn sessions_that_nobody_takes_do_not_block_resumes() {
    let _alone = ALONE.write();
    within(|| {
        many_descriptors();
        let config = Arc::new(Config { sessions_per_peer_max: 2_000, ..quick() });
        let listener = blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap();
        let address = listener.local_addr();
        let mut session = blocking::Session::connect_with(&Targets::from(address), &config).unwrap();
        session.established().unwrap();
        let mut served = listener.accept().unwrap();
        let mut opened = Vec::new();
        let refused = loop {
            let mut raw = Raw::connect(address);
            raw.say(&bytes_of(&hello(fresh_id())));
            match raw.hear() {
                Some(Message::Welcome(_)) => opened.push(raw),
                Some(Message::Refuse(refuse)) => break refuse.refusal,
                other => panic!("{other:?}"),
            }
        };
        assert!(matches!(refused, Refusal::Busy { .. }), "{refused:?}");
        assert_eq!(opened.len(), 1024);
        let echo = std::thread::spawn(move || {
            let mut five = [0; 5];
            served.read_exact(&mut five).unwrap();
            served.write_all(&five).unwrap();
        });
        resume(&mut session);
        echo.join().unwrap();
        // Room is made by taking them.
        drop(listener.accept().unwrap());
        newcomer(address, &config).unwrap();
    });
}
