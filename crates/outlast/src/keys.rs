//! Keys and certificates from files, with a reason when they are unusable.

use crate::exit::Failure;
use crate::files::{FILE_BYTES_MAX, unreadable, unusable};
use anyhow::Result;
use outlast_session::relay::Credentials;
use outlast_session::{Psk, TlsConfig};
use rustix::process::{DumpableBehavior, getuid};
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{RootCertStore, ServerConfig};
use std::fs::File;
use std::io::{self, Read};
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

/// Reads a file that only its owner may read. What is checked is what is read: it is opened once.
///
/// A group may read a file of root's, as distributions have it with TLS keys (`root:ssl-cert`, 0640), or of another owner, who
/// has given it to this user's group: only that owner could change it. PostgreSQL has the same rule.
fn secret(path: &Path, what: &str) -> Result<Zeroizing<Vec<u8>>> {
    let unreadable = |error: io::Error| unreadable(what, path, &error);
    // A FIFO would wait here for somebody to write: first look what it is.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(unusable(what, path, "it is no regular file"));
    }
    let mut file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(unusable(what, path, "it is no regular file"));
    }
    if metadata.len() > FILE_BYTES_MAX {
        return Err(unusable(what, path, "it is too large"));
    }
    let is_own = metadata.uid() == getuid().as_raw() && !getuid().is_root();
    if let Some(others) = others_with_access(metadata.mode(), is_own) {
        return Err(unusable(what, path, &format!("{others} it: chmod 600 {}", path.display())));
    }
    // In one piece: what a vector leaves behind when it grows is not wiped.
    let mut bytes = Zeroizing::new(vec![0; usize::try_from(metadata.len()).unwrap_or_default()]);
    file.read_exact(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

/// Who else can do what with a secret file, if somebody should not.
fn others_with_access(mode: u32, is_own: bool) -> Option<&'static str> {
    match mode {
        mode if mode & 0o002 != 0 => Some("every user of this machine can change"),
        mode if mode & 0o004 != 0 => Some("every user of this machine can read"),
        mode if mode & 0o020 != 0 => Some("every user of its group can change"),
        mode if mode & 0o040 != 0 && is_own => Some("every user of its group can read"),
        _ => None,
    }
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
    let pem = secret(path, "private key")?;
    // The TLS library keeps the key, and what it makes of it, in ordinary memory: no core dump of this process, then, and
    // no debugger but root's.
    if let Err(error) = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!("the private key can get into a core dump: {error}");
    }
    PrivateKeyDer::from_pem_slice(&pem).map_err(|error| pem_error("private key", path, error))
}

/// No memory of this process gets into a core dump from here on (core(5)): `what` is in it. For helpers of a process: others of its
/// user may still look at them in /proc, where supervisors find out what they are.
pub fn keep_memory_out_of_dumps(what: &str) {
    if let Err(error) = std::fs::write("/proc/self/coredump_filter", "0") {
        tracing::warn!("{what} can get into a core dump: {error}");
    }
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
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|error| mismatch(files.certificate, files.key, &error))?;
    if files.client_authorities.is_some() {
        // A client that resumes a TLS session shows no certificate, and is given the means to resume the next one: it would
        // go on for ever with one that has expired.
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
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
    use std::os::unix::fs::PermissionsExt;

    fn file(content: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(content).unwrap();
        file
    }

    #[test]
    fn what_is_no_key_is_refused_with_its_file() {
        assert!(psk(file(b"8e1fb6d03c52a7794410dfa9ee3c65b2\n").path()).is_ok());
        let made_up = b"00112233445566778899aabbccddeeff\n";
        for content in [&b"8e1fb6d03c52a779\n"[..], b"no key!\n", b"\xff\xfe", made_up] {
            let wrong = file(content);
            let said = psk(wrong.path()).unwrap_err().to_string();
            assert!(said.starts_with(&format!("unusable key file {}: ", wrong.path().display())), "{said}");
        }
    }

    #[test]
    fn what_others_can_read_is_no_secret() {
        let key = file(b"8e1fb6d03c52a7794410dfa9ee3c65b2\n");
        let with_mode = |mode: u32| {
            std::fs::set_permissions(key.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            psk(key.path()).map(drop).map_err(|error| error.to_string())
        };
        for mode in [0o400, 0o600, 0o700] {
            assert_eq!(with_mode(mode), Ok(()), "{mode:o}");
        }
        for (mode, may) in [
            (0o644, "every user of this machine can read"),
            (0o604, "every user of this machine can read"),
            (0o602, "every user of this machine can change"),
            (0o666, "every user of this machine can change"),
            (0o660, "every user of its group can change"),
            (0o620, "every user of its group can change"),
        ] {
            let said = with_mode(mode).unwrap_err();
            assert!(said.contains(&format!("{may} it: chmod 600 ")), "{mode:o}: {said}");
        }
        for mode in [0o640, 0o440] {
            assert_eq!(others_with_access(mode, true), Some("every user of its group can read"), "{mode:o}");
        }
        // Root's, given to a group.
        assert_eq!(others_with_access(0o640, false), None);
        assert!(others_with_access(0o660, false).is_some() && others_with_access(0o644, false).is_some());
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
