//! What clients say and are told: HTTP/1.1 (RFC 9112), as far as a key-value service needs it. Pure.

/// The longest head of a request.
const HEAD_BYTES_MAX: usize = 32 << 10;
const HEADERS_MAX: usize = 64;
/// The longest line between chunks.
const LINE_BYTES_MAX: usize = 1 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Head,
    Put,
    Post,
    Delete,
}

/// The head of a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    pub method: Method,
    /// As it came: with its percent signs, and up to the query.
    pub path: String,
    pub query: String,
    /// How its content comes.
    pub framing: Framing,
    /// The client waits for "100 Continue" before it sends that.
    pub expects: bool,
    /// Nothing follows on this connection.
    pub closes: bool,
    /// Of the head.
    pub bytes: usize,
}

/// A status and what is said with it.
pub type Refusal = (u16, &'static str);

const fn bad(why: &'static str) -> Refusal {
    (400, why)
}

/// The request at the beginning of `input`. None: there is not all of its head yet.
pub fn parse(input: &[u8]) -> Result<Option<Request>, Refusal> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Request::new(&mut headers);
    let bytes = match head.parse(input) {
        Ok(httparse::Status::Complete(bytes)) if bytes <= HEAD_BYTES_MAX => bytes,
        Ok(httparse::Status::Partial) if input.len() < HEAD_BYTES_MAX => return Ok(None),
        Ok(_) | Err(httparse::Error::TooManyHeaders) => return Err((431, "the head is too long")),
        Err(_) => return Err(bad("this is no request of HTTP/1.1")),
    };
    let method = match head.method.unwrap_or_default() {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "PUT" => Method::Put,
        "POST" => Method::Post,
        "DELETE" => Method::Delete,
        _ => return Err((501, "only GET, HEAD, PUT, POST and DELETE are known")),
    };
    let is_old = head.version == Some(0);
    let (mut length, mut encoding, mut host) = (None, None, false);
    let (mut expects, mut closes) = (false, is_old);
    for header in head.headers.iter() {
        let value = std::str::from_utf8(header.value).unwrap_or_default().trim();
        match header.name.to_ascii_lowercase().as_str() {
            "content-length" => {
                let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
                let told =
                    value.parse::<u64>().ok().filter(|_| digits).ok_or(bad("a length is no number"))?;
                if length.replace(told).is_some_and(|before| before != told) {
                    return Err(bad("two lengths"));
                }
            }
            "transfer-encoding" if encoding.replace(value.to_ascii_lowercase()).is_some() => {
                return Err(bad("two transfer encodings"));
            }
            "expect" => expects = value.eq_ignore_ascii_case("100-continue") && !is_old,
            "connection" => {
                closes |= value.split(',').any(|word| word.trim().eq_ignore_ascii_case("close"));
            }
            "host" => host = true,
            _ => {}
        }
    }
    if !host && !is_old {
        return Err(bad("no host is named"));
    }
    let framing = match (encoding.as_deref(), length) {
        (None, length) => Framing::Length(length.unwrap_or(0)),
        // Two servers might take one for the end and one for the other.
        (Some(_), Some(_)) => return Err(bad("a length and a transfer encoding")),
        (Some("chunked"), None) if !is_old => Framing::Size,
        (Some(_), None) => return Err((501, "only chunked is known of the transfer encodings")),
    };
    let target = head.path.unwrap_or_default();
    // In the form for proxies, too.
    let target =
        target.split_once("://").map_or(target, |(_, rest)| rest.find('/').map_or("/", |at| &rest[at..]));
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let (path, query) = (path.to_owned(), query.to_owned());
    Ok(Some(Request { method, path, query, framing, expects, closes, bytes }))
}

/// What is to come of the content of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// So many bytes.
    Length(u64),
    /// The line with the size of a chunk.
    Size,
    /// So many bytes of a chunk.
    Chunk(u64),
    /// The end of its last line.
    ChunkEnd,
    /// Lines up to an empty one.
    Trailer,
    Over,
}

