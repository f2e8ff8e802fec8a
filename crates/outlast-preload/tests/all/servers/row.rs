//! One line of the table: how a server is started, what it is asked, and what can be expected of it.

use std::path::Path;
use std::process::Command;

/// How a client speaks with it.
#[derive(Clone, Copy)]
pub enum Talk {
    /// HTTP/1.1, a request for this after the other.
    Http(&'static str),
    /// HTTP/1.0, or a server that closes each connection when it has answered.
    HttpOnce(&'static str),
    /// What both say at first, and what a client asks and is answered, again and again. Answers begin anywhere in what is
    /// heard. An empty question: only the beginning is looked at.
    Bytes { first: (&'static [u8], &'static [u8]), then: (&'static [u8], &'static [u8]) },
    /// The first message of TLS and its answer.
    Tls,
}

/// What becomes of connections that are idle while its processes are killed.
#[derive(Clone, Copy)]
pub enum Kept {
    /// All of them go on.
    All,
    /// They are closed; why.
    None(&'static str),
    /// There are none; why.
    NoneIdle(&'static str),
}

/// One of them.
#[derive(Clone, Copy)]
pub struct Row {
    pub name: &'static str,
    /// A path, or a name that is searched for.
    pub program: &'static str,
    /// It is big or conflicts with others: `tools/deps.sh --soak` installs it.
    pub is_optional: bool,
    pub make: fn(&Path, u16) -> Command,
    pub talk: Talk,
    /// The name of those of its processes that are killed as workers; any of them, if it is empty.
    pub worker: Option<&'static str>,
    /// It starts another worker where one was killed. Not every server does, with or without us.
    pub replaces_workers: bool,
    pub kept: Kept,
    /// What is said at the start, if something cannot be kept.
    pub warning: Option<&'static str>,
    /// New connections are refused while it is down: it cannot be helped.
    pub refuses: bool,
    /// It has a process for each client, which goes on when the master is killed, as without us.
    pub has_sessions: bool,
    /// What cannot be kept is not seen, and is not said.
    pub is_unsaid: bool,
}

impl Row {
    pub const fn http(name: &'static str, program: &'static str, make: fn(&Path, u16) -> Command) -> Self {
        let talk = Talk::Http("/");
        Self {
            name,
            program,
            is_optional: false,
            make,
            talk,
            worker: None,
            replaces_workers: true,
            kept: Kept::All,
            warning: None,
            refuses: false,
            has_sessions: false,
            is_unsaid: false,
        }
    }

    /// A server that closes its connections by itself.
    pub const fn once(name: &'static str, program: &'static str, make: fn(&Path, u16) -> Command) -> Self {
        let kept = Kept::NoneIdle("one request a connection");
        Self { talk: Talk::HttpOnce("/"), kept, ..Self::http(name, program, make) }
    }

    /// A protocol in which the client begins, and of which each answer begins alike.
    pub const fn asked(
        name: &'static str,
        program: &'static str,
        make: fn(&Path, u16) -> Command,
        say: &'static [u8],
        hear: &'static [u8],
    ) -> Self {
        let kept = Kept::None("not HTTP: the server knows things of it");
        let talk = Talk::Bytes { first: (b"", b""), then: (say, hear) };
        Self { talk, kept, ..Self::http(name, program, make) }
    }

    /// A protocol that begins with other words.
    pub const fn first(mut self, say: &'static [u8], hear: &'static [u8]) -> Self {
        if let Talk::Bytes { then, .. } = self.talk {
            self.talk = Talk::Bytes { first: (say, hear), then };
        }
        self
    }

    pub const fn tls(name: &'static str, program: &'static str, make: fn(&Path, u16) -> Command) -> Self {
        let kept = Kept::None("TLS: the keys are the server's");
        Self { talk: Talk::Tls, kept, ..Self::http(name, program, make) }
    }

    /// Another page than the first.
    pub const fn at(mut self, target: &'static str) -> Self {
        self.talk = match self.talk {
            Talk::HttpOnce(_) => Talk::HttpOnce(target),
            _ => Talk::Http(target),
        };
        self
    }

    pub const fn workers(mut self, named: &'static str) -> Self {
        self.worker = Some(named);
        self
    }

    /// It goes on without those that were killed.
    pub const fn without_killed(mut self) -> Self {
        self.replaces_workers = false;
        self
    }

    pub const fn optional(mut self) -> Self {
        self.is_optional = true;
        self
    }

    /// Its connections are with processes that the library is not in, or that are shut off: what is not kept is not said.
    pub const fn unsaid(mut self) -> Self {
        self.is_unsaid = true;
        self
    }

    /// A process for each client.
    pub const fn sessions(mut self) -> Self {
        self.has_sessions = true;
        self
    }

    /// Nobody can be idle there.
    pub const fn none_idle(mut self, why: &'static str) -> Self {
        self.kept = Kept::NoneIdle(why);
        self
    }

    /// Nothing can be kept, and that is said with these words.
    pub const fn warned(mut self, warning: &'static str, why: &'static str) -> Self {
        self.warning = Some(warning);
        self.refuses = true;
        if let Kept::All | Kept::None(_) = self.kept {
            self.kept = Kept::None(why);
        }
        self
    }
}
