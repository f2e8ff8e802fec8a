//! Another member becomes the primary while all are well: the primary is asked to hand over, and has the view decided itself. PROTOCOL 12.9.

use super::{Error, LOOK, Shared};
use crate::consensus::{Consensus, Why, receive, send};
use crate::portal::machine::{Command, Handle};
use crate::replica::NoHandOver;
use crate::view::{NodeId, View};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// With what a connection begins on which a node asks the primary to hand over.
pub(super) const MAGIC: [u8; 8] = *b"outlast\x11";
/// The primary answers within this time, if its portal works.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// A portal withholds packets for so long: members have to have all by then.
const PREPARE_WITHIN: Duration = Duration::from_secs(1);
/// The same, for a node that ends: it has other things to do before others take it for dead.
const PREPARE_WITHIN_AT_END: Duration = Duration::from_millis(400);
/// Longer than that.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(2);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Between two tries, where what is in the way passes.
const TRY_AGAIN: Duration = Duration::from_millis(10);

/// What a node asks of the primary.
#[derive(Debug, Serialize, Deserialize)]
struct Asks {
    /// The node that is meant.
    primary: u64,
    /// The member that is to lead.
    to: u64,
}

/// Why the primary has not handed over; none: it has.
type Answer = Option<String>;

/// What a primary needs to hand over.
#[derive(Clone, Debug)]
pub(super) struct HandOvers {
    pub(super) me: NodeId,
    pub(super) consensus: Arc<Consensus>,
    pub(super) machine: Handle,
    /// One at a time.
    pub(super) busy: Arc<tokio::sync::Mutex<()>>,
}

impl HandOvers {
    /// Answers a node that wants another primary.
    pub(super) async fn answer(self, mut stream: TcpStream) -> io::Result<()> {
        let Some(Asks { primary, to }) = timeout(CONNECT_TIMEOUT, receive(&mut stream)).await?? else {
            return Ok(());
        };
        let answer: Answer = if primary == self.me.0 {
            self.hand_over(NodeId(to), PREPARE_WITHIN, Why::Switchover).await.err()
        } else {
            Some("another run of this node was meant".to_owned())
        };
        timeout(CONNECT_TIMEOUT, send(&mut stream, &answer)).await?
    }

    /// Hands over to that member. It goes on to its end when nobody waits for it.
    async fn hand_over(self, to: NodeId, within: Duration, why: Why) -> Result<(), String> {
        let handing_over = async move {
            let one = timeout(within, self.busy.lock()).await;
            let _one = one.map_err(|_| "it is about to hand over already")?;
            let begun = Instant::now();
            loop {
                // Another one may just have done so.
                let primary = self.consensus.decided().borrow().view.as_ref().map(|view| view.primary);
                if primary != Some(self.me) {
                    let is_done = primary == Some(to);
                    return is_done.then_some(()).ok_or_else(|| "another node leads now".to_owned());
                }
                let left = within.saturating_sub(begun.elapsed());
                let Err(refusal) = self.try_to_hand_over(to, left, why).await else { return Ok(()) };
                if refusal.has_begun {
                    self.machine.tell(Command::KeepOn);
                }
                if !refusal.passes || left <= TRY_AGAIN {
                    return Err(refusal.why.into_owned());
                }
                // The lease may lapse for a moment, where the leader of the vote changes or a machine is busy.
                tokio::time::sleep(TRY_AGAIN).await;
            }
        };
        tokio::spawn(handing_over).await.map_err(|error| error.to_string())?
    }

    async fn try_to_hand_over(&self, to: NodeId, within: Duration, why: Why) -> Result<(), Refusal> {
        let (asks, hears) = oneshot::channel();
        self.machine.tell(Command::HandOver(to, within, asks));
        let prepared = timeout(PREPARE_TIMEOUT, hears).await;
        let prepared = prepared.map_err(|_| Refusal::lasting("its portal does not answer"))?;
        let epoch = prepared.map_err(|_| Refusal::lasting("it ends"))??;
        // Meanwhile there may be another view, of which the portal does not know.
        let view = self.consensus.decided().borrow().view.clone();
        let is_same = |view: &View| view.epoch == epoch && view.primary == self.me && view.has(to);
        let view = view.filter(is_same).ok_or(Refusal::passing("another view is decided"))?;
        if self.consensus.leader().is_none() {
            return Err(Refusal::passing("nobody leads the vote at present"));
        }
        let next = View { epoch: epoch + 1, primary: to, members: view.members };
        let given_back = self.consensus.give_back(epoch);
        self.machine.wake();
        let decided = self.consensus.hand_over(&next, why, given_back).await;
        decided.map_err(|error| Refusal { why: error.to_string().into(), passes: false, has_begun: true })
    }
}

