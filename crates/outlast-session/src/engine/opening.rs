//! A client's opening link: in service before it is welcomed, so that its first bytes ride with the Hello.
//!
//! The first read finds the answer. Until then nothing on the link belongs to the stream; from then on all of it
//! does, whatever became of the link meanwhile: a server that has welcomed it sends, and takes for delivered what this
//! kernel acknowledges. So the answer is looked for once more before the link is given up (PROTOCOL 3.5).

use super::client::Verdict;
use super::rx::Step;
use super::{Ctl, Engine, Link, Rx, Tx, Waiting};
use crate::error::Error;
use crate::proto::{ClientHandshake, ClientStep, LinkMode, Welcomed};
use std::io;
use std::sync::Arc;

/// Read while a handshake message is expected: it is small, but the first answer comes along with it.
const HANDSHAKE_READ_BYTES: usize = 16 << 10;

/// What is known of the answer.
#[derive(Debug)]
pub(crate) enum Opening {
    /// Nothing yet.
    Waiting(Box<ClientHandshake>),
    /// It was read, and somebody is about to act on it. Until then nobody reads on.
    Welcomed(Box<Welcomed>),
    /// As before, but it is a no.
    Refused,
}

/// What came instead of a Welcome.
#[derive(Debug)]
pub(crate) enum NoWelcome {
    /// A refusal, or nonsense.
    Said(ClientStep),
    /// TLS could not be agreed on.
    Tls(io::Error),
    /// A Welcome that cannot be made use of.
    Unusable(Error),
}

/// How the handshake of an opening link ended.
pub(crate) type HandshakeEnd = Result<(), NoWelcome>;

impl Engine {
    /// Looks for the Welcome.
    pub(super) fn handshake_step(&self, rx: &mut Rx, link: Arc<Link>, waiting: &mut Waiting<'_, '_>) -> Step {
        let end = loop {
            match rx.inbox.fill(HANDSHAKE_READ_BYTES, |room| link.receive(room, waiting)) {
                Ok(0) => return self.input_ended(&link, "connection closed during the handshake"),
                Ok(count) => {
                    link.note_heard();
                    rx.link_read_bytes += count as u64;
                }
                // What the link says is wrong, not the link.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => break Err(NoWelcome::Tls(error)),
                Err(error) => {
                    rx.inbox.shrink();
                    return Self::read_failed(&link, &error);
                }
            }
            let Some(Opening::Waiting(handshake)) = &mut rx.opening else { return Step::NoLink };
            match handshake.feed(rx.inbox.as_slice()) {
                ClientStep::NeedMore => {}
                ClientStep::Welcomed(welcomed) => {
                    rx.inbox.consume(welcomed.consumed_bytes);
                    rx.inbox.shrink();
                    rx.opening = Some(Opening::Welcomed(welcomed));
                    rx.link = None;
                    return Step::Handshake(link, Box::new(Ok(())));
                }
                other => break Err(NoWelcome::Said(other)),
            }
        };
        rx.opening = Some(Opening::Refused);
        rx.link = None;
        Step::Handshake(link, Box::new(end))
    }

    /// The handshake of an opening link has ended.
    pub(crate) fn handshake_ended(&self, link: &Arc<Link>, end: HandshakeEnd) {
        let end = end.and_then(|()| self.opened(link));
        if let Err(answer) = end
            && let Some(error) = self.act_on_refusal(answer, link)
        {
            self.lost(link, &error);
        }
    }

    /// Does what follows from an answer that is no Welcome. If there is to be another attempt: why.
    pub(super) fn act_on_refusal(&self, answer: NoWelcome, link: &Arc<Link>) -> Option<String> {
        match self.no_welcome(answer, link) {
            Verdict::Again { error, after } => {
                self.hold_off(after);
                Some(error)
            }
            Verdict::Elsewhere { error } => Some(error),
            Verdict::More(_) | Verdict::Installed | Verdict::Fatal(_) => None,
        }
    }

    fn opened(&self, link: &Arc<Link>) -> HandshakeEnd {
        let mut ctl = self.ctl();
        if !ctl.link.as_ref().is_some_and(|present| Arc::ptr_eq(present, link)) {
            // Lost meanwhile: then that has dealt with the Welcome.
            return Ok(());
        }
        {
            let mut tx = self.tx.lock();
            let mut rx = self.rx.lock();
            self.take_welcome(&mut ctl, &mut tx, &mut rx, link)?;
            rx.link = Some(link.clone());
        }
        drop(ctl);
        self.wake_all();
        Ok(())
    }

    /// Acts on a Welcome that was found.
    fn take_welcome(&self, ctl: &mut Ctl, tx: &mut Tx, rx: &mut Rx, link: &Arc<Link>) -> HandshakeEnd {
        let Some(Opening::Welcomed(welcomed)) = rx.opening.take_if(|opening| opening.is_welcomed()) else {
            return Ok(());
        };
        let welcome = &welcomed.welcome;
        if link.mode() == LinkMode::Window
            && !Engine::holds_window(&self.config, link, welcome.receive_buffer_bytes)
        {
            return Err(NoWelcome::Unusable(self.window_error(link)));
        }
        self.note_welcome(ctl, link);
        ctl.key = welcomed.session_key;
        ctl.peer_udp_port = welcome.udp_port;
        tx.sender.peer_takes_urgent(welcome.takes_urgent && self.config.urgent);
        tx.sender.confirm(self.window_bytes(link, welcome.receive_buffer_bytes));
        self.mark_connected(ctl, link, 0);
        Ok(())
    }

    /// The link is given up, and frozen: its answer may be there, unread. What it says, if it is no Welcome, is for
    /// [`no_welcome`](Self::no_welcome) when the locks are free.
    pub(super) fn last_look(
        &self,
        ctl: &mut Ctl,
        tx: &mut Tx,
        rx: &mut Rx,
        link: &Arc<Link>,
    ) -> Option<NoWelcome> {
        if let Some(Opening::Waiting(_)) = rx.opening
            && let Step::Handshake(_, end) = self.handshake_step(rx, link.clone(), &mut Waiting::Never)
            && let Err(answer) = *end
        {
            return Some(answer);
        }
        self.take_welcome(ctl, tx, rx, link).err()
    }

    /// A server that says nothing to an opening for as long as handshakes may take is given up for now.
    pub(super) fn give_up_opening(&self, link: &Arc<Link>) {
        // Its answer may be there, and nobody reads.
        self.pump_input();
        if self.tx().sender.is_confirmed() {
            return;
        }
        self.put_off_address(link.peer_addr);
        self.lost(link, "the server does not answer");
    }

    /// What follows from an answer that is no Welcome.
    fn no_welcome(&self, answer: NoWelcome, link: &Arc<Link>) -> Verdict {
        match answer {
            NoWelcome::Said(step) => self.client_refused(&step, link),
            NoWelcome::Tls(error) => self.tls_failed(link, &error),
            NoWelcome::Unusable(error) => self.fatal(error),
        }
    }
}

impl Opening {
    const fn is_welcomed(&self) -> bool {
        matches!(self, Self::Welcomed(_))
    }
}
