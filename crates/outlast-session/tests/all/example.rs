//! The example `ledger`, with its links broken: no payment is lost, none is made twice.
// A failed expectation is the message.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr)]

#[path = "../../examples/ledger/client.rs"]
mod client;
#[path = "../../examples/ledger/server.rs"]
mod server;
#[path = "../../examples/ledger/service.rs"]
mod service;

use outlast_session::tokio::{Listener, Session};
use outlast_session::{Config, Targets};
use service::Ledger;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;

const SESSIONS: u32 = 200;
const PAYMENTS: u64 = 300;
/// A hundredth of all.
const PAID_BETWEEN_BREAKS: u64 = SESSIONS as u64 * PAYMENTS * 2 / 100;

/// A relay that resets all of its connections whenever `breaks` says so.
async fn relay(server: SocketAddr, breaks: broadcast::Sender<()>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let mut broken = breaks.subscribe();
            tokio::spawn(async move {
                let mut far = TcpStream::connect(server).await.unwrap();
                let ended = tokio::select! {
                    ended = copy_bidirectional(&mut near, &mut far) => ended.is_ok(),
                    _ = broken.recv() => false,
                };
                if !ended {
                    for stream in [&near, &far] {
                        socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
                    }
                }
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_payment_counts_once() {
    let config = Arc::new(Config { backoff_base: Duration::from_millis(5), ..Config::default() });
    let listener = Listener::bind_with("127.0.0.1:0", &config).await.unwrap();
    let (breaks, _) = broadcast::channel(1);
    let targets = Targets::from(relay(listener.local_addr(), breaks.clone()).await);
    let ledger = Arc::new(Ledger::default());
    tokio::spawn(server::narrate(listener.events()));
    let book = ledger.clone();
    tokio::spawn(async move { server::run(&listener, &book).await });

    let clients: Vec<_> = (0..SESSIONS)
        .map(|account| {
            let (targets, config) = (targets.clone(), config.clone());
            tokio::spawn(async move {
                let mut session = Session::connect_with(&targets, &config).await.unwrap();
                let balance = client::pay_often(&mut session, account, 2, PAYMENTS).await.unwrap();
                session.finish().await.unwrap();
                (balance, session.info().outages)
            })
        })
        .collect();
    let book = ledger.clone();
    let breaker = tokio::spawn(async move {
        let mut paid_then = 0;
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            // Not faster than sessions come back, however busy the machine is.
            let paid: u64 = (0..SESSIONS).map(|account| book.pay(account, 0)).sum();
            if paid < paid_then + PAID_BETWEEN_BREAKS {
                continue;
            }
            paid_then = paid;
            // Nobody to hear it: nothing to break.
            let _ = breaks.send(());
        }
    });
    let mut outages = 0;
    for client in clients {
        let (balance, broken) = client.await.unwrap();
        assert_eq!(balance, 2 * PAYMENTS);
        outages += broken;
    }
    breaker.abort();
    assert!(outages > 0, "nothing was broken");
    for account in 0..SESSIONS {
        assert_eq!(ledger.pay(account, 0), 2 * PAYMENTS, "account {account}");
    }
    // The service serves what is not a session as well.
    let (mut near, far) = tokio::io::duplex(64);
    tokio::spawn(async move { service::serve(far, &ledger).await });
    let balance = client::pay_often(&mut near, client::number_of("nobody"), 3, 5).await.unwrap();
    assert_eq!(balance, 15);
}
