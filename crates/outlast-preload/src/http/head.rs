//! The head of a request or an answer, however it is cut: its whole lines at once, a line that is cut byte by byte. What
//! was learned so far fits into two numbers.

use std::io::BufRead;

/// The longest head that is followed.
pub const HEAD_BYTES: u64 = 64 << 10;

/// The longest method.
const METHOD_BYTES: usize = 20;
/// Of requests of HEAD the answers have no body; behind a CONNECT nothing is HTTP any more.
const NOTED_METHODS: [&[u8]; 2] = [b"HEAD", b"CONNECT"];
/// Behind it stands 0 or 1.
const VERSION: &[u8] = b" HTTP/1.";
/// How an answer begins.
const ANSWER: &[u8] = b"HTTP/1.1 ";

/// The fields that matter, in small letters.
const NAMES: [&[u8]; 3] = [b"connection", b"content-length", b"transfer-encoding"];
/// What [`CONNECTION`] says of a connection that is kept, and of one that is not.
const OPTIONS: [&[u8]; 2] = [b"keep-alive", b"close"];
const KEEP_ALIVE: u16 = 0;
/// Behind an option, and behind the line's carriage return: `at` in [`Place::Option`].
const OPTION_SPACE: u8 = 30;
const OPTION_END: u8 = 31;
const CONNECTION: u16 = 0;
const CONTENT_LENGTH: u16 = 1;
const TRANSFER_ENCODING: u16 = 2;

/// What comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
enum Place {
    /// A line of fields, or the empty one.
    #[default]
    Line = 0,
    /// The method, of which `at` bytes were there. It may be one of [`NOTED_METHODS`].
    Method = 1,
    /// The rest of that line, whose last `at` bytes are the begin of [`VERSION`] and what is behind it.
    Target = 2,
    /// The line with the status, of which `at` bytes were there.
    Status = 3,
    /// The name of a field, of which `at` bytes were there. It is one of `names`.
    Name = 4,
    /// The value of the field `names`.
    Value = 5,
    /// The rest of a line.
    Rest = 6,
    /// The same, behind a carriage return.
    RestEnd = 7,
    /// The line feed of the empty line.
    LastEnd = 8,
    /// Nothing: that was all.
    End = 9,
    /// An option of [`CONNECTION`], of which `at` bytes were there. It is one of `names`.
    Option = 10,
}

impl Place {
    const ALL: [Self; 11] = [
        Self::Line,
        Self::Method,
        Self::Target,
        Self::Status,
        Self::Name,
        Self::Value,
        Self::Rest,
        Self::RestEnd,
        Self::LastEnd,
        Self::End,
        Self::Option,
    ];
}

/// A head, as far as it was there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    place: Place,
    at: u8,
    names: u16,
    bytes: u64,
    /// Of an answer.
    pub status: u16,
    /// The request is HEAD: its answer has no body.
    pub is_only_head: bool,
    /// The request is of HTTP/1.0.
    is_old: bool,
    /// The body comes in chunks.
    pub is_chunked: bool,
    /// The connection is to be kept.
    keeps: bool,
    /// The connection is to end.
    closes: bool,
    /// The connection has another option, or none.
    has_other_option: bool,
    /// The body's length.
    pub length: Option<u64>,
}

impl Head {
    /// A request's, with the number of bytes that were looked at. None: it is none.
    pub fn of_request(bytes: &[u8]) -> Option<(Self, usize)> {
        let mut rest = bytes;
        let length = rest.skip_until(b'\n').ok()?;
        let line = bytes.get(..length)?;
        if !line.ends_with(b"\n") {
            let names = u16::MAX;
            return Some((Self { place: Place::Method, names, ..Self::default() }, 0));
        }
        let line = line.strip_suffix(b"\r\n").filter(|line| is_request_line(line))?;
        let head = Self {
            bytes: Some(length as u64).filter(|bytes| *bytes <= HEAD_BYTES)?,
            is_only_head: line.starts_with(b"HEAD "),
            is_old: line.ends_with(b"0"),
            ..Self::default()
        };
        Some((head, length))
    }

    /// An answer's.
    pub fn of_answer() -> Self {
        Self { place: Place::Status, ..Self::default() }
    }

    /// Whether all of it was there.
    pub fn is_complete(&self) -> bool {
        self.place == Place::End
    }

    /// Whether the connection ends with the answer to this request.
    pub fn is_last_request(&self) -> bool {
        self.closes || self.is_old && !self.keeps
    }

