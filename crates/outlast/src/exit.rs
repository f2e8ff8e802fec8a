//! Exit codes, and the one place where an error becomes one.

use outlast_session::relay::dial::plain;
use outlast_session::relay::reasons;
use outlast_session::{Error, Refusal};

/// What the program ends with. Documented in `--help`, see [`HELP`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    Ok = 0,
    Internal = 1,
    Usage = 2,
    Peer = 3,
    Network = 4,
    DataLost = 5,
    Ended = 6,
    System = 7,
    NotReady = 8,
    Interrupted = 130,
}

/// The table in `--help` and in the man page.
pub const HELP: &str = "\
Exit codes:
  0    everything was delivered; the program that was run ended in order; the upgrade is done
  1    internal error
  2    usage or configuration, or a file that is missing or holds something else
  3    the peer refused, reset the session or speaks another protocol
  4    no connection within the patience, or ended before everything was delivered
  5    data is known to be lost
  6    the session was killed, at either end, has expired, or made room for others
  7    the system refused (permission, address, unreadable file, output), or an instance is silent
  8    start timed out, or an upgrade failed or timed out: then the old binary keeps serving
  130  interrupted
A program that was run and failed, or was asked to stop, gives its own code, or 128 plus the signal that killed it.";

/// An error with the code to end with. The message is one line and says what to do.
#[derive(Debug)]
pub struct Failure {
    pub code: Code,
    message: String,
}

impl Failure {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// The command line or the configuration file is wrong.
    pub fn usage(message: impl Into<String>) -> anyhow::Error {
        Self::new(Code::Usage, message).into()
    }

    /// The system did not let us.
    pub fn system(message: impl Into<String>) -> anyhow::Error {
        Self::new(Code::System, message).into()
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// The code for an error of the program.
pub fn code_of(error: &anyhow::Error) -> Code {
    if let Some(failure) = error.chain().find_map(|cause| cause.downcast_ref::<Failure>()) {
        return failure.code;
    }
    if let Some(error) = error.chain().find_map(|cause| cause.downcast_ref::<Error>()) {
        return code_of_session(error);
    }
    if error.chain().any(|cause| cause.is::<std::io::Error>()) { Code::System } else { Code::Internal }
}

/// The code for an error of a session.
pub fn code_of_session(error: &Error) -> Code {
    match error {
        Error::Refused { refusal: Refusal::Expired, .. } => Code::Ended,
        // Killed at the other end: the same code as at this one.
        Error::Reset { reason, .. } if reasons::is_kill(reason) => Code::Ended,
        Error::Refused { refusal: Refusal::Ended { .. }, why: Some(why), .. } if reasons::is_kill(why) => {
            Code::Ended
        }
        Error::Refused { .. }
        | Error::Protocol { .. }
        | Error::Version { .. }
        | Error::Untrusted { .. }
        | Error::Tls { .. }
        | Error::Reset { .. } => Code::Peer,
        Error::BytesMissing { .. } => Code::DataLost,
        Error::PatienceExhausted { .. } | Error::Connect { .. } => Code::Network,
        Error::Config(_) => Code::Usage,
        Error::Killed { .. } | Error::Expired { .. } | Error::Shed { .. } => Code::Ended,
        Error::System { .. } => Code::System,
        // A session that we closed ourselves and then used: that would be our mistake.
        _ => Code::Internal,
    }
}

/// Standard output takes no more.
pub fn cannot_print(error: &std::io::Error) -> anyhow::Error {
    Failure::system(format!("cannot write to standard output: {}", plain(error)))
}

/// The error on one line, in lower case, without control characters that a peer may have sent.
pub fn one_line(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        // Some errors repeat their source.
        if text.contains(&cause) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause);
    }
    clean(&text)
}

