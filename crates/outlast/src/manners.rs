//! How a local program that has named its destination is answered: each kind of proxy in its own words.

use outlast_session::relay::Local;
use outlast_session::relay::http_connect::{self, Answer};
use outlast_session::relay::preamble::Status;
use outlast_session::relay::socks5::{self, Code as SocksCode};

/// What a program expects to hear.
#[derive(Clone, Copy, Debug)]
pub enum Manners {
    Socks5,
    HttpConnect,
    /// It does not know that we are here.
    Silent,
}

impl Manners {
    /// Completes when a program that waits for an answer has gone. One that has said something along with its request may have said
    /// all that it has to say.
    pub async fn gave_up(self, local: &Local, has_spoken: bool) {
        match self {
            Manners::Socks5 | Manners::HttpConnect if !has_spoken => local.hung_up().await,
            // It may have ended its stream, to listen only.
            Manners::Socks5 | Manners::HttpConnect | Manners::Silent => local.failed().await,
        }
    }

    /// What it hears before its stream begins.
    pub fn welcome(self) -> Vec<u8> {
        match self {
            Manners::Socks5 => socks5::reply(SocksCode::Succeeded).to_vec(),
            Manners::HttpConnect => http_connect::reply(Answer::Connected, ""),
            Manners::Silent => Vec::new(),
        }
    }

    /// Tells it that there will be no stream.
    pub async fn refuse(self, local: Local, status: Status, reason: &str) {
        let answer = match self {
            Manners::Socks5 => socks5::reply(socks_code(status)).to_vec(),
            Manners::HttpConnect => http_connect::reply(http_answer(status), reason),
            Manners::Silent => return local.abort(),
        };
        if local.send_all(&answer).await.is_ok() {
            local.end_in_order();
        }
    }
}

/// RP 6
fn socks_code(status: Status) -> SocksCode {
    match status {
        Status::Connected => SocksCode::Succeeded,
        Status::NotAllowed => SocksCode::NotAllowed,
        Status::UnknownHost => SocksCode::HostUnreachable,
        Status::Refused => SocksCode::Refused,
        Status::Unreachable => SocksCode::NetworkUnreachable,
        Status::TimedOut => SocksCode::Expired,
        Status::Malformed | Status::Failed => SocksCode::GeneralFailure,
    }
}

/// RP 6
fn http_answer(status: Status) -> Answer {
    match status {
        Status::Connected => Answer::Connected,
        Status::NotAllowed => Answer::Status(403, "Forbidden"),
        Status::TimedOut => Answer::Status(504, "Gateway Timeout"),
        Status::Malformed | Status::Failed => Answer::Status(503, "Service Unavailable"),
        Status::UnknownHost | Status::Refused | Status::Unreachable => Answer::Status(502, "Bad Gateway"),
    }
}
