//! What the core has decided is done, and other threads learn how this node is.

use super::clients::Client;
use super::machine::Machine;
use super::refresher::Purpose;
use crate::entry::ConnectionId;
use crate::replica::{Action, AnswerPolicy, Shown};
use crate::view::NodeId;
use std::io;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// Commands that are refused are told of so often.
const REFUSED_EVERY: Duration = Duration::from_secs(60);

impl Machine {
    /// The primary, and its client, wait for what this backup says, and for nothing that its server does.
    fn say_first(&mut self) {
        self.replica.flush(self.now_ms());
        while let Some((to, message)) = self.replica.poll_message() {
            self.peers.send(to, &message);
        }
        self.peers.flush();
    }

    /// Does what the core has decided.
    pub(super) fn act(&mut self) -> io::Result<()> {
        if !self.replica.order().is_primary() {
            self.say_first();
        }
        while let Some(action) = self.replica.poll_action() {
            match action {
                Action::Send { to, message } => self.peers.send(to, &message),
                Action::Verdict { packet, passes } => self.decide(packet, passes),
                Action::LetPass { connection, acknowledges } => self.let_pass(connection, acknowledges),
                Action::ConnectServer { connection } => self.connect_server(connection),
                Action::ReconnectServer { connection, resume } => self.reconnect_server(connection, &resume),
                Action::CommandRefused { connection, why } => self.tell_of_refused(connection, why),
                // What waits still of one that is out is for nobody.
                Action::SetClock { .. } if self.known.is_excluded => {}
                Action::SetClock { at_ms } => self.set_clock(at_ms)?,
                Action::AskServer { index, connection } => self.ask_server(index, connection),
                Action::RefreshServer { index } => self.ask_to_refresh(Purpose::Entry(index)),
                Action::Outdated => {
                    self.join_fails("the others have gone on, and no longer keep what it lacks")
                }
                Action::ToServer { connection, bytes } => self.give_server(connection, &bytes),
                Action::LogIn { connection, login } => self.log_in(connection, login),
                Action::Interrupt { number, .. } => self.interrupt_sql(number),
                Action::EndToServer { connection } => self.end_to_server(connection),
                Action::CloseServer { connection } => self.close_server(connection),
                Action::ClientReady { connection } => self.feed_client(connection),
                Action::ResetClient { connection } => self.reset_client(connection),
                Action::AnswerSyn { connection } => self.send_raw(|machine| {
                    machine.restore(connection).map_or(Ok(()), |restore| machine.raw.answer_syn(&restore))
                }),
                Action::AskSent { connection } => {
                    let sent = self.clients.get(&connection).map_or(0, Client::sent);
                    self.replica.handle_sent(connection, sent);
                }
                Action::RestoreAgain { connection } => {
                    // What passes already is for the socket that is there.
                    self.say_verdicts()?;
                    self.restore_again(connection);
                }
                Action::Acknowledge(last_ack) => {
                    let epoch = self.replica.order().view().epoch;
                    self.send_raw(|machine| machine.raw.acknowledge(&last_ack, machine.now_ms(), epoch));
                }
                Action::TakeOver { epoch } => self.take_over(epoch)?,
                Action::Fence => self.fence(),
                Action::GiveUpAddress => self.give_up_address(),
                Action::Forward { packet, to } => self.forward(packet, to),
                Action::Inject { bytes } => self.inject(&bytes),
                Action::Excluded { .. } => {
                    self.known.is_excluded = true;
                    // Nobody tells its server any more what time it is.
                    self.set_clock(0)?;
                }
                Action::TooFar { node } => {
                    tracing::debug!(?node, "a node without data wants what is not kept any more")
                }
                Action::ServerHangs => {
                    tracing::error!(server = %self.server, "the server of this backup does not answer, or does not keep up");
                    self.known.is_server_hanging = true;
                }
                Action::ServerDiffers { connection } => {
                    tracing::error!(server = %self.server, ?connection, "the server of this backup has ended a connection that others have");
                    self.known.is_server_hanging = true;
                }
                Action::FoundDifference { .. } if self.settings.answers == AnswerPolicy::Reported => {}
                Action::FoundDifference { difference } => {
                    tracing::warn!(
                        server = %self.server,
                        client = self.client_of(difference.connection),
                        offset = difference.offset,
                        "the server of this node has answered otherwise than that of the primary"
                    );
                }
                Action::AnswersDiffer { node, successor, shown } => {
                    let what = Self::difference(&shown);
                    if self.settings.answers == AnswerPolicy::Reported {
                        tracing::debug!(?node, what, "the servers of two nodes have answered differently");
                    } else {
                        tracing::error!(?node, what, "the servers of two nodes have answered differently");
                        self.known.differing.insert(node, successor);
                    }
                    self.known.differences += 1;
                    self.known.last_difference = Some((node, what));
                }
                Action::Lags { node } => tracing::debug!(?node, "a node keeps the others waiting"),
            }
        }
        Ok(())
    }