/// The system's errors in the words of ours: "connection refused" for "Connection refused (os error 111)".
fn without_numbers(text: &str) -> String {
    let mut words = text.to_owned();
    while let Some((before, after)) = words.split_once(" (os error ") {
        let Some((_, after)) = after.split_once(')') else { break };
        let (context, message) = before.rsplit_once(": ").unwrap_or(("", before));
        let mut letters = message.chars();
        let message: String =
            letters.next().into_iter().flat_map(char::to_lowercase).chain(letters).collect();
        let colon = if context.is_empty() { "" } else { ": " };
        words = format!("{context}{colon}{message}{after}");
    }
    words
}

/// One printable line.
pub fn clean(text: &str) -> String {
    let printable: String =
        without_numbers(text).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    printable.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// What to do about a session's error, where the message itself does not say it.
pub fn hint(error: &Error) -> &'static str {
    match error {
        Error::Connect { last, .. } if last.contains("lookup address") => "; is the name right?",
        Error::Connect { last, .. } if last.contains("bytes were changed on the way") => {
            "; what is between this machine and the server?"
        }
        Error::Connect { .. } => "; is the server running, and the address right?",
        Error::Protocol { .. } => "; --via needs the address of `outlast listen`",
        Error::PatienceExhausted { .. } => "; --patience decides how long to try",
        Error::Untrusted { what, .. } if what.contains("UnknownIssuer") => {
            "; --tls-ca names who has signed the server's certificate, or that certificate itself"
        }
        Error::Expired { .. } => "; --keep on the server decides how long to wait",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn every_kind_of_error_has_its_code() {
        let cases: [(anyhow::Error, Code); 10] = [
            (Failure::usage("x"), Code::Usage),
            (Failure::system("x"), Code::System),
            (Error::Config("x".into()).into(), Code::Usage),
            (Error::Connect { targets: "a:1".into(), last: "x".into() }.into(), Code::Network),
            (Error::Protocol { peer: "a:1".into(), what: "x".into() }.into(), Code::Peer),
            (Error::Version { peer: "a:1".into(), what: "x".into() }.into(), Code::Peer),
            (Error::Untrusted { peer: "a:1".into(), what: "x".into() }.into(), Code::Peer),
            (Error::Tls { peer: "a:1".into(), what: "x".into() }.into(), Code::Peer),
            (std::io::Error::from(std::io::ErrorKind::PermissionDenied).into(), Code::System),
            (anyhow::anyhow!("x"), Code::Internal),
        ];
        for (error, code) in cases {
            assert_eq!(code_of(&error), code, "{error}");
            assert_eq!(code_of(&error.context("while testing")), code);
        }
    }

    #[test]
    fn the_help_lists_every_code() {
        for code in [
            Code::Ok,
            Code::Internal,
            Code::Usage,
            Code::Peer,
            Code::Network,
            Code::DataLost,
            Code::Ended,
            Code::System,
            Code::NotReady,
            Code::Interrupted,
        ] {
            assert!(HELP.lines().any(|line| line.trim_start().starts_with(&format!("{} ", code as u8))));
        }
    }

    #[test]
    fn errors_of_the_system_are_told_in_words() {
        let told = clean("cannot connect to A:1: Connection refused (os error 111); is it running?");
        assert_eq!(told, "cannot connect to A:1: connection refused; is it running?");
        assert_eq!(clean("Broken pipe (os error 32)"), "broken pipe");
        assert_eq!(clean("odd (os error 1"), "odd (os error 1");
    }

    #[test]
    fn a_message_is_one_printable_line() {
        let error = Err::<(), _>(anyhow::anyhow!("first\nsecond\x1b[31m")).context("top").unwrap_err();
        assert_eq!(one_line(&error), "top: first second [31m");
    }

    #[test]
    fn a_path_that_changes_bytes_is_not_blamed_on_the_address() {
        let hint_of = |last: &str| hint(&Error::Connect { targets: "a:1".into(), last: last.into() });
        assert!(hint_of("connection refused").contains("is the server running"));
        assert!(hint_of("a:1: it arrived damaged: bytes were changed on the way").contains("between"));
    }
}
