//! Telling what else is talking, so that the error can say what to do about it.

use core::fmt;

/// A protocol that is not this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForeignProtocol {
    /// HTTP/1 or HTTP/2, a request or an answer.
    Http,
    /// TLS.
    Tls,
    /// An SSH banner.
    Ssh,
    /// The PROXY header in text form.
    ProxyV1,
    /// The PROXY header in binary form.
    ProxyV2,
    /// Something else.
    Unknown,
}

const HTTP_STARTS: [&[u8]; 11] = [
    b"GET ",
    b"POST ",
    b"HEAD ",
    b"PUT ",
    b"DELETE ",
    b"OPTIONS ",
    b"CONNECT ",
    b"TRACE ",
    b"PATCH ",
    b"PRI * ",
    b"HTTP/",
];
const PROXY_V2_START: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

impl ForeignProtocol {
    /// The best guess from the first bytes; bytes that could start several protocols are [`Self::Unknown`].
    pub fn recognise(bytes: &[u8]) -> Self {
        let starts = |start: &[u8]| {
            let shared = start.len().min(bytes.len());
            shared > 0 && start.get(..shared) == bytes.get(..shared)
        };
        let proxy = starts(b"PROXY ");
        let http = HTTP_STARTS.iter().any(|start| starts(start));
        match () {
            // 22 is a handshake record, 21 an alert; major version 3 has been there since SSL 3.0 (RFC 8446, 5.1).
            () if starts(&[22, 3]) || starts(&[21, 3]) => Self::Tls,
            () if starts(b"SSH-") => Self::Ssh,
            () if starts(PROXY_V2_START) => Self::ProxyV2,
            () if proxy && !http => Self::ProxyV1,
            () if http && !proxy => Self::Http,
            () => Self::Unknown,
        }
    }
}

impl fmt::Display for ForeignProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http => "peer speaks http: check the port, a web server or proxy answers there",
            Self::Tls => {
                "peer speaks tls: set the security to tls on this side, or to open or psk on the other"
            }
            Self::Ssh => "peer speaks ssh: connect to the port of the outlast listener, not to sshd itself",
            Self::ProxyV1 | Self::ProxyV2 => {
                "peer sends a proxy protocol header: switch it off in the load balancer for this port"
            }
            Self::Unknown => "peer does not speak the outlast session protocol: check address and port",
        })
    }
}
