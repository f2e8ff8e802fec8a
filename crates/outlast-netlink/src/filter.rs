//! A table of the packet filter (nf_tables, Linux 3.13) that is this program's alone: nobody else's rules are touched, and it goes
//! as a whole.
//!
//! After linux/netfilter/nf_tables.h and net/netfilter/nf_tables_api.c of Linux.

use crate::message::{Message, flags};
use crate::socket::Socket;
use std::io;
use std::net::{IpAddr, SocketAddr};

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

/// The tables of both families of addresses.
const FAMILY_INET: u8 = 1;
/// The first register.
const REGISTER: u32 = 1;
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

/// What one rule says: packets of TCP with this address of ours that do not carry the mark go to the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Which way they go.
    pub way: Way,
    /// The local end.
    pub address: SocketAddr,
    /// Those with this mark pass.
    pub mark: u32,
    /// The number of the queue. Without a process that has it, its packets are dropped.
    pub queue: u16,
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
    pub fn set(&self, socket: &mut Socket, rules: &[Rule]) -> io::Result<()> {
        match send(socket, self.batch(rules, Module::Queue)) {
            // The kernel has no such expression (CONFIG_NFT_QUEUE).
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                send(socket, self.batch(rules, Module::Target))
            }
            set => set,
        }
    }

    fn batch(&self, rules: &[Rule], module: Module) -> Vec<Message> {
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

    fn rule(&self, rule: &Rule, module: Module) -> Message {
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
            compare_meta(list, META_MARK, NOT_EQUAL, &rule.mark.to_ne_bytes());
            compare_bytes(list, (BASE_NETWORK, address_at), &address);
            compare_bytes(list, (BASE_TRANSPORT, port_at), &rule.address.port().to_be_bytes());
            match module {
                Module::Queue => expression(list, "queue", |data| {
                    data.attribute(1, &rule.queue.to_be_bytes()).attribute(2, &1_u16.to_be_bytes());
                }),
                Module::Target => expression(list, "target", |data| {
                    // struct xt_NFQ_info_v3: the queue, how many there are, and no flags.
                    let info = [rule.queue, 1, 0].map(u16::to_ne_bytes);
                    data.text(1, "NFQUEUE").number_be(2, 3).attribute(3, info.as_flattened());
                }),
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

fn compare_bytes(list: &mut Message, (base, at): (u32, u32), value: &[u8]) {
    let length = u32::try_from(value.len()).unwrap_or(0);
    expression(list, "payload", |data| {
        data.number_be(1, REGISTER).number_be(2, base).number_be(3, at).number_be(4, length);
    });
    compare(list, EQUAL, value);
}

/// All of it, or nothing.
fn send(socket: &mut Socket, batch: Vec<Message>) -> io::Result<()> {
    let edge = |kind| Message::new(kind, 0, &fixed(0, SUBSYSTEM));
    let messages = [vec![edge(BATCH_BEGIN)], batch, vec![edge(BATCH_END)]].concat();
    socket.request_all(messages)
}
