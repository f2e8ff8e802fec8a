//! TLS around a link: what it starts from, and what it means when it cannot be agreed on.

use super::client::Verdict;
use super::server::say_no_by;
use super::{Acceptor, Engine, Link, NotTls};
use crate::config::TlsConfig;
use crate::error::{Error, Result};
use crate::proto::{client_in_the_clear, server_in_the_clear};
use crate::targets::Targets;
use rustls::{AlertDescription, HandshakeType, ProtocolVersion};
use rustls_pki_types::ServerName;
use std::io;
use std::time::Duration;

/// So many handshakes in a row that could not be agreed on are taken for damaged before the peer is believed.
const TLS_DOUBTS_MAX: u32 = 3;

/// What a handshake of TLS that failed says about the peer.
#[derive(Debug)]
enum Finding {
    /// Nothing: bytes were changed on the way, as when a connection breaks.
    Damage(String),
    /// Perhaps this; but changed bytes, which nothing protects before there are keys, can look like it.
    Doubt(Error),
    /// This, and another attempt would say the same.
    Fact(Error),
}

impl Engine {
    /// TLS could not be agreed on: a wrong peer at first, or something in the way; later always that.
    pub(crate) fn tls_failed(&self, link: &Link, error: &io::Error) -> Verdict {
        if self.ctl.lock().welcomed {
            return Verdict::Again { error: error.to_string(), after: Duration::ZERO };
        }
        match self.tls_finding(link, error) {
            Finding::Fact(error) => self.fatal(error),
            Finding::Damage(error) => self.ctl.lock().client.broken_by(error),
            Finding::Doubt(error) => {
                let doubted = self.ctl.lock().client.doubted(TLS_DOUBTS_MAX, &error);
                doubted.unwrap_or_else(|| self.fatal(error))
            }
        }
    }

    fn tls_finding(&self, link: &Link, error: &io::Error) -> Finding {
        let cause = error.get_ref();
        if let Some(NotTls(bytes)) = cause.and_then(|error| error.downcast_ref()) {
            return Finding::Fact(match server_in_the_clear(bytes) {
                Ok(refusal) => {
                    let peer = link.peer_addr.to_string();
                    Error::Refused { peer, id: self.id, refusal, why: None }
                }
                Err(foreign) => self.protocol_error(link, &format!("it does not speak tls; {foreign}")),
            });
        }
        let Some(cause) = cause.and_then(|error| error.downcast_ref::<rustls::Error>()) else {
            return Finding::Fact(self.protocol_error(link, &format!("tls: {error}")));
        };
        let disagreed = || Error::Tls { peer: link.peer_addr.to_string(), what: cause.to_string() };
        match cause {
            rustls::Error::DecryptError => {
                Finding::Damage("the server's side of the TLS handshake arrived damaged".into())
            }
            rustls::Error::AlertReceived(
                AlertDescription::BadRecordMac | AlertDescription::DecryptionFailed,
            ) => Finding::Damage("this side's part of the TLS handshake arrived damaged".into()),
            rustls::Error::AlertReceived(alert) if !is_about_certificates(*alert) => {
                Finding::Doubt(disagreed())
            }
            rustls::Error::AlertReceived(_) | rustls::Error::InvalidCertificate(_) => {
                let untrusted = self.untrusted(link, about_certificates(cause));
                // Before TLS 1.3 certificates come in the clear.
                if link.tls_version() == Some(ProtocolVersion::TLSv1_3) {
                    Finding::Fact(untrusted)
                } else {
                    Finding::Doubt(untrusted)
                }
            }
            // Our own hello, back again.
            rustls::Error::InappropriateHandshakeMessage { got_type: HandshakeType::ClientHello, .. } => {
                let echo = "it does not speak tls; it echoes what it is sent";
                Finding::Doubt(self.protocol_error(link, echo))
            }
            rustls::Error::InvalidMessage(_)
            | rustls::Error::InappropriateMessage { .. }
            | rustls::Error::InappropriateHandshakeMessage { .. }
            | rustls::Error::PeerIncompatible(_)
            | rustls::Error::PeerMisbehaved(_)
            | rustls::Error::PeerSentOversizedRecord
            | rustls::Error::NoApplicationProtocol => Finding::Doubt(disagreed()),
            _ => Finding::Fact(disagreed()),
        }
    }

    pub(super) fn untrusted(&self, link: &Link, what: String) -> Error {
        Error::Untrusted { peer: link.peer_addr.to_string(), what }
    }
}

/// Whether the server says with `alert` what it thinks of a certificate.
fn is_about_certificates(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::NoCertificate
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRequired
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
    )
}

/// What is wrong with which certificate.
fn about_certificates(error: &rustls::Error) -> String {
    match error {
        rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "it wants a client certificate, and none is configured".to_owned()
        }
        // What rustls has no variant of its own for.
        error if error.to_string().contains("CaUsedAsEndEntity") => {
            "its certificate is that of an authority (CA:TRUE): make one for the server itself, and name the \
             authority here"
                .to_owned()
        }
        error => format!("tls: {error}"),
    }
}

impl Acceptor {
    /// TLS could not be agreed on. A client without it hears so, in the clear: what it said is not gone into.
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
