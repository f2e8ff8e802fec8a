//! Reading exactly what a parser takes, so that the bytes after it stay in the stream.

use super::Parsed;
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Why there is no parsed value.
#[derive(Debug)]
pub(super) enum ReadError<E> {
    Io(io::Error),
    Ended,
    Wrong(E),
}

/// Reads until the parser is done. A parser's own bounds are the bounds of what is read.
pub(super) async fn read_parsed<S, T, E>(
    stream: &mut S,
    parse: impl Fn(&[u8]) -> Result<Parsed<T>, E>,
) -> Result<T, ReadError<E>>
where
    S: AsyncRead + Unpin,
{
    let mut bytes = Vec::new();
    loop {
        let more = match parse(&bytes).map_err(ReadError::Wrong)? {
            Parsed::Done(value, _) => return Ok(value),
            Parsed::More(more) => more,
        };
        let start = bytes.len();
        bytes.resize(start + more, 0);
        let space = bytes.get_mut(start..).unwrap_or_default();
        match stream.read(space).await.map_err(ReadError::Io)? {
            0 => return Err(ReadError::Ended),
            count => bytes.truncate(start + count),
        }
    }
}
