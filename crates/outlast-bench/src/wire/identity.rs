//! Keys, certificates and the settings made of them. Both ends use the defaults but for mode and security.

use super::{Guard, Mode};
use anyhow::{Context, Result};
use outlast_session::{Config, Psk, Security, TlsConfig};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// The name in the certificate.
pub const SERVER_NAME: &str = "localhost";
const CERTIFICATE: &str = "cert.der";
const KEY: &str = "key.der";

/// A certificate with its key, for both ends.
#[derive(Clone, Debug)]
pub struct Identity {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl Identity {
    /// A new one.
    pub fn new() -> Result<Self> {
        let made = rcgen::generate_simple_self_signed(vec![SERVER_NAME.to_owned()])?;
        Ok(Self { certificate: made.cert.der().to_vec(), key: made.signing_key.serialize_der() })
    }

    /// A new one, kept in `folder` for the serving process.
    pub fn create(folder: &Path) -> Result<Self> {
        let identity = Self::new()?;
        fs::write(folder.join(CERTIFICATE), &identity.certificate).context("cannot keep a certificate")?;
        fs::write(folder.join(KEY), &identity.key).context("cannot keep a key")?;
        Ok(identity)
    }

    /// The one kept in `folder`.
    pub fn load(folder: &Path) -> Result<Self> {
        let read = |name| fs::read(folder.join(name)).with_context(|| format!("cannot read {name}"));
        Ok(Self { certificate: read(CERTIFICATE)?, key: read(KEY)? })
    }

    /// For servers.
    pub fn server(&self, protocol: Option<&str>) -> Result<ServerConfig> {
        let certificate = CertificateDer::from(self.certificate.clone());
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(self.key.clone()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)?;
        config.alpn_protocols = protocol.map(|name| name.as_bytes().to_vec()).into_iter().collect();
        Ok(config)
    }

    /// For clients.
    pub fn client(&self, protocol: Option<&str>) -> Result<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(self.certificate.clone()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = protocol.map(|name| name.as_bytes().to_vec()).into_iter().collect();
        Ok(config)
    }

    /// The settings of a session: the defaults, with this mode and security.
    pub fn session(&self, mode: Mode, guard: Guard) -> Result<Arc<Config>> {
        let security = match guard {
            Guard::Open => Security::Open,
            Guard::Psk => Security::Psk(Psk::from_bytes(&[0x5a; 32])?),
            Guard::Tls => Security::Tls(TlsConfig {
                client: Some(Arc::new(self.client(None)?)),
                server_name: Some(SERVER_NAME.to_owned()),
                server: Some(Arc::new(self.server(None)?)),
            }),
        };
        Ok(Arc::new(Config {
            ack: mode.setting(),
            security,
            // All clients are here.
            sessions_per_peer_max: 65_536,
            ..Config::default()
        }))
    }
}
