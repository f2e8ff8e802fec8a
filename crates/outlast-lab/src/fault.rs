//! The faults there are: what each does, how it prints and how it is read.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;
use crate::link::{Direction, Side};

/// Who plays which part in a fault that hits a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The program that connects.
    Client,
    /// The program that accepts.
    Server,
    /// A program in between.
    Relay,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "client",
            Self::Server => "server",
            Self::Relay => "relay",
        })
    }
}

/// Which side of a connection learns of a reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Told {
    /// The server's kernel aborts the connection and its reset reaches the client: the client's program gets
    /// `ECONNRESET`, the server's `ECONNABORTED`.
    Both,
    /// Only this side's program gets an error (`ECONNABORTED`); the other side believes that all is well until it
    /// sends something.
    Only(Side),
}

/// How a closed port answers those who want to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Closed {
    /// With a reset: "connection refused".
    Refuse,
    /// Not at all.
    Ignore,
}

/// Something that breaks. Inject it with [`Fault::inject`]; it prints as it is read by `parse`.
///
/// ```
/// use outlast_lab::Fault;
/// let fault: Fault = "port closed 8000".parse()?;
/// assert_eq!(fault.to_string(), "port closed 8000");
/// # Ok::<(), outlast_lab::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The network device of a side is switched off: its programs get "network is unreachable" for new connections,
    /// existing ones hear nothing.
    LinkDown(Side),
    /// Everything vanishes silently, in one direction, or in both when `None`. Lasting longer than a program's
    /// time-out (`TCP_USER_TIMEOUT`, keep-alive), this is how a connection times out.
    Drop(Option<Direction>),
    /// TCP connections are aborted by a kernel. The link keeps working: nothing to heal.
    Reset(Told),
    /// A side gets another address and loses the one it had. Nothing to heal.
    AddressChange(Side),
    /// The client moves to its other link: the first goes off, and everything is routed over the second.
    Roam,
    /// The NAT restarts: packets come from another port, and the server resets their connections. Nothing to heal.
    NatRebind,
    /// The NAT's mappings time out: existing connections hear nothing any more. Nothing to heal.
    NatForget,
    /// Nobody can connect to a port of the server; existing connections live.
    PortClosed(u16, Closed),
    /// A firewall in front of the server answers everything for a port with a reset, as the server would: the
    /// client's program gets `ECONNRESET` once it sends; the server is not told.
    PortReset(u16),
    /// A program is stopped (SIGSTOP) and later goes on (SIGCONT). Its kernel keeps acknowledging what fits its
    /// buffers.
    Freeze(Role),
    /// The client's machine sleeps: its program is stopped and its link is dead, both ways; then both come back at
    /// once. Two things differ from a real suspension: `CLOCK_MONOTONIC` goes on, which a real suspension stops,
    /// and so do the kernel's own TCP timers.
    Suspend,
    /// A program is killed (SIGKILL) and later started again.
    Kill(Role),
}

/// A fault's words, and one line on what it does; `PORT` stands for a number.
const FAULTS: [(&str, &str); 20] = [
    (
        "drop both",
        "everything vanishes silently; for longer than a time-out this is how connections time out",
    ),
    ("drop to-server", "only what the client sends vanishes"),
    ("drop to-client", "only what the server sends vanishes"),
    ("link down client", "the client's network device is off: new connections fail at once"),
    ("link down server", "the server's network device is off"),
    (
        "reset both",
        "connections between hosts are aborted: the client reads ECONNRESET, the server ECONNABORTED",
    ),
    ("reset client", "only the client sees it (ECONNABORTED); the server believes that all is well"),
    ("reset server", "only the server sees it (ECONNABORTED); the client believes that all is well"),
    ("address change client", "the client gets another address and loses the old one"),
    ("address change server", "the server gets another address and loses the old one"),
    ("roam", "the client's first link goes off and its second takes over"),
    ("nat rebind", "the NAT restarts: packets come from another port, the server resets their connections"),
    ("nat forget", "the NAT's mappings time out: existing connections hear nothing any more"),
    ("port closed PORT", "new connections to the server's port are refused; existing ones live"),
    ("port silent PORT", "new connections to the server's port get no answer; existing ones live"),
    ("port reset PORT", "a firewall answers everything to the port with a reset; the server does not see it"),
    ("freeze client|server|relay", "the program is stopped (SIGSTOP) and goes on later (SIGCONT)"),
    ("suspend", "the client's machine sleeps: its program is stopped and its link is dead"),
    ("kill server|relay", "the program is killed (SIGKILL) and started again later"),
    ("kill client", "the client's program is killed (SIGKILL)"),
];

