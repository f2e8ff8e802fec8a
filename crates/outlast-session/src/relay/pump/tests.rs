//! Relays whose peer is made by hand.

use crate::proto::{Frame, Hello, LinkMode, Message, SessionId};
use crate::relay::turn::all_places;
use crate::relay::{Control, Local, run_undirected};
use crate::tokio::Listener;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const PINGS: usize = 2_000;

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

#[tokio::test]
async fn a_peer_that_sends_control_frames_without_end_waits_for_its_turns() {
    let listener = Listener::bind_with("127.0.0.1:0", &Arc::default()).await.unwrap();
    let service = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut peer = TcpStream::connect(listener.local_addr()).await.unwrap();
    let id = SessionId::from_bytes(rand::random());
    peer.write_all(&Message::Hello(Hello::open(id, LinkMode::Inband)).to_bytes()).await.unwrap();
    let session = listener.accept().await.unwrap();
    let local = Local::from_tcp(TcpStream::connect(service.local_addr().unwrap()).await.unwrap()).unwrap();
    let relay = tokio::spawn(async move { run_undirected(session, local, &Control::default()).await });
    // The Welcome, and what may come with it.
    read_for(&mut peer, Duration::from_millis(200), usize::MAX).await;

    let places = all_places().await;
    let (mut pings, mut pong) = (Vec::new(), Vec::new());
    for token in 0..PINGS {
        Frame::Ping { token: token as u64 }.encode(0, &mut pings);
    }
    Frame::Pong { token: 0 }.encode(0, &mut pong);
    let all_bytes = PINGS * pong.len();
    peer.write_all(&pings).await.unwrap();
    // One turn needs no place.
    let early_bytes = read_for(&mut peer, Duration::from_millis(500), usize::MAX).await;
    assert!(early_bytes > 0 && early_bytes < all_bytes / 10, "{early_bytes} of {all_bytes} bytes");
    drop(places);
    let late_bytes = read_for(&mut peer, Duration::from_secs(20), all_bytes - early_bytes).await;
    assert_eq!(early_bytes + late_bytes, all_bytes);
    relay.abort();
}
