//! The acceptor: gives every session to the service.

use super::service::{Ledger, serve};
use outlast_session::tokio::Listener;
use outlast_session::{EventKind, Events, Result};
use std::sync::Arc;

/// Accepts sessions for ever. Each is served by a task, on whichever thread is free.
///
/// # Errors
/// The listening socket broke.
pub async fn run(listener: &Listener, ledger: &Arc<Ledger>) -> Result<()> {
    loop {
        let session = listener.accept().await?;
        let (id, ledger) = (session.id(), Arc::clone(ledger));
        tokio::spawn(async move {
            if let Err(error) = serve(session, &ledger).await {
                eprintln!("session {id}: {error}");
            }
        });
    }
}

/// Says which links broke. Nobody has to listen to it: all has been taken care of.
pub async fn narrate(mut events: Events) {
    while let Some(event) = events.recv().await {
        match event.kind {
            EventKind::Lost { cause } => println!("session {}: lost its link: {cause}", event.session),
            EventKind::Resumed { pause, .. } => {
                println!("session {}: goes on after {pause:.1?}", event.session)
            }
            _ => {}
        }
    }
}
