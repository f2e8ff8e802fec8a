//! Where replies of a MySQL server end, and what of them has to be the same at all servers (MariaDB, "Server response packets"). Greetings are altered
//! ([`login`](super::login)) so that no client asks for what is not understood here: the older ends of lists (EOF), no compression, no files of clients.

use super::packet::{Fields, Packets, Step};
use core::hash::Hasher as _;
use twox_hash::XxHash64;

/// Of a packet, so much is looked at.
const HEAD_BYTES: usize = 64;
const OK: u8 = 0x00;
const END: u8 = 0xfe;
const ERROR: u8 = 0xff;
/// The client is asked for a file.
const FILE: u8 = 0xfb;
/// An EOF packet is shorter than a row that begins with the same byte.
const END_BYTES_MAX: usize = 9;
/// Flags of a server: a transaction is under way; none begins by itself;
pub(super) const IN_TRANSACTION: u16 = 0x0001;
pub(super) const AUTOCOMMIT: u16 = 0x0002;
/// another result follows; rows are fetched later; and those that are about what it took to find them.
const MORE_RESULTS: u16 = 0x0008;
const CURSOR: u16 = 0x0040;
const NOT_COMPARED: u16 = 0x0010 | 0x0020 | 0x0800;

/// What a reply is to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// To nothing: the server greets, or asks for another proof.
    Greeting,
    /// To a proof of who the client is.
    Login,
    /// To a statement: one result, or several.
    Statement,
    /// To one that is only prepared.
    Prepare,
    /// To one that fetches rows.
    Rows,
    /// One packet.
    Line,
    /// To nothing: an error, with which a server ends a connection.
    Unasked,
}

/// How much of it has to be the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compare {
    /// All; rows in any order.
    All,
    /// What it is: a result, a success or an error.
    Form,
}

/// A reply that has come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) digest: u64,
    /// Every server gives it in its own way.
    pub(super) is_own: bool,
    /// It is about a login that is not over.
    pub(super) asks: bool,
    /// What the server says of the connection behind it.
    pub(super) status: Option<u16>,
    /// It ends with an error of this number; rows may come before.
    pub(super) error: Option<u16>,
}

/// Where a reply is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// A result, or something else, begins.
    #[default]
    First,
    /// So many columns are to come, and an end; then rows, if there are any.
    Columns {
        left: u64,
    },
    Rows,
    /// Of a prepared statement: columns of what it wants, and of what it gives.
    Wants {
        left: u64,
        gives: u64,
    },
    Gives {
        left: u64,
    },
}

/// Of one connection.
#[derive(Debug)]
pub(super) struct Replies {
    packets: Packets,
    place: Place,
    head: [u8; HEAD_BYTES],
    head_bytes: usize,
    /// Of the packet that has not ended.
    payload_bytes: u64,
    hasher: XxHash64,
    /// Of the reply: what comes in order, and rows.
    digest: XxHash64,
    rows: u64,
    is_own: bool,
    status: Option<u16>,
    error: Option<u16>,
}

impl Default for Replies {
    fn default() -> Self {
        Self {
            packets: Packets::default(),
            place: Place::First,
            head: [0; HEAD_BYTES],
            head_bytes: 0,
            payload_bytes: 0,
            hasher: XxHash64::with_seed(0),
            digest: XxHash64::with_seed(0),
            rows: 0,
            is_own: false,
            status: None,
            error: None,
        }
    }
}

/// What it means that a packet has ended.
enum Next {
    Goes(Place),
    Ends { asks: bool },
}

impl Replies {
    /// Takes bytes up to the end of the reply, if it is there. None: these are none of this protocol.
    pub(super) fn take(&mut self, bytes: &mut &[u8], kind: Kind, compare: Compare) -> Option<Option<Ended>> {
        while !bytes.is_empty() {
            let (step, is_end) = self.packets.take(bytes);
            if let Step::Payload(payload) = step {
                self.payload_bytes += payload.len() as u64;
                self.hasher.write(payload);
                let room = self.head.get_mut(self.head_bytes..).unwrap_or_default();
                let count = room.iter_mut().zip(payload).map(|(place, byte)| *place = *byte).count();
                self.head_bytes += count;
            }
            if !is_end {
                continue;
            }
            match self.end_packet(kind, compare)? {
                Next::Goes(place) => self.place = place,
                Next::Ends { asks } => {
                    let before = core::mem::take(self);
                    let mut digest = before.digest.clone();
                    digest.write_u64(before.rows);
                    let Self { is_own, status, error, .. } = before;
                    return Some(Some(Ended { digest: digest.finish(), is_own, asks, status, error }));
                }
            }
        }
        Some(None)
    }

