//! What a service and a holder say to each other: one message per packet, as PROTOCOL.md has it under "The holder".

use super::Refusal;

/// The version of the protocol that is spoken here.
pub const VERSION: u8 = 1;
/// Longest name of a service or a descriptor. With [`systemd`](super::systemd) there has to be room for a suffix in 255.
pub const NAME_BYTES_MAX: usize = 200;
/// Most application state that goes with a descriptor.
pub const STATE_BYTES_MAX: usize = 4096;
/// Longest message.
pub const MESSAGE_BYTES_MAX: usize = HEADER_BYTES + NAME_BYTES_MAX + STATE_BYTES_MAX;

const MAGIC: [u8; 2] = *b"OH";
const HEADER_BYTES: usize = 12;
const REFUSED: u8 = 69;

/// What a service asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// It is this service, from now on the only one of this name.
    Hello(&'a str),
    /// Keep the one descriptor that comes with this message, instead of what was kept under that name.
    Keep(&'a str, &'a [u8]),
    /// Other state for one that is kept.
    Update(&'a str, &'a [u8]),
    /// Forget one. That it is not there is no error.
    Release(&'a str),
    /// Give a duplicate of everything that is kept for this service.
    Recover,
}

/// What a holder answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// To Hello: so many descriptors are kept for the service.
    Welcome(u32),
    /// It is done, so many are kept now.
    Done(u32),
    /// To Recover, once for each: name and state of the descriptor that comes with this message.
    Kept(&'a str, &'a [u8]),
    /// These were all: so many.
    End(u32),
    /// It is not done, and why, with a text for people.
    Refused(Refusal, &'a str),
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// Shorter or longer than it says.
    #[error("a message of {0} bytes has another length than it says")]
    Length(usize),
    /// Something else is spoken.
    #[error("a message does not begin with OH")]
    Magic,
    /// Another version.
    #[error("version {0} is not spoken here, but {VERSION}")]
    Version(u8),
    /// There is no such message, or not from this side.
    #[error("there is no message of kind {0}")]
    Kind(u8),
    /// A field is there that this kind does not have, or one is missing.
    #[error("a message of kind {0} has other fields")]
    Fields(u8),
    /// See [`is_name`].
    #[error("a name is not 1 to {NAME_BYTES_MAX} printable ASCII characters without a colon")]
    Name,
    /// More state than is kept.
    #[error("more than {STATE_BYTES_MAX} bytes of state")]
    State,
}

/// Whether services and descriptors may be called so: 1 to 200 printable ASCII characters, no colon (which separates the
/// names in systemd's `LISTEN_FDNAMES`).
#[must_use]
pub fn is_name(name: &[u8]) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.iter().all(|byte| (b' '..=b'~').contains(byte) && *byte != b':')
}

/// The parts that every message has.
#[derive(Clone, Copy)]
struct Message<'a> {
    kind: u8,
    number: u32,
    name: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Message<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let wrong = Malformed::Length(bytes.len());
        let (header, body) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or(wrong)?;
        let [m0, m1, version, kind, n0, n1, n2, n3, name0, name1, rest0, rest1] = *header;
        if [m0, m1] != MAGIC {
            return Err(Malformed::Magic);
        }
        // Refusals are the same in every version: that it is the wrong one is said by one.
        if version != VERSION && kind != REFUSED {
            return Err(Malformed::Version(version));
        }
        let name_bytes = usize::from(u16::from_be_bytes([name0, name1]));
        let rest_bytes = usize::from(u16::from_be_bytes([rest0, rest1]));
        let (name, rest) = body.split_at_checked(name_bytes).ok_or(wrong)?;
        if rest.len() != rest_bytes {
            return Err(wrong);
        }
        if rest_bytes > STATE_BYTES_MAX {
            return Err(Malformed::State);
        }
        Ok(Self { kind, number: u32::from_be_bytes([n0, n1, n2, n3]), name, rest })
    }

    fn encode(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.name.len() + self.rest.len());
        bytes.extend(MAGIC);
        bytes.extend([VERSION, self.kind]);
        bytes.extend(self.number.to_be_bytes());
        // What is too long to be told is too long for the other side, too, and refused there.
        bytes.extend(u16::try_from(self.name.len()).unwrap_or(u16::MAX).to_be_bytes());
        bytes.extend(u16::try_from(self.rest.len()).unwrap_or(u16::MAX).to_be_bytes());
        bytes.extend(self.name);
        bytes.extend(self.rest);
        bytes
    }

    fn bare(kind: u8, number: u32) -> Self {
        Self { kind, number, name: b"", rest: b"" }
    }

    fn name(&self) -> Result<&'a str, Malformed> {
        let name = std::str::from_utf8(self.name).ok().filter(|name| is_name(name.as_bytes()));
        name.ok_or(Malformed::Name)
    }

    /// Nothing but what the kind has.
    fn only(self, number: bool, name: bool, rest: bool) -> Result<Self, Malformed> {
        let spare = (!number && self.number != 0)
            || (!name && !self.name.is_empty())
            || (!rest && !self.rest.is_empty());
        if spare { Err(Malformed::Fields(self.kind)) } else { Ok(self) }
    }
}

