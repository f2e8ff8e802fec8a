//! Which acknowledgement mode the next link of a client in `auto` asks for.

use super::NOT_DIRECT_MAX;
use crate::config::{AckMode, Config, Security};
use crate::engine::{Ctl, Engine, Link};
use crate::error::Error;
use crate::proto::{LinkMode, Modes, Refusal};
use crate::sys;

/// What is tried, in this order (PROTOCOL 3.13).
const ORDER: [LinkMode; 4] = [LinkMode::Kernel, LinkMode::Inband, LinkMode::Udp, LinkMode::Window];

/// What this side can do, and what has been said about that since the last Welcome.
#[derive(Debug)]
pub(in crate::engine) struct Choice {
    able: Modes,
    refused: Modes,
    /// The path seems not to be direct.
    indirect: bool,
}

impl Choice {
    pub(super) fn new(config: &Config) -> Self {
        let able = match config.ack {
            AckMode::Fixed(mode) => Modes::only(mode),
            AckMode::Auto if matches!(config.security, Security::Tls(_)) => Modes::only(LinkMode::Inband),
            AckMode::Auto if !sys::can_freeze() => Modes::only(LinkMode::Inband).with(LinkMode::Udp),
            AckMode::Auto if !config.ring_holds_window() => Modes::ALL.without(LinkMode::Window),
            AckMode::Auto => Modes::ALL,
        };
        Self { able, refused: Modes::NONE, indirect: false }
    }

    /// Whether there is one.
    pub(super) const fn is_free(&self) -> bool {
        self.able.count() > 1
    }

    /// The best of what has not been refused.
    pub(super) fn best(&self) -> Option<LinkMode> {
        ORDER.into_iter().find(|mode| {
            self.able.has(*mode) && !self.refused.has(*mode) && !(self.indirect && mode.needs_direct_path())
        })
    }

    /// The path seems not to be direct. The best mode for such a one; without any, the path has to be tried again.
    pub(super) fn without_direct_path(&mut self) -> Option<LinkMode> {
        self.indirect = true;
        let best = self.best();
        self.indirect = best.is_some();
        best
    }

    /// The server does not offer `mode`, but `offered`, if it says so. The best of the others.
    pub(super) fn without(&mut self, mode: LinkMode, offered: Modes) -> Option<LinkMode> {
        if !offered.is_empty() {
            // What was refused before that, the last process at this address may have refused.
            self.refused = offered.others();
        }
        self.refused = self.refused.with(mode);
        let best = self.best();
        if best.is_none() && self.indirect {
            // A lost packet can make a path look so (PROTOCOL 7.6), and there is no other mode.
            self.indirect = false;
            return self.best();
        }
        best
    }

    /// The server has welcomed a link: what is said from now on counts.
    pub(super) const fn welcomed(&mut self) {
        self.refused = Modes::NONE;
        self.indirect = false;
    }

    /// Whether the server does not offer what `auto` has asked for.
    pub(super) const fn is_narrowed(&self) -> bool {
        self.is_free() && !self.refused.is_empty()
    }

    /// What this side can do, for people.
    pub(super) fn describe(&self, ack: AckMode) -> String {
        if self.is_free() {
            format!("--ack {ack} here can use {}", self.able)
        } else {
            format!("--ack {ack} here")
        }
    }

    /// Why the mode is not another one, for people.
    pub(super) fn describe_narrowed(&self) -> String {
        format!("--ack auto here, and --ack at the server does not offer {}", self.refused)
    }
}

