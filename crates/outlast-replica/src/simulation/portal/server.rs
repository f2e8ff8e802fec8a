//! A server that answers each byte, and does the same wherever it gets the same: its answers tell in which order it has worked.

use crate::ConnectionId;
use std::collections::{BTreeMap, VecDeque};
use std::vec::Vec;
extern crate std;

/// A client that sends this byte has its stream ended, or its connection reset.
pub const QUIT: u8 = 255;
pub const ABORT: u8 = 254;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    Connect,
    Bytes(Vec<u8>),
    End,
    /// The replica has closed the connection.
    Close,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Bytes(Vec<u8>),
    End,
    Reset,
}

#[derive(Clone, Debug, Default)]
pub struct Server {
    /// What has come and was not looked at yet.
    pub inbox: VecDeque<(ConnectionId, Request)>,
    worked: u8,
    ended: BTreeMap<ConnectionId, ()>,
}

impl Server {
    /// Works off one request.
    pub fn work(&mut self) -> Option<(ConnectionId, Vec<u8>, Vec<Answer>)> {
        let (connection, request) = self.inbox.pop_front()?;
        let mut answers = Vec::new();
        if self.ended.contains_key(&connection) {
            return Some((connection, Vec::new(), answers));
        }
        let mut read = Vec::new();
        match request {
            Request::Connect => answers.push(Answer::Bytes(std::vec![self.count()])),
            Request::Bytes(bytes) => {
                for byte in bytes {
                    read.push(byte);
                    if byte >= ABORT {
                        self.ended.insert(connection, ());
                        answers.push(if byte == QUIT { Answer::End } else { Answer::Reset });
                        break;
                    }
                    let count = self.count();
                    answers.push(Answer::Bytes(std::vec![byte, count, byte ^ count]));
                }
            }
            Request::Close => {
                self.ended.insert(connection, ());
            }
            Request::End => {
                self.ended.insert(connection, ());
                answers.push(Answer::Bytes(std::vec![self.count()]));
                answers.push(Answer::End);
            }
        }
        Some((connection, read, answers))
    }

    /// Ends the stream of a client for a reason of its own, as after a time-out. Whether it could.
    pub fn quit(&mut self, connection: ConnectionId) -> bool {
        let is_idle = self.inbox.iter().all(|(waiting, _)| *waiting != connection);
        is_idle && self.ended.insert(connection, ()).is_none()
    }

    fn count(&mut self) -> u8 {
        self.worked = self.worked.wrapping_add(1);
        self.worked
    }
}
