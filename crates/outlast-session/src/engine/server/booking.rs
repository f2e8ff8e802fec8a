//! A proven Hello becomes a session in the table, or one more link for a session that is there.

use super::super::gap::{self, Gap};
use super::super::memory;
use super::super::switch::PeerPosition;
use super::super::{Engine, Link, Overfull, Role, millis};
use super::door::say_no;
use super::{
    Acceptor, DRAINING_RETRY_AFTER_MS, Greeting, Outcome, RETRY_AFTER_MS, ServerHooks, UNACCEPTED_MAX,
};
use crate::proto::{
    Auth, Block, Decision, Descriptors, DirectPath, DirectVerdict, Greeted, Intent, LinkMode, NotDirect,
    Policy, Refusal, Refuse, RegistryLimits, SavedSyn, Shortage, State, Welcome,
};
use crate::sys;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A session with as much input as it may have, that nobody reads, gets a link in a mode that can add to it only after such a pause.
/// By then it is one of those that make room, where that is needed.
const OVERFULL_PAUSE: Duration = Duration::from_secs(6);
/// And so many, until the application has read more, if they have added so much.
const OVERFULL_LINKS_MAX: u32 = 16;
const OVERFULL_MORE_BYTES: u64 = 1 << 20;

impl Acceptor {
    pub(super) fn decide(&self, greeting: &mut Greeting, mut link: Link, greeted: &Greeted) -> Outcome {
        let hello = &greeted.hello;
        if hello.mode == LinkMode::Udp && (self.mailbox.get().is_none() || hello.udp_port.is_none()) {
            return self.refuse_mode(&link, hello, self.modes().without(LinkMode::Udp));
        }
        let direct = if hello.mode.needs_direct_path() {
            judge(&link, hello.direct_proof, hello.source_port)
        } else {
            DirectVerdict::NotDirect(NotDirect::NoProof)
        };
        link.mark(hello.epoch, hello.mode);
        if hello.mode == LinkMode::Window
            && let Err(error) = link.pin_buffers(self.config.window_buffer_bytes)
        {
            tracing::warn!(%error, "cannot fix the buffers of a link");
            return self.refuse_mode(&link, hello, self.modes().without(LinkMode::Window));
        }
        if hello.mode == LinkMode::Window && hello.intent == Intent::Open && memory::is_scarce() {
            // A window needs all of its ring at any time.
            self.note_full(&link, hello.id, Shortage::Memory);
            return self.turn_away(Some(&link), Shortage::Memory.refusal(RETRY_AFTER_MS));
        }
        if hello.mode == LinkMode::Window
            && !Engine::holds_window(&self.config, &link, hello.receive_buffer_bytes)
        {
            // PROTOCOL 3.6: what the peer claims is compared with what is held here.
            return self.refuse_mode(&link, hello, self.modes().without(LinkMode::Window));
        }
        let link = Arc::new(link);
        match self.book(&link, greeted, direct) {
            Ok((engine, booked)) => self.enter(engine, greeting, &link, greeted, booked),
            Err(outcome) => outcome,
        }
    }

