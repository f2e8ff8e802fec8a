//! Where one end speaks TLS and the other does not: making out who is there, so that both hear of it.

use super::handshake::HandshakeError;
use super::wire::{Decoded, ForeignProtocol, Message, Refusal, Refuse, SecurityKind, WireError, decode};

impl HandshakeError {
    /// What the error is to a listener that wants `wanted`: a client that begins with TLS uses another security.
    #[must_use]
    pub fn at_listener(self, wanted: SecurityKind) -> Self {
        match self {
            // PROTOCOL 6.8
            Self::Wire(WireError::Foreign(ForeignProtocol::Tls)) if wanted != SecurityKind::Tls => {
                Self::Security { wanted, used: SecurityKind::Tls }
            }
            other => other,
        }
    }
}

/// A listener that wants TLS was sent `bytes` instead: what is wrong with the client. It never becomes a link.
pub fn client_in_the_clear(bytes: &[u8]) -> HandshakeError {
    match decode(bytes) {
        Ok(Decoded::Message { message: Message::Hello(hello), .. })
            if hello.security != SecurityKind::Tls =>
        {
            HandshakeError::Security { wanted: SecurityKind::Tls, used: hello.security }
        }
        Ok(Decoded::Message { message: Message::Hello(_), .. }) => WireError::Value("security").into(),
        Ok(Decoded::Message { message, .. }) => WireError::OutOfTurn(message.kind()).into(),
        Ok(Decoded::NeedMore { .. }) => WireError::Truncated.into(),
        Err(error) => error.into(),
    }
}

/// A client that wants TLS was sent `bytes` instead: the refusal, if a listener without TLS is there.
///
/// # Errors
/// What else is talking.
pub fn server_in_the_clear(bytes: &[u8]) -> Result<Refusal, ForeignProtocol> {
    match decode(bytes) {
        // PROTOCOL 6.8: nothing else is believed without TLS.
        Ok(Decoded::Message { message: Message::Refuse(Refuse { refusal, .. }), .. })
            if matches!(refusal, Refusal::SecurityRequired { .. }) =>
        {
            Ok(refusal)
        }
        Err(WireError::Foreign(foreign)) => Err(foreign),
        _ => Err(ForeignProtocol::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{ClientHandshake, Credentials, Hello, LinkMode, SessionId, refuse};

    fn hello() -> Hello {
        Hello::open(SessionId::from_bytes([7; 16]), LinkMode::Inband)
    }

    #[test]
    fn a_client_that_begins_with_tls_is_told_what_is_wanted() {
        // PROTOCOL 6.8
        let tls = HandshakeError::from(decode(b"\x16\x03\x01\x02\x00").unwrap_err());
        for wanted in [SecurityKind::Open, SecurityKind::Psk] {
            assert_eq!(tls.at_listener(wanted).refusal(), Some(Refusal::SecurityRequired { wanted }));
        }
        // TLS within TLS is nonsense, and so is HTTP anywhere.
        assert_eq!(tls.at_listener(SecurityKind::Tls).refusal(), None);
        let http = HandshakeError::from(decode(b"GET / HTTP/1.1\r\n").unwrap_err());
        assert_eq!(http.at_listener(SecurityKind::Open).refusal(), None);
    }

    #[test]
    fn a_hello_in_the_clear_is_refused_whatever_it_claims() {
        // PROTOCOL 6.8
        let open = ClientHandshake::new(hello(), Credentials::Open, [0; 32]).unwrap();
        let refusal = client_in_the_clear(open.start()).refusal();
        assert_eq!(refusal, Some(Refusal::SecurityRequired { wanted: SecurityKind::Tls }));
        let tls = Credentials::Tls { binding: [0; 32], key: None };
        let liar = ClientHandshake::new(hello(), tls, [0; 32]).unwrap();
        assert_eq!(client_in_the_clear(liar.start()).refusal(), Some(Refusal::Malformed));
        assert_eq!(client_in_the_clear(&open.start()[..9]).refusal(), Some(Refusal::Malformed));
        assert_eq!(client_in_the_clear(b"SSH-2.0-x\r\n").refusal(), None);
    }

    #[test]
    fn a_client_of_tls_believes_no_other_refusal_in_the_clear() {
        // PROTOCOL 6.8
        let wanted = Refusal::SecurityRequired { wanted: SecurityKind::Psk };
        assert_eq!(server_in_the_clear(&refuse(wanted)), Ok(wanted));
        for other in [Refusal::Expired, Refusal::Ended { offset: 0 }, Refusal::NotDirect] {
            assert_eq!(server_in_the_clear(&refuse(other)), Err(ForeignProtocol::Unknown));
        }
        assert_eq!(server_in_the_clear(b"SSH-2.0-x\r\n"), Err(ForeignProtocol::Ssh));
    }
}