/// Why a primary has not handed over.
struct Refusal {
    why: Cow<'static, str>,
    /// A moment later it may.
    passes: bool,
    /// Packets may be withheld for the other node.
    has_begun: bool,
}

impl Refusal {
    fn passing(why: &'static str) -> Self {
        Self { why: why.into(), passes: true, has_begun: true }
    }

    fn lasting(why: &'static str) -> Self {
        Self { why: why.into(), passes: false, has_begun: true }
    }
}

impl From<NoHandOver> for Refusal {
    fn from(NoHandOver { why, passes }: NoHandOver) -> Self {
        Self { why: why.into(), passes, has_begun: false }
    }
}

/// Asks the primary at this address. None: it does not answer.
async fn ask(address: SocketAddr, asks: &Asks) -> Option<Answer> {
    let asked = async {
        let mut stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await??;
        stream.set_nodelay(true)?;
        stream.write_all(&MAGIC).await?;
        send(&mut stream, asks).await?;
        receive(&mut stream).await?.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
    };
    timeout(ANSWER_TIMEOUT, asked).await.ok()?.ok()
}

impl Shared {
    /// Has that member be the primary; none: any. Its name.
    pub(super) async fn switch_over(&self, to: Option<&str>) -> Result<String, Error> {
        let members = self.consensus.members();
        let view = self.view().ok_or_else(|| Error::Group("there is no view yet".to_owned()))?;
        let mut others = view.members.iter().filter(|node| **node != view.primary);
        let next = others.find(|node| to.is_none_or(|to| self.name_of(**node, &members) == to)).copied();
        let primary = self.name_of(view.primary, &members);
        let Some(next) = next else {
            let what = match to {
                Some(to) if primary == to => format!("{to} is the primary already"),
                Some(to) => format!("{to} is no member of the view: only a member has all data"),
                None => "there is no other member that could be the primary".to_owned(),
            };
            return Err(Error::Group(what));
        };
        let answer = match self.hand_overs.clone().filter(|_| view.primary == self.me) {
            Some(own) => Some(own.hand_over(next, PREPARE_WITHIN, Why::Switchover).await.err()),
            None => {
                let address = members.get(&view.primary).and_then(|member| member.address.parse().ok());
                let asks = Asks { primary: view.primary.0, to: next.0 };
                match address {
                    Some(address) => ask(address, &asks).await,
                    None => None,
                }
            }
        };
        match answer {
            Some(None) => {}
            Some(Some(why)) => {
                return Err(Error::Group(format!("{primary} has not handed over: {why}")));
            }
            // Its answer may be lost.
            None if self.view().is_some_and(|view| view.primary == next) => {}
            None => {
                tracing::warn!(
                    primary,
                    "the primary does not answer: another one takes over as if it had died"
                );
                let next = View { epoch: view.epoch + 1, primary: next, members: view.members };
                self.consensus.propose(&next, Why::Forced).await?;
            }
        }
        Ok(self.name_of(next, &members))
    }

    /// Before this node leaves: if it is the primary, another member leads, where one keeps up.
    pub(super) async fn hand_over_before_leaving(&self, why: Why) {
        let Some(view) = self.view().filter(|view| view.primary == self.me) else { return };
        let Some(own) = self.hand_overs.clone() else { return };
        // The one that has most.
        let facts = own.machine.facts();
        let others =
            view.members.into_iter().filter(|node| *node != self.me && !facts.lagging.contains(node));
        let Some(to) = others.max_by_key(|node| facts.acked.get(node).copied()) else { return };
        if let Err(why) = own.clone().hand_over(to, PREPARE_WITHIN_AT_END, why).await
            && self.view().is_some_and(|view| view.primary == self.me)
        {
            tracing::warn!(
                why,
                "this node ends, and could not hand over before: clients may wait a little longer"
            );
            return;
        }
        // Until that one serves, what clients send comes here.
        while own.machine.facts().is_forwarding {
            tokio::time::sleep(LOOK).await;
        }
    }
}
