//! The connection between a server's relay and its service: what it may hold in the kernel while the session's client does
//! not take it.

use super::{Ctl, Engine, Role};
use crate::proto::{Growth, may_grow};
use crate::sys::{self, Lent, OtherEnds};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A connection to a service, as far as the engine has to do with it.
#[derive(Debug)]
pub(crate) struct Service {
    fd: Lent,
    growth: Growth,
}

/// While this is there the engine knows the connection. Dropped before the connection is closed.
#[derive(Debug)]
pub(crate) struct ServiceLent(Arc<Engine>);

impl Drop for ServiceLent {
    fn drop(&mut self) {
        // Whoever uses the descriptor does so under this lock.
        self.0.service.lock().take();
    }
}

impl Engine {
    /// Makes the connection to the session's service known, for as long as what is returned lives: that has to be dropped
    /// before the descriptor is closed. None for a client, whose program holds its own memory.
    pub(crate) fn lend_service(self: &Arc<Self>, fd: BorrowedFd<'_>) -> Option<ServiceLent> {
        if self.role == Role::Client {
            return None;
        }
        *self.service.lock() = Some(Service { fd: Lent::of(fd), growth: Growth::Not });
        let lent = ServiceLent(self.clone());
        let acked_bytes = self.acked_bytes();
        self.judge_service(&self.ctl.lock(), acked_bytes);
        Some(lent)
    }

    /// Decides again whether the kernel may take in more from the service by itself. True if that needs no asking any more.
    pub(crate) fn let_service_send(&self) -> bool {
        let acked_bytes = self.acked_bytes();
        // The link is just changing: another time, then.
        self.ctl.try_lock().is_some_and(|ctl| self.judge_service(&ctl, acked_bytes))
    }

    fn acked_bytes(&self) -> u64 {
        let mut tx = self.tx.lock();
        self.learn_acked(&mut tx);
        tx.sender.acked_offset()
    }

    /// With `ctl` a link is neither put into service nor taken out meanwhile.
    fn judge_service(&self, ctl: &Ctl, acked_bytes: u64) -> bool {
        let mut service = self.service.lock();
        let Some(service) = &mut *service else { return true };
        let Ok((_, buffer_bytes)) = sys::buffer_bytes(service.fd) else { return true };
        service.growth = may_grow(buffer_bytes, acked_bytes);
        service.apply(ctl);
        service.growth == Growth::Always
    }

    /// The link has come, or is gone. A connection that nobody takes anything from stays as it is.
    pub(super) fn service_linked(&self, ctl: &Ctl) {
        if let Some(service) = &mut *self.service.lock() {
            service.apply(ctl);
        }
    }

    /// What the kernel holds for that connection, at both ends.
    pub(super) fn service_bytes(&self, others: &OtherEnds) -> u64 {
        let Some(service) = self.service.try_lock() else { return 0 };
        let Some(service) = &*service else { return 0 };
        let own_bytes = sys::held_bytes(service.fd).unwrap_or(0);
        own_bytes + others.held_bytes(service.fd).unwrap_or(0)
    }
}

impl Service {
    fn apply(&self, ctl: &Ctl) {
        let may = ctl.link.is_some() && self.growth != Growth::Not;
        // Kernels before 5.14 cannot be told.
        let _ = sys::let_receive_buffer_grow(self.fd, may);
    }
}
