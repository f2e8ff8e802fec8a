//! What the conformance, security and attack tests share: the matrix of settings, pairs of sessions, certificates.
#![allow(dead_code)] // Every test binary uses its own part.

use outlast_session::proto::Psk;
use outlast_session::{
    AckMode, Config, LinkMode, Security, Targets, TlsConfig, blocking, tokio as async_face,
};
use std::fmt;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

/// A test that runs longer than this hangs: the only use of time in these files that can fail a test.
pub const HANG: Duration = Duration::from_secs(60);
/// A pause long enough for another thread to have begun to wait. Nothing depends on it being enough.
pub const PAUSE: Duration = Duration::from_millis(20);

/// What protects the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    Open,
    Psk,
    Tls,
}

/// One cell of the matrix.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub ack: AckMode,
    pub protection: Protection,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.ack, self.protection)
    }
}

/// Every mode that can work with every security.
pub fn cases() -> Vec<Case> {
    let plain = [
        AckMode::Auto,
        AckMode::Fixed(LinkMode::Kernel),
        AckMode::Fixed(LinkMode::Window),
        AckMode::Fixed(LinkMode::Udp),
        AckMode::Fixed(LinkMode::Inband),
    ];
    let mut cases = Vec::new();
    for protection in [Protection::Open, Protection::Psk] {
        cases.extend(plain.map(|ack| Case { ack, protection }));
    }
    for ack in [AckMode::Auto, AckMode::Fixed(LinkMode::Inband)] {
        cases.push(Case { ack, protection: Protection::Tls });
    }
    cases
}

impl Case {
    /// Small buffers make back-pressure cheap to reach, short delays make the tests short.
    pub fn config(&self) -> Config {
        let security = match self.protection {
            Protection::Open => Security::Open,
            Protection::Psk => Security::Psk(psk(1)),
            Protection::Tls => tls_of_both_ends(),
        };
        Config { ack: self.ack, security, ..quick() }
    }

    pub fn blocking(&self) -> BlockingPair {
        let config = Arc::new(self.config());
        let listener = blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap();
        let client = blocking::Session::connect_with(&Targets::from(listener.local_addr()), &config).unwrap();
        client.established().unwrap();
        let server = listener.accept().unwrap();
        BlockingPair { client, server, listener }
    }

    pub async fn tokio(&self) -> TokioPair {
        let config = Arc::new(self.config());
        let listener = async_face::Listener::bind_with("127.0.0.1:0", &config).await.unwrap();
        let targets = Targets::from(listener.local_addr());
        let client = async_face::Session::connect_with(&targets, &config).await.unwrap();
        client.established().await.unwrap();
        let server = listener.accept().await.unwrap();
        TokioPair { client, server, listener }
    }
}

/// Both ends in this process.
pub struct BlockingPair {
    pub client: blocking::Session,
    pub server: blocking::Session,
    pub listener: blocking::Listener,
}

/// Both ends in this runtime.
pub struct TokioPair {
    pub client: async_face::Session,
    pub server: async_face::Session,
    pub listener: async_face::Listener,
}

pub fn quick() -> Config {
    Config {
        retain_bytes_max: 256 << 10,
        window_buffer_bytes: 32 << 10,
        backoff_base: Duration::from_millis(5),
        backoff_max: Duration::from_millis(50),
        seed: Some(1),
        ..Config::default()
    }
}

pub fn psk(byte: u8) -> Psk {
    Psk::from_bytes(&[byte; 32]).unwrap()
}

