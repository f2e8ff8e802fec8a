//! One certificate for the server, in files: two programs need it.

use outlast_session::TlsConfig;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A folder with a fresh certificate; removed when dropped.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("outlast-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        std::fs::write(path.join("cert.der"), params.self_signed(&key).unwrap().der()).unwrap();
        std::fs::write(path.join("key.der"), key.serialize_der()).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Both sides' settings from such a folder.
pub fn read(folder: &Path) -> TlsConfig {
    let certificate = CertificateDer::from(std::fs::read(folder.join("cert.der")).unwrap());
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(std::fs::read(folder.join("key.der")).unwrap()));
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let client = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let server = rustls::ServerConfig::builder().with_no_client_auth();
    TlsConfig {
        client: Some(Arc::new(client)),
        server_name: Some("localhost".to_owned()),
        server: Some(Arc::new(server.with_single_cert(vec![certificate], key).unwrap())),
    }
}
