//! What a session can be told: acknowledgement mode, security, patience, limits.
//!
//! Every limit has its unit last, one default and a reason. [`Config::default`] is right for two Linux
//! hosts with an unknown path between them.

use crate::error::{Error, Result};
use crate::outages::Outages;
use crate::proto::{LinkMode, Psk, SecurityKind};
use outlast_stream::Backoff;
use rand::RngExt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// How a sender learns that a byte needs no longer be retained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AckMode {
    /// `kernel` where the path is proven to be end-to-end TCP, `inband` everywhere else. At a client: another one where the
    /// server offers neither.
    #[default]
    Auto,
    /// One mode, or a refusal that says why it cannot be had.
    Fixed(LinkMode),
}

impl std::str::FromStr for AckMode {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "auto" => AckMode::Auto,
            "kernel" => AckMode::Fixed(LinkMode::Kernel),
            "window" => AckMode::Fixed(LinkMode::Window),
            "udp" => AckMode::Fixed(LinkMode::Udp),
            "inband" => AckMode::Fixed(LinkMode::Inband),
            other => {
                return Err(format!(
                    "unknown acknowledgement mode {other:?}: use auto, kernel, window, udp or inband"
                ));
            }
        })
    }
}

impl std::fmt::Display for AckMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            AckMode::Auto => "auto",
            AckMode::Fixed(LinkMode::Kernel) => "kernel",
            AckMode::Fixed(LinkMode::Window) => "window",
            AckMode::Fixed(LinkMode::Udp) => "udp",
            AckMode::Fixed(LinkMode::Inband) => "inband",
        })
    }
}

/// Who may open and resume a session.
#[derive(Clone, Debug, Default)]
pub enum Security {
    /// The session id is a bearer secret: as safe as the TCP connection that carries it.
    #[default]
    Open,
    /// Both sides hold a key. Proves who opens and resumes; does not encrypt.
    Psk(Psk),
    /// TLS by rustls on every link; a resume is bound to the link that carries it.
    Tls(TlsConfig),
}

impl Security {
    /// Which one it is.
    pub(crate) fn kind(&self) -> SecurityKind {
        match self {
            Self::Open => SecurityKind::Open,
            Self::Psk(_) => SecurityKind::Psk,
            Self::Tls(_) => SecurityKind::Tls,
        }
    }
}

/// The rustls configurations of either side; an endpoint needs only its own.
#[derive(Clone, Default)]
pub struct TlsConfig {
    /// For clients: roots, an optional client certificate.
    pub client: Option<Arc<rustls::ClientConfig>>,
    /// For clients: the name to expect in the server's certificate; the host part of the target if absent.
    pub server_name: Option<String>,
    /// For servers: certificate, key, optional client verification.
    pub server: Option<Arc<rustls::ServerConfig>>,
}

impl std::fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsConfig")
            .field("client", &self.client.is_some())
            .field("server_name", &self.server_name)
            .field("server", &self.server.is_some())
            .finish()
    }
}

/// How long a client tries to reconnect before it gives up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Patience {
    /// Until the application closes the session.
    #[default]
    Forever,
    /// So long after each loss of the link.
    For(Duration),
}

/// Which addresses a listener takes connections from.
///
/// Asked for every connection, in the thread or task that accepts: has to answer at once, from memory.
#[derive(Clone)]
pub struct PeerFilter(Arc<dyn Fn(IpAddr) -> bool + Send + Sync>);

impl PeerFilter {
    /// Takes connections from the addresses for which `admits` is true.
    pub fn new(admits: impl Fn(IpAddr) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(admits))
    }

    /// Whether a connection from this address is taken.
    #[must_use]
    pub fn admits(&self, address: IpAddr) -> bool {
        (self.0)(address)
    }
}

impl std::fmt::Debug for PeerFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PeerFilter")
    }
}

