//! Relays whose peer is made by hand.

use crate::engine::Engine;
use crate::error::Error;
use crate::proto::{FRAME_DATA_BYTES_MAX, Frame, FrameHeader, Hello, LinkMode, Message, SessionId};
use crate::relay::turn::{ALONE, all_places};
use crate::relay::{Control, Ended, Local, Outcome, SETTLE_TIMEOUT, run_undirected};
use crate::tokio::Listener;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::Instant;

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
    control: Control,
    relay: JoinHandle<Ended>,
    _listener: Listener,
    service: TcpListener,
}

impl Scene {
    async fn new() -> Self {
        let listener = Listener::bind_with("127.0.0.1:0", &Arc::default()).await.unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        // Most of what it has not read is at the relay's side.
        socket.set_recv_buffer_size(16 << 10).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let service = socket.listen(1).unwrap();
        let mut peer = TcpStream::connect(listener.local_addr()).await.unwrap();
        let id = SessionId::from_bytes(rand::random());
        peer.write_all(&Message::Hello(Hello::open(id, LinkMode::Inband)).to_bytes()).await.unwrap();
        let session = listener.accept().await.unwrap();
        let engine = session.engine().clone();
        let local = TcpStream::connect(service.local_addr().unwrap()).await.unwrap();
        let local = Local::from_tcp(local).unwrap();
        let control = Control::new();
        let relay = tokio::spawn({
            let control = control.clone();
            async move { run_undirected(session, local, &control).await }
        });
        // The Welcome, and what may come with it.
        read_for(&mut peer, Duration::from_millis(200), usize::MAX).await;
        Self { peer, engine, control, relay, _listener: listener, service }
    }
}

