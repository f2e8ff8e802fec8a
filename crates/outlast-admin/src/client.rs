//! Asking an instance from a thread that waits for the answer.

use crate::{Request, Status};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Longest answer that is read: about 700 bytes for each of 65,536 sessions.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// How the instance with this admin socket is. `timeout` is for each step of the exchange: an instance that is stopped or
/// frozen says nothing.
///
/// # Errors
/// Nobody answers there in time, or not as an instance does (`InvalidData`).
pub fn status(socket: &Path, timeout: Duration) -> io::Result<Status> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    let mut line = serde_json::to_vec(&Request::Status {})?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    Ok(Status::read(serde_json::from_slice(&answer)?)?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed expectation is the message")]
mod tests {
    use super::*;
    use crate::Page;
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;

    /// What is said of an instance that answers so, or of one that does not answer.
    fn asked(name: &str, answer: Option<&'static str>) -> io::Result<Status> {
        let path = std::env::temp_dir().join(format!("outlast-admin-{}-{name}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let instance = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            assert_eq!(line, "{\"do\":\"status\"}\n");
            match answer {
                Some(answer) => (&stream).write_all(answer.as_bytes()).unwrap(),
                None => std::thread::sleep(Duration::from_millis(200)),
            }
        });
        let status = status(&path, Duration::from_millis(if answer.is_some() { 10_000 } else { 50 }));
        std::fs::remove_file(path).unwrap();
        instance.join().unwrap();
        status
    }

    #[test]
    fn an_instance_is_asked_and_silence_and_nonsense_are_errors() {
        let status = asked("ok", Some(" {\"pid\":7,\"kind\":\"sessions\",\"serves\":[\"a\"]}\n")).unwrap();
        assert!(status.pid == 7 && matches!(status.page, Page::Sessions(page) if page.serves == ["a"]));
        let kind = |result: io::Result<Status>| result.unwrap_err().kind();
        assert_eq!(kind(asked("nonsense", Some("hello\n"))), io::ErrorKind::InvalidData);
        assert_eq!(kind(asked("other", Some("{\"pid\":\"x\"}\n"))), io::ErrorKind::InvalidData);
        assert_eq!(kind(asked("silent", None)), io::ErrorKind::WouldBlock);
        assert_eq!(kind(status_of_nobody()), io::ErrorKind::NotFound);
    }

    fn status_of_nobody() -> io::Result<Status> {
        status(Path::new("/nowhere/1.sock"), Duration::from_secs(1))
    }
}