    /// Whether the connection ends with this answer, or goes on in another way.
    pub fn is_last_answer(&self) -> bool {
        self.closes || self.has_other_option
    }

    /// As two numbers, the first less than 2^62.
    pub fn to_numbers(self) -> [u64; 2] {
        let connection = [self.keeps, self.closes, self.has_other_option];
        let flags = [self.is_only_head, self.is_old, self.is_chunked, self.length.is_some()];
        let flags = flags.iter().chain(&connection);
        let flags = flags.rev().fold(0, |flags, flag| flags << 1 | u64::from(*flag));
        let state = self.place as u64
            | u64::from(self.at & 31) << 4
            | u64::from(self.names) << 9
            | flags << 25
            | u64::from(self.status & 1023) << 32
            | self.bytes << 42;
        [state, self.length.unwrap_or(0)]
    }

    /// From [`to_numbers`](Self::to_numbers).
    pub fn from_numbers([state, length]: [u64; 2]) -> Self {
        let bits = |from: u32, count: u32| u16::try_from(state >> from & ((1 << count) - 1)).unwrap_or(0);
        let place =
            Place::ALL.into_iter().find(|place| *place as u16 == bits(0, 4)).unwrap_or(Place::LastEnd);
        let flag = |number: u32| bits(25 + number, 1) == 1;
        Self {
            place,
            at: u8::try_from(bits(4, 5)).unwrap_or(0),
            names: bits(9, 16),
            bytes: state >> 42,
            status: bits(32, 10),
            is_only_head: flag(0),
            is_old: flag(1),
            is_chunked: flag(2),
            length: flag(3).then_some(length),
            keeps: flag(4),
            closes: flag(5),
            has_other_option: flag(6),
        }
    }

    /// How many of these bytes belong to it. None: it is not understood.
    pub fn take(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut rest = bytes;
        while self.place != Place::End && !rest.is_empty() {
            let before = rest;
            let piece = before.get(..rest.skip_until(b'\n').ok()?)?;
            let is_whole = piece.ends_with(b"\n");
            match self.place {
                Place::Line if is_whole => self.line(piece)?,
                Place::Status if is_whole && self.at == 0 => self.status_line(piece)?,
                _ => self.scan(piece)?,
            }
        }
        let taken = bytes.len() - rest.len();
        self.bytes = Some(self.bytes + taken as u64).filter(|bytes| *bytes <= HEAD_BYTES)?;
        Some(taken)
    }

    /// A whole line: each of every head comes through here.
    fn line(&mut self, line: &[u8]) -> Option<()> {
        let field = match line.first()? {
            b'\r' if line == b"\r\n" => {
                self.place = Place::End;
                return Some(());
            }
            b'c' | b'C' if matches!(line.get(3), Some(b'n' | b'N')) => CONNECTION,
            b'c' | b'C' => CONTENT_LENGTH,
            b't' | b'T' => TRANSFER_ENCODING,
            first if first.is_ascii_graphic() => return self.pass(line),
            // Such as a line that continues the one before.
            _ => return None,
        };
        let name = NAMES.get(usize::from(field))?;
        match line.split_at_checked(name.len()) {
            Some((its, [next, value @ ..])) if its.eq_ignore_ascii_case(name) => {
                self.behind_name(field, *next)?;
                match self.place {
                    Place::Option if is_keep_alive(value) => {
                        self.keeps = true;
                        (self.at, self.names) = (0, 0);
                        self.pass(value)
                    }
                    _ => self.scan(value),
                }
            }
            _ => self.pass(line),
        }
    }

    fn status_line(&mut self, line: &[u8]) -> Option<()> {
        let (digits, [b' ' | b'\r', ..]) = line.strip_prefix(ANSWER)?.split_at_checked(3)? else {
            return None;
        };
        for digit in digits {
            self.digit(*digit)?;
        }
        self.pass(line)
    }

    fn digit(&mut self, byte: u8) -> Option<()> {
        let digit = u16::try_from((byte as char).to_digit(10)?).ok()?;
        self.status = self.status.saturating_mul(10).saturating_add(digit);
        Some(())
    }

    /// A piece of a line, or all of it.
    fn scan(&mut self, piece: &[u8]) -> Option<()> {
        for (number, &byte) in piece.iter().enumerate() {
            if matches!(self.place, Place::Rest | Place::RestEnd) {
                self.pass(piece.get(number..)?)?;
                break;
            }
            self.byte(byte)?;
        }
        if piece.ends_with(b"\n") {
            (self.at, self.names) = (0, 0);
        }
        Some(())
    }

