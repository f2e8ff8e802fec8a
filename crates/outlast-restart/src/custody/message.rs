//! What a program and the holder of its sockets say to each other: packets of one size on a UNIX socket, some of them with a
//! descriptor. Whoever writes them is not trusted: all that a packet can do is to ask.

/// Of what follows, and of the [table](super::table::Table): others are not understood.
pub const VERSION: u32 = 10;
/// The longest address that a socket can have (`struct sockaddr_storage`).
pub const ADDRESS_BYTES: usize = 128;
/// A packet's length.
pub const BYTES: usize = 24 + ADDRESS_BYTES;

/// With [`Verb::Bind`]: the socket takes no IPv4.
pub const IPV6_ONLY: u32 = 1;
/// The same: it could not bind, as the address is in use.
pub const IN_USE: u32 = 2;
/// With [`Verb::Listen`]: the program has not made the socket listen, but was started with it (sd_listen_fds(3)).
pub const INHERITED: u32 = 1;
/// The same; it is told so as it accepts a client there, and nobody had told before.
pub const ACCEPTS: u32 = 2;

/// What it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Verb {
    /// Program: give me the table. `slot` is the [`VERSION`]. Answered, with the table's descriptor; in the place of a
    /// descriptor's number is that of the process, as the holder knows it.
    Attach = 1,
    /// Program: I bind to this address. With the folder of a UNIX socket's file. Answered, with a socket that listens there if
    /// nobody has that any more, and clients reach it there. `slot` has [`IPV6_ONLY`] and [`IN_USE`]; with the latter the answer
    /// may be yes without a socket: what was in the way is closed, and the program is to bind once more.
    Bind = 2,
    /// Program: this descriptor listens at this address. With the socket, and the folder of a UNIX socket's file. `slot` may be
    /// [`INHERITED`] or [`ACCEPTS`]. Not answered.
    Listen = 3,
    /// Program: is it the holder alone who listens where this address leads to? With the folder, too. Answered.
    Probe = 4,
    /// Program: I have accepted a connection from this address. Answered, with a connection in its place.
    Swap = 5,
    /// Program: the connection in this slot is closed. Not answered.
    Release = 6,
    /// Program: there is something new in the table, or this descriptor, which listens, is closed in a moment. Not answered.
    Look = 7,
    /// Holder: so it is; the descriptor comes with it if one was asked for.
    Yes = 8,
    /// Holder: no.
    No = 9,
}

impl Verb {
    fn from_number(number: u32) -> Option<Self> {
        use Verb::{Attach, Bind, Listen, Look, No, Probe, Release, Swap, Yes};
        let all = [Attach, Bind, Listen, Probe, Swap, Release, Look, Yes, No];
        all.into_iter().find(|verb| *verb as u32 == number)
    }
}

/// One packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it is about.
    pub verb: Verb,
    /// The program's number of a descriptor.
    pub descriptor: i32,
    /// A slot of the table.
    pub slot: u32,
    /// Of a connection (`SO_COOKIE`); with [`Verb::Bind`] and [`Verb::Probe`] of a network namespace (`SO_NETNS_COOKIE`).
    pub cookie: u64,
    /// As `struct sockaddr` has it; may be empty.
    pub address: AddressBytes,
}

/// An address as the kernel has it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AddressBytes {
    length: u32,
    bytes: [u8; ADDRESS_BYTES],
}

impl Default for AddressBytes {
    fn default() -> Self {
        Self { length: 0, bytes: [0; ADDRESS_BYTES] }
    }
}

impl std::fmt::Debug for AddressBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("AddressBytes").field(&super::address::Address::parse(self.as_ref())).finish()
    }
}

impl AddressBytes {
    /// None: no address is as long.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut address = Self { length: u32::try_from(bytes.len()).ok()?, ..Self::default() };
        address.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(address)
    }
}

impl AsRef<[u8]> for AddressBytes {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.length as usize).unwrap_or_default()
    }
}

impl Message {
    /// One with nothing in it.
    #[must_use]
    pub fn new(verb: Verb) -> Self {
        Self { verb, descriptor: -1, slot: 0, cookie: 0, address: AddressBytes::default() }
    }

    /// The network namespace that it is about, as far as it is known.
    pub(crate) fn network(&self) -> Option<u64> {
        Some(self.cookie).filter(|cookie| *cookie > 0)
    }

