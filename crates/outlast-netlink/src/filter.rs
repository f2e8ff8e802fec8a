//! A table of the packet filter (nf_tables, Linux 3.13) that is this program's alone: nobody else's rules are touched, and it goes
//! as a whole.
//!
//! After linux/netfilter/nf_tables.h and net/netfilter/nf_tables_api.c of Linux.

use crate::message::{Message, flags};
use crate::socket::Socket;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Of nfnetlink.
const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const DELETE_TABLE: u16 = SUBSYSTEM << 8 | 2;
const NEW_CHAIN: u16 = SUBSYSTEM << 8 | 3;
const NEW_RULE: u16 = SUBSYSTEM << 8 | 6;
/// At the end of what is there.
const APPEND: u16 = 0x800;

const TABLE_NAME: u16 = 1;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
const ELEMENT: u16 = 1;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;

/// The tables of both families of addresses.
const FAMILY_INET: u8 = 1;
/// The first register.
const REGISTER: u32 = 1;
/// The one that says what becomes of a packet.
const REGISTER_VERDICT: u32 = 0;
const ACCEPT: u32 = 1;
const SOCKET_MARK: u32 = 1;
const META_MARK: u32 = 3;
const META_FAMILY: u32 = 15;
const META_PROTOCOL: u32 = 16;
const BASE_NETWORK: u32 = 1;
const BASE_TRANSPORT: u32 = 2;
const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;
const FAMILY_IPV4: u8 = 2;
const FAMILY_IPV6: u8 = 10;
const PROTOCOL_TCP: u8 = 6;
/// Of the TCP header.
const SOURCE_PORT_AT: u32 = 0;
const DESTINATION_PORT_AT: u32 = 2;
const TCP_FLAGS_AT: u32 = 13;
/// FIN, SYN and RST.
const BEGIN_OR_END: u8 = 7;

/// Which packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To a local socket.
    Input,
    /// From a local socket.
    Output,
}

impl Way {
    fn chain(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Output => "output",
        }
    }

    /// NF_INET_LOCAL_IN and NF_INET_LOCAL_OUT.
    fn hook(self) -> u32 {
        match self {
            Self::Input => 1,
            Self::Output => 3,
        }
    }
}

/// What one rule says of packets of TCP with an address of ours. The first rule counts that is about a packet.
#[derive(Clone, Copy, Debug)]
pub struct Rule<'a> {
    /// Which way they go.
    pub way: Way,
    /// The local end.
    pub address: SocketAddr,
    /// Which of them.
    pub which: Which<'a>,
}

/// Of which packets a rule says something, and what.
#[derive(Clone, Copy, Debug)]
pub enum Which<'a> {
    /// Those without this mark go to the queue. Without a process that has it they are dropped.
    Queue {
        /// Others pass.
        mark: u32,
        /// The number of the queue.
        queue: u16,
    },
    /// Those of sockets with such a mark (`SO_MARK`) pass, where they neither begin nor end a connection. Linux 4.18 (CONFIG_NFT_SOCKET).
    OfSockets {
        /// The mark.
        mark: u32,
        /// How much of it counts.
        mask: u32,
    },
    /// Those pass of which this program (BPF, a socket filter) does not say 0. Linux 4.10 (CONFIG_NFT_COMPAT, CONFIG_NETFILTER_XT_MATCH_BPF).
    Program(BorrowedFd<'a>),
}

/// How a kernel sends packets to queues.
#[derive(Clone, Copy)]
enum Module {
    /// By an expression of nf_tables.
    Queue,
    /// By what it has for iptables (CONFIG_NFT_COMPAT).
    Target,
}

/// A table that this program has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// What it is called.
    pub name: String,
}

/// With what a message of nfnetlink begins.
fn fixed(family: u8, resource: u16) -> [u8; 4] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}