    /// The rest of a line, or a piece of it, of which only the end matters.
    fn pass(&mut self, piece: &[u8]) -> Option<()> {
        self.place = match piece {
            [.., b'\r', b'\n'] => Place::Line,
            [b'\n'] if self.place == Place::RestEnd => Place::Line,
            // Some take that for the end of a line, others do not.
            [.., b'\n'] => return None,
            [.., b'\r'] => Place::RestEnd,
            _ => Place::Rest,
        };
        Some(())
    }

    fn byte(&mut self, byte: u8) -> Option<()> {
        match self.place {
            Place::Method => self.method(byte)?,
            Place::Target => self.target(byte)?,
            Place::Status => match (self.at, byte) {
                (at, _) if ANSWER.get(usize::from(at)) == Some(&byte) => self.at += 1,
                (9..12, _) => {
                    self.digit(byte)?;
                    self.at += 1;
                }
                (12, b' ' | b'\r') => self.pass(&[byte])?,
                _ => return None,
            },
            Place::Line if byte == b'\r' => self.place = Place::LastEnd,
            Place::Line => {
                byte.is_ascii_graphic().then_some(())?;
                (self.place, self.names, self.at) = (Place::Name, u16::MAX, 0);
                self.name(byte)?;
            }
            Place::Name => self.name(byte)?,
            Place::Value if self.names == CONTENT_LENGTH => self.length(byte)?,
            Place::Value => self.word(byte)?,
            Place::Option => self.option(byte)?,
            Place::Rest | Place::RestEnd => self.pass(&[byte])?,
            Place::LastEnd if byte == b'\n' => self.place = Place::End,
            Place::LastEnd | Place::End => return None,
        }
        Some(())
    }

    fn method(&mut self, byte: u8) -> Option<()> {
        if byte == b' ' {
            let noted = self.whole(&NOTED_METHODS);
            self.is_only_head = noted == Some(0);
            // That may be the one before the version.
            let is_method = self.at > 0 && noted != Some(1);
            (self.place, self.at) = (Place::Target, Some(1).filter(|_| is_method)?);
        } else if is_in_method(byte) && usize::from(self.at) < METHOD_BYTES {
            if !self.is_begin(&NOTED_METHODS, byte) {
                (self.names, self.at) = (0, self.at + 1);
            }
        } else {
            return None;
        }
        Some(())
    }

    fn target(&mut self, byte: u8) -> Option<()> {
        self.at = match (self.at, byte) {
            (at, b'\n') => {
                self.place = Some(Place::Line).filter(|_| at == 10)?;
                at
            }
            (9, b'\r') => 10,
            (8, b'0' | b'1') => {
                self.is_old = byte == b'0';
                9
            }
            (_, b' ') => 1,
            (at @ 1..8, _) if VERSION.get(usize::from(at)) == Some(&byte) => at + 1,
            _ => 0,
        };
        Some(())
    }

    fn name(&mut self, byte: u8) -> Option<()> {
        if self.is_begin(&NAMES, byte.to_ascii_lowercase()) {
            return Some(());
        }
        match self.whole(&NAMES) {
            Some(field) => self.behind_name(field, byte),
            None => self.pass(&[byte]),
        }
    }

    /// Whether this byte goes on with one of these names, of which `at` bytes were there.
    fn is_begin(&mut self, names: &[&[u8]], byte: u8) -> bool {
        let at = usize::from(self.at);
        let goes_on = |number: usize| names.get(number).is_some_and(|name| name.get(at) == Some(&byte));
        let left = (0..16).filter(|&number| goes_on(number)).fold(0, |left, number| left | 1 << number);
        let left: u16 = left & self.names;
        if left != 0 {
            (self.names, self.at) = (left, self.at + 1);
        }
        left != 0
    }

    /// The name that was there, if it is one of these and whole.
    fn whole(&self, names: &[&[u8]]) -> Option<u16> {
        (0..16).find(|&number| {
            let name = names.get(usize::from(number)).filter(|_| self.names >> number & 1 == 1);
            name.is_some_and(|name| name.len() == usize::from(self.at))
        })
    }