impl Framing {
    /// For memory that outlives the process.
    #[cfg_attr(not(feature = "outlast"), allow(dead_code, reason = "nothing outlives it"))]
    pub fn to_words(self) -> [u64; 2] {
        match self {
            Self::Length(left) => [0, left],
            Self::Size => [1, 0],
            Self::Chunk(left) => [2, left],
            Self::ChunkEnd => [3, 0],
            Self::Trailer => [4, 0],
            Self::Over => [5, 0],
        }
    }

    #[cfg_attr(not(feature = "outlast"), allow(dead_code, reason = "nothing outlives it"))]
    pub fn from_words([kind, left]: [u64; 2]) -> Self {
        match kind {
            0 => Self::Length(left),
            1 => Self::Size,
            2 => Self::Chunk(left),
            3 => Self::ChunkEnd,
            4 => Self::Trailer,
            _ => Self::Over,
        }
    }

    /// Takes what can be taken from the beginning of `input`, and puts the content behind `content`. How many bytes it took.
    pub fn decode(&mut self, input: &[u8], content: &mut Vec<u8>) -> Result<usize, Refusal> {
        let mut rest = input;
        loop {
            *self = match *self {
                Self::Length(0) | Self::Over => Self::Over,
                Self::Chunk(0) => Self::ChunkEnd,
                Self::Length(left) | Self::Chunk(left) => {
                    let count = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
                    let (part, behind) = rest.split_at(count);
                    content.extend_from_slice(part);
                    rest = behind;
                    let left = left - count as u64;
                    if matches!(self, Self::Length(_)) { Self::Length(left) } else { Self::Chunk(left) }
                }
                Self::Size | Self::ChunkEnd | Self::Trailer => {
                    let Some(line) = take_line(&mut rest)? else { break };
                    match (*self, line) {
                        (Self::Size, line) => match chunk_size(line).ok_or(bad("a chunk without a size"))? {
                            0 => Self::Trailer,
                            size => Self::Chunk(size),
                        },
                        (Self::ChunkEnd, []) => Self::Size,
                        (Self::ChunkEnd, _) => return Err(bad("a chunk is longer than its size")),
                        (_, []) => Self::Over,
                        _ => Self::Trailer,
                    }
                }
            };
            if *self == Self::Over || rest.is_empty() && !matches!(*self, Self::Length(0) | Self::Chunk(0)) {
                break;
            }
        }
        Ok(input.len() - rest.len())
    }
}

fn take_line<'a>(rest: &mut &'a [u8]) -> Result<Option<&'a [u8]>, Refusal> {
    let Some(end) = rest.windows(2).take(LINE_BYTES_MAX).position(|two| two == b"\r\n") else {
        return if rest.len() > LINE_BYTES_MAX {
            Err(bad("a line between chunks is too long"))
        } else {
            Ok(None)
        };
    };
    let (line, behind) = (&rest[..end], &rest[end + 2..]);
    *rest = behind;
    Ok(Some(line))
}

/// Before whatever else the line says.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|&byte| byte == b';').next()?.trim_ascii();
    let is_hex = !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
    u64::from_str_radix(std::str::from_utf8(digits).ok().filter(|_| is_hex)?, 16).ok()
}

/// The head of an answer, and what is not content: the length of that comes with it.
pub fn head(status: u16, content_bytes: u64, closes: bool) -> Vec<u8> {
    let reason = match status {
        200 => "OK",
        201 => "Created",
        204 => "No Content",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        507 => "Insufficient Storage",
        _ => "Error",
    };
    let mut head = format!("HTTP/1.1 {status} {reason}\r\n");
    if status != 204 {
        head += &format!("Content-Length: {content_bytes}\r\n");
    }
    if status == 405 {
        head += "Allow: GET, HEAD, PUT, POST, DELETE\r\n";
    }
    head += if closes { "Connection: close\r\n\r\n" } else { "\r\n" };
    head.into_bytes()
}