impl Table {
    /// Puts these rules, and no others, into the table, in one step.
    ///
    /// # Errors
    /// This process may not (`CAP_NET_ADMIN`), or the kernel has no such filter: then all is as it was before.
    pub fn set(&self, socket: &mut Socket, rules: &[Rule<'_>]) -> io::Result<()> {
        match send(socket, self.batch(rules, Module::Queue)) {
            // The kernel has no such expression (CONFIG_NFT_QUEUE).
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                send(socket, self.batch(rules, Module::Target))
            }
            set => set,
        }
    }

    fn batch(&self, rules: &[Rule<'_>], module: Module) -> Vec<Message> {
        // Made first, so that there is one to be deleted.
        let mut batch = vec![self.table(NEW_TABLE, flags::CREATE), self.table(DELETE_TABLE, 0)];
        batch.push(self.table(NEW_TABLE, flags::CREATE));
        for way in [Way::Input, Way::Output] {
            batch.push(self.chain(way));
        }
        batch.extend(rules.iter().map(|rule| self.rule(rule, module)));
        batch
    }

    /// Removes it, if it is there.
    ///
    /// # Errors
    /// This process may not.
    pub fn remove(&self, socket: &mut Socket) -> io::Result<()> {
        send(socket, vec![self.table(NEW_TABLE, flags::CREATE), self.table(DELETE_TABLE, 0)])
    }

    fn table(&self, kind: u16, flags: u16) -> Message {
        let mut message = Message::new(kind, flags, &fixed(FAMILY_INET, 0));
        message.text(TABLE_NAME, &self.name);
        message
    }

    fn chain(&self, way: Way) -> Message {
        let mut message = Message::new(NEW_CHAIN, flags::CREATE, &fixed(FAMILY_INET, 0));
        message.text(CHAIN_TABLE, &self.name).text(CHAIN_NAME, way.chain()).nest(CHAIN_HOOK, |hook| {
            hook.number_be(HOOK_NUMBER, way.hook()).number_be(HOOK_PRIORITY, 0);
        });
        message.text(CHAIN_TYPE, "filter");
        message
    }

    fn rule(&self, rule: &Rule<'_>, module: Module) -> Message {
        let mut message = Message::new(NEW_RULE, flags::CREATE | APPEND, &fixed(FAMILY_INET, 0));
        message.text(RULE_TABLE, &self.name).text(RULE_CHAIN, rule.way.chain());
        let (family, address) = match rule.address.ip() {
            IpAddr::V4(ip) => (FAMILY_IPV4, ip.octets().to_vec()),
            IpAddr::V6(ip) => (FAMILY_IPV6, ip.octets().to_vec()),
        };
        let address_at = match (rule.address.ip(), rule.way) {
            (IpAddr::V4(_), Way::Output) => 12,
            (IpAddr::V4(_), Way::Input) => 16,
            (IpAddr::V6(_), Way::Output) => 8,
            (IpAddr::V6(_), Way::Input) => 24,
        };
        let port_at = if rule.way == Way::Output { SOURCE_PORT_AT } else { DESTINATION_PORT_AT };
        message.nest(RULE_EXPRESSIONS, |list| {
            compare_meta(list, META_FAMILY, EQUAL, &[family]);
            compare_meta(list, META_PROTOCOL, EQUAL, &[PROTOCOL_TCP]);
            compare_bytes(list, (BASE_NETWORK, address_at), &address);
            compare_bytes(list, (BASE_TRANSPORT, port_at), &rule.address.port().to_be_bytes());
            match rule.which {
                Which::Queue { mark, queue } => {
                    compare_meta(list, META_MARK, NOT_EQUAL, &mark.to_ne_bytes());
                    to_queue(list, queue, module);
                }
                Which::OfSockets { mark, mask } => {
                    read_bytes(list, (BASE_TRANSPORT, TCP_FLAGS_AT), 1);
                    and(list, &[BEGIN_OR_END]);
                    compare(list, EQUAL, &[0]);
                    expression(list, "socket", |data| {
                        data.number_be(1, SOCKET_MARK).number_be(2, REGISTER);
                    });
                    and(list, &mask.to_ne_bytes());
                    compare(list, EQUAL, &mark.to_ne_bytes());
                    accept(list);
                }
                Which::Program(program) => {
                    let info = match_info(program);
                    expression(list, "match", |data| {
                        data.text(1, "bpf").number_be(2, 1).attribute(3, &info);
                    });
                    accept(list);
                }
            }
        });
        message
    }
}

fn expression(list: &mut Message, name: &str, fill: impl FnOnce(&mut Message)) {
    list.nest(ELEMENT, |element| {
        element.text(EXPRESSION_NAME, name).nest(EXPRESSION_DATA, fill);
    });
}

/// The rule goes on only where the register has this value, or has not.
fn compare(list: &mut Message, how: u32, value: &[u8]) {
    expression(list, "cmp", |data| {
        data.number_be(1, REGISTER).number_be(2, how).nest(3, |nest| {
            nest.attribute(DATA_VALUE, value);
        });
    });
}

fn compare_meta(list: &mut Message, key: u32, how: u32, value: &[u8]) {
    expression(list, "meta", |data| {
        data.number_be(2, key).number_be(1, REGISTER);
    });
    compare(list, how, value);
}

fn read_bytes(list: &mut Message, (base, at): (u32, u32), length: u32) {
    expression(list, "payload", |data| {
        data.number_be(1, REGISTER).number_be(2, base).number_be(3, at).number_be(4, length);
    });
}

fn compare_bytes(list: &mut Message, at: (u32, u32), value: &[u8]) {
    read_bytes(list, at, u32::try_from(value.len()).unwrap_or(0));
    compare(list, EQUAL, value);
}

/// These bits of the register alone are kept.
fn and(list: &mut Message, mask: &[u8]) {
    let length = u32::try_from(mask.len()).unwrap_or(0);
    expression(list, "bitwise", |data| {
        data.number_be(1, REGISTER).number_be(2, REGISTER).number_be(3, length);
        data.nest(4, |nest| _ = nest.attribute(DATA_VALUE, mask));
        data.nest(5, |nest| _ = nest.attribute(DATA_VALUE, &vec![0; mask.len()]));
    });
}

/// Packets to which the rule has come pass.
fn accept(list: &mut Message) {
    expression(list, "immediate", |data| {
        data.number_be(1, REGISTER_VERDICT).nest(2, |nest| {
            nest.nest(DATA_VERDICT, |verdict| _ = verdict.number_be(1, ACCEPT));
        });
    });
}

/// They go to the queue.
fn to_queue(list: &mut Message, queue: u16, module: Module) {
    match module {
        Module::Queue => expression(list, "queue", |data| {
            data.attribute(1, &queue.to_be_bytes()).attribute(2, &1_u16.to_be_bytes());
        }),
        Module::Target => expression(list, "target", |data| {
            // struct xt_NFQ_info_v3: the queue, how many there are, and no flags.
            let info = [queue, 1, 0].map(u16::to_ne_bytes);
            data.text(1, "NFQUEUE").number_be(2, 3).attribute(3, info.as_flattened());
        }),
    }
}

/// struct xt_bpf_info_v1: that a descriptor says which program, the descriptor, and room for what is not used.
fn match_info(program: BorrowedFd<'_>) -> Vec<u8> {
    const MODE_DESCRIPTOR: u16 = 2;
    const BYTES: usize = 8 + 512 + 8;
    let mut info = MODE_DESCRIPTOR.to_ne_bytes().to_vec();
    info.extend([0; 2]);
    info.extend(program.as_raw_fd().to_ne_bytes());
    info.resize(BYTES, 0);
    info
}

/// All of it, or nothing.
fn send(socket: &mut Socket, batch: Vec<Message>) -> io::Result<()> {
    let edge = |kind| Message::new(kind, 0, &fixed(0, SUBSYSTEM));
    let messages = [vec![edge(BATCH_BEGIN)], batch, vec![edge(BATCH_END)]].concat();
    socket.request_all(messages)
}