async fn waits_for_its_turns(frame: Frame<'_>) {
    let Scene { mut peer, engine: _, control: _, relay, _listener, service: _service } = Scene::new().await;
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

/// The peer sends without end; the relay's service reads nothing, until neither the relay nor its kernel takes more.
async fn fill(peer: &mut TcpStream, engine: &Engine) {
    let mut data = FrameHeader::data(FRAME_DATA_BYTES_MAX, 0).encode().to_vec();
    data.resize(data.len() + FRAME_DATA_BYTES_MAX, 7);
    let (enough_bytes, mut at) = (256 << 10, 0);
    loop {
        match tokio::time::timeout(Duration::from_millis(500), peer.write(&data[at..])).await {
            Ok(written) => at = (at + written.unwrap()) % data.len(),
            Err(_) if engine.info().read_bytes >= enough_bytes => return,
            Err(_) => {}
        }
    }
}

async fn until_without_link(engine: &Engine) {
    while engine.link().is_some() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Without that the relay stays for as long as the service, and what it holds with it.
#[tokio::test]
async fn a_session_that_fails_while_the_service_reads_nothing_ends_the_relay() {
    let shed =
        |engine: &Engine| Error::Shed { id: engine.id, short_of: "memory", held_bytes: 1, unacked_bytes: 0 };
    for is_shed in [true, false] {
        let Scene { mut peer, engine, control: _, relay, _listener, service } = Scene::new().await;
        let (_unread, _) = service.accept().await.unwrap();
        fill(&mut peer, &engine).await;
        drop(peer);
        until_without_link(&engine).await;
        engine.fail(if is_shed { shed(&engine) } else { Error::killed(engine.id) });
        if !is_shed {
            // The minute that it has takes no time.
            tokio::time::pause();
        }
        let begin = Instant::now();
        let ended =
            tokio::time::timeout(Duration::from_secs(90), relay).await.expect("the relay goes on").unwrap();
        assert!(matches!(ended.outcome, Outcome::SessionFailed(_)), "{ended:?}");
        let waited_s = begin.elapsed().as_secs();
        assert!(if is_shed { waited_s < 5 } else { waited_s >= 55 }, "{waited_s} s");
    }
}

/// It says something, too, which the session does not take any more.
#[tokio::test]
async fn a_service_that_reads_slowly_gets_all_that_came_before_its_session_failed() {
    let Scene { mut peer, engine, control: _, relay, _listener, service } = Scene::new().await;
    let (mut slow, _) = service.accept().await.unwrap();
    fill(&mut peer, &engine).await;
    let came_bytes = engine.info().read_bytes;
    engine.fail(Error::killed(engine.id));
    slow.write_all(b"progress").await.unwrap();
    let (steps, mut bytes, mut buffer) = (40, 0, vec![0; 16 << 10]);
    let error = loop {
        match slow.read(&mut buffer).await {
            Ok(count) => bytes += count as u64,
            Err(error) => break error,
        }
        if bytes % (came_bytes / steps) < buffer.len() as u64 {
            tokio::time::sleep(2 * SETTLE_TIMEOUT / u32::try_from(steps).unwrap()).await;
        }
    };
    assert_eq!(bytes, came_bytes);
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "it is not all that there was to come");
    assert!(matches!(relay.await.unwrap().outcome, Outcome::SessionFailed(_)));
}

/// The peer may have heard that all has arrived.
#[tokio::test]
async fn a_stream_that_has_come_whole_reaches_a_service_that_pauses_whatever_becomes_of_the_session() {
    whole_stream(false).await;
}

#[tokio::test]
async fn the_same_reaches_a_service_that_has_ended_its_own_stream() {
    whole_stream(true).await;
}

async fn whole_stream(has_service_ended: bool) {
    const STREAM_BYTES: usize = 8 << 20;
    let Scene { mut peer, engine, control: _, relay, _listener, service } = Scene::new().await;
    let (mut slow, _) = service.accept().await.unwrap();
    if has_service_ended {
        slow.shutdown().await.unwrap();
    }
    let sending = tokio::spawn(async move {
        let mut stream = Vec::new();
        for _ in 0..STREAM_BYTES / FRAME_DATA_BYTES_MAX {
            stream.extend(FrameHeader::data(FRAME_DATA_BYTES_MAX, 0).encode());
            stream.resize(stream.len() + FRAME_DATA_BYTES_MAX, 7);
        }
        Frame::End { end_offset: STREAM_BYTES as u64 }.encode(0, &mut stream);
        peer.write_all(&stream).await.unwrap();
        peer
    });
    let mut bytes = 0;
    while !engine.has_peer_end() {
        bytes += tokio::time::timeout(Duration::from_millis(2), slow.read(&mut [0; 16 << 10]))
            .await
            .map_or(0, |read| read.unwrap());
    }
    let _peer = sending.await.unwrap();
    engine.fail(Error::killed(engine.id));
    tokio::time::sleep(2 * SETTLE_TIMEOUT + Duration::from_secs(1)).await;
    assert!(!relay.is_finished());
    let mut rest = Vec::new();
    slow.read_to_end(&mut rest).await.unwrap();
    assert_eq!(bytes + rest.len(), STREAM_BYTES);
    assert!(!rest.is_empty());
    assert!(matches!(relay.await.unwrap().outcome, Outcome::SessionFailed(_)));
}

/// Others wait for a hand-over.
#[tokio::test]
async fn a_relay_whose_session_has_failed_is_stopped_and_handed_over_within_seconds() {
    for (wish, within) in [
        (Control::stop as fn(&Control), SETTLE_TIMEOUT + Duration::from_secs(2)),
        (Control::detach, Duration::from_secs(3)),
    ] {
        let Scene { mut peer, engine, control, relay, _listener, service } = Scene::new().await;
        let (_unread, _) = service.accept().await.unwrap();
        fill(&mut peer, &engine).await;
        engine.fail(Error::killed(engine.id));
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!relay.is_finished());
        wish(&control);
        let ended = tokio::time::timeout(within, relay).await.expect("the relay goes on").unwrap();
        assert!(matches!(ended.outcome, Outcome::SessionFailed(Error::Killed { .. })), "{ended:?}");
    }
}
