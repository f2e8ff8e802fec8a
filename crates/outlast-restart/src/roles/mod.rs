//! A program of several processes, each of which outlives its crashes: a master and its workers, say.
//!
//! A program says which [`Roles`] it consists of, and [splits](Roles::split). That returns in each process of each role, where
//! what this one does not need can be closed, privileges be given up, and so on. Then it [registers](Member::register), which
//! returns in each generation of this process, as [`register`](crate::register()) does.
//!
//! ```no_run
//! use outlast_restart::roles::{Role, Roles};
//!
//! let listener = std::net::TcpListener::bind("127.0.0.1:8080")?;
//! let roles = Roles::new().role(Role::new("master")).role(Role::new("worker").processes(4));
//! let member = roles.channels("master", "worker").split()?;
//! // Once in each process: here, whoever needs no listener closes it.
//! let listener = Some(listener).filter(|_| member.role() == "worker");
//! let mut generation = member.register()?;
//! // In each generation of each process.
//! for channel in generation.channels()? {
//!     println!("{} {} can hear {} {}", member.role(), member.index(), channel.role, channel.index);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! * The process that splits is the *root*: it keeps its id, passes signals on to all, and does nothing else but wait. Below it,
//!   each process has a zygote, generations and a table of descriptors of its own: a crash of one touches nothing of the others.
//! * [`Channels`](Roles::channels) are UNIX stream sockets, [held](crate::Generation::hold) at both ends: what one process writes
//!   and [does](crate::Connection::done) counts once, whoever of the two dies meanwhile, and neither sees an end of the
//!   other. As with clients, a message that is not done comes again, and has to be answered with the same bytes, or in a
//!   [transaction](crate::Connection::transact). One that crashes whoever deals with it is [known](crate::Connection::crashes).
//! * The program ends with code 0 when a process of the first role ends in order (exits with code 0): the others are told to, by
//!   SIGTERM, and killed after [`END_TIMEOUT`]. One of another role that ends in order is not missed. Told to end by a signal,
//!   the root tells all, and ends when they have, with the code of the first process.
//! * A process that crashes more often than its [policy](Role::policy) allows ends the whole program, with its code.
//! * A zygote that is killed leaves a generation that serves on, and survives one more crash, as without roles; after that
//!   the root starts the process again: its clients are lost, its channels and the state are not.
//! * Without the root all end: at once, but for a generation that has lost its zygote before; that has no successor any more.

mod channels;
mod machine;
mod plan;
mod report;
mod root;

pub use channels::Channel;
pub(crate) use channels::End;

use crate::policy::Policy;
use crate::slots::Slots;
use crate::sys::{family, process, signals};
use crate::zygote::Common;
use crate::{Error, Generation, handover};
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// For the others to end, when a process of the first role has, or one has given up.
pub const END_TIMEOUT: Duration = Duration::from_secs(10);
/// Processes that a program can have.
pub const PROCESSES_MAX: usize = 256;

/// Who begins again when a process crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Recovery {
    /// That process alone, in its next generation.
    #[default]
    Alone,
    /// All of its role, each in its next generation: a crash of one counts for the policy of all.
    Together,
}

/// What some processes of a program are for.
#[derive(Clone, Debug)]
pub struct Role {
    name: String,
    processes: usize,
    policy: Policy,
    recovery: Recovery,
}

impl Role {
    /// One process, which recovers [alone](Recovery::Alone), by the default [`Policy`]. The name is for people, and for
    /// [`Member::role`]: up to 24 bytes.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), processes: 1, policy: Policy::default(), recovery: Recovery::Alone }
    }

    /// So many, from 1 on.
    #[must_use]
    pub fn processes(self, processes: usize) -> Self {
        Self { processes, ..self }
    }

    /// The limits of each process, unless a supervisor has others.
    #[must_use]
    pub fn policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// Who begins again when one of them crashes.
    #[must_use]
    pub fn recovery(self, recovery: Recovery) -> Self {
        Self { recovery, ..self }
    }
}

/// Which roles a program has, and who talks to whom.
#[derive(Clone, Debug, Default)]
pub struct Roles {
    roles: Vec<Role>,
    channels: Vec<(String, String)>,
}

impl Roles {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One more. The first one is special: the program ends with it.
    #[must_use]
    pub fn role(mut self, role: Role) -> Self {
        self.roles.push(role);
        self
    }

    /// A channel between each process of one role and each of the other, or between any two of one role.
    #[must_use]
    pub fn channels(mut self, one: &str, other: &str) -> Self {
        self.channels.push((one.to_owned(), other.to_owned()));
        self
    }

    /// Makes all processes. Returns in each of them, and never in the calling one, which stays as the root and ends with the
    /// program. To be called when what all have in common is there: sockets that listen, a [region](crate::state::Region) of
    /// state; and before there are threads.
    ///
    /// A process that has to be started again begins here as well.
    ///
    /// # Errors
    /// There are threads; the roles make no program; the system refuses. The process goes on as it was.
    pub fn split(self) -> Result<Member, Error> {
        crate::zygote::check_alone()?;
        if std::env::var_os(handover::ENVIRONMENT).is_some() {
            let why = "a program with roles cannot take over from another binary: restart it".to_owned();
            return Err(Error::Roles { why });
        }
        root::split(&plan::Plan::of(self)?)
    }
}

/// One process of the program, that the root has made.
#[derive(Debug)]
pub struct Member {
    role: String,
    index: usize,
    number: usize,
    policy: Policy,
    common: Common,
    seat: Seat,
}

impl Member {
    /// What it is for.
    #[must_use]
    pub fn role(&self) -> &str {
        &self.role
    }

    /// Which of its role it is, from 0.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Which of the program it is, from 0, in the order of the roles: for what each process needs one of, such as the cell of
    /// [`attach`](crate::Generation::attach).
    #[must_use]
    pub fn number(&self) -> usize {
        self.number
    }

    /// The process that looks after all: the one that service managers know, and that signals are sent to.
    #[must_use]
    pub fn root_pid(&self) -> u32 {
        self.seat.root.cast_unsigned()
    }

    /// As [`register`](crate::register()): from here on this process outlives its crashes.
    ///
    /// # Errors
    /// As [`register`](crate::register()). A process that then exits with another code than 0 ends the program.
    pub fn register(&self) -> Result<Generation, Error> {
        crate::zygote::enter(self.common, self.policy, Some(self.seat.clone()))
    }
}

/// One process of several, as its zygote knows it.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    /// Such as "worker 2".
    pub(crate) name: String,
    pub(crate) root: process::Pid,
    pub(crate) channels: Vec<End>,
}

impl Seat {
    /// Has this process told when the root ends.
    pub(crate) fn watch_root(&self) -> io::Result<()> {
        // Its own number does not matter: whoever gets a signal looks.
        family::tell_end_of_parent(signals::for_end_of_parent())
    }

    /// In a generation without a zygote, which would have ended it.
    pub(crate) fn end_with_root(&self) {
        let _ = family::tell_end_of_parent(libc::SIGKILL);
        if process::parent() != self.root {
            process::exit_now(1);
        }
    }

    /// The descriptors of its channels.
    pub(crate) fn descriptors<'a>(&'a self, slots: &'a Slots) -> impl Iterator<Item = RawFd> + 'a {
        let private = |end: &End| slots.of(end.descriptor).into_iter().flat_map(crate::transport::private);
        self.channels.iter().flat_map(move |end| private(end).chain([end.descriptor]))
    }

    /// A generation begins: the root looks around at this signal.
    pub(crate) fn tell_root(&self) {
        let _ = process::kill(self.root, libc::SIGCHLD);
    }
}