    /// Finds the session, or makes it. True: the registry has the newcomer as its link already.
    pub(super) fn book(
        &self,
        link: &Arc<Link>,
        greeted: &Greeted,
        direct: DirectVerdict,
    ) -> Result<(Arc<Engine>, bool), Outcome> {
        let hello = &greeted.hello;
        let peer = link.peer_addr.ip();
        memory::look();
        let opens = hello.intent == Intent::Open;
        let files = Descriptors { most: sys::descriptors_max() };
        let own_number = u64::try_from(link.as_fd().as_raw_fd()).unwrap_or_default();
        // The lowest that was free is what can be told otherwise.
        let used = if opens { sys::descriptors_open().unwrap_or(own_number) } else { 0 };
        // The application opens one more for each session that it has not taken yet.
        let unaccepted = u64::try_from(self.unaccepted.load(Ordering::Acquire)).unwrap_or(u64::MAX);
        let used = if opens { used.saturating_add(unaccepted) } else { 0 };
        if opens && !files.admits(used) {
            memory::want_descriptors(used);
        }
        // Who raises the limit of an address means it.
        let per_peer = self.config.sessions_per_peer_max;
        let meant = if per_peer > RegistryLimits::default().sessions_per_peer_max { per_peer } else { 0 };
        let certificate = link.peer_certificate();
        let mut registry = self.registry.lock();
        // PROTOCOL 6.10: with another certificate it is not proven, whatever it knows.
        let auth =
            if registry.may_own(&hello.id, certificate.as_ref()) { greeted.auth } else { Auth::Unproven };
        let draining = self.draining.load(Ordering::Relaxed) || self.closed.load(Ordering::Acquire);
        let short_of = if !opens {
            None
        } else if self.unaccepted.load(Ordering::Acquire) >= UNACCEPTED_MAX {
            // The application does not keep up. The sessions that it has are none of that.
            Some(Shortage::Application)
        } else if !files.admits(used) {
            Some(Shortage::Descriptors)
        } else if !self.has_memory_for(Block::of(peer)) {
            Some(Shortage::Memory)
        } else {
            None
        };
        let policy = Policy {
            draining_retry_after_ms: draining.then_some(DRAINING_RETRY_AFTER_MS),
            short_of,
            modes: self.modes(),
            sessions_per_block_max: files.sessions_per_block_max(used).max(meant),
            ..self.policy
        };
        match registry.decide(self.now(), hello, peer, auth, direct, &policy) {
            Decision::Refuse(refusal) => {
                let ended = matches!(refusal, Refusal::Ended { .. });
                let why = registry.why_ended(&hello.id).filter(|_| ended).map(str::to_owned);
                let full = matches!(refusal, Refusal::Busy { .. } | Refusal::Quota);
                let shortage = registry.shortage(peer, &policy).filter(|_| full);
                drop(registry);
                if let Some(shortage) = shortage {
                    self.note_full(link, hello.id, shortage);
                    if shortage == Shortage::Sessions {
                        self.want_places();
                    }
                }
                if let Refusal::ModeRefused { offered } = refusal {
                    self.note_mode_refused(link, hello, offered);
                }
                tracing::info!(
                    session = %hello.id, peer = %link.peer_addr, refusal = refusal.name(), proof = ?auth, "refused"
                );
                say_no(link, Refuse { refusal, why });
                Err(Outcome::Closed)
            }
            Decision::Create => {
                let engine = Engine::new(hello.id, Role::Server, self.config.clone());
                engine.ctl().owner = certificate;
                // Before anybody else can find it: its next Hello may be here already.
                engine.set_hooks(Arc::new(ServerHooks { acceptor: self.this.clone() }));
                engine.set_listener_events(self.events.clone());
                match registry.insert(hello.id, engine.clone(), hello.epoch, peer) {
                    Ok(()) => {
                        registry.set_owner(&hello.id, certificate);
                        Ok((engine, true))
                    }
                    Err(_) => Err(Outcome::Closed),
                }
            }
            Decision::Abort(engine) => {
                drop(registry);
                let Some(refusal) = engine.aborted_by_peer(hello) else {
                    let refusal = Refusal::Draining { retry_after_ms: DRAINING_RETRY_AFTER_MS };
                    return Err(self.turn_away(Some(link), refusal));
                };
                say_no(link, refusal);
                Err(Outcome::Closed)
            }
            Decision::Resume(engine) => Ok((engine, false)),
        }
    }

    /// One more link for a session. The first to have one opens it, whichever of its Hellos that came with.
    pub(super) fn enter(
        &self,
        engine: Arc<Engine>,
        greeting: &mut Greeting,
        link: &Arc<Link>,
        greeted: &Greeted,
        booked: bool,
    ) -> Outcome {
        match self.attach(&engine, greeting, link, greeted, booked) {
            Ok(State::Opening) => {
                self.unaccepted.fetch_add(1, Ordering::AcqRel);
                Outcome::Opened(engine)
            }
            Ok(_) => Outcome::Resumed,
            Err(refusal) => self.turn_away(Some(link), refusal),
        }
    }

