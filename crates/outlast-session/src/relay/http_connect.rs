//! HTTP CONNECT (RFC 9110, section 9.3.6) for local programs that know how to use an HTTP proxy.

use super::destination::Destination;
use super::{Credentials, Parsed};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Longest request head. Default 8 KiB: what common servers take.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Most header fields. Default 64: browsers send fewer than 20.
const FIELDS_MAX: usize = 64;

/// A request that was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Where to connect.
    pub destination: Destination,
    /// The credentials of `Proxy-Authorization: Basic`, still encoded.
    pub basic: Option<Vec<u8>>,
}

/// What is wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    /// Not HTTP, or HTTP with an error in it.
    #[error("malformed request")]
    Malformed,
    /// The head has more bytes or fields than any program sends.
    #[error("the request head is too large")]
    TooLarge,
    /// GET and the like.
    #[error("only CONNECT is supported")]
    Method,
    /// HTTP/2 and the like.
    #[error("only HTTP/1.0 and HTTP/1.1 are supported")]
    Version,
    /// The target is not `host:port`.
    #[error("the target is not host:port")]
    Target,
    /// A CONNECT has no body.
    #[error("a CONNECT request has no body")]
    Body,
    /// User or password are missing or wrong.
    #[error("the user or password is missing or wrong")]
    Password,
}

/// How a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The stream begins.
    Connected,
    /// A final status with its reason phrase.
    Status(u16, &'static str),
}

impl HttpError {
    fn answer(self) -> Answer {
        match self {
            HttpError::Malformed | HttpError::Target | HttpError::Body => Answer::Status(400, "Bad Request"),
            HttpError::TooLarge => Answer::Status(431, "Request Header Fields Too Large"),
            HttpError::Method => Answer::Status(405, "Method Not Allowed"),
            HttpError::Version => Answer::Status(505, "HTTP Version Not Supported"),
            HttpError::Password => Answer::Status(407, "Proxy Authentication Required"),
        }
    }
}

/// Reads a request head. Complete with its empty line; strict about line ends and characters.
///
/// # Errors
/// As soon as the bytes cannot become a CONNECT request.
pub fn parse(bytes: &[u8]) -> Result<Parsed<Request>, HttpError> {
    let seen = bytes.get(..HEAD_BYTES_MAX).unwrap_or(bytes);
    let Some(end) = seen.windows(4).position(|window| window == b"\r\n\r\n") else {
        if bytes.len() >= HEAD_BYTES_MAX {
            return Err(HttpError::TooLarge);
        }
        check_beginning(bytes)?;
        return Ok(Parsed::More(1));
    };
    let head = seen.get(..end).unwrap_or_default();
    let mut lines = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    // The only \r and \n are those that were just taken away, in pairs.
    if head.iter().filter(|byte| **byte == b'\r').count()
        != head.iter().filter(|byte| **byte == b'\n').count()
        || head.split(|byte| *byte == b'\n').rev().skip(1).any(|line| !line.ends_with(b"\r"))
    {
        return Err(HttpError::Malformed);
    }
    let destination = parse_line(lines.next().unwrap_or_default())?;
    let mut request = Request { destination, basic: None };
    for (count, line) in lines.enumerate() {
        if count >= FIELDS_MAX {
            return Err(HttpError::TooLarge);
        }
        parse_field(line, &mut request)?;
    }
    Ok(Parsed::Done(request, end + 4))
}

/// Tells other protocols at once, not when they have filled the head.
fn check_beginning(bytes: &[u8]) -> Result<(), HttpError> {
    let method = bytes.split(|byte| *byte == b' ').next().unwrap_or_default();
    if !method.iter().all(u8::is_ascii_uppercase) || method.len() > 32 {
        return Err(HttpError::Malformed);
    }
    Ok(())
}

fn parse_line(line: &[u8]) -> Result<Destination, HttpError> {
    let line = std::str::from_utf8(line).map_err(|_| HttpError::Malformed)?;
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(HttpError::Malformed);
    };
    if method.is_empty() || !method.bytes().all(|byte| byte.is_ascii_alphabetic()) {
        return Err(HttpError::Malformed);
    }
    if !version.starts_with("HTTP/") {
        return Err(HttpError::Malformed);
    }
    if version != "HTTP/1.1" && version != "HTTP/1.0" {
        return Err(HttpError::Version);
    }
    if method != "CONNECT" {
        return Err(HttpError::Method);
    }
    target.parse().map_err(|_| HttpError::Target)
}

