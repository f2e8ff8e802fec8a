//! Relays whose peer is made by hand.

use crate::engine::Engine;
use crate::error::Error;
use crate::proto::{Frame, FrameHeader, Hello, LinkMode, Message, SessionId};
use crate::relay::turn::{ALONE, all_places};
use crate::relay::{Control, Ended, Local, Outcome, SETTLE_TIMEOUT, run_undirected};
use crate::tokio::Listener;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

const FRAMES: usize = 2_000;

/// Reads for so long at the most; how much has come.
async fn read_for(stream: &mut TcpStream, time: Duration, enough_bytes: usize) -> usize {
    let (mut bytes, mut buffer) = (0, vec![0; 64 << 10]);
    let reading = async {
        while bytes < enough_bytes {
            bytes += stream.read(&mut buffer).await.unwrap();
        }
    };
    let _ = tokio::time::timeout(time, reading).await;
    bytes
}

/// A relay with a peer that speaks the protocol by hand, and a service that does nothing.
struct Scene {
    peer: TcpStream,
    engine: Arc<Engine>,
    relay: JoinHandle<Ended>,
    _listener: Listener,
    service: TcpListener,
}

impl Scene {
    async fn new() -> Self {
        let listener = Listener::bind_with("127.0.0.1:0", &Arc::default()).await.unwrap();
        let service = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut peer = TcpStream::connect(listener.local_addr()).await.unwrap();
        let id = SessionId::from_bytes(rand::random());
        peer.write_all(&Message::Hello(Hello::open(id, LinkMode::Inband)).to_bytes()).await.unwrap();
        let session = listener.accept().await.unwrap();
        let engine = session.engine().clone();
        let local = TcpStream::connect(service.local_addr().unwrap()).await.unwrap();
        let local = Local::from_tcp(local).unwrap();
        let relay = tokio::spawn(async move { run_undirected(session, local, &Control::default()).await });
        // The Welcome, and what may come with it.
        read_for(&mut peer, Duration::from_millis(200), usize::MAX).await;
        Self { peer, engine, relay, _listener: listener, service }
    }
}

async fn waits_for_its_turns(frame: Frame<'_>) {
    let Scene { mut peer, engine: _, relay, _listener, service: _service } = Scene::new().await;
    let places = all_places().await;
    // Now and then one that is answered.
    let (mut flood, mut pong) = (Vec::new(), Vec::new());
    for count in 0..FRAMES {
        if count % 10 == 0 { Frame::Ping { token: 1 } } else { frame }.encode(0, &mut flood);
    }
    Frame::Pong { token: 1 }.encode(0, &mut pong);
    let all_bytes = FRAMES / 10 * pong.len();
    peer.write_all(&flood).await.unwrap();
    // One turn needs no place.
    let early_bytes = read_for(&mut peer, Duration::from_millis(300), usize::MAX).await;
    assert!(early_bytes > 0 && early_bytes < all_bytes / 10, "{frame:?}: {early_bytes} of {all_bytes} bytes");
    drop(places);
    let late_bytes = read_for(&mut peer, Duration::from_secs(20), all_bytes - early_bytes).await;
    assert_eq!(early_bytes + late_bytes, all_bytes, "{frame:?}");
    relay.abort();
}

#[tokio::test]
async fn a_peer_that_sends_control_frames_without_end_waits_for_its_turns() {
    let _alone = ALONE.lock().await;
    for frame in [Frame::Ack, Frame::EndAck, Frame::Goodbye, Frame::Urgent { offset: 1 << 40 }] {
        waits_for_its_turns(frame).await;
    }
}

/// Without that the relay stays for as long as the service, and what it holds with it.
#[tokio::test]
async fn a_session_that_fails_while_the_service_reads_nothing_ends_the_relay() {
    let shed =
        |engine: &Engine| Error::Shed { id: engine.id, short_of: "memory", held_bytes: 1, unacked_bytes: 0 };
    let second = Duration::from_secs(1);
    for (is_shed, within) in [(true, 2 * second), (false, 2 * SETTLE_TIMEOUT + 2 * second)] {
        let Scene { mut peer, engine, relay, _listener, service } = Scene::new().await;
        let (_unread, _) = service.accept().await.unwrap();
        let mut data = FrameHeader::data(1 << 20, 0).encode().to_vec();
        data.resize(data.len() + (1 << 20), 7);
        // Until neither the relay nor its service's kernel takes more.
        while tokio::time::timeout(Duration::from_millis(500), peer.write_all(&data)).await.is_ok() {}
        drop(peer);
        while engine.link().is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        engine.fail(if is_shed { shed(&engine) } else { Error::killed(engine.id) });
        let ended = tokio::time::timeout(within, relay).await.expect("the relay goes on").unwrap();
        assert!(matches!(ended.outcome, Outcome::SessionFailed(_)), "{ended:?}");
    }
}
