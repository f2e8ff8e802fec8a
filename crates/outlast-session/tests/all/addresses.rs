//! Several addresses, and one of them takes connections and says nothing.

use crate::common::{Protection, psk, quick, within};
use outlast_session::{AckMode, Config, LinkMode, Security, Targets, blocking, tokio as async_face};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

fn config(protection: Protection) -> Arc<Config> {
    let security = if protection == Protection::Psk { Security::Psk(psk(1)) } else { Security::Open };
    Arc::new(Config {
        ack: AckMode::Fixed(LinkMode::Inband),
        security,
        handshake_timeout: Duration::from_millis(500),
        ..quick()
    })
}

/// The kernel takes connections for it, and nobody accepts them.
fn silent() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

fn both(silent: &TcpListener, good: std::net::SocketAddr) -> Targets {
    format!("{},{good}", silent.local_addr().unwrap()).parse().unwrap()
}

#[test]
fn an_address_that_says_nothing_does_not_keep_the_next_one_from_being_tried() {
    for protection in [Protection::Open, Protection::Psk] {
        within(move || {
            let (silent, config) = (silent(), config(protection));
            let listener = blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap();
            let targets = both(&silent, listener.local_addr());
            let mut client = blocking::Session::connect_with(&targets, &config).unwrap();
            client.write_all(b"x").unwrap();
            client.established().unwrap();
            let mut server = listener.accept().unwrap();
            let mut got = [0];
            server.read_exact(&mut got).unwrap();
            assert_eq!(got, *b"x");
        });
    }
}

#[test]
fn neither_does_it_for_tasks() {
    for protection in [Protection::Open, Protection::Psk] {
        within(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (silent, config) = (silent(), config(protection));
                let listener = async_face::Listener::bind_with("127.0.0.1:0", &config).await.unwrap();
                let targets = both(&silent, listener.local_addr());
                let client = async_face::Session::connect_with(&targets, &config).await.unwrap();
                client.established().await.unwrap();
                listener.accept().await.unwrap();
            });
        });
    }
}