fn parse_field(line: &[u8], request: &mut Request) -> Result<(), HttpError> {
    let colon = line.iter().position(|byte| *byte == b':').ok_or(HttpError::Malformed)?;
    let (name, value) = line.split_at_checked(colon).ok_or(HttpError::Malformed)?;
    let value = value.get(1..).unwrap_or_default().trim_ascii();
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    if name.is_empty() || !name.iter().all(is_token) {
        return Err(HttpError::Malformed);
    }
    if value.iter().any(|byte| (*byte < b' ' && *byte != b'\t') || *byte == 0x7F) {
        return Err(HttpError::Malformed);
    }
    if name.eq_ignore_ascii_case(b"transfer-encoding")
        || (name.eq_ignore_ascii_case(b"content-length") && value != b"0")
    {
        return Err(HttpError::Body);
    }
    if name.eq_ignore_ascii_case(b"proxy-authorization")
        && let Some((scheme, encoded)) = value.split_at_checked(6)
        && scheme.eq_ignore_ascii_case(b"basic ")
    {
        request.basic = Some(encoded.trim_ascii().to_vec());
    }
    Ok(())
}

/// The bytes of an answer. Refusals carry their reason in plain text.
#[must_use]
pub fn reply(answer: Answer, reason: &str) -> Vec<u8> {
    match answer {
        Answer::Connected => b"HTTP/1.1 200 Connection Established\r\n\r\n".to_vec(),
        Answer::Status(code, phrase) => {
            let extra = match code {
                405 => "Allow: CONNECT\r\n",
                407 => "Proxy-Authenticate: Basic realm=\"outlast\"\r\n",
                _ => "",
            };
            let length = reason.len() + 1;
            format!(
                "HTTP/1.1 {code} {phrase}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\n\
                 Connection: close\r\n{extra}\r\n{reason}\n"
            )
            .into_bytes()
        }
    }
}

/// Why a local program did not get as far as a destination.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Its request is wrong; it has been told.
    #[error(transparent)]
    Wrong(#[from] HttpError),
    /// Its connection failed or ended.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Learns from a local program where it wants to go, and what it has already sent after its request.
///
/// The caller answers with [`reply`].
///
/// # Errors
/// When the program says something else. It has been told.
pub async fn negotiate<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    credentials: Option<&Credentials>,
) -> Result<(Destination, Vec<u8>), Failure> {
    let error = match read_request(stream).await? {
        Ok((request, rest)) => {
            let basic = request.basic.as_deref().unwrap_or_default();
            if credentials.is_none_or(|credentials| credentials.matches_basic(basic)) {
                return Ok((request.destination, rest));
            }
            HttpError::Password
        }
        Err(error) => error,
    };
    // The program may close as soon as it has read the answer: the error is still that of its request.
    refuse(stream, error).await.ok();
    Err(error.into())
}

async fn refuse<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, error: HttpError) -> io::Result<()> {
    stream.write_all(&reply(error.answer(), &error.to_string())).await?;
    stream.shutdown().await?;
    // What is still unread would turn the answer into a reset.
    let mut rest = [0; 1024];
    for _ in 0..HEAD_BYTES_MAX / rest.len() {
        if stream.read(&mut rest).await? == 0 {
            break;
        }
    }
    Ok(())
}