/// A part of a path, or of a query, as it was meant. None: a percent sign without a number.
pub fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::new();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?];
                let is_hex = digits.iter().all(u8::is_ascii_hexdigit);
                u8::from_str_radix(std::str::from_utf8(&digits).ok().filter(|_| is_hex)?, 16).ok()?
            }
            byte => byte,
        });
    }
    Some(decoded)
}

/// The opposite, for lists.
pub fn encoded(bytes: &[u8]) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    bytes
        .iter()
        .map(|&byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// A field of a query, as it was meant.
pub fn field(query: &str, name: &str) -> Option<Vec<u8>> {
    query
        .split('&')
        .filter_map(|field| field.split_once('='))
        .find(|(key, _)| *key == name)
        .and_then(|(_, value)| decoded(value))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]
mod tests {
    use super::*;

    /// The content, what is left of the input, and what is to come.
    fn decode(
        framing: Framing,
        input: &[u8],
        piece_bytes: usize,
    ) -> Result<(Vec<u8>, Vec<u8>, Framing), Refusal> {
        let (mut framing, mut content, mut held) = (framing, Vec::new(), Vec::new());
        for piece in input.chunks(piece_bytes) {
            held.extend_from_slice(piece);
            let taken = framing.decode(&held, &mut content)?;
            held.drain(..taken);
            // As the next generation finds it.
            framing = Framing::from_words(framing.to_words());
        }
        Ok((content, held, framing))
    }

    #[test]
    fn content_is_the_same_wherever_it_is_cut() {
        let chunked = b"3\r\nabc\r\n00A ; name=value\r\n0123456789\r\n0\r\nTrailer: 1\r\n\r\nGET ";
        for piece_bytes in 1..=chunked.len() {
            let decoded = decode(Framing::Size, chunked, piece_bytes).unwrap();
            assert_eq!(
                decoded,
                (b"abc0123456789".to_vec(), b"GET ".to_vec(), Framing::Over),
                "{piece_bytes}"
            );
            let decoded = decode(Framing::Length(5), b"abcdefgh", piece_bytes).unwrap();
            assert_eq!(decoded, (b"abcde".to_vec(), b"fgh".to_vec(), Framing::Over));
        }
        assert_eq!(
            decode(Framing::Size, b"3\r\nab", 3).unwrap(),
            (b"ab".to_vec(), vec![], Framing::Chunk(1))
        );
    }

    #[test]
    fn what_is_no_chunk_is_refused() {
        let long = [b'1'; 2 * LINE_BYTES_MAX];
        for bad in
            [&b"\r\n"[..], b"-1\r\n", b"+1\r\n", b"g\r\n", b"10000000000000000\r\n", b"1\r\nab\r\n", &long]
        {
            for piece_bytes in [1, bad.len()] {
                assert!(decode(Framing::Size, bad, piece_bytes).is_err(), "{bad:?}");
            }
        }
    }

    #[test]
    fn names_can_be_any_bytes() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decoded(&encoded(&all)).unwrap(), all);
        assert_eq!([decoded("%4"), decoded("%+1"), decoded("%é")], [None, None, None]);
        assert_eq!(field("a=1&b=%20&c", "b").unwrap(), b" ");
        assert_eq!((field("a=1", "b"), field("", "b")), (None, None));
    }

    #[test]
    fn heads_are_found_wherever_they_are_cut() {
        let head = b"PUT /a?b=c HTTP/1.1\r\nhost: x\r\nContent-Length: 3\r\nConnection: Close\r\n\r\nabc";
        let whole = parse(head).unwrap().unwrap();
        assert_eq!((whole.bytes, whole.path.as_str(), whole.query.as_str()), (head.len() - 3, "/a", "b=c"));
        assert_eq!((whole.framing, whole.closes, whole.expects), (Framing::Length(3), true, false));
        for cut in 0..head.len() - 3 {
            assert_eq!(parse(&head[..cut]).unwrap(), None);
        }
    }
}
