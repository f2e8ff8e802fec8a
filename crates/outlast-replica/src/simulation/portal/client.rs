//! A client: an unmodified TCP, and a program that sends bytes and reads answers.

use super::server::{ABORT, KNOWN, LOAD, OWN, QUIT, SAME, TIME, WAIT};
use super::tcp::{Packet, State, Tcp};
use crate::Ends;
use core::net::{Ipv4Addr, SocketAddr};
use outlast_stream::SplitMix64;
use std::vec::Vec;
extern crate std;

/// A client sends so much at the most.
const BYTES_MAX: u64 = 60;

#[derive(Debug)]
pub struct Client {
    pub number: u64,
    pub tcp: Tcp,
    /// What the program has written, and what it has read.
    pub written: Vec<u8>,
    pub got: Vec<u8>,
    /// It has sent a reset.
    pub has_reset: bool,
    left: u64,
    quits: Option<u8>,
}

pub fn ends(port: u16) -> Ends {
    let portal = SocketAddr::from((Ipv4Addr::new(10, 0, 0, 1), 80));
    Ends { portal, client: SocketAddr::from((Ipv4Addr::new(10, 0, 0, 9), port)) }
}

impl Client {
    pub fn new(number: u64, port: u16, random: &mut SplitMix64) -> Self {
        let tcp = Tcp::connect(ends(port), random.next_u64() as u32);
        let left = random.next_u64() % BYTES_MAX;
        let quits = match random.next_u64() % 8 {
            0..3 => Some(QUIT),
            3 => Some(ABORT),
            _ => None,
        };
        Self { number, tcp, written: Vec::new(), got: Vec::new(), has_reset: false, left, quits }
    }

    pub fn is_reset(&self) -> bool {
        self.tcp.state == State::Reset && !self.has_reset
    }

    /// Nothing is left to do. A reset may be lost: nobody repeats it to a client that says nothing more.
    pub fn is_over(&self) -> bool {
        let is_done = self.tcp.is_done() || self.tcp.fin_acked && self.written.contains(&ABORT);
        self.has_reset || self.tcp.state == State::Reset || self.left == 0 && is_done
    }

    /// It says nothing more, and does not end, before it has the answers to what it has said.
    pub fn awaits_answers(&self) -> bool {
        self.number.is_multiple_of(2)
    }

    /// The program reads what has come.
    pub fn hear(&mut self) {
        self.got.extend(self.tcp.inbox.drain(..));
    }

    /// The program does something.
    pub fn act(&mut self, random: &mut SplitMix64) -> Vec<Packet> {
        if self.tcp.state != State::Established {
            return Vec::new();
        }
        self.hear();
        let count = random.next_u64() % 5;
        for _ in 0..count.min(self.left) {
            self.left -= 1;
            // Its number first, so that no two clients send the same.
            let byte = match self.written.len() as u32 {
                at @ 0..2 => (self.number >> (at * 6)) as u8 & 0x3f,
                // What a copy of the server lacks, and what each server answers in its own way, is asked for more often than the rest.
                _ if random.next_u64().is_multiple_of(8) => match random.next_u64() % 14 {
                    0 => LOAD,
                    1..=4 => KNOWN,
                    5 => SAME,
                    6..=7 => TIME,
                    8..=9 => WAIT,
                    _ => OWN,
                },
                _ => (random.next_u64() % 200) as u8,
            };
            self.written.push(byte);
            self.tcp.outbox.push_back(byte);
        }
        if self.left == 0 && !self.tcp.ended && random.next_u64().is_multiple_of(3) {
            if let Some(byte) = self.quits.take() {
                self.written.push(byte);
                self.tcp.outbox.push_back(byte);
            }
            self.tcp.end();
        }
        self.tcp.send()
    }

    /// The program ends at once, with a reset.
    pub fn reset(&mut self) -> Packet {
        self.has_reset = true;
        self.tcp.reset()
    }
}