/// The settings of a session or of a listener.
#[derive(Clone, Debug)]
pub struct Config {
    /// Acknowledgement mode. Default: [`AckMode::Auto`].
    pub ack: AckMode,
    /// Who may open and resume. Default: [`Security::Open`].
    pub security: Security,
    /// Most bytes retained per direction. A full ring means back-pressure. Default 4 MiB + 64 KiB: the largest
    /// send queue that Linux grows by itself and the one segment by which a queue can exceed it.
    pub retain_bytes_max: usize,
    /// Whether more than that is retained where the path has room for more: as much as the kernel lets the send queue of
    /// the link be (`net.ipv4.tcp_wmem`). Default false; `outlast` does so unless `--retain` is given.
    pub retain_follows_path: bool,
    /// Receive and send buffers in `window` mode, pinned so that the ring has a bound. Default 512 KiB.
    pub window_buffer_bytes: usize,
    /// Client: how long a pause may last, from the last that is known to have passed. A loss that is noticed late is tried
    /// to be mended for a second all the same. Default: for ever.
    pub patience: Patience,
    /// Client: an opening that finds the server full, or its address with all sessions that it may have, is tried again, within the patience. Default false: it fails at once.
    /// `outlast connect` does so while a local program waits.
    pub retry_busy: bool,
    /// Server: how long a session without a link is kept. Default 24 h, a night and a commute.
    pub keep: Duration,
    /// Time without any sign of life while one is due, after which a link counts as lost. Default 10 s.
    pub detect_timeout: Duration,
    /// Time for one attempt to connect and shake hands. Default 5 s.
    pub handshake_timeout: Duration,
    /// First non-zero delay between attempts. Default 50 ms.
    pub backoff_base: Duration,
    /// Longest delay between attempts. Default 5 s: a returning network is noticed by netlink anyway.
    pub backoff_max: Duration,
    /// Whether consecutive small writes are joined. Default true.
    pub coalesce: bool,
    /// Longest time a coalesced byte waits. Default 1 ms.
    pub flush_delay: Duration,
    /// Client: try a new link when addresses or routes change. Default true.
    pub watch_network: bool,
    /// Server: most sessions, attached and detached. Default 65,536.
    pub sessions_max: usize,
    /// Server: most sessions of one peer: an IPv4 address or an IPv6 network of 64 bits. Default 1,000: a NAT with an
    /// office behind it. More where one client, or one gateway, has more: a stranger who opens them all must not use up
    /// the descriptors.
    pub sessions_per_peer_max: usize,
    /// Server: most connections that have not proved yet who they are. Default 1,024. In a crowd those that say nothing are
    /// reset first, and peers that have a session here have places of their own ([`Door`](crate::proto::Door)).
    pub handshakes_max: usize,
    /// Server: whose connections are taken; others are reset before anything is read from them. Default: everybody's.
    pub peer_filter: Option<PeerFilter>,
    /// Server: whether `security` asks clients for certificates, as far as that is known. A listener that does not takes over no
    /// session that belongs to a certificate: its client could not come back. Default: not known.
    pub client_certificates: Option<bool>,
    /// Whether urgent data are told apart on links, for a relay to pass on. Only for tasks; a peer that does not know of it gets
    /// them as any other bytes. Default: false.
    pub urgent: bool,
    /// Seed for jitter; from the system when absent.
    pub seed: Option<u64>,
    /// Client: the local address to connect from; chosen by the system when absent.
    pub local_address: Option<SocketAddr>,
    /// Client: where the session is entered while it has no link. Default: nowhere.
    pub outages: Option<Outages>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            ack: AckMode::Auto,
            security: Security::Open,
            retain_bytes_max: (4 << 20) + (64 << 10),
            retain_follows_path: false,
            window_buffer_bytes: 512 << 10,
            patience: Patience::Forever,
            retry_busy: false,
            keep: Duration::from_secs(24 * 3600),
            detect_timeout: Duration::from_secs(10),
            handshake_timeout: Duration::from_secs(5),
            backoff_base: Duration::from_millis(50),
            backoff_max: Duration::from_secs(5),
            coalesce: true,
            flush_delay: Duration::from_millis(1),
            watch_network: true,
            sessions_max: 65_536,
            sessions_per_peer_max: 1_000,
            handshakes_max: 1_024,
            peer_filter: None,
            client_certificates: None,
            urgent: false,
            seed: None,
            local_address: None,
            outages: None,
        }
    }
}

impl Config {
    /// A fresh back-off for one outage, or one opening.
    pub fn backoff(&self) -> Backoff {
        let seed = self.seed.unwrap_or_else(|| rand::rng().random());
        Backoff::new(self.backoff_base, self.backoff_max, seed)
    }

    /// What has to be retained in mode `window`: Linux doubles what it is told, on both sides, and one segment more may be
    /// under way.
    const fn window_bytes(&self) -> usize {
        self.window_buffer_bytes.saturating_mul(4).saturating_add(128 << 10)
    }

    /// Whether that much is.
    pub(crate) const fn ring_holds_window(&self) -> bool {
        self.window_bytes() <= self.retain_bytes_max
    }

    /// Says what cannot work together, before anything is started.
    ///
    /// # Errors
    /// [`Error::Config`] with the two settings that contradict each other and the way out.
    pub fn check(&self) -> Result<()> {
        if let (Security::Tls(_), AckMode::Fixed(mode)) = (&self.security, self.ack)
            && mode != LinkMode::Inband
        {
            return Err(Error::Config(format!(
                "acknowledgement mode {} cannot work with tls: the kernel counts encrypted bytes; use inband or auto",
                self.ack
            )));
        }
        if let AckMode::Fixed(mode) = self.ack
            && mode.needs_direct_path()
            && !crate::sys::can_freeze()
        {
            return Err(Error::Config(format!(
                "acknowledgement mode {mode} needs CAP_NET_ADMIN on this kernel, to freeze connections that broke; use \
                 auto or inband"
            )));
        }
        if self.retain_bytes_max < 64 << 10 {
            return Err(Error::Config(format!(
                "retain_bytes_max (--retain) is {} bytes: at least 65536 are needed to keep a link busy",
                self.retain_bytes_max
            )));
        }
        let window_bytes = self.window_bytes();
        if self.ack == AckMode::Fixed(LinkMode::Window) && !self.ring_holds_window() {
            return Err(Error::Config(format!(
                "acknowledgement mode window with buffers of {} bytes needs retain_bytes_max of at least {window_bytes}, \
                 not {}",
                self.window_buffer_bytes, self.retain_bytes_max
            )));
        }
        if self.detect_timeout < Duration::from_millis(100) {
            return Err(Error::Config("--detect is below 100 ms: every busy peer would look dead".into()));
        }
        Ok(())
    }
}
