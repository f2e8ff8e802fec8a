//! SOCKS version 5 (RFC 1928), CONNECT only; user and password (RFC 1929) when they are asked for.

use super::destination::{Destination, Host};
use super::exact::{ReadError, read_parsed};
use super::{Credentials, Parsed};
use std::io;
use std::net::IpAddr;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

const VERSION: u8 = 5;
const PASSWORD_VERSION: u8 = 1;
const METHOD_NONE: u8 = 0;
const METHOD_PASSWORD: u8 = 2;
const METHOD_UNACCEPTABLE: u8 = 0xFF;
const COMMAND_CONNECT: u8 = 1;
const ADDRESS_IPV4: u8 = 1;
const ADDRESS_NAME: u8 = 3;
const ADDRESS_IPV6: u8 = 4;

/// RFC 1928, section 6: what became of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    /// Connected.
    Succeeded = 0,
    /// Anything that has no code of its own.
    GeneralFailure = 1,
    /// Not allowed by the rules.
    NotAllowed = 2,
    /// No way to the network.
    NetworkUnreachable = 3,
    /// No way to the host, or no such host.
    HostUnreachable = 4,
    /// The destination refused.
    Refused = 5,
    /// The destination did not answer.
    Expired = 6,
    /// Not CONNECT.
    CommandNotSupported = 7,
    /// An address type that does not exist.
    AddressNotSupported = 8,
}

/// What is wrong with a local program's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SocksError {
    /// Another protocol or version.
    #[error("not SOCKS version 5 (it begins with byte {0})")]
    Version(u8),
    /// The program offers no way to authenticate that we accept.
    #[error("the program offers no acceptable authentication method")]
    Method,
    /// User or password are wrong.
    #[error("wrong user or password")]
    Password,
    /// BIND or UDP ASSOCIATE.
    #[error("command {0} is not supported: only CONNECT is")]
    Command(u8),
    /// An address type that does not exist.
    #[error("address type {0} does not exist")]
    AddressType(u8),
    /// The host or port cannot be connected to.
    #[error("the destination is neither a name nor an address with a port")]
    Destination,
}

impl SocksError {
    fn code(self) -> Option<Code> {
        match self {
            SocksError::Version(_) | SocksError::Method | SocksError::Password => None,
            SocksError::Command(_) => Some(Code::CommandNotSupported),
            SocksError::AddressType(_) => Some(Code::AddressNotSupported),
            SocksError::Destination => Some(Code::HostUnreachable),
        }
    }
}

/// The greeting: whether the authentication method in question is offered.
///
/// # Errors
/// When it is another protocol.
pub fn parse_greeting(bytes: &[u8], method: u8) -> Result<Parsed<bool>, SocksError> {
    let Some(&version) = bytes.first() else { return Ok(Parsed::More(2)) };
    if version != VERSION {
        return Err(SocksError::Version(version));
    }
    let Some(&count) = bytes.get(1) else { return Ok(Parsed::More(1)) };
    let end = 2 + usize::from(count);
    match bytes.get(2..end) {
        Some(methods) => Ok(Parsed::Done(methods.contains(&method), end)),
        None => Ok(Parsed::More(end - bytes.len())),
    }
}

/// RFC 1929: whether user and password are right.
///
/// # Errors
/// When the version is another.
pub fn parse_password(bytes: &[u8], credentials: &Credentials) -> Result<Parsed<bool>, SocksError> {
    let Some(&version) = bytes.first() else { return Ok(Parsed::More(2)) };
    if version != PASSWORD_VERSION {
        return Err(SocksError::Version(version));
    }
    let Some(&user_bytes) = bytes.get(1) else { return Ok(Parsed::More(1)) };
    let user_end = 2 + usize::from(user_bytes);
    let (Some(user), Some(&password_bytes)) = (bytes.get(2..user_end), bytes.get(user_end)) else {
        return Ok(Parsed::More(user_end + 1 - bytes.len()));
    };
    let end = user_end + 1 + usize::from(password_bytes);
    match bytes.get(user_end + 1..end) {
        Some(password) => Ok(Parsed::Done(credentials.matches(user, password), end)),
        None => Ok(Parsed::More(end - bytes.len())),
    }
}

