//! Links to the other nodes of the group: TCP connections, which are made again and again.

use super::stream::{Input, READ_BYTES, Stream};
use crate::entry::Entry;
use crate::order::message::Message;
use crate::view::NodeId;
use crate::wire;
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// With what a link begins, in both directions, before the number of the node (PROTOCOL 12.5).
const MAGIC: [u8; 8] = *b"outlast\x0c";
const HELLO_BYTES: usize = 16;
/// Before a link is tried again.
const AGAIN: Duration = Duration::from_millis(50);
/// A link that is not up by then is tried again.
const GIVEN_UP: Duration = Duration::from_millis(500);
/// Tokens of links.
const FIRST: usize = 1 << 20;

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
    /// Once it has said so.
    node: Option<NodeId>,
    begun: Instant,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Peers {
    me: NodeId,
    listener: TcpListener,
    listener_token: Token,
    links: BTreeMap<usize, Link>,
    by_node: BTreeMap<NodeId, usize>,
    next: usize,
    /// Those that this node connects to, and when it tries next.
    others: Vec<(NodeId, SocketAddr, Instant)>,
    /// For what is read.
    room: Vec<u8>,
}

impl Peers {
    /// This node connects to those with smaller numbers, and others to it.
    pub(super) fn new(
        me: NodeId,
        listener: std::net::TcpListener,
        others: &[(NodeId, SocketAddr)],
        (registry, listener_token): (&Registry, Token),
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(listener);
        registry.register(&mut listener, listener_token, Interest::READABLE)?;
        let now = Instant::now();
        let others = others.iter().filter(|(node, _)| *node < me);
        let others = others.map(|(node, address)| (*node, *address, now)).collect();
        Ok(Self {
            me,
            listener,
            listener_token,
            links: BTreeMap::new(),
            by_node: BTreeMap::new(),
            next: FIRST,
            others,
            room: vec![0; READ_BYTES],
        })
    }

    /// Whether an event is about links.
    pub(super) fn has(&self, token: Token) -> bool {
        token == self.listener_token || token.0 >= FIRST
    }

    /// Takes in an event.
    pub(super) fn on_event(&mut self, token: Token, (readable, writable): (bool, bool), registry: &Registry) {
        if token == self.listener_token {
            while let Ok((socket, _)) = self.listener.accept() {
                self.add(socket, registry);
            }
        } else if let Some(link) = self.links.get_mut(&token.0) {
            link.stream.note_ready(readable, writable);
        }
    }

    fn add(&mut self, socket: TcpStream, registry: &Registry) {
        let _ = socket.set_nodelay(true);
        let number = self.next;
        self.next += 1;
        if let Ok(mut stream) = Stream::new(socket, registry, Token(number)) {
            stream.push(&MAGIC);
            stream.push(&self.me.0.to_be_bytes());
            self.links.insert(number, Link { stream, input: Vec::new(), node: None, begun: Instant::now() });
        }
    }

    /// Connects where there is no link. When that is to be looked at again.
    pub(super) fn connect(&mut self, registry: &Registry, now: Instant) -> Option<Instant> {
        let mut next = None;
        for at in 0..self.others.len() {
            let Some((node, address, again)) = self.others.get(at).copied() else { continue };
            if self.by_node.contains_key(&node) {
                continue;
            }
            if now >= again {
                if let Ok(socket) = TcpStream::connect(address) {
                    self.add(socket, registry);
                }
                if let Some(other) = self.others.get_mut(at) {
                    other.2 = now + AGAIN;
                }
            }
            next = Some(now + AGAIN);
        }
        let late: Vec<usize> = self
            .links
            .iter()
            .filter(|(_, link)| link.node.is_none() && now.duration_since(link.begun) > GIVEN_UP)
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
        let node = self.links.remove(&number).and_then(|link| link.node);
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
        if link.node.is_none() {
            let Some((hello, rest)) = link.input.split_first_chunk::<HELLO_BYTES>() else { return Some(()) };
            let (magic, node) = hello.split_at(MAGIC.len());
            let node = NodeId(u64::from_be_bytes(node.try_into().ok()?));
            if magic != MAGIC || node == self.me {
                return None;
            }
            link.input = rest.to_vec();
            link.node = Some(node);
            if let Some(before) = self.by_node.insert(node, number) {
                self.links.remove(&before);
                news.push(News::Unlinked(node));
            }
            news.push(News::Linked(node));
        }
        let link = self.links.get_mut(&number)?;
        let node = link.node?;
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
