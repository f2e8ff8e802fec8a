//! What a listener's table hears of its sessions.

use super::super::abort::reason_for_peer;
use super::super::{Engine, Helper, Hooks, memory};
use super::Acceptor;
use crate::error::Error;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// Books what happens to a server's session.
#[derive(Debug)]
pub(in crate::engine) struct ServerHooks {
    pub(in crate::engine) acceptor: Weak<Acceptor>,
}

impl Hooks for ServerHooks {
    fn lost(&self, engine: &Arc<Engine>, epoch: u64) {
        let Some(acceptor) = self.acceptor.upgrade() else {
            // Nobody listens any more: the client cannot come back.
            engine.fail(Error::Closed { id: engine.id });
            return;
        };
        let now = acceptor.now();
        acceptor.registry.lock().detach(&engine.id, epoch, now);
        if acceptor.closed.load(Ordering::SeqCst) {
            // Somebody still shakes hands; nobody will in a moment.
            engine.fail(Error::Closed { id: engine.id });
            return;
        }
        memory::look_after_loss();
        Helper::get().watch_expiry(&acceptor);
    }

    fn over(&self, engine: &Arc<Engine>) {
        if let Some(acceptor) = self.acceptor.upgrade() {
            let received_offset = engine.position().next_offset;
            let why = engine.failure().as_ref().map(reason_for_peer);
            let now = acceptor.now();
            acceptor.registry.lock().end(&engine.id, received_offset, why.as_deref(), now);
        }
    }
}
