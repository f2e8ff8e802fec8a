//! An application that has written and then looks away: what it wrote arrives even if the link breaks meanwhile.

use crate::common::{pattern, quick, within};
use outlast_session::{AckMode, Config, LinkMode, Targets, blocking};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// A relay that resets its first connection after `bytes_max` bytes and carries later ones.
fn relay(server: SocketAddr, bytes_max: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for (number, near) in listener.incoming().enumerate() {
            let near = near.unwrap();
            let far = TcpStream::connect(server).unwrap();
            for stream in [&near, &far] {
                socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
            }
            let (mut back_from, mut back_to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut back_from, &mut back_to));
            std::thread::spawn(move || {
                let limit = if number == 0 { bytes_max as u64 } else { u64::MAX };
                let _ = std::io::copy(&mut (&near).take(limit), &mut &far);
                let _ = near.shutdown(std::net::Shutdown::Both);
                let _ = far.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    address
}

#[test]
fn a_broken_link_is_noticed_while_the_application_looks_away() {
    within(|| {
        for ended in [false, true] {
            let config = Arc::new(Config { ack: AckMode::Fixed(LinkMode::Inband), ..quick() });
            let listener = blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap();
            let targets = Targets::from(relay(listener.local_addr(), 30_000));
            let mut client = blocking::Session::connect_with(&targets, &config).unwrap();
            client.established().unwrap();
            let mut server = listener.accept().unwrap();
            let sent = pattern(100_000);
            client.write_all(&sent).unwrap();
            client.flush().unwrap();
            if ended {
                client.shutdown(std::net::Shutdown::Write).unwrap();
            }
            // The client does nothing any more, and holds its session.
            let mut got = vec![0; sent.len()];
            server.read_exact(&mut got).unwrap();
            assert!(got == sent);
            drop(client);
        }
    });
}
