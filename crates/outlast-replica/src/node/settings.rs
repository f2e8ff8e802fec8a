//! How a node is to be, and why it cannot be one.

use super::Recovering;
use super::group::{Group, Listed};
use crate::consensus;
use crate::copy::Copying;
use crate::portal::clock::ClockPage;
use crate::replica::ServerClock;
use crate::sql::Account;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// How a node is to be.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The list.
    pub group: Group,
    /// Which of them this is.
    pub name: String,
    /// None: a witness.
    pub portal: Option<Portal>,
    /// Where it remembers that it was in the group; none: it does not.
    pub memory: Option<PathBuf>,
    /// It is known that all servers have the same data, whatever was before.
    pub is_new_group: bool,
    /// Whenever it is out, it replaces the data of its server by those of the group, and takes part again.
    pub joins: bool,
    /// It goes on as a new node, as people have had the group founded again.
    pub recovering: Option<Recovering>,
}

impl Settings {
    /// This node, by the list.
    pub(super) fn check(&self) -> Result<Listed, Error> {
        let Self { group, name, portal, .. } = self;
        group.check().map_err(Error::Group)?;
        let listed = group.node(name).ok_or_else(|| Error::Group(format!("the group has no node {name}")))?;
        if listed.is_witness != portal.is_none() {
            let what = if listed.is_witness {
                "is a witness, and has no server"
            } else {
                "is no witness: it needs a server"
            };
            return Err(Error::Group(format!("node {name} {what}")));
        }
        let has_page = |portal: &Portal| portal.clock_page.is_some();
        if portal.as_ref().is_some_and(|portal| has_page(portal) != (group.clock == ServerClock::Order)) {
            return Err(Error::Group(format!(
                "the server of node {name} has the time from elsewhere than the group says"
            )));
        }
        Ok(listed.clone())
    }
}

/// Of a node that has a server.
#[derive(Clone, Debug)]
pub struct Portal {
    /// The device that gets the portal's address.
    pub device: String,
    /// This node's server.
    pub server: SocketAddr,
    /// How its data are copied, and how it gets those of another one. None: it cannot, and has none to give.
    pub copying: Option<Copying>,
    /// As whom a database is asked for its accounts.
    pub account: Option<Account>,
    /// From where the server has the time of day, where the group says that it has it from the order.
    pub clock_page: Option<ClockPage>,
}

/// Why a node cannot be one, or has ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The list, or what this node is to do by it.
    #[error("{0}")]
    Group(String),
    /// Of the system, which does not let this process.
    #[error("{what}: {error}")]
    System {
        /// What it was to do.
        what: String,
        /// The system's word.
        error: io::Error,
    },
    /// Another socket of this machine has the portal's address, or one that listens at all addresses has its port.
    #[error("cannot listen at the portal {portal}: {error}")]
    Portal {
        /// Its address.
        portal: SocketAddr,
        /// The system's word.
        error: io::Error,
    },
    /// Of the consensus.
    #[error(transparent)]
    Consensus(#[from] consensus::Error),
}

pub(super) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    let what = what.into();
    move |error| Error::System { what, error }
}