async fn read_request<S: AsyncRead + Unpin>(
    stream: &mut S,
) -> io::Result<Result<(Request, Vec<u8>), HttpError>> {
    let mut bytes = Vec::with_capacity(1024);
    loop {
        match parse(&bytes) {
            Ok(Parsed::Done(request, used)) => return Ok(Ok((request, bytes.split_off(used)))),
            Ok(Parsed::More(_)) => {}
            Err(error) => return Ok(Err(error)),
        }
        let space = HEAD_BYTES_MAX.saturating_sub(bytes.len()) as u64;
        if (&mut *stream).take(space).read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &[u8] = b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\nUser-Agent: x\r\n\r\n";

    #[test]
    fn a_request_is_taken_at_any_split_and_no_further() {
        for end in 0..GOOD.len() {
            assert_eq!(parse(&GOOD[..end]), Ok(Parsed::More(1)), "at {end}");
        }
        let Ok(Parsed::Done(request, used)) = parse(&[GOOD, b"\x16\x03\x01"].concat()) else { panic!() };
        assert_eq!((request.destination.to_string().as_str(), used), ("example.org:443", GOOD.len()));
    }

    #[test]
    fn what_is_not_a_connect_is_refused_with_its_reason() {
        let many = format!("CONNECT a:1 HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(FIELDS_MAX + 1));
        let long = format!("CONNECT a:1 HTTP/1.1\r\na: {}", "b".repeat(HEAD_BYTES_MAX));
        let corpus: [(&[u8], HttpError); 22] = [
            (b"GET / HTTP/1.1\r\n\r\n", HttpError::Method),
            (b"connect a:1 HTTP/1.1\r\n\r\n", HttpError::Method),
            (b"GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", HttpError::Method),
            (b"CONNECT a:1 HTTP/2.0\r\n\r\n", HttpError::Version),
            (b"PRI * HTTP/2.0\r\n\r\n", HttpError::Version),
            (b"CONNECT a HTTP/1.1\r\n\r\n", HttpError::Target),
            (b"CONNECT a:0 HTTP/1.1\r\n\r\n", HttpError::Target),
            (b"CONNECT http://a:1 HTTP/1.1\r\n\r\n", HttpError::Target),
            (b"CONNECT  a:1 HTTP/1.1\r\n\r\n", HttpError::Malformed),
            (b"CONNECT a:1\r\n\r\n", HttpError::Malformed),
            (b"CONNECT a:1 HTTP/1.1\nHost: a\r\n\r\n", HttpError::Malformed),
            (b"CONNECT a:1 HTTP/1.1\r\nHost: a\rb\r\n\r\n", HttpError::Malformed),
            (b"CONNECT a:1 HTTP/1.1\r\nHost\r\n\r\n", HttpError::Malformed),
            (b"CONNECT a:1 HTTP/1.1\r\n: x\r\n\r\n", HttpError::Malformed),
            (b"CONNECT a:1 HTTP/1.1\r\nHost : x\r\n\r\n", HttpError::Malformed),
            (b"CONNECT a:1 HTTP/1.1\r\na: \x01\r\n\r\n", HttpError::Malformed),
            (b"CONNECT a:1 HTTP/1.1\r\nContent-Length: 5\r\n\r\n", HttpError::Body),
            (b"CONNECT a:1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", HttpError::Body),
            (b"SSH-2.0-OpenSSH_9\r\n", HttpError::Malformed),
            (b"\x16\x03\x01\x02\x00", HttpError::Malformed),
            (many.as_bytes(), HttpError::TooLarge),
            (long.as_bytes(), HttpError::TooLarge),
        ];
        for (bytes, error) in corpus {
            assert_eq!(parse(bytes), Err(error), "{}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn no_bytes_make_the_parser_panic() {
        let mut random = outlast_stream::SplitMix64::new(3);
        for _ in 0..20_000 {
            let mut bytes = GOOD.to_vec();
            for _ in 0..4 {
                let at = usize::try_from(random.below(bytes.len() as u64)).unwrap();
                bytes[at] = b" \r\n:\0A/\xff"[usize::try_from(random.below(8)).unwrap()];
            }
            let _ = parse(&bytes);
        }
    }

    async fn talk(
        says: &[u8],
        credentials: Option<&Credentials>,
    ) -> (Result<(Destination, Vec<u8>), Failure>, String) {
        let (mut ours, mut theirs) = tokio::io::duplex(16 << 10);
        theirs.write_all(says).await.unwrap();
        theirs.shutdown().await.unwrap();
        let result = negotiate(&mut ours, credentials).await;
        drop(ours);
        let mut heard = String::new();
        theirs.read_to_string(&mut heard).await.unwrap();
        (result, heard)
    }

    #[tokio::test]
    async fn bytes_after_the_request_are_kept_for_the_stream() {
        let (result, heard) = talk(&[GOOD, b"early"].concat(), None).await;
        assert_eq!(result.unwrap().1, b"early");
        assert_eq!(heard, "");
    }

    #[tokio::test]
    async fn other_methods_are_answered_with_405_and_a_message() {
        let (result, heard) = talk(b"GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", None).await;
        assert!(matches!(result, Err(Failure::Wrong(HttpError::Method))));
        assert!(heard.starts_with("HTTP/1.1 405 Method Not Allowed\r\n"), "{heard}");
        assert!(heard.contains("\r\nAllow: CONNECT\r\n") && heard.ends_with("only CONNECT is supported\n"));
    }

    #[tokio::test]
    async fn only_the_right_password_opens() {
        let credentials = Credentials::parse("ann:secret").unwrap();
        let right = b"CONNECT a:1 HTTP/1.1\r\nProxy-Authorization: basic YW5uOnNlY3JldA==\r\n\r\n";
        assert!(talk(right, Some(&credentials)).await.0.is_ok());
        let (result, heard) = talk(GOOD, Some(&credentials)).await;
        assert!(matches!(result, Err(Failure::Wrong(HttpError::Password))));
        assert!(heard.starts_with("HTTP/1.1 407 ") && heard.contains("Proxy-Authenticate: Basic"));
    }

    #[tokio::test]
    async fn a_client_that_does_not_wait_for_its_refusal_was_refused_all_the_same() {
        let credentials = Credentials::parse("ann:secret").unwrap();
        let (mut ours, mut theirs) = tokio::io::duplex(1 << 14);
        theirs.write_all(GOOD).await.unwrap();
        drop(theirs);
        let refused = negotiate(&mut ours, Some(&credentials)).await;
        assert!(matches!(refused, Err(Failure::Wrong(HttpError::Password))), "{refused:?}");
    }
}