/// The request: where to connect.
///
/// # Errors
/// When it is not a CONNECT to a destination.
pub fn parse_request(bytes: &[u8]) -> Result<Parsed<Destination>, SocksError> {
    match bytes.first() {
        Some(&version) if version != VERSION => return Err(SocksError::Version(version)),
        _ => {}
    }
    let Some(head) = bytes.get(..5) else { return Ok(Parsed::More(5 - bytes.len())) };
    if head[1] != COMMAND_CONNECT {
        return Err(SocksError::Command(head[1]));
    }
    let (start, length) = match head[3] {
        ADDRESS_IPV4 => (4, 4),
        ADDRESS_IPV6 => (4, 16),
        ADDRESS_NAME => (5, usize::from(head[4])),
        other => return Err(SocksError::AddressType(other)),
    };
    let end = start + length + 2;
    let (Some(address), Some(port)) = (bytes.get(start..start + length), bytes.get(start + length..end))
    else {
        return Ok(Parsed::More(end - bytes.len()));
    };
    let host = match head[3] {
        ADDRESS_NAME => {
            let name = std::str::from_utf8(address).map_err(|_| SocksError::Destination)?;
            Host::parse(name).map_err(|_| SocksError::Destination)?
        }
        _ => Host::Ip(ip(address).ok_or(SocksError::Destination)?),
    };
    let port = port.iter().fold(0, |port, byte| port << 8 | u16::from(*byte));
    let destination = Destination::new(host, port).map_err(|_| SocksError::Destination)?;
    Ok(Parsed::Done(destination, end))
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        return Some(IpAddr::from(bytes));
    }
    <[u8; 16]>::try_from(bytes).ok().map(|bytes| IpAddr::from(bytes).to_canonical())
}

/// The reply. The bound address is given as 0.0.0.0:0: it is that of another machine.
#[must_use]
pub fn reply(code: Code) -> [u8; 10] {
    [VERSION, code as u8, 0, ADDRESS_IPV4, 0, 0, 0, 0, 0, 0]
}

/// Why a local program did not get as far as a destination.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Its bytes are wrong; it has been told.
    #[error(transparent)]
    Wrong(#[from] SocksError),
    /// Its connection failed or ended.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Learns from a local program where it wants to go. The caller answers with [`reply`].
///
/// # Errors
/// When the program says something else. Where SOCKS has an answer to that, it has been given.
pub async fn negotiate<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    credentials: Option<&Credentials>,
) -> Result<Destination, Failure> {
    let method = if credentials.is_some() { METHOD_PASSWORD } else { METHOD_NONE };
    let offered = read_parsed(stream, |bytes| parse_greeting(bytes, method)).await?;
    if !offered {
        stream.write_all(&[VERSION, METHOD_UNACCEPTABLE]).await?;
        return Err(SocksError::Method.into());
    }
    stream.write_all(&[VERSION, method]).await?;
    if let Some(credentials) = credentials {
        let right = read_parsed(stream, |bytes| parse_password(bytes, credentials)).await?;
        stream.write_all(&[PASSWORD_VERSION, u8::from(!right)]).await?;
        if !right {
            return Err(SocksError::Password.into());
        }
    }
    match read_parsed(stream, parse_request).await {
        Ok(destination) => Ok(destination),
        Err(ReadError::Wrong(error)) => {
            if let Some(code) = error.code() {
                stream.write_all(&reply(code)).await?;
            }
            Err(error.into())
        }
        Err(error) => Err(error.into()),
    }
}