    /// Puts the link into the service of its session. The newcomer has proved itself; `booked`: the registry has it as the
    /// session's link already. Says what the session was until then.
    fn attach(
        &self,
        engine: &Arc<Engine>,
        greeting: &mut Greeting,
        link: &Arc<Link>,
        greeted: &Greeted,
        booked: bool,
    ) -> Result<State, Refuse> {
        let hello = &greeted.hello;
        let mut ctl = engine.ctl();
        if ctl.is_detached() {
            return Err(Refusal::Draining { retry_after_ms: DRAINING_RETRY_AFTER_MS }.into());
        }
        if ctl.life.is_over() {
            return Err(engine.ended_refusal(ctl.failure.as_ref()));
        }
        if ctl.epoch >= hello.epoch {
            return Err(Refusal::StaleEpoch { current: ctl.epoch }.into());
        }
        // PROTOCOL 3.6: what cannot be is refused before anything is touched.
        if !engine.could_continue_at(hello.next_offset) {
            return Err(Refusal::OffsetOutOfRange.into());
        }
        // There each link that ends leaves as much as it had received, which is acknowledged: no peer piles that up.
        let overfull_at = engine.overfull_at().filter(|_| hello.mode.needs_direct_path() && ctl.welcomed);
        if let Some((offset, held_bytes)) = overfull_at {
            let offered = self.modes().without(LinkMode::Kernel).without(LinkMode::Window);
            if hello.auto && !offered.is_empty() {
                return Err(Refusal::ModeRefused { offered }.into());
            }
            // The application may read on only when its client has what it writes: now and then there is a link all the same.
            let has_waited = ctl.lost_at.is_some_and(|at| at.elapsed() >= OVERFULL_PAUSE);
            let is_first = ctl.overfull.links == 0 || ctl.overfull.offset != offset;
            let known = if is_first { Overfull { offset, held_bytes, links: 0 } } else { ctl.overfull };
            let has_more = held_bytes >= known.held_bytes + OVERFULL_MORE_BYTES;
            if !has_waited || known.links >= OVERFULL_LINKS_MAX && has_more {
                return Err(Refusal::Busy { retry_after_ms: self.policy.busy_retry_after_ms }.into());
            }
            ctl.overfull = Overfull { links: known.links.saturating_add(1), ..known };
        }
        let before = ctl.life.state();
        if !booked && self.registry.lock().attach(&hello.id, hello.epoch, link.peer_addr.ip()).is_err() {
            return Err(Refusal::StaleEpoch { current: ctl.epoch }.into());
        }
        if let Some(mailbox) = self.mailbox.get().filter(|_| hello.mode == LinkMode::Udp) {
            engine.use_mailbox(&mut ctl, mailbox.clone());
        }
        gap::reached(Gap::ResumeChecked, engine);
        let position = engine.retire(&mut ctl, "the client made a new link").position;
        // What came on the old link, and was read only now, may say that the position is none. The session waits for a better Hello.
        if before != State::Opening && !engine.could_continue_at(hello.next_offset) {
            drop(ctl);
            engine.check_over();
            engine.note_without_link(hello.epoch);
            return Err(Refusal::OffsetOutOfRange.into());
        }
        engine.hear_of_pause(&mut ctl, hello.paused_ms);
        let (send_buffer_bytes, receive_buffer_bytes) = link.buffer_bytes();
        let welcome = Welcome {
            next_offset: position.next_offset,
            retained_offset: position.retained_offset,
            sent_offset: position.sent_offset,
            end_offset: position.end_offset,
            send_buffer_bytes,
            receive_buffer_bytes,
            udp_port: ctl.udp_port(hello.mode),
            takes_urgent: link.takes_urgent(&self.config),
            keep_ms: u64::try_from(self.config.keep.as_millis()).unwrap_or(u64::MAX),
            paused_ms: ctl.paused_at.filter(|_| before != State::Opening).map(|at| millis(at.elapsed())),
            ..Welcome::to_new(hello)
        };
        let mut head = std::mem::take(&mut greeting.output);
        head.extend_from_slice(&greeting.handshake.accept(welcome));
        let rest = greeting.input.get(greeted.consumed_bytes..).unwrap_or_default();
        let early = hello.carries_early_data();
        let peer = PeerPosition {
            next_offset: hello.next_offset,
            end_offset: hello.end_offset,
            receive_buffer_bytes: hello.receive_buffer_bytes,
            rest,
            read_bytes: greeting.read_bytes,
            takes_urgent: hello.takes_urgent && self.config.urgent,
        };
        if let Some(key) = &greeted.session_key {
            ctl.key = Some(key.clone());
            self.registry.lock().set_key(&hello.id, Some(key.clone()));
        }
        ctl.welcomed = true;
        ctl.peer_udp_port = hello.udp_port;
        match engine.install(&mut ctl, link, &peer, &head, None) {
            Ok(()) => {
                drop(ctl);
                if early {
                    // The Welcome rides with the first answer, or follows shortly.
                    engine.answer_with_first_write();
                } else {
                    engine.resume_io();
                }
                Ok(before)
            }
            Err(error) => {
                drop(ctl);
                engine.fail(error);
                Err(Refusal::OffsetOutOfRange.into())
            }
        }
    }
}

fn judge(link: &Link, direct_proof: Option<u32>, source_port: Option<u16>) -> DirectVerdict {
    if !sys::can_freeze() {
        // PROTOCOL 3.5 could not be kept: what this kernel acknowledges would not be final. The client takes inband.
        return DirectVerdict::NotDirect(NotDirect::NoProof);
    }
    let syn = sys::saved_syn(link).ok().and_then(|headers| SavedSyn::parse(&headers).ok());
    DirectPath::default().judge(direct_proof, source_port, syn.as_ref())
}
