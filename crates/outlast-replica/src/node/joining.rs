//! How a node that is out gets the data of the group, and becomes a member again: it asks the primary for a copy, gives it to its server, and
//! catches up. PROTOCOL 12.8.

use super::Shared;
use crate::consensus::{Consensus, receive, send};
use crate::copy::Copying;
use crate::portal::copying::{Joins, Refusal};
use crate::portal::machine::{Command, Handle};
use crate::view::NodeId;
use crate::wire;
use serde::{Deserialize, Serialize};
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, OwnedMutexGuard, mpsc, oneshot};
use tokio::time::timeout;

/// With what a connection begins on which a node asks for a copy.
pub(super) const MAGIC: [u8; 8] = *b"outlast\x19";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The other node's machine is asked for so long whether it is there.
const KEEPALIVE_TIME: Duration = Duration::from_secs(3);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// A node that takes nothing for so long gets nothing more.
const TAKE_TIMEOUT: Duration = Duration::from_secs(600);
/// Pieces of data: how long they are, and how many wait.
const PIECE_BYTES: usize = 64 << 10;
const PIECES: usize = 8;
/// Of what a node has to know of connections.
const SNAPSHOT_BYTES_MAX: u32 = 256 << 20;
/// In the place of a length: all of the data were before, or something went wrong.
const END: u32 = 0;
const FAILED: u32 = u32::MAX;
const LOOK: Duration = Duration::from_millis(10);
/// The portal's thread does what it is asked for within this time.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two tries.
const AGAIN_MIN: Duration = Duration::from_millis(500);
const AGAIN_MAX: Duration = Duration::from_secs(10);
/// As long as the server of this node has its data, in one go.
const TRIES: u32 = 4;

/// A node wants a copy.
#[derive(Debug, Serialize, Deserialize)]
struct Asks {
    /// Of the data of that node's server.
    from: u64,
    /// It is this one.
    node: u64,
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// What connections there are follows, and the data.
    Begins,
    /// There is none, and why.
    Refused {
        why: String,
        /// There may be one soon.
        again: bool,
    },
}

/// Why a try has failed.
struct Failed {
    why: String,
    /// The server of this node has its data still, and another try may do better.
    again: bool,
}

impl<T: Into<String>> From<T> for Failed {
    fn from(why: T) -> Self {
        Self { why: why.into(), again: false }
    }
}

/// How far a node is that gets a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Joining {
    /// It gets none.
    #[default]
    No,
    /// It asks for one.
    Asks,
    /// It was refused, or something went wrong.
    Failed(String),
    /// Its server gets the data of this node, so many bytes up to now.
    Copies(String, u64),
    /// It has them, and catches up with what has happened since.
    CatchesUp,
}

/// What a primary needs to give copies.
#[derive(Debug)]
pub(super) struct Copies {
    pub(super) me: NodeId,
    pub(super) consensus: Arc<Consensus>,
    pub(super) machine: Handle,
    pub(super) copying: Option<Copying>,
    /// One at a time.
    pub(super) busy: Mutex<()>,
}

impl Copies {
    /// Answers a node that wants a copy.
    pub(super) async fn give(&self, mut stream: TcpStream) {
        let result = self.try_to_give(&mut stream).await;
        if let Err(error) = result {
            tracing::warn!(%error, "a node did not get a copy of the data");
        }
    }

    async fn try_to_give(&self, stream: &mut TcpStream) -> io::Result<()> {
        let Some(Asks { from, node }) = timeout(CONNECT_TIMEOUT, receive(stream)).await?? else {
            return Ok(());
        };
        let node = NodeId(node);
        let is_known = self.consensus.members().get(&node).is_some_and(|member| !member.is_witness);
        if from != self.me.0 || !is_known {
            let why = "it is not known here yet, or means another node".to_owned();
            return timeout(CONNECT_TIMEOUT, send(stream, &Answer::Refused { why, again: true })).await?;
        }
        keep_alive(stream);
        match self.begin(node).await {
            Ok((snapshot, data)) => {
                timeout(CONNECT_TIMEOUT, send(stream, &Answer::Begins)).await??;
                let length =
                    u32::try_from(snapshot.len()).ok().filter(|length| *length <= SNAPSHOT_BYTES_MAX);
                let length = length.ok_or_else(|| io::Error::other("too much is on its way to clients"))?;
                stream.write_u32(length).await?;
                timeout(TAKE_TIMEOUT, stream.write_all(&snapshot)).await??;
                give_data(stream, data).await
            }
            Err(Refusal { why, again }) => {
                tracing::warn!(why, "a node wants a copy of the data, and cannot have one now");
                timeout(CONNECT_TIMEOUT, send(stream, &Answer::Refused { why, again })).await?
            }
        }
    }

