//! Keys and certificates from files, with a reason when they are unusable.

use crate::exit::Failure;
use crate::files::{FILE_BYTES_MAX, unreadable, unusable};
use anyhow::Result;
use outlast_session::relay::Credentials;
use outlast_session::{Psk, TlsConfig};
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{RootCertStore, ServerConfig};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Reads a shared key: hexadecimal or base64 text, as `openssl rand -hex 32` prints it.
pub fn psk(path: &Path) -> Result<Psk> {
    let bytes = secret(path, "key")?;
    let text = std::str::from_utf8(&bytes).map_err(|_| unusable("key", path, "it is not text"))?;
    Psk::from_text(text).map_err(|error| unusable("key", path, &error.to_string()))
}

/// Reads `user:password`.
pub fn credentials(path: &Path) -> Result<Credentials> {
    let bytes = secret(path, "user and password")?;
    let text = std::str::from_utf8(&bytes).map_err(|_| unusable("user and password", path, "not UTF-8"))?;
    Credentials::parse(text.trim_end()).map_err(|why| unusable("user and password", path, why))
}

/// Reads a file that others should not be able to read.
fn secret(path: &Path, what: &str) -> Result<Zeroizing<Vec<u8>>> {
    let metadata = std::fs::metadata(path).map_err(|error| unreadable(what, path, &error))?;
    if !metadata.is_file() {
        return Err(unusable(what, path, "it is no regular file"));
    }
    if metadata.len() > FILE_BYTES_MAX {
        return Err(unusable(what, path, "it is too large"));
    }
    if metadata.mode() & 0o004 != 0 {
        tracing::warn!("everybody can read {}: chmod 600 it", path.display());
    }
    std::fs::read(path).map(Zeroizing::new).map_err(|error| unreadable(what, path, &error))
}

fn pem_error(what: &str, path: &Path, error: PemError) -> anyhow::Error {
    match error {
        PemError::Io(error) => unreadable(what, path, &error),
        PemError::NoItemsFound => {
            unusable(what, path, &format!("there is no {what} in it (PEM is expected)"))
        }
        other => unusable(what, path, &format!("{other:?}").to_lowercase()),
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let wrong = |error| pem_error("certificate", path, error);
    let found: Vec<_> =
        CertificateDer::pem_file_iter(path).map_err(wrong)?.collect::<Result<_, _>>().map_err(wrong)?;
    if found.is_empty() { Err(wrong(PemError::NoItemsFound)) } else { Ok(found) }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    // Checks the permissions, and says better than the parser what is wrong with the file.
    secret(path, "private key")?;
    PrivateKeyDer::from_pem_file(path).map_err(|error| pem_error("private key", path, error))
}

fn authorities(path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| unusable("certificate", path, &error.to_string()))?;
    }
    Ok(roots)
}

fn system_authorities() -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(Failure::usage(
            "this system has no certificate authorities: name them with --tls-ca FILE",
        ));
    }
    Ok(roots)
}

/// The files of a server.
pub struct ServerTls<'a> {
    pub certificate: &'a Path,
    pub key: &'a Path,
    pub client_authorities: Option<&'a Path>,
}

/// The TLS settings of a server.
pub fn server_tls(files: &ServerTls<'_>) -> Result<TlsConfig> {
    let chain = certificates(files.certificate)?;
    let key = private_key(files.key)?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| anyhow::anyhow!("{error}"))?;
    let builder = match files.client_authorities {
        Some(path) => {
            let roots = Arc::new(authorities(path)?);
            let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(roots, provider())
                .build()
                .map_err(|error| unusable("certificate", path, &error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
        None => builder.with_no_client_auth(),
    };
    let config = builder
        .with_single_cert(chain, key)
        .map_err(|error| mismatch(files.certificate, files.key, &error))?;
    Ok(TlsConfig { server: Some(Arc::new(config)), ..TlsConfig::default() })
}

/// The files of a client.
#[derive(Default)]
pub struct ClientTls<'a> {
    pub authorities: Option<&'a Path>,
    pub name: Option<&'a str>,
    pub certificate: Option<(&'a Path, &'a Path)>,
}

/// The TLS settings of a client.
pub fn client_tls(files: &ClientTls<'_>) -> Result<TlsConfig> {
    if let Some(name) = files.name
        && ServerName::try_from(name).is_err()
    {
        return Err(Failure::usage(format!("--tls-name {name:?} is neither a name nor an address")));
    }
    let roots = files.authorities.map_or_else(system_authorities, authorities)?;
    let builder = rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| anyhow::anyhow!("{error}"))?
        .with_root_certificates(roots);
    let config = match files.certificate {
        Some((certificate, key)) => builder
            .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
            .map_err(|error| mismatch(certificate, key, &error))?,
        None => builder.with_no_client_auth(),
    };
    let server_name = files.name.map(str::to_owned);
    Ok(TlsConfig { client: Some(Arc::new(config)), server_name, server: None })
}

fn mismatch(certificate: &Path, key: &Path, error: &rustls::Error) -> anyhow::Error {
    let why = match error {
        rustls::Error::InconsistentKeys(_) => "the key is not that of the certificate".to_owned(),
        other => other.to_string(),
    };
    Failure::usage(format!(
        "unusable certificate {} with key {}: {why}",
        certificate.display(),
        key.display()
    ))
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(content: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(content).unwrap();
        file
    }

    #[test]
    fn what_is_no_key_is_refused_with_its_file() {
        assert!(psk(file(b"00112233445566778899aabbccddeeff\n").path()).is_ok());
        for content in [&b"0011223344556677\n"[..], b"no key!\n", b"\xff\xfe"] {
            let wrong = file(content);
            let said = psk(wrong.path()).unwrap_err().to_string();
            assert!(said.starts_with(&format!("unusable key file {}: ", wrong.path().display())), "{said}");
        }
    }

    #[test]
    fn what_is_no_certificate_or_key_says_so() {
        let certified = rcgen::generate_simple_self_signed(vec!["a.example".into()]).unwrap();
        let other = rcgen::KeyPair::generate().unwrap();
        let certificate = file(certified.cert.pem().as_bytes());
        let key = file(certified.signing_key.serialize_pem().as_bytes());
        let other = file(other.serialize_pem().as_bytes());
        let server = |certificate: &tempfile::NamedTempFile, key: &tempfile::NamedTempFile| {
            let files =
                ServerTls { certificate: certificate.path(), key: key.path(), client_authorities: None };
            server_tls(&files).map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(server(&certificate, &key), Ok(()));
        assert!(server(&key, &key).unwrap_err().contains("there is no certificate in it"));
        assert!(server(&certificate, &certificate).unwrap_err().contains("there is no private key in it"));
        assert!(server(&certificate, &other).unwrap_err().contains("the key is not that of the certificate"));
        let missing =
            ServerTls { certificate: Path::new("/nowhere"), key: key.path(), client_authorities: None };
        assert!(server_tls(&missing).unwrap_err().to_string().contains("no such file"));
    }
}
