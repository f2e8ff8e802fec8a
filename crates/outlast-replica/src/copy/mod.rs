//! How the data of one server are copied, and another one gets them: ready-made for Redis, and by commands of the operator for others. All of
//! this waits, in threads that may.

mod command;
pub(crate) mod redis;
#[cfg(test)]
mod tests;

use std::io::{self, Read};
use std::net::SocketAddr;

/// How it is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// As Redis gives its data to a replica, and takes them as one.
    Redis,
    /// By a command of the shell. The one that copies writes the data, the first byte when they are of one moment: until then the server is
    /// given nothing new. The one that restores reads them. Each says by its exit status whether all went well. `OUTLAST_SERVER` is the
    /// server's address.
    Command(String),
}

/// For the server of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copying {
    /// The server.
    pub server: SocketAddr,
    /// How its data are copied.
    pub snapshot: How,
    /// How it gets those of another one.
    pub restore: How,
    /// Of the server, where it wants one. For Redis.
    pub password: Option<String>,
}

/// Ready to copy the data of a server. Dropped, it does nothing.
pub trait Prepared: Send {
    /// Takes the data of this moment. Returns when the server may go on; the data are read after that, and reading them fails if they are not
    /// all, or not of that moment.
    ///
    /// # Errors
    /// There are none.
    fn capture(self: Box<Self>) -> io::Result<Box<dyn Read + Send>>;
}

impl Copying {
    /// Gets ready, while the server works.
    ///
    /// # Errors
    /// The server, or the command, cannot.
    pub fn prepare(&self) -> io::Result<Box<dyn Prepared>> {
        match &self.snapshot {
            How::Redis => Ok(Box::new(redis::Source::prepare(self.server, self.password.as_deref())?)),
            How::Command(command) => Ok(Box::new(command::Source::new(self.server, command))),
        }
    }

    /// Gives these data to the server in the place of those that it has.
    ///
    /// # Errors
    /// It has not got all of them: what it has now is of no use.
    pub fn restore(&self, data: &mut dyn Read) -> io::Result<()> {
        match &self.restore {
            How::Redis => redis::restore(self.server, self.password.as_deref(), data),
            How::Command(command) => command::restore(self.server, command, data),
        }
    }
}