impl Engine {
    /// Chooses another mode for the next link if `refusal` is about that of `link`. Why there is to be another attempt; none
    /// if there is no other mode, or the refusal is about something else.
    pub(super) fn other_mode(&self, ctl: &mut Ctl, refusal: Refusal, link: &Link) -> Option<String> {
        let (client, mode, peer) = (&mut ctl.client, link.mode(), link.peer_addr);
        if !client.choice.is_free() {
            return None;
        }
        match refusal {
            Refusal::NotDirect if mode.needs_direct_path() => {
                let next = client.choice.without_direct_path()?;
                let first = client.auto;
                client.fall_back(next);
                if first && client.was_direct {
                    let lasts = client.fallbacks >= NOT_DIRECT_MAX;
                    let then = if lasts { "from now on" } else { "for the next link" };
                    tracing::warn!(
                        session = %self.id, %peer,
                        "the path was direct, and the server cannot see that it still is: using {next} {then}"
                    );
                } else if first {
                    tracing::info!(session = %self.id, %peer, "the path is not direct: using {next}");
                }
                // Not what the refusal says: to use another mode is what happens.
                Some(format!("the path is not direct, the next link is {next}"))
            }
            Refusal::ModeRefused { offered } => {
                let next = client.choice.without(mode, offered)?;
                if mode == LinkMode::Kernel {
                    (client.was_direct, client.fallbacks) = (false, 0);
                }
                client.use_mode(next);
                tracing::info!(
                    session = %self.id, %peer, "the server does not offer the acknowledgement mode {mode}: using {next}"
                );
                Some(format!(
                    "the server does not offer the acknowledgement mode {mode}, the next link is {next}"
                ))
            }
            _ => None,
        }
    }

    /// Says in an error about modes what this side has to do with it.
    pub(super) fn with_modes(&self, ctl: &Ctl, error: Error) -> Error {
        let choice = &ctl.client.choice;
        match error {
            Error::Refused { peer, id, refusal: refusal @ Refusal::ModeRefused { .. }, why: None } => {
                Error::Refused { peer, id, refusal, why: Some(choice.describe(self.config.ack)) }
            }
            Error::Refused { peer, id, refusal: Refusal::NotDirect, why: None } if choice.is_narrowed() => {
                Error::Refused {
                    peer,
                    id,
                    refusal: Refusal::NotDirect,
                    why: Some(choice.describe_narrowed()),
                }
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LinkMode::{Inband, Kernel, Udp, Window};

    fn choice() -> Choice {
        Choice { able: Modes::ALL, refused: Modes::NONE, indirect: false }
    }

    #[test]
    fn a_server_that_does_not_say_what_it_offers_is_asked_for_one_after_the_other() {
        let mut choice = choice();
        let mut asked = vec![choice.best().unwrap()];
        while let Some(next) = choice.without(*asked.last().unwrap(), Modes::NONE) {
            asked.push(next);
        }
        assert_eq!(asked, [Kernel, Inband, Udp, Window]);
        choice.welcomed();
        assert_eq!(choice.best(), Some(Kernel));
    }

    #[test]
    fn one_that_says_so_is_believed_last() {
        for mode in [Inband, Udp, Window] {
            assert_eq!(choice().without(Kernel, Modes::only(mode)), Some(mode));
        }
        let mut choice = choice();
        assert_eq!(choice.without(Kernel, Modes::only(Inband)), Some(Inband));
        // It was restarted.
        assert_eq!(choice.without(Inband, Modes::only(Kernel)), Some(Kernel));
    }

    #[test]
    fn a_path_that_is_not_direct_leaves_the_modes_that_need_none() {
        let mut choice = choice();
        assert_eq!(choice.without_direct_path(), Some(Inband));
        assert_eq!(choice.without(Inband, Modes::NONE), Some(Udp));
        // Nothing else is left: the next connection may lose no packet.
        assert_eq!(choice.without(Udp, Modes::NONE), Some(Kernel));
        assert_eq!(choice.without_direct_path(), None);
        assert_eq!(choice.best(), Some(Kernel));
    }

    #[test]
    fn one_mode_is_no_choice() {
        for ack in [AckMode::Fixed(Kernel), AckMode::Fixed(Inband)] {
            let mut choice = Choice::new(&Config { ack, ..Config::default() });
            assert!(!choice.is_free());
            assert_eq!(choice.without(choice.best().unwrap(), Modes::ALL), None);
        }
    }
}
