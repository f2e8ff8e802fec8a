//! What a node understands of a database's protocol: clients take turns with the server, may wait for each other in it, and say who they are.

use super::{mysql, postgres};
use crate::connection::Piece;
use crate::entry::Again;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Debug;

/// What the server gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    Bytes(Vec<u8>),
    LogIn(Login),
}

/// Adds to what the server gets.
pub(super) fn give(given: &mut Vec<Given>, bytes: &[u8]) {
    if let Some(Given::Bytes(last)) = given.last_mut() {
        last.extend_from_slice(bytes);
    } else if !bytes.is_empty() {
        given.push(Given::Bytes(bytes.to_vec()));
    }
}

/// What a client says to prove who it is. A server has to get what is right for what itself has asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Login {
    /// At MySQL or MariaDB.
    Mysql(mysql::login::Login),
    /// At PostgreSQL.
    Postgres(postgres::login::Login),
}

impl Login {
    /// Who the client says it is.
    #[must_use]
    pub fn user(&self) -> &[u8] {
        match self {
            Self::Mysql(login) => login.user(),
            Self::Postgres(login) => login.user(),
        }
    }

    /// How many bytes the server gets.
    #[must_use]
    pub fn length(&self) -> usize {
        match self {
            Self::Mysql(login) => login.length(),
            Self::Postgres(login) => login.length(),
        }
    }

    /// What this node's server gets, which keeps these of the accounts of that name, in its own form. Where none of them is that of the client's
    /// password, it gets what is wrong for it, too.
    #[must_use]
    pub fn for_server(&self, kept: &[String]) -> Vec<u8> {
        match self {
            Self::Mysql(login) => login.for_server(kept),
            Self::Postgres(login) => login.for_server(kept),
        }
    }
}

/// What is open on one connection. What the methods are for stands at those of [`Questions`](super::Questions).
pub(crate) trait Database: Debug + Send {
    fn ask(&mut self, bytes: &[u8]);
    fn answer(&mut self, bytes: &[u8], takes: &mut dyn FnMut(Piece<'_>));
    /// What the server gets of what was asked.
    fn given(&mut self) -> Vec<Given>;
    fn rest(&mut self) -> Vec<u8>;
    fn of_node(&mut self) -> Vec<u8>;
    fn refused(&mut self) -> Option<&'static str>;
    fn refuse(&mut self);
    fn is_refused(&self) -> bool;
    fn quits(&self) -> bool;
    fn is_greeted(&self) -> bool;
    fn server_number(&self) -> Option<u32>;
    fn note_canonical(&mut self, number: u64, reply: &[u8]);
    fn reply_bytes(&self) -> usize;
    fn give_up(&mut self);
    fn pass(&mut self);
    fn owes(&self) -> bool;
    fn are_answered(&self) -> bool;
    /// Somebody has said what is none of this protocol.
    fn is_broken(&self) -> bool;
    fn interrupt(&mut self, keeps: bool);
    fn is_kept(&self) -> bool;
    fn give_again(&mut self, how: Again);
    fn forget_kept(&mut self);
    fn is_in_transaction(&self) -> bool;
    fn may_hold_locks(&self, reads_matter: bool) -> bool;
    fn waits_for_readers(&self) -> bool;
    fn times_out(&self) -> bool;
}