    /// Has the server rest, and its data copied.
    async fn begin(&self, node: NodeId) -> Result<(Vec<u8>, Box<dyn Read + Send>), Refusal> {
        let never = |why: String| Refusal { why, again: false };
        let Some(copying) = self.copying.clone() else {
            let why = "it does not know how the data of its server are copied (--snapshot)";
            return Err(never(why.to_owned()));
        };
        let Ok(_one) = self.busy.try_lock() else {
            return Err(Refusal { why: "another node gets a copy".to_owned(), again: true });
        };
        let prepared = blocking(move || copying.prepare()).await.map_err(never)?;
        let (rests, hears) = oneshot::channel();
        self.machine.tell(Command::Copy(node, rests));
        hears.await.map_err(|_| never("it ends".to_owned()))??;
        // Whatever comes of that: clients do not wait any longer.
        let captured = blocking(move || prepared.capture()).await;
        let (taken, hears) = oneshot::channel();
        self.machine.tell(Command::Copied(taken));
        let snapshot = hears.await.map_err(|_| never("it ends".to_owned()))?;
        Ok((snapshot.map_err(never)?, captured.map_err(never)?))
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, String> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

fn keep_alive(stream: &TcpStream) {
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(KEEPALIVE_TIME)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(3);
    let _ = socket2::SockRef::from(stream).set_tcp_keepalive(&keepalive);
}

async fn give_data(stream: &mut TcpStream, mut data: Box<dyn Read + Send>) -> io::Result<()> {
    let (pieces, mut ready) = mpsc::channel::<io::Result<Vec<u8>>>(PIECES);
    let reading = tokio::task::spawn_blocking(move || {
        loop {
            let mut piece = vec![0; PIECE_BYTES];
            let read = data.read(&mut piece);
            let is_end = !matches!(read, Ok(1..));
            let piece = read.map(|count| {
                piece.truncate(count);
                piece
            });
            if pieces.blocking_send(piece).is_err() || is_end {
                return;
            }
        }
    });
    while let Some(piece) = ready.recv().await {
        match piece {
            Ok(piece) if piece.is_empty() => timeout(TAKE_TIMEOUT, stream.write_u32(END)).await??,
            Ok(piece) => {
                let length = u32::try_from(piece.len()).unwrap_or(FAILED);
                timeout(TAKE_TIMEOUT, stream.write_u32(length)).await??;
                timeout(TAKE_TIMEOUT, stream.write_all(&piece)).await??;
            }
            Err(error) => {
                timeout(TAKE_TIMEOUT, stream.write_u32(FAILED)).await??;
                timeout(TAKE_TIMEOUT, send(stream, &error.to_string())).await??;
                return Err(error);
            }
        }
    }
    reading.await.map_err(io::Error::other)
}

/// What comes of the data, for a thread that may wait.
struct Pieces {
    ready: mpsc::Receiver<io::Result<Vec<u8>>>,
    piece: Vec<u8>,
    at: usize,
    is_over: bool,
}

impl Read for Pieces {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        while self.at == self.piece.len() && !self.is_over {
            let Some(piece) = self.ready.blocking_recv() else {
                return Err(io::Error::other("the other node has ended before all of the data"));
            };
            (self.piece, self.at) = (piece?, 0);
            self.is_over = self.piece.is_empty();
        }
        let count = Read::read(&mut self.piece.get(self.at..).unwrap_or_default(), room)?;
        self.at += count;
        Ok(count)
    }
}

impl Shared {
    /// Becomes a member again, with a copy of the primary's data.
    pub(super) async fn join(&self) -> Result<(), String> {
        let Ok(one) = self.joining.clone().try_lock_owned() else {
            return Err("this node is about to join already".to_owned());
        };
        let mut one = Some(one);
        let mut tries = 0;
        let result = loop {
            *self.joins.lock() = Joining::Asks;
            tries += 1;
            match self.try_to_join(&mut one).await {
                Ok(()) => break Ok(()),
                // Another node may lead by now, or its server may be less busy.
                Err(failed) if failed.again && tries < TRIES => tokio::time::sleep(AGAIN_MIN).await,
                Err(failed) => break Err(failed.why),
            }
        };
        let epoch = self.view().map_or(0, |view| view.epoch);
        match &result {
            Ok(()) => self.events.lock().forget_failed_joins(),
            Err(why) => self.events.lock().note_failed_join(&self.name, epoch, why),
        }
        *self.joins.lock() = match &result {
            Ok(()) => Joining::No,
            Err(why) => Joining::Failed(why.clone()),
        };
        result
    }

