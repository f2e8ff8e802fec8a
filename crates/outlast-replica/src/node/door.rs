//! Where other nodes connect to this one: to introduce themselves, for the consensus, or with a link for entries of the order. The first eight
//! bytes say which.

use super::joining::{self, Copies};
use super::meeting;
use super::meeting::Introduction;
use super::recovery::{self, Recovery, may_follow};
use super::switchover::{self, HandOvers};
use super::{Ended, Shared, end};
use crate::consensus::{self, Consensus, receive, send};
use crate::portal::machine::{Command, Handle};
use crate::portal::peers;
use crate::view::NodeId;
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

/// Who connects has so long to say what for.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// Connections that have not said so yet. More are refused.
const NEW_MAX: usize = 256;
/// Between two tries where none can be accepted.
const AGAIN: Duration = Duration::from_millis(10);

/// To whom connections are given.
#[derive(Debug)]
pub(super) struct Door {
    pub(super) me: NodeId,
    pub(super) consensus: Arc<Consensus>,
    /// None: a witness.
    pub(super) machine: Option<Handle>,
    pub(super) copies: Option<Arc<Copies>>,
    pub(super) hand_overs: Option<HandOvers>,
    pub(super) own: Own,
    pub(super) ended: watch::Sender<Option<Ended>>,
    /// Of the list. Others get half of the places.
    pub(super) listed: BTreeSet<IpAddr>,
}

/// What this node says of itself.
#[derive(Clone, Debug)]
pub(super) struct Own {
    pub(super) consensus: Arc<Consensus>,
    /// But for what the consensus knows.
    pub(super) introduction: watch::Receiver<Introduction>,
}

impl Own {
    pub(super) fn of(shared: &Shared) -> Self {
        Self { consensus: shared.consensus.clone(), introduction: shared.introduction.subscribe() }
    }

    pub(super) fn now(&self) -> Introduction {
        let has_group = self.consensus.is_voter();
        let leader = self.consensus.heard_leader().map(|leader| leader.0);
        let (group_epoch, group_recovered) = {
            let decided = self.consensus.decided();
            let decided = decided.borrow();
            (decided.view.as_ref().map_or(0, |view| view.epoch), decided.recovered.clone())
        };
        let hears_member = self.consensus.hears_member();
        let own = self.introduction.borrow().clone();
        let known_epoch = group_epoch.max(own.known_epoch);
        Introduction { has_group, leader, known_epoch, group_epoch, group_recovered, hears_member, ..own }
    }
}

impl Door {
    pub(super) fn of(shared: &Shared) -> Self {
        let copies = |machine: &Handle| Copies {
            me: shared.me,
            consensus: shared.consensus.clone(),
            machine: machine.clone(),
            copying: shared.copying().cloned(),
            busy: tokio::sync::Mutex::default(),
        };
        Self {
            me: shared.me,
            consensus: shared.consensus.clone(),
            machine: shared.machine.clone(),
            copies: shared.machine.as_ref().map(copies).map(Arc::new),
            hand_overs: shared.hand_overs.clone(),
            own: Own::of(shared),
            ended: shared.ended.clone(),
            listed: shared.group.nodes.iter().map(|node| node.address.ip().to_canonical()).collect(),
        }
    }

    /// Answers all who connect.
    pub(super) async fn attend(self: Arc<Self>, listener: TcpListener) {
        let places = Arc::new(Semaphore::new(NEW_MAX));
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection of another node cannot be accepted");
                    tokio::time::sleep(AGAIN).await;
                    continue;
                }
            };
            let is_listed = self.listed.contains(&peer.ip().to_canonical());
            if !is_listed && places.available_permits() <= NEW_MAX / 2 {
                continue;
            }
            let Ok(place) = places.clone().try_acquire_owned() else { continue };
            let door = self.clone();
            tokio::spawn(async move {
                match timeout(HELLO_TIMEOUT, door.answer(stream)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::debug!(%error, %peer, "a connection of another node ends"),
                    Err(_) => tracing::debug!(%peer, "a connection has not said what it is for"),
                }
                drop(place);
            });
        }
    }

    async fn answer(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut magic = [0; 8];
        stream.read_exact(&mut magic).await?;
        match magic {
            consensus::MAGIC => self.consensus.serve(stream),
            peers::MAGIC => {
                let Some(machine) = &self.machine else { return Ok(()) };
                let node = NodeId(stream.read_u64().await?);
                stream.write_all(&peers::hello(self.me)).await?;
                machine.tell(Command::Link(node, stream.into_std()?));
            }
            joining::MAGIC => {
                let Some(copies) = self.copies.clone() else { return Ok(()) };
                tokio::spawn(async move { copies.give(stream).await });
            }
            switchover::MAGIC => {
                let Some(hand_overs) = self.hand_overs.clone() else { return Ok(()) };
                tokio::spawn(async move { hand_overs.answer(stream).await });
            }
            meeting::MAGIC => {
                let _: Option<Introduction> = receive(&mut stream).await?;
                send(&mut stream, &self.own.now()).await?;
            }
            recovery::MAGIC => {
                let Some(recovery) = receive::<Recovery>(&mut stream).await? else { return Ok(()) };
                let own = self.own.now();
                let follows = may_follow(&own, &recovery);
                send(&mut stream, &follows).await?;
                match follows {
                    Ok(()) if own.recovery == Some(recovery.id) => {}
                    Ok(()) => end(&self.ended, Ended::Recovers(recovery)),
                    Err(why) => tracing::warn!(why, "a recovery is refused"),
                }
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
        Ok(())
    }
}

/// Introduces this node to the one at this address, which answers with the same of itself.
pub(super) async fn introduce(address: std::net::SocketAddr, own: &Introduction) -> io::Result<Introduction> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    stream.write_all(&meeting::MAGIC).await?;
    send(&mut stream, own).await?;
    receive(&mut stream).await?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Asks the node at this address to follow a plan. Why it does not.
pub(super) async fn ask_to_recover(
    address: std::net::SocketAddr,
    recovery: &Recovery,
) -> io::Result<Result<(), String>> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    stream.write_all(&recovery::MAGIC).await?;
    send(&mut stream, recovery).await?;
    receive(&mut stream).await?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
