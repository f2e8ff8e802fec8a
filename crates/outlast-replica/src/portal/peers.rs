//! Links to the other nodes of the group: TCP connections, which are made again and again.

use super::copying::Joins;
use super::machine::Machine;
use super::stream::{Input, READ_BYTES, Stream};
use crate::entry::Entry;
use crate::order::message::Message;
use crate::view::NodeId;
use crate::wire;
use mio::event::Event;
use mio::net::TcpStream;
use mio::{Registry, Token};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// With what a link begins, in both directions, before the number of the node (PROTOCOL 12.5).
pub const MAGIC: [u8; 8] = *b"outlast\x1a";
/// With what it begins, with that number.
pub const HELLO_BYTES: usize = 16;
/// What the other node's kernel does not acknowledge for so long takes the link with it.
const UNANSWERED: Duration = Duration::from_secs(2);
/// Packets of clients are not sent where so much waits.
const PACKETS_BYTES_MAX: usize = 4 << 20;
/// Before a link is tried again.
const AGAIN: Duration = Duration::from_millis(50);
/// A link that is not up by then is tried again.
const GIVEN_UP: Duration = Duration::from_millis(500);
/// Tokens of links: sockets of clients and servers count up from below, and never come here.
const FIRST: usize = 1 << 62;

/// With what a link begins: who this is.
#[must_use]
pub fn hello(me: NodeId) -> [u8; HELLO_BYTES] {
    let mut hello = [0; HELLO_BYTES];
    let (magic, node) = hello.split_at_mut(MAGIC.len());
    magic.copy_from_slice(&MAGIC);
    node.copy_from_slice(&me.0.to_be_bytes());
    hello
}

/// Who that is.
#[must_use]
pub fn node_of(hello: &[u8; HELLO_BYTES]) -> Option<NodeId> {
    let (magic, node) = hello.split_first_chunk()?;
    (*magic == MAGIC).then_some(())?;
    Some(NodeId(u64::from_be_bytes(node.try_into().ok()?)))
}

/// What has come of the links.
#[derive(Debug)]
pub(super) enum News {
    /// A new one.
    Linked(NodeId),
    /// It is broken.
    Unlinked(NodeId),
    /// The other node says this.
    Said(NodeId, Message<Entry>),
}

#[derive(Debug)]
struct Link {
    stream: Stream,
    input: Vec<u8>,
    /// Which one is at the other end.
    node: NodeId,
    /// It has not said so yet.
    awaits_hello: bool,
    is_up: bool,
    begun: Instant,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Peers {
    me: NodeId,
    links: BTreeMap<usize, Link>,
    by_node: BTreeMap<NodeId, usize>,
    next: usize,
    /// All others, and when this node tries next to connect to them: to those with smaller numbers, and the others to it.
    others: BTreeMap<NodeId, (SocketAddr, Instant)>,
    /// For what is read.
    room: Vec<u8>,
}

impl Peers {
    /// Without others for now.
    pub(super) fn new(me: NodeId) -> Self {
        Self {
            me,
            links: BTreeMap::new(),
            by_node: BTreeMap::new(),
            next: FIRST,
            others: BTreeMap::new(),
            room: vec![0; READ_BYTES],
        }
    }

    /// These are all others, from now on.
    pub(super) fn set_others(&mut self, others: BTreeMap<NodeId, SocketAddr>) {
        let now = Instant::now();
        let again = |node| self.others.get(&node).map_or(now, |(_, again)| *again);
        let others = others.into_iter().filter(|(node, _)| *node != self.me);
        self.others = others.map(|(node, address)| (node, (address, again(node)))).collect();
    }

    /// Ends all links. They are made again.
    pub(super) fn unlink_all(&mut self) {
        self.links.clear();
        self.by_node.clear();
    }

    /// Another node has connected to this one, and both have said who they are.
    pub(super) fn adopt(&mut self, node: NodeId, socket: std::net::TcpStream, registry: &Registry) {
        // Others have no business here.
        if self.others.contains_key(&node) && socket.set_nonblocking(true).is_ok() {
            self.add(node, false, TcpStream::from_std(socket), registry);
        }
    }

    /// Whether an event is about links.
    pub(super) fn has(&self, token: Token) -> bool {
        token.0 >= FIRST
    }

    /// Takes in an event.
    pub(super) fn on_event(&mut self, event: &Event) {
        if let Some(link) = self.links.get_mut(&event.token().0) {
            link.stream.note_event(event);
        }
    }

    fn add(&mut self, node: NodeId, awaits_hello: bool, socket: TcpStream, registry: &Registry) {
        let _ = socket.set_nodelay(true);
        let _ = socket2::SockRef::from(&socket).set_tcp_user_timeout(Some(UNANSWERED));
        let number = self.next;
        self.next += 1;
        if let Ok(mut stream) = Stream::new(socket, registry, Token(number)) {
            if awaits_hello {
                stream.push(&hello(self.me));
            }
            let begun = Instant::now();
            let link = Link { stream, input: Vec::new(), node, awaits_hello, is_up: false, begun };
            self.links.insert(number, link);
        }
    }