    /// Does so whenever this node is out.
    pub(super) async fn join_always(&self) {
        let mut again = AGAIN_MIN;
        let mut last = String::new();
        loop {
            tokio::time::sleep(again).await;
            // Nobody has looked yet at data that are another history.
            if self.source().is_err() || self.has_other_history() {
                again = AGAIN_MIN;
                continue;
            }
            match self.join().await {
                Ok(()) => again = AGAIN_MIN,
                Err(why) => {
                    if why != last {
                        tracing::warn!(why, "this node cannot join yet");
                    }
                    (again, last) = ((again * 2).min(AGAIN_MAX), why);
                }
            }
        }
    }

    /// Whether it can be tried.
    pub(super) fn may_join(&self) -> Result<(), String> {
        let how =
            "it is not known how the server gets the data: --snapshot and --restore say so, at all nodes";
        self.source().and_then(|_| self.copying().ok_or_else(|| how.to_owned()))?;
        let is_idle = self.joining.try_lock().is_ok();
        is_idle.then_some(()).ok_or_else(|| "this node is about to join already".to_owned())
    }

    /// The node whose data this one needs, or why it cannot join.
    fn source(&self) -> Result<NodeId, String> {
        let is_witness = "a witness has no data, and needs none";
        self.machine.as_ref().ok_or(is_witness)?;
        let view = self.view().ok_or("there is no group yet")?;
        let source = view.source_for(self.me).ok_or("this node is a member already")?;
        if !self.consensus.is_voter() {
            return Err("the group has not let this node in yet".to_owned());
        }
        Ok(source)
    }

    /// `one`: there is no other try meanwhile. It is taken when the server gets other data.
    async fn try_to_join(&self, one: &mut Option<OwnedMutexGuard<()>>) -> Result<(), Failed> {
        let source = self.source()?;
        let machine = self.machine.as_ref().ok_or("a witness has no data")?;
        let copying = self.copying().cloned().ok_or("it is not known how the server gets the data")?;
        let members = self.consensus.members();
        let from = self.name_of(source, &members);
        let address = members.get(&source).map(|member| member.address.clone());
        let address = address.ok_or(
            "no node that runs has the data of the group: start one that had them, or see `outlast replicate recover`",
        )?;
        let tried = machine.facts().joins_tried;
        let mut decided = self.consensus.decided();
        let is_same =
            move |now: &crate::consensus::Decided| now.view.as_ref().is_some_and(|now| now.primary == source);
        let other_leads = async {
            let _ = decided.wait_for(|now| !is_same(now)).await;
        };
        let _one;
        tokio::select! {
            copied = self.copy((&address, source, &from), machine, copying, one) => _one = copied?,
            () = other_leads => {
                let again = one.is_some();
                return Err(Failed { why: "another node leads now".to_owned(), again });
            }
        }
        *self.joins.lock() = Joining::CatchesUp;
        Ok(self.catch_up(machine, tried).await?)
    }