impl<'a> Request<'a> {
    /// Reads a packet.
    ///
    /// # Errors
    /// It is no request.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let message = Message::parse(bytes)?;
        Ok(match message.kind {
            1 => Self::Hello(message.only(false, true, false)?.name()?),
            2 => Self::Keep(message.only(false, true, true)?.name()?, message.rest),
            3 => Self::Update(message.only(false, true, true)?.name()?, message.rest),
            4 => Self::Release(message.only(false, true, false)?.name()?),
            5 => message.only(false, false, false).map(|_| Self::Recover)?,
            kind => return Err(Malformed::Kind(kind)),
        })
    }

    /// As a packet.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (kind, name, rest): (u8, &str, &[u8]) = match self {
            Self::Hello(service) => (1, service, b""),
            Self::Keep(name, state) => (2, name, state),
            Self::Update(name, state) => (3, name, state),
            Self::Release(name) => (4, name, b""),
            Self::Recover => (5, "", b""),
        };
        Message { kind, number: 0, name: name.as_bytes(), rest }.encode()
    }

    /// Whether exactly one descriptor has to come with it. None may come with the others.
    #[must_use]
    pub fn has_descriptor(&self) -> bool {
        matches!(self, Self::Keep(..))
    }
}

impl<'a> Answer<'a> {
    /// Reads a packet.
    ///
    /// # Errors
    /// It is no answer.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let message = Message::parse(bytes)?;
        Ok(match message.kind {
            65 => Self::Welcome(message.only(true, false, false)?.number),
            66 => Self::Done(message.only(true, false, false)?.number),
            67 => Self::Kept(message.only(false, true, true)?.name()?, message.rest),
            68 => Self::End(message.only(true, false, false)?.number),
            REFUSED => {
                let text = message.only(true, false, true)?.rest;
                // For people only: what is not text is left out.
                let text = std::str::from_utf8(text).unwrap_or_default();
                Self::Refused(Refusal::from_number(message.number), text)
            }
            kind => return Err(Malformed::Kind(kind)),
        })
    }

    /// As a packet.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Welcome(held) => Message::bare(65, *held),
            Self::Done(held) => Message::bare(66, *held),
            Self::Kept(name, state) => Message { kind: 67, number: 0, name: name.as_bytes(), rest: state },
            Self::End(given) => Message::bare(68, *given),
            Self::Refused(refusal, text) => {
                Message { kind: REFUSED, number: refusal.number(), name: b"", rest: text.as_bytes() }
            }
        }
        .encode()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_what_the_document_says() {
        assert_eq!(Request::Hello("echo").encode(), b"OH\x01\x01\0\0\0\0\0\x04\0\0echo");
        assert_eq!(Request::Keep("c1", b"xyz").encode(), b"OH\x01\x02\0\0\0\0\0\x02\0\x03c1xyz");
        assert_eq!(Answer::Done(258).encode(), b"OH\x01\x42\0\0\x01\x02\0\0\0\0");
        assert_eq!(Answer::Refused(Refusal::Unknown, "no").encode(), b"OH\x01\x45\0\0\0\x08\0\0\0\x02no");
    }

    #[test]
    fn every_message_comes_back_as_itself() {
        let (name, state) = ("n".repeat(NAME_BYTES_MAX), vec![7; STATE_BYTES_MAX]);
        for request in [
            Request::Hello("a b~"),
            Request::Keep(&name, &state),
            Request::Keep("x", b""),
            Request::Update("x", b"\0"),
            Request::Release(&name),
            Request::Recover,
        ] {
            assert_eq!(Request::parse(&request.encode()), Ok(request));
            assert!(request.encode().len() <= MESSAGE_BYTES_MAX);
        }
        for answer in [
            Answer::Welcome(0),
            Answer::Done(u32::MAX),
            Answer::Kept(&name, &state),
            Answer::End(3),
            Answer::Refused(Refusal::Descriptors, "too many"),
        ] {
            assert_eq!(Answer::parse(&answer.encode()), Ok(answer));
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = Request::Keep("c1", b"xyz").encode();
            change(&mut bytes);
            Request::parse(&bytes).unwrap_err()
        };
        assert_eq!(wrong(&|bytes| bytes.truncate(11)), Malformed::Length(11));
        assert_eq!(wrong(&|bytes| bytes.push(0)), Malformed::Length(18));
        assert_eq!(wrong(&|bytes| bytes[9] = 200), Malformed::Length(17));
        assert_eq!(wrong(&|bytes| bytes[0] = b'o'), Malformed::Magic);
        assert_eq!(wrong(&|bytes| bytes[2] = 2), Malformed::Version(2));
        assert_eq!(wrong(&|bytes| bytes[3] = 66), Malformed::Kind(66));
        assert_eq!(wrong(&|bytes| bytes[3] = 4), Malformed::Fields(4));
        assert_eq!(wrong(&|bytes| bytes[4] = 1), Malformed::Fields(2));
        assert_eq!(wrong(&|bytes| bytes[12] = b':'), Malformed::Name);
        assert_eq!(wrong(&|bytes| bytes[12] = 0xc3), Malformed::Name);
        assert_eq!(Request::parse(&Request::Update("x", &[0; 4097]).encode()), Err(Malformed::State));
        assert_eq!(Request::parse(&Request::Hello("").encode()), Err(Malformed::Name));
    }

    #[test]
    fn a_refusal_is_understood_in_every_version() {
        let mut bytes = Answer::Refused(Refusal::Version, "1").encode();
        bytes[2] = 9;
        assert_eq!(Answer::parse(&bytes), Ok(Answer::Refused(Refusal::Version, "1")));
        let mut bytes = Answer::Done(1).encode();
        bytes[2] = 9;
        assert_eq!(Answer::parse(&bytes), Err(Malformed::Version(9)));
    }
}
