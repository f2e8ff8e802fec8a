//! Both directions full at a time: what acknowledges one is behind the bytes of the other.

use crate::common::{pattern, quick, within};
use outlast_session::{AckMode, Config, LinkMode, Targets, blocking};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

/// More than both ends and the kernels' queues hold.
const STREAM_BYTES: usize = 48 << 20;

/// An echo reads nothing while it cannot write. Its client retains more than the echo's side does, and reads late: nothing is
/// lost by that, and nothing stands still.
#[test]
fn an_echo_goes_on_when_its_client_reads_late() {
    for (client_bytes, server_bytes) in [(8 << 20, 1 << 20), (1 << 20, 8 << 20), (32 << 20, 256 << 10)] {
        within(move || {
            let ack = AckMode::Fixed(LinkMode::Inband);
            let config = |retain_bytes_max| Arc::new(Config { ack, retain_bytes_max, ..quick() });
            let listener = blocking::Listener::bind_with("127.0.0.1:0", &config(server_bytes)).unwrap();
            let targets = Targets::from(listener.local_addr());
            let echo = std::thread::spawn(move || {
                let session = listener.accept().unwrap();
                let mut buffer = vec![0; 64 << 10];
                loop {
                    match (&session).read(&mut buffer).unwrap() {
                        0 => break,
                        count => (&session).write_all(&buffer[..count]).unwrap(),
                    }
                }
                session.finish().unwrap();
            });
            let client = blocking::Session::connect_with(&targets, &config(client_bytes)).unwrap();
            let content = pattern(STREAM_BYTES);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    (&client).write_all(&content).unwrap();
                    client.shutdown(Shutdown::Write).unwrap();
                });
                // Until neither of the two can write any more: a moment without progress.
                let mut written = u64::MAX;
                while std::mem::replace(&mut written, client.info().written_bytes) != written {
                    std::thread::sleep(Duration::from_millis(100));
                }
                let mut received = Vec::new();
                (&client).read_to_end(&mut received).unwrap();
                assert!(received == content, "{} bytes, or wrong ones", received.len());
            });
            echo.join().unwrap();
        });
    }
}