/// Bytes of which no two neighbourhoods look alike.
pub fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// Runs `test` for every cell of the matrix; fails with the list of cells where it failed or never ended.
pub fn each(test: fn(Case)) {
    let wanted = std::env::var("OUTLAST_CASE").ok();
    let mut failed = Vec::new();
    for case in cases() {
        if wanted.as_ref().is_some_and(|wanted| *wanted != case.to_string()) {
            continue;
        }
        if let Err(why) = run(move || test(case)) {
            failed.push(format!("{case} {why}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join(", "));
}

/// As [`each`], in a runtime of two threads.
pub fn each_tokio<F: Future<Output = ()> + Send + 'static>(test: fn(Case) -> F) {
    let wanted = std::env::var("OUTLAST_CASE").ok();
    let mut failed = Vec::new();
    for case in cases() {
        if wanted.as_ref().is_some_and(|wanted| *wanted != case.to_string()) {
            continue;
        }
        let runtime =
            ::tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        match runtime.block_on(async { ::tokio::time::timeout(HANG, ::tokio::spawn(test(case))).await }) {
            Ok(Ok(())) => {}
            Ok(Err(_)) => failed.push(format!("{case} fails")),
            Err(_) => failed.push(format!("{case} hangs")),
        }
        runtime.shutdown_background();
    }
    assert!(failed.is_empty(), "{}", failed.join(", "));
}

/// Runs `test` and fails if it never ends.
pub fn within(test: impl FnOnce() + Send + 'static) {
    run(test).unwrap();
}

fn run(test: impl FnOnce() + Send + 'static) -> Result<(), &'static str> {
    let (done, finished) = mpsc::channel();
    std::thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    match finished.recv_timeout(HANG) {
        Ok(()) => Ok(()),
        Err(mpsc::RecvTimeoutError::Disconnected) => Err("fails"),
        Err(mpsc::RecvTimeoutError::Timeout) => Err("hangs"),
    }
}

/// An authority, a server with the name `localhost`, a client.
pub struct Certificates {
    authority: rustls::RootCertStore,
    stranger: rustls::RootCertStore,
    server: (rustls_pki_types::CertificateDer<'static>, Vec<u8>),
    client: (rustls_pki_types::CertificateDer<'static>, Vec<u8>),
    other_client: (rustls_pki_types::CertificateDer<'static>, Vec<u8>),
}

/// TLS for a client and its server, without a certificate of the client's.
pub fn tls_of_both_ends() -> Security {
    Security::Tls(TlsConfig {
        client: Some(certificates().client(None)),
        server_name: Some("localhost".into()),
        server: Some(certificates().server(false)),
    })
}

pub fn certificates() -> &'static Certificates {
    static CERTIFICATES: OnceLock<Certificates> = OnceLock::new();
    CERTIFICATES.get_or_init(Certificates::make)
}

impl Certificates {
    fn make() -> Self {
        let authority = || {
            let key = rcgen::KeyPair::generate().unwrap();
            let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            let certificate = params.self_signed(&key).unwrap();
            let mut roots = rustls::RootCertStore::empty();
            roots.add(certificate.der().clone()).unwrap();
            (roots, rcgen::Issuer::new(params, key))
        };
        let (roots, issuer) = authority();
        let signed = |name: &str| {
            let key = rcgen::KeyPair::generate().unwrap();
            let params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
            let certificate = params.signed_by(&key, &issuer).unwrap();
            (certificate.der().clone(), key.serialize_der())
        };
        Self {
            authority: roots,
            stranger: authority().0,
            server: signed("localhost"),
            client: signed("client"),
            other_client: signed("client"),
        }
    }

    pub fn server(&self, wants_client_certificate: bool) -> Arc<rustls::ServerConfig> {
        let builder = rustls::ServerConfig::builder();
        let builder = if wants_client_certificate {
            let roots = Arc::new(self.authority.clone());
            builder.with_client_cert_verifier(
                rustls::server::WebPkiClientVerifier::builder(roots).build().unwrap(),
            )
        } else {
            builder.with_no_client_auth()
        };
        let (certificate, key) = self.server.clone();
        Arc::new(builder.with_single_cert(vec![certificate], key.try_into().unwrap()).unwrap())
    }

    /// A server that has TLS 1.2 only.
    pub fn old_server(&self) -> Arc<rustls::ServerConfig> {
        let builder = rustls::ServerConfig::builder_with_protocol_versions(&[&rustls::version::TLS12]);
        let (certificate, key) = self.server.clone();
        let builder = builder.with_no_client_auth();
        Arc::new(builder.with_single_cert(vec![certificate], key.try_into().unwrap()).unwrap())
    }

    /// A client that trusts the authority, and has TLS 1.3 only.
    pub fn new_client(&self) -> Arc<rustls::ClientConfig> {
        let builder = rustls::ClientConfig::builder_with_protocol_versions(&[&rustls::version::TLS13]);
        Arc::new(builder.with_root_certificates(self.authority.clone()).with_no_client_auth())
    }

    /// A client that trusts the authority; `own` shows a certificate of its own.
    pub fn client(&self, own: Option<()>) -> Arc<rustls::ClientConfig> {
        let builder = rustls::ClientConfig::builder().with_root_certificates(self.authority.clone());
        Arc::new(match own {
            None => builder.with_no_client_auth(),
            Some(()) => {
                let (certificate, key) = self.client.clone();
                builder.with_client_auth_cert(vec![certificate], key.try_into().unwrap()).unwrap()
            }
        })
    }

    /// Another client of the same authority, by the same name.
    pub fn other_client(&self) -> Arc<rustls::ClientConfig> {
        let (certificate, key) = self.other_client.clone();
        let builder = rustls::ClientConfig::builder().with_root_certificates(self.authority.clone());
        Arc::new(builder.with_client_auth_cert(vec![certificate], key.try_into().unwrap()).unwrap())
    }

    /// A client that trusts somebody else.
    pub fn misled_client(&self) -> Arc<rustls::ClientConfig> {
        let builder = rustls::ClientConfig::builder().with_root_certificates(self.stranger.clone());
        Arc::new(builder.with_no_client_auth())
    }
}