impl Fault {
    /// Every fault: its words, as they are read (`PORT` stands for a number, `|` for a choice), and one line on what
    /// it does.
    #[must_use]
    pub fn all() -> &'static [(&'static str, &'static str)] {
        &FAULTS
    }

    /// Whether the fault is over as soon as it has happened: there is nothing to heal.
    #[must_use]
    pub fn is_instant(self) -> bool {
        matches!(self, Self::Reset(_) | Self::AddressChange(_) | Self::NatRebind | Self::NatForget)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LinkDown(side) => write!(f, "link down {side}"),
            Self::Drop(None) => f.write_str("drop both"),
            Self::Drop(Some(Direction::ToServer)) => f.write_str("drop to-server"),
            Self::Drop(Some(Direction::ToClient)) => f.write_str("drop to-client"),
            Self::Reset(Told::Both) => f.write_str("reset both"),
            Self::Reset(Told::Only(side)) => write!(f, "reset {side}"),
            Self::AddressChange(side) => write!(f, "address change {side}"),
            Self::Roam => f.write_str("roam"),
            Self::NatRebind => f.write_str("nat rebind"),
            Self::NatForget => f.write_str("nat forget"),
            Self::PortClosed(port, Closed::Refuse) => write!(f, "port closed {port}"),
            Self::PortClosed(port, Closed::Ignore) => write!(f, "port silent {port}"),
            Self::PortReset(port) => write!(f, "port reset {port}"),
            Self::Freeze(role) => write!(f, "freeze {role}"),
            Self::Suspend => f.write_str("suspend"),
            Self::Kill(role) => write!(f, "kill {role}"),
        }
    }
}

impl FromStr for Fault {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let words: Vec<_> = text.split_whitespace().collect();
        let unknown = || Error::Syntax {
            text: text.to_owned(),
            why: "no such fault; `outlast lab faults` lists them".to_owned(),
        };
        let port = |word: &str| {
            word.parse().map_err(|_| Error::Syntax {
                text: text.to_owned(),
                why: format!("`{word}` is not a port: give a number from 0 to 65535"),
            })
        };
        Ok(match words[..] {
            ["link", "down"] => Self::LinkDown(Side::Client),
            ["link", "down", side] => Self::LinkDown(read_side(side).ok_or_else(unknown)?),
            ["drop"] | ["drop", "both"] => Self::Drop(None),
            ["drop", "to-server"] => Self::Drop(Some(Direction::ToServer)),
            ["drop", "to-client"] => Self::Drop(Some(Direction::ToClient)),
            ["reset"] | ["reset", "both"] => Self::Reset(Told::Both),
            ["reset", side] => Self::Reset(Told::Only(read_side(side).ok_or_else(unknown)?)),
            ["address", "change"] => Self::AddressChange(Side::Client),
            ["address", "change", side] => Self::AddressChange(read_side(side).ok_or_else(unknown)?),
            ["roam"] => Self::Roam,
            ["nat", "rebind"] => Self::NatRebind,
            ["nat", "forget"] => Self::NatForget,
            ["port", "closed", number] => Self::PortClosed(port(number)?, Closed::Refuse),
            ["port", "silent", number] => Self::PortClosed(port(number)?, Closed::Ignore),
            ["port", "reset", number] => Self::PortReset(port(number)?),
            ["freeze", role] => Self::Freeze(read_role(role).ok_or_else(unknown)?),
            ["suspend"] => Self::Suspend,
            ["kill", role] => Self::Kill(read_role(role).ok_or_else(unknown)?),
            _ => return Err(unknown()),
        })
    }
}

fn read_side(word: &str) -> Option<Side> {
    [Side::Client, Side::Server].into_iter().find(|side| side.to_string() == word)
}

fn read_role(word: &str) -> Option<Role> {
    [Role::Client, Role::Server, Role::Relay].into_iter().find(|role| role.to_string() == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_fault_is_read_as_it_prints() {
        for (words, _) in FAULTS {
            let words = words.replace("PORT", "8000");
            let (stem, choices) = words.rsplit_once(' ').unwrap_or(("", &words));
            for choice in choices.split('|') {
                let text = format!("{stem} {choice}").trim().to_owned();
                assert_eq!(text.parse::<Fault>().unwrap().to_string(), text);
            }
        }
    }

    #[test]
    fn what_is_no_fault_is_refused_with_a_hint() {
        for text in ["", "drop", "port closed", "port closed 70000", "reset relay", "explode"] {
            let read = text.parse::<Fault>();
            assert_eq!(read.is_ok(), text == "drop", "{text}");
            if let Err(error) = read {
                assert!(
                    error.to_string().contains("outlast lab faults") || error.to_string().contains("65535")
                );
            }
        }
    }
}