    /// Gives the server of this node a copy of the data of that one, which leads.
    async fn copy(
        &self,
        (address, primary, from): (&str, NodeId, &str),
        machine: &Handle,
        copying: Copying,
        one: &mut Option<OwnedMutexGuard<()>>,
    ) -> Result<OwnedMutexGuard<()>, Failed> {
        let failed = |error: io::Error| Failed { why: format!("{from} gives no copy: {error}"), again: true };
        let connecting = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await;
        let mut stream = connecting.map_err(io::Error::from).and_then(|stream| stream).map_err(failed)?;
        keep_alive(&stream);
        let asks = Asks { from: primary.0, node: self.me.0 };
        stream.write_all(&MAGIC).await.map_err(failed)?;
        send(&mut stream, &asks).await.map_err(failed)?;
        match receive(&mut stream).await.map_err(failed)? {
            Some(Answer::Begins) => {}
            Some(Answer::Refused { why, again }) => {
                return Err(Failed { why: format!("{from} gives no copy: {why}"), again });
            }
            None => {
                return Err(Failed { why: format!("{from} gives no copy: it has ended"), again: true });
            }
        }
        let length = stream.read_u32().await.map_err(failed)?;
        if length > SNAPSHOT_BYTES_MAX {
            return Err(failed(io::ErrorKind::InvalidData.into()));
        }
        let mut snapshot = vec![0; usize::try_from(length).unwrap_or(0)];
        stream.read_exact(&mut snapshot).await.map_err(failed)?;
        let snapshot = wire::snapshot::parse(&snapshot)
            .map_err(|error| format!("{from} has sent what is no copy: {error:?}"))?;
        let at = Instant::now();
        tracing::info!(from, index = snapshot.index, "the server of this node gets a copy of the data");
        // Its connections of before end now, and not when it has the data.
        self.source()?;
        let one = one.take().ok_or("this node is about to join already")?;
        machine.tell(Command::Reset(snapshot.clock_ms));
        // And at once, before the first of the data.
        let page = self.portal.as_ref().and_then(|portal| portal.clock_page.as_ref());
        let set = page.map_or(Ok(()), |page| page.set(snapshot.clock_ms));
        set.map_err(|error| format!("the server does not get the time of {from}: {error}"))?;
        // From now on it hears of views; it takes part in none before it has the data.
        self.takes_part.store(true, Ordering::Release);
        *self.joins.lock() = Joining::Copies(from.to_owned(), 0);
        let (pieces, ready) = mpsc::channel(PIECES);
        let restoring = blocking(move || {
            let mut pieces = Pieces { ready, piece: Vec::new(), at: 0, is_over: false };
            // When this try is given up, the thread goes on: no other try begins before its end.
            copying.restore(&mut pieces).map(|()| one)
        });
        let taking = async {
            if let Err(error) = self.take_data(&mut stream, &pieces).await {
                let _ = pieces.send(Err(error)).await;
            }
            drop(pieces);
        };
        let (restored, ()) = tokio::join!(restoring, taking);
        let one = restored.map_err(|why| format!("the server has not got the data of {from}: {why}"))?;
        let view = self.view().ok_or("there is no view")?;
        machine.tell(Command::Join(Box::new(snapshot), at, view));
        Ok(one)
    }

    async fn take_data(
        &self,
        stream: &mut TcpStream,
        pieces: &mpsc::Sender<io::Result<Vec<u8>>>,
    ) -> io::Result<()> {
        loop {
            let length = stream.read_u32().await?;
            if length == FAILED {
                let why: Option<String> = receive(stream).await?;
                return Err(io::Error::other(why.unwrap_or_default()));
            }
            let length = usize::try_from(length).ok().filter(|length| *length <= PIECE_BYTES);
            let mut piece = vec![0; length.ok_or(io::ErrorKind::InvalidData)?];
            stream.read_exact(&mut piece).await?;
            if self.introduction.borrow().has_data {
                // A recovery is not to take what it has from now on for the data of a view.
                let remembered = self.remembered.clone();
                let noted = blocking(move || remembered.lock().note_copy()).await;
                noted.map_err(|why| {
                    io::Error::other(format!(
                        "that it gets other data cannot be noted (--state-folder): {why}"
                    ))
                })?;
                self.introduction.send_modify(|own| own.has_data = false);
            }
            if let Joining::Copies(_, bytes) = &mut *self.joins.lock() {
                *bytes += piece.len() as u64;
            }
            let is_end = piece.is_empty();
            // The thread that takes them has ended, and says why.
            if pieces.send(Ok(piece)).await.is_err() || is_end {
                return Ok(());
            }
        }
    }

    /// Waits until this node is a member.
    async fn catch_up(&self, machine: &Handle, tried: u64) -> Result<(), String> {
        let begins = async {
            while machine.facts().joins_tried == tried {
                tokio::time::sleep(LOOK).await;
            }
        };
        timeout(BEGIN_TIMEOUT, begins).await.map_err(|_| "the portal does not begin".to_owned())?;
        while !self.is_member() {
            match machine.facts().joins {
                Joins::Failed(why) => return Err(why),
                Joins::No if !self.is_member() => {
                    return Err("it was taken out of the group again".to_owned());
                }
                Joins::No | Joins::Resumes | Joins::CatchesUp => {}
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    fn is_member(&self) -> bool {
        self.view().is_some_and(|view| view.has(self.me))
    }
}
