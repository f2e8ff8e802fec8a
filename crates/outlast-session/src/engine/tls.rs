//! TLS around a link: what it starts from, and what it means when it cannot be agreed on.

use super::client::Verdict;
use super::server::say_no_by;
use super::{Acceptor, Engine, Link, NotTls};
use crate::config::TlsConfig;
use crate::error::{Error, Result};
use crate::proto::{client_in_the_clear, server_in_the_clear};
use crate::targets::Targets;
use rustls_pki_types::ServerName;
use std::io;
use std::time::Duration;

impl Engine {
    /// TLS could not be agreed on: a wrong peer at first, something in the way later.
    pub(crate) fn tls_failed(&self, link: &Link, error: &io::Error) -> Verdict {
        if self.ctl.lock().welcomed {
            return Verdict::Again { error: error.to_string(), after: Duration::ZERO };
        }
        let cause = error.get_ref();
        if let Some(NotTls(bytes)) = cause.and_then(|error| error.downcast_ref()) {
            return self.fatal(match server_in_the_clear(bytes) {
                Ok(refusal) => {
                    let peer = link.peer_addr.to_string();
                    Error::Refused { peer, id: self.id, refusal, why: None }
                }
                Err(foreign) => self.protocol_error(link, &format!("it does not speak tls; {foreign}")),
            });
        }
        let what = match cause.and_then(|error| error.downcast_ref::<rustls::Error>()) {
            Some(rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired)) => {
                "it wants a client certificate, and none is configured".to_owned()
            }
            // Our own hello, back again.
            Some(rustls::Error::InappropriateHandshakeMessage {
                got_type: rustls::HandshakeType::ClientHello,
                ..
            }) => {
                return self.fatal(self.protocol_error(link, "it does not speak tls; it echoes what it is sent"));
            }
            // Not TLS at all, or no version of it that both have.
            None | Some(rustls::Error::InvalidMessage(_) | rustls::Error::PeerIncompatible(_)) => {
                return self.fatal(self.protocol_error(link, &format!("tls: {error}")));
            }
            // What rustls has no variant of its own for.
            Some(error) if error.to_string().contains("CaUsedAsEndEntity") => {
                "its certificate is that of an authority (CA:TRUE): make one for the server itself, and name the \
                 authority here"
                    .to_owned()
            }
            Some(error) => format!("tls: {error}"),
        };
        self.fatal(self.untrusted(link, what))
    }

    pub(super) fn untrusted(&self, link: &Link, what: String) -> Error {
        Error::Untrusted { peer: link.peer_addr.to_string(), what }
    }
}

impl Acceptor {
    /// TLS could not be agreed on. A client without it is told so, in the clear: what it said is not gone into.
    pub(crate) fn tls_failed(&self, link: &Link, error: &io::Error) {
        self.count_failed();
        let cause = error.get_ref().and_then(|error| error.downcast_ref());
        let Some(NotTls(bytes)) = cause else { return self.note_failed(Some(link), error) };
        let error = client_in_the_clear(bytes);
        self.note_failed(Some(link), &error);
        if let Some(refusal) = error.refusal() {
            self.count_refusal(&refusal);
            // PROTOCOL 6.8
            say_no_by(link, refusal.into(), Link::send_in_the_clear);
        }
    }
}

/// TLS for a link to `target`.
pub(super) fn client_tls(tls: &TlsConfig, target: &str) -> Result<rustls::Connection> {
    let config = tls
        .client
        .clone()
        .ok_or_else(|| Error::Config("tls is wanted, but there is no client configuration".into()))?;
    let name = tls.server_name.clone().unwrap_or_else(|| Targets::host_of(target).to_owned());
    let server_name = ServerName::try_from(name.clone())
        .map_err(|_| Error::Config(format!("{name:?} cannot be a name in a certificate")))?;
    rustls::ClientConnection::new(config, server_name)
        .map(rustls::Connection::Client)
        .map_err(|error| Error::Config(format!("cannot start tls: {error}")))
}

/// TLS for a link that was accepted.
pub(super) fn server_tls(tls: &TlsConfig) -> Result<rustls::Connection> {
    let config = tls
        .server
        .clone()
        .ok_or_else(|| Error::Config("tls is wanted, but there is no server configuration".into()))?;
    rustls::ServerConnection::new(config)
        .map(rustls::Connection::Server)
        .map_err(|error| Error::Config(format!("cannot start tls: {error}")))
}