    /// Connects where there is no link. When that is to be looked at again.
    pub(super) fn connect(&mut self, registry: &Registry, now: Instant) -> Option<Instant> {
        let mut next = None;
        let mut due = Vec::new();
        for (node, (address, again)) in self.others.range_mut(..self.me) {
            if self.by_node.contains_key(node) {
                continue;
            }
            if now >= *again {
                *again = now + AGAIN;
                due.push((*node, *address));
            }
            next = Some(now + AGAIN);
        }
        for (node, address) in due {
            if let Ok(socket) = TcpStream::connect(address) {
                self.add(node, true, socket, registry);
            }
        }
        let late: Vec<usize> = self
            .links
            .iter()
            .filter(|(_, link)| !link.is_up && now.duration_since(link.begun) > GIVEN_UP)
            .map(|(number, _)| *number)
            .collect();
        for number in late {
            self.links.remove(&number);
        }
        next
    }

    /// Has a message sent, if there is a link.
    pub(super) fn send(&mut self, to: NodeId, message: &Message<Entry>) {
        if let Some(link) = self.by_node.get(&to).and_then(|number| self.links.get_mut(number)) {
            let mut bytes = Vec::new();
            wire::encode(message, &mut bytes);
            link.stream.push(&bytes);
        }
    }

    /// Has a packet of a client sent, if there is a link, and little waits there: the order goes on that link as well. Whether it is.
    pub(super) fn send_packet(&mut self, to: NodeId, packet: Box<[u8]>) -> bool {
        let link = self.by_node.get(&to).and_then(|number| self.links.get_mut(number));
        let Some(link) = link.filter(|link| link.stream.waiting_bytes() < PACKETS_BYTES_MAX) else {
            return false;
        };
        let mut bytes = Vec::new();
        wire::encode(&Message::Forwarded { bytes: packet.into() }, &mut bytes);
        link.stream.push(&bytes);
        true
    }

    /// Sends what waits. Where that fails, [`work`](Self::work) finds it.
    pub(super) fn flush(&mut self) {
        for link in self.links.values_mut() {
            let _ = link.stream.flush();
        }
    }

    /// Sends what waits, and takes in what has come.
    pub(super) fn work(&mut self, news: &mut Vec<News>) {
        let numbers: Vec<usize> = self.links.keys().copied().collect();
        for number in numbers {
            if self.work_on(number, news).is_none() {
                self.remove(number, news);
            }
        }
    }

    fn remove(&mut self, number: usize, news: &mut Vec<News>) {
        let node = self.links.remove(&number).map(|link| link.node);
        if let Some(node) = node
            && self.by_node.get(&node) == Some(&number)
        {
            self.by_node.remove(&node);
            news.push(News::Unlinked(node));
        }
    }

    /// None: it is broken.
    fn work_on(&mut self, number: usize, news: &mut Vec<News>) -> Option<()> {
        let link = self.links.get_mut(&number)?;
        link.stream.flush().ok()?;
        loop {
            match link.stream.read(&mut self.room) {
                Input::Bytes(count) => link.input.extend(self.room.get(..count).unwrap_or_default()),
                Input::Nothing => break,
                Input::End | Input::Broken => return None,
            }
        }
        let node = link.node;
        if link.awaits_hello {
            let Some((first, rest)) = link.input.split_first_chunk() else { return Some(()) };
            // At that address there may be another one by now.
            if node_of(first) != Some(node) {
                return None;
            }
            link.input = rest.to_vec();
            link.awaits_hello = false;
        }
        if !std::mem::replace(&mut link.is_up, true) {
            if let Some(before) = self.by_node.insert(node, number) {
                self.links.remove(&before);
                news.push(News::Unlinked(node));
            }
            news.push(News::Linked(node));
        }
        let link = self.links.get_mut(&number)?;
        let mut taken = 0;
        let parsed = loop {
            match wire::parse(link.input.get(taken..).unwrap_or_default()) {
                Ok(Some((message, count))) => {
                    news.push(News::Said(node, message));
                    taken += count;
                }
                Ok(None) => break Some(()),
                Err(error) => {
                    tracing::warn!(?node, ?error, "another node broke the protocol: its link is made again");
                    break None;
                }
            }
        };
        link.input.drain(..taken);
        parsed
    }
}

impl Machine {
    /// Takes in what other nodes have said.
    pub(super) fn hear_peers(&mut self) {
        let mut news = Vec::new();
        self.peers.work(&mut news);
        self.take_news(news);
    }

    pub(super) fn take_news(&mut self, news: Vec<News>) {
        let now_ms = self.now_ms();
        for news in news {
            match news {
                // Nobody counts on this node before its server can go on.
                News::Said(..) if self.known.joins == Joins::Resumes => {}
                News::Linked(node) => {
                    self.known.linked.insert(node);
                    if self.known.joins != Joins::Resumes {
                        self.replica.handle_linked(node, now_ms);
                    }
                }
                News::Unlinked(node) => {
                    self.known.linked.remove(&node);
                    self.replica.handle_unlinked(node);
                }
                News::Said(from, message) => {
                    if from == self.replica.order().view().primary {
                        self.heard_primary_at = Instant::now();
                    }
                    self.replica.handle_message(from, message, now_ms);
                }
            }
        }
    }
}