    /// Now and then, not for each.
    fn tell_of_refused(&mut self, connection: ConnectionId, why: &str) {
        let is_due = self.refused_told.is_none_or(|at| at.elapsed() > REFUSED_EVERY);
        if is_due && self.replica.is_serving() {
            self.refused_told = Some(Instant::now());
            tracing::warn!(
                client = self.client_of(connection),
                "a request is refused at all servers, as each would do something else: {why}"
            );
        }
    }

    /// In what two servers differ, as people are told.
    fn difference(shown: &Shown) -> String {
        let Shown { client, command, offset, wrong, right } = shown;
        let client = client.map_or_else(|| "a client that has gone".to_owned(), |client| client.to_string());
        let command = command.as_ref().map_or_else(String::new, |command| format!(" to {command}"));
        let right = match right {
            Some(right) => format!("not \"{}\"", right.escape_ascii()),
            None => "not what others said, which is not kept any more".to_owned(),
        };
        if wrong.is_empty() {
            return format!("its answer to {client}{command} from byte {offset} on has other parts, or less");
        }
        let wrong = wrong.escape_ascii();
        format!("it answered {client}{command} with \"{wrong}\" at byte {offset}, {right}")
    }

    /// How far the others are, at the primary.
    pub(super) fn note_positions(&mut self) {
        let positions = || self.replica.is_serving().then(|| self.replica.order().positions());
        let known = self.known.acked.iter().map(|(node, index)| (*node, *index));
        if !known.eq(positions().into_iter().flatten()) {
            self.known.acked = positions().into_iter().flatten().collect();
        }
        let known = self.known.compared_by.iter().map(|(node, index)| (*node, *index));
        let compared = || self.replica.is_serving().then(|| self.replica.compared_by_others());
        if !known.eq(compared().into_iter().flatten()) {
            self.known.compared_by = compared().into_iter().flatten().collect();
        }
    }

    /// Tells other threads how this node is.
    pub(super) fn publish(&mut self) {
        self.known.is_serving = self.replica.is_serving();
        self.known.last = self.replica.order().last();
        // Without the lease nobody may be heard, and all seem late.
        let lagging = self.replica.has_lease().then(|| self.replica.order().lagging(self.now_ms()));
        self.known.lagging = lagging.unwrap_or_default();
        self.known.compared = self.replica.compared();
        self.known.not_compared = self.replica.not_compared();
        if self.known.view.as_ref() != Some(self.replica.order().view()) {
            let (view, me) = (self.replica.order().view(), self.settings.me);
            // This node leaves to another one that can lead.
            let is_due = |node: NodeId, next: NodeId| view.has(node) && (node != me || view.has(next));
            self.known.differing.retain(|node, next| is_due(*node, *next));
            self.known.view = Some(self.replica.order().view().clone());
        }
        self.known.connections = self.replica.connections_count();
        self.known.delivered = self.replica.order().delivered();
        self.known.is_given = self.replica.is_all_given();
        self.known.is_settled = self.replica.is_settled();
        let mut facts = self.facts.lock().unwrap_or_else(PoisonError::into_inner);
        if *facts != self.known {
            facts.clone_from(&self.known);
        }
    }
}