    /// The byte behind one of [`NAMES`].
    fn behind_name(&mut self, field: u16, byte: u8) -> Option<()> {
        match byte {
            b':' => {}
            // A longer name.
            _ if byte.is_ascii_graphic() => return self.pass(&[byte]),
            // Some take that for the name, others do not.
            _ => return None,
        }
        if field == CONNECTION {
            (self.place, self.names, self.at) = (Place::Option, u16::MAX, 0);
            return Some(());
        }
        // Of two that tell where the body ends, everybody may believe another one.
        (self.length.is_none() && !self.is_chunked).then_some(())?;
        match field {
            CONTENT_LENGTH => self.length = Some(0),
            _ => self.is_chunked = Some(true).filter(|_| !self.is_old)?,
        }
        (self.place, self.names, self.at) = (Place::Value, field, 0);
        Some(())
    }

    /// A byte of the field with the length: `at` is 0 before the number, 1 in it, 2 behind it, 3 at the end of the line.
    fn length(&mut self, byte: u8) -> Option<()> {
        self.at = match (self.at, byte) {
            (0 | 1, b'0'..=b'9') => {
                let length = self.length?.checked_mul(10)?;
                self.length = Some(length.checked_add(u64::from(byte - b'0'))?);
                1
            }
            (0, b' ' | b'\t') => 0,
            (1 | 2, b' ' | b'\t') => 2,
            (1 | 2, b'\r') => 3,
            (at @ 3, b'\n') => {
                self.place = Place::Line;
                at
            }
            _ => return None,
        };
        Some(())
    }

    /// A byte of the field with the body's coding, of whose name `at` bytes were there.
    fn word(&mut self, byte: u8) -> Option<()> {
        let (word, at) = (b"chunked", usize::from(self.at));
        match byte {
            b' ' | b'\t' if at == 0 || at == word.len() => {}
            b'\r' if at == word.len() => self.at += 1,
            b'\n' if at > word.len() => self.place = Place::Line,
            _ if word.get(at) == Some(&byte.to_ascii_lowercase()) => self.at += 1,
            _ => return None,
        }
        Some(())
    }

    /// A byte of the field with the connection's options.
    fn option(&mut self, byte: u8) -> Option<()> {
        match (self.at, byte) {
            (OPTION_END, b'\n') => self.place = Place::Line,
            (0 | OPTION_SPACE, b' ' | b'\t') => {}
            (0..OPTION_END, b' ' | b'\t' | b',' | b'\r') => {
                if self.at < OPTION_SPACE {
                    self.behind_option(byte);
                }
                (self.names, self.at) = match byte {
                    b',' => (u16::MAX, 0),
                    b'\r' => (0, OPTION_END),
                    _ => (0, OPTION_SPACE),
                };
            }
            (0..OPTION_SPACE, _) if byte.is_ascii_graphic() => {
                if !self.is_begin(&OPTIONS, byte.to_ascii_lowercase()) {
                    // Another one, however long.
                    (self.names, self.at) = (0, 1);
                }
            }
            // Two words without a comma, for example: some look for one of them, others do not.
            _ => return None,
        }
        Some(())
    }

    fn behind_option(&mut self, byte: u8) {
        match self.whole(&OPTIONS) {
            Some(KEEP_ALIVE) => self.keeps = true,
            Some(_) => self.closes = true,
            // An empty one between two commas is none.
            None if self.at > 0 || byte == b'\r' => self.has_other_option = true,
            None => {}
        }
    }
}

/// Whether the rest of a line says that and nothing else.
fn is_keep_alive(value: &[u8]) -> bool {
    let Some(value) = value.strip_suffix(b"\r\n") else { return false };
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t');
    let from = value.iter().position(|byte| !is_space(byte)).unwrap_or(0);
    let until = value.iter().rposition(|byte| !is_space(byte)).map_or(0, |last| last + 1);
    value.get(from..until).is_some_and(|option| option.eq_ignore_ascii_case(b"keep-alive"))
}

fn is_in_method(byte: u8) -> bool {
    matches!(byte, b'A'..=b'Z' | b'-')
}

/// Whether that is the first line of a request: a method of capital letters, and a version that is known.
pub fn is_request_line(line: &[u8]) -> bool {
    let Some((version, rest)) = line.split_last() else { return false };
    let method = line.split(|&byte| byte == b' ').next().unwrap_or_default();
    matches!(version, b'0' | b'1')
        && rest.ends_with(VERSION)
        && (1..=METHOD_BYTES).contains(&method.len())
        && method.iter().all(|byte| is_in_method(*byte))
        && method != b"CONNECT"
}
