//! Control frames without end, as fast as they can be sent: each costs its session something, and no other one.

use super::ALONE;
use super::raw::{Raw, bytes_of, fresh_id, hello};
use crate::common::{Case, Protection, quick, within};
use outlast_session::proto::{Frame, LinkMode};
use outlast_session::{AckMode, Targets, blocking, tokio as async_face};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

const KINDS: [Frame<'_>; 5] =
    [Frame::Ping { token: 7 }, Frame::Ack, Frame::EndAck, Frame::Goodbye, Frame::End { end_offset: 0 }];

/// More at once than anybody reads at once.
const FRAMES: usize = 20_000;

/// A peer that says one thing again and again, and reads nothing, until it is told to stop.
struct Flood {
    stream: TcpStream,
    thread: std::thread::JoinHandle<()>,
}

impl Flood {
    fn of(frame: &Frame<'_>, server: SocketAddr) -> Self {
        let stream = TcpStream::connect(server).unwrap();
        let mut raw = Raw::over(stream.try_clone().unwrap());
        raw.say(&bytes_of(&hello(fresh_id())));
        let mut bytes = Vec::new();
        for _ in 0..FRAMES {
            frame.encode(0, &mut bytes);
        }
        let mut writer = stream.try_clone().unwrap();
        let thread = std::thread::spawn(move || while writer.write_all(&bytes).is_ok() {});
        Self { stream, thread }
    }

    fn stop(self) {
        // The server may have closed it before.
        let _ = self.stream.shutdown(Shutdown::Both);
        self.thread.join().unwrap();
    }
}

/// All in one thread: a task that never lets go stops the others, and the clock.
#[test]
fn other_tasks_have_their_turn() {
    let _shared = ALONE.read();
    within(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for frame in KINDS {
            runtime.block_on(async {
                use tokio::io::AsyncReadExt;
                let listener =
                    async_face::Listener::bind_with("127.0.0.1:0", &Arc::new(quick())).await.unwrap();
                let flood = Flood::of(&frame, listener.local_addr());
                let mut session = listener.accept().await.unwrap();
                let reading = tokio::spawn(async move { session.read(&mut [0; 16]).await });
                for _ in 0..50 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                flood.stop();
                reading.abort();
            });
        }
    });
}

/// A writer's acknowledgements are taken in by one thread for all sessions: other writers' are, too.
#[test]
fn other_writers_are_acknowledged() {
    let _shared = ALONE.read();
    within(|| {
        let inband = Case { ack: AckMode::Fixed(LinkMode::Inband), protection: Protection::Open };
        let config = Arc::new(inband.config());
        for frame in KINDS {
            let listener = blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap();
            let flood = Flood::of(&frame, listener.local_addr());
            let flooded = listener.accept().unwrap();
            let writer = flooded.clone();
            let writer = std::thread::spawn(move || (&writer).write_all(&[7; 16 << 20]));
            let targets = Targets::from(listener.local_addr());
            let mut client = blocking::Session::connect_with(&targets, &config).unwrap();
            client.established().unwrap();
            let mut server = listener.accept().unwrap();
            let serving = std::thread::spawn(move || {
                server.write_all(&[8; 4 << 20]).unwrap();
                server.finish().unwrap();
            });
            let mut got = Vec::new();
            client.read_to_end(&mut got).unwrap();
            assert_eq!(got.len(), 4 << 20);
            client.finish().unwrap();
            serving.join().unwrap();
            flooded.kill();
            flood.stop();
            assert!(writer.join().unwrap().is_err());
        }
    });
}