impl From<ReadError<SocksError>> for Failure {
    fn from(error: ReadError<SocksError>) -> Self {
        match error {
            ReadError::Io(error) => Failure::Io(error),
            ReadError::Ended => Failure::Io(io::ErrorKind::UnexpectedEof.into()),
            ReadError::Wrong(error) => Failure::Wrong(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    const NAME: &[u8] = b"\x05\x01\x00\x03\x0bexample.org\x01\xbb";

    #[test]
    fn requests_are_taken_at_any_split_and_no_further() {
        let six = [&b"\x05\x01\x00\x04"[..], &[0; 15], &[1, 0, 22]].concat();
        for (bytes, expected) in [
            (NAME, "example.org:443"),
            (b"\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50", "127.0.0.1:80"),
            (&six, "[::1]:22"),
        ] {
            for end in 0..bytes.len() {
                let Ok(Parsed::More(more)) = parse_request(&bytes[..end]) else {
                    panic!("{expected} at {end}")
                };
                assert!(more >= 1 && end + more <= bytes.len());
            }
            let Ok(Parsed::Done(destination, used)) = parse_request(&[bytes, b"more"].concat()) else {
                panic!()
            };
            assert_eq!((destination.to_string().as_str(), used), (expected, bytes.len()));
        }
    }

    #[test]
    fn other_protocols_and_commands_are_told_apart() {
        let corpus: [(&[u8], SocksError); 7] = [
            (b"\x04\x01\x00\x50", SocksError::Version(4)),
            (b"GET / HTTP/1.1", SocksError::Version(b'G')),
            (b"\x05\x02\x00\x01\x7f", SocksError::Command(2)),
            (b"\x05\x01\x00\x02\x7f", SocksError::AddressType(2)),
            (b"\x05\x01\x00\x03\x00\x00\x50", SocksError::Destination),
            (b"\x05\x01\x00\x03\x03a\r\n\x00\x50", SocksError::Destination),
            (b"\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x00", SocksError::Destination),
        ];
        for (bytes, error) in corpus {
            assert_eq!(parse_request(bytes), Err(error), "{bytes:?}");
        }
    }

    #[test]
    fn no_bytes_make_the_parsers_panic() {
        let credentials = Credentials::parse("ann:secret").unwrap();
        let mut random = outlast_stream::SplitMix64::new(5);
        for _ in 0..20_000 {
            let mut bytes = NAME.to_vec();
            for _ in 0..4 {
                let at = usize::try_from(random.below(bytes.len() as u64)).unwrap();
                bytes[at] = random.next_u64().to_le_bytes()[0];
            }
            bytes.truncate(usize::try_from(random.below(1 + bytes.len() as u64)).unwrap());
            let _ = parse_request(&bytes);
            let _ = parse_greeting(&bytes, METHOD_NONE);
            let _ = parse_password(&bytes, &credentials);
        }
    }

    async fn talk(says: &[u8], credentials: Option<&Credentials>) -> (Result<Destination, Failure>, Vec<u8>) {
        let (mut ours, mut theirs) = tokio::io::duplex(1024);
        theirs.write_all(says).await.unwrap();
        theirs.shutdown().await.unwrap();
        let result = negotiate(&mut ours, credentials).await;
        drop(ours);
        let mut heard = Vec::new();
        theirs.read_to_end(&mut heard).await.unwrap();
        (result, heard)
    }

    #[tokio::test]
    async fn a_program_is_led_to_its_destination() {
        let (result, heard) = talk(&[b"\x05\x02\x02\x00", NAME].concat(), None).await;
        assert_eq!(result.unwrap().to_string(), "example.org:443");
        assert_eq!(heard, [5, 0]);
    }

    #[tokio::test]
    async fn only_the_right_password_opens() {
        let credentials = Credentials::parse("ann:secret").unwrap();
        let right = [b"\x05\x01\x02\x01\x03ann\x06secret", NAME].concat();
        let (result, heard) = talk(&right, Some(&credentials)).await;
        assert!(result.is_ok());
        assert_eq!(heard, [5, 2, 1, 0]);

        let (result, heard) = talk(b"\x05\x01\x02\x01\x03ann\x06Secret", Some(&credentials)).await;
        assert!(matches!(result, Err(Failure::Wrong(SocksError::Password))));
        assert_eq!(heard, [5, 2, 1, 1]);

        let (result, heard) = talk(b"\x05\x01\x00", Some(&credentials)).await;
        assert!(matches!(result, Err(Failure::Wrong(SocksError::Method))));
        assert_eq!(heard, [5, 0xFF]);
    }

    #[tokio::test]
    async fn what_cannot_be_done_is_answered() {
        let (result, heard) = talk(b"\x05\x01\x00\x05\x03\x00\x01\x7f\x00\x00\x01\x00\x50", None).await;
        assert!(matches!(result, Err(Failure::Wrong(SocksError::Command(3)))));
        assert_eq!(heard[..4], [5, 0, 5, Code::CommandNotSupported as u8]);
    }
}
