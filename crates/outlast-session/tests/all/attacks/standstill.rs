//! Both directions full at a time, and no memory to read on to what acknowledges.

use super::descriptors::alone;
use crate::common::{pattern, quick};
use outlast_session::{AckMode, Config, LinkMode, Memory, Targets, blocking};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

/// Of the process: of both ends.
const BUDGET_BYTES: u64 = 1 << 20;
/// More than both ends may hold.
const STREAM_BYTES: usize = 2 << 20;

/// An echo reads nothing while it cannot write, and its client reads late. However little memory there is, all arrives.
#[test]
fn an_echo_goes_on_when_memory_is_short() {
    // The budget is the process's.
    alone("standstill::an_echo_goes_on_when_memory_is_short", || {
        Memory::set_budget(BUDGET_BYTES);
        let ack = AckMode::Fixed(LinkMode::Inband);
        let config = |retain_bytes_max| Arc::new(Config { ack, retain_bytes_max, ..quick() });
        let listener = blocking::Listener::bind_with("127.0.0.1:0", &config(128 << 10)).unwrap();
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
        let client = blocking::Session::connect_with(&targets, &config(8 << 20)).unwrap();
        // Who is not known yet is asked to wait until there is memory.
        client.established().unwrap();
        let content = pattern(STREAM_BYTES);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (&client).write_all(&content).unwrap();
                client.shutdown(Shutdown::Write).unwrap();
            });
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