    fn end_packet(&mut self, kind: Kind, compare: Compare) -> Option<Next> {
        let (head, bytes) = (self.head, self.payload_bytes);
        let head = head.get(..self.head_bytes)?;
        let packet = core::mem::replace(&mut self.hasher, XxHash64::with_seed(0)).finish();
        (self.head_bytes, self.payload_bytes) = (0, 0);
        let first = head.first().copied();
        let is_end = first == Some(END) && bytes < END_BYTES_MAX as u64;
        if first == Some(ERROR) {
            // Its number and its state: the text may name a server.
            let known = if kind == Kind::Greeting { head.get(..3) } else { head.get(..9.min(head.len())) };
            self.note(known.unwrap_or_default());
            self.is_own = true;
            self.error = Fields(head.get(1..).unwrap_or_default()).two();
            return Some(Next::Ends { asks: false });
        }
        Some(match self.place {
            Place::First => return self.begin(kind, compare, (head, bytes), packet),
            Place::Columns { left: 0 } if is_end => self.end_columns(kind, head)?,
            Place::Columns { left } => {
                if compare == Compare::All {
                    self.digest.write_u64(packet);
                }
                Next::Goes(Place::Columns { left: left.checked_sub(1)? })
            }
            Place::Rows if is_end => {
                let status = status_of_end(head)?;
                self.status = Some(status);
                self.note(b"end");
                next_result(status)
            }
            Place::Rows => {
                if compare == Compare::All {
                    self.rows = self.rows.wrapping_add(packet);
                }
                Next::Goes(Place::Rows)
            }
            Place::Wants { left: 0, gives } if is_end => prepared(0, gives),
            Place::Wants { left, gives } => Next::Goes(Place::Wants { left: left.checked_sub(1)?, gives }),
            Place::Gives { left: 0 } if is_end => Next::Ends { asks: false },
            Place::Gives { left } => Next::Goes(Place::Gives { left: left.checked_sub(1)? }),
        })
    }

    fn begin(
        &mut self,
        kind: Kind,
        compare: Compare,
        (head, bytes): (&[u8], u64),
        packet: u64,
    ) -> Option<Next> {
        let first = *head.first()?;
        match (kind, first) {
            (Kind::Greeting, _) => {
                self.note(b"greeting");
                self.is_own = true;
                Some(Next::Ends { asks: true })
            }
            // Another way to prove it, or more of that.
            (Kind::Login, first) if first != OK => {
                self.note(b"login");
                self.is_own = true;
                Some(Next::Ends { asks: true })
            }
            (Kind::Prepare, OK) => {
                self.digest.write_u64(packet);
                let mut fields = Fields(head.get(5..)?);
                let (gives, wants) = (fields.two()?, fields.two()?);
                Some(prepared(u64::from(wants), u64::from(gives)))
            }
            (Kind::Login | Kind::Statement, OK) => {
                let mut fields = Fields(head.get(1..)?);
                let (changed, last) = (fields.number()?, fields.number()?);
                let status = fields.two()?;
                self.status = Some(status);
                // All servers have the same bytes, whatever the statement was, but for what it took.
                self.note(b"ok");
                self.note(&changed.to_le_bytes());
                self.note(&last.to_le_bytes());
                self.note(&(status & !NOT_COMPARED).to_le_bytes());
                self.note(fields.0);
                self.note(&bytes.to_le_bytes());
                Some(next_result(status))
            }
            (Kind::Statement, FILE) => None,
            (Kind::Statement, _) => {
                self.is_own = true;
                self.note(b"result");
                let left = Fields(head).number()?;
                if compare == Compare::All {
                    self.note(&left.to_le_bytes());
                }
                Some(Next::Goes(Place::Columns { left }))
            }
            // It is the first row, or the end of none.
            (Kind::Rows, _) => {
                self.is_own = true;
                if first == END && head.len() < END_BYTES_MAX {
                    self.note(b"end");
                    return Some(Next::Ends { asks: false });
                }
                if compare == Compare::All {
                    self.rows = self.rows.wrapping_add(packet);
                }
                Some(Next::Goes(Place::Rows))
            }
            (Kind::Unasked, _) => None,
            (Kind::Line | Kind::Prepare | Kind::Login, _) => {
                self.is_own = first != OK && first != END;
                self.note(if self.is_own { b"line" } else { b"ok" });
                Some(Next::Ends { asks: false })
            }
        }
    }

    fn end_columns(&mut self, kind: Kind, head: &[u8]) -> Option<Next> {
        let status = status_of_end(head)?;
        self.status = Some(status);
        // The rows of a cursor are fetched later.
        let has_cursor = kind == Kind::Statement && status & CURSOR != 0;
        Some(if has_cursor { Next::Ends { asks: false } } else { Next::Goes(Place::Rows) })
    }

    fn note(&mut self, bytes: &[u8]) {
        self.digest.write(bytes);
    }
}

fn status_of_end(head: &[u8]) -> Option<u16> {
    let mut fields = Fields(head.get(3..)?);
    fields.two()
}

fn next_result(status: u16) -> Next {
    if status & MORE_RESULTS == 0 { Next::Ends { asks: false } } else { Next::Goes(Place::First) }
}

/// A prepared statement has so many columns left to tell of.
fn prepared(wants: u64, gives: u64) -> Next {
    match (wants, gives) {
        (0, 0) => Next::Ends { asks: false },
        (0, left) => Next::Goes(Place::Gives { left }),
        (left, gives) => Next::Goes(Place::Wants { left, gives }),
    }
}