    /// As it is sent.
    #[must_use]
    pub fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let words = [self.verb as u32, self.descriptor.cast_unsigned(), self.slot, self.address.length];
        let words = words.iter().flat_map(|word| word.to_ne_bytes());
        let all = words.chain(self.cookie.to_ne_bytes()).chain(self.address.bytes);
        bytes.iter_mut().zip(all).for_each(|(place, byte)| *place = byte);
        bytes
    }

    /// As it was received. None: no such packet.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let word =
            |at: usize| bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_ne_bytes);
        let length = word(12).filter(|length| *length as usize <= ADDRESS_BYTES)?;
        Some(Self {
            verb: Verb::from_number(word(0)?)?,
            descriptor: word(4)?.cast_signed(),
            slot: word(8)?,
            cookie: u64::from_ne_bytes(bytes.get(16..24)?.try_into().ok()?),
            address: AddressBytes { length, bytes: bytes.get(24..)?.try_into().ok()? },
        })
    }
}

/// What must hold for every packet: the body of the fuzz target `custody` in `fuzz/`. What is understood is sent as the same
/// bytes, and no address misleads its parser.
///
/// # Panics
/// That is how a finding is told.
#[cfg(any(test, feature = "fuzzing"))]
#[allow(clippy::panic, reason = "that is how a finding is told")]
pub fn fuzz(bytes: &[u8]) {
    use super::address::Address;
    if let Some(message) = Message::decode(bytes) {
        assert_eq!(message.encode().as_slice(), bytes);
        let address = message.address.as_ref();
        assert!(address.len() <= ADDRESS_BYTES);
        if let Some(parsed) = Address::parse(address) {
            assert!(parsed.place(64) < 64 && parsed.path().is_none_or(|path| path.len() < address.len()));
            assert!(parsed.came_to(&parsed) && Address::parse(address) == Some(parsed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::Corpus;

    fn seeds() -> Vec<(&'static str, Vec<u8>)> {
        let with = |verb, address: &[u8]| {
            let address = AddressBytes::new(address).unwrap();
            Message { descriptor: 5, slot: 7, cookie: 9, address, ..Message::new(verb) }.encode().to_vec()
        };
        let inet = [2, 0, 0, 80, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut inet6 = [0; 28];
        (inet6[0], inet6[3]) = (10, 80);
        vec![
            ("attach", Message { slot: VERSION, ..Message::new(Verb::Attach) }.encode().to_vec()),
            ("bind", with(Verb::Bind, &inet)),
            ("listen", with(Verb::Listen, &inet6)),
            ("probe", with(Verb::Probe, b"\x01\0/run/server\0")),
            ("swap", with(Verb::Swap, b"\x01\0\0name")),
            ("release", with(Verb::Release, b"")),
            ("longest", with(Verb::Yes, &[1; ADDRESS_BYTES])),
            ("cut", with(Verb::No, b"")[..20].to_vec()),
            ("empty", Vec::new()),
        ]
    }

    #[test]
    fn the_corpus_has_all_seeds() {
        Corpus::new("custody", seeds()).has_all_seeds();
    }

    #[test]
    fn the_corpus_and_random_changes_to_it_pass() {
        Corpus::new("custody", seeds()).changed_at_random(
            |bytes, random| {
                for _ in 0..random.size(4) {
                    // The header more often than the rest.
                    let within = [28, BYTES][random.size(2)];
                    let at = random.size(within);
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte = [0, 1, 2, 3, 10, 11, 80, 128, 0xff][random.size(9)];
                    }
                }
            },
            |bytes| {
                fuzz(bytes);
                Message::decode(bytes).is_some()
            },
        );
    }

    #[test]
    fn what_is_sent_arrives_and_garbage_does_not() {
        let address = AddressBytes::new(b"\x01\x00/a/path").unwrap();
        let message =
            Message { descriptor: 7, slot: 9, cookie: u64::MAX, address, ..Message::new(Verb::Swap) };
        let bytes = message.encode();
        assert_eq!(Message::decode(&bytes), Some(message));
        assert_eq!(Message::decode(&bytes[1..]), None);
        for (at, value) in [(0, 0), (0, 99), (13, 1)] {
            let mut bytes = bytes;
            bytes[at] = value;
            assert_eq!(Message::decode(&bytes), None, "{at}");
        }
        assert_eq!(AddressBytes::new(&[0; 129]), None);
    }
}
