//! The local socket over which a running instance is asked and told: one JSON line each way.

use crate::exit::Failure;
use crate::instance::Instance;
use crate::unix_socket::bind_replacing;
use anyhow::{Context, Result};
use outlast_session::relay::dial::plain;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

/// Longest request. Default 4 KiB: a session's name and a verb.
const REQUEST_BYTES_MAX: u64 = 4 << 10;
/// Longest answer: about 700 bytes for each of 65,536 sessions.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Time for one exchange.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Most exchanges at a time.
const EXCHANGES_MAX: usize = 16;

/// What an instance can be asked.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "do", deny_unknown_fields)]
pub enum Request {
    /// How it and its sessions are.
    Status {},
    /// End sessions whose name begins so.
    Kill { session: String },
}

/// The socket of this process. Removed when dropped.
#[derive(Debug)]
pub struct AdminSocket {
    path: PathBuf,
    listener: UnixListener,
}

impl AdminSocket {
    /// Makes the socket: at `path`, or in the folder that `outlast status` looks into.
    pub fn bind(path: Option<&Path>) -> Result<Self> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => own_folder()?.join(format!("{}.sock", std::process::id())),
        };
        let failed = |error: io::Error| {
            Failure::system(format!("cannot make the admin socket {}: {}", path.display(), plain(&error)))
        };
        let listener = bind_private(&path).map_err(failed)?;
        Ok(Self { path, listener })
    }

    /// Answers until dropped.
    pub async fn serve(self, instance: Arc<Instance>) {
        let places = Arc::new(Semaphore::new(EXCHANGES_MAX));
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let Ok((stream, _)) = self.listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let instance = Arc::clone(&instance);
            tokio::spawn(async move {
                let exchange = answer(stream, &instance);
                if let Ok(Err(error)) = tokio::time::timeout(EXCHANGE_TIMEOUT, exchange).await {
                    tracing::debug!("admin request: {error:#}");
                }
                drop(place);
            });
        }
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).ok();
    }
}

async fn answer(mut stream: UnixStream, instance: &Instance) -> Result<()> {
    // The file's mode keeps others out; this holds even where a file system ignores it.
    let peer = stream.peer_cred()?.uid();
    anyhow::ensure!(peer == 0 || peer == own_uid(), "user {peer} may not ask");
    let (reader, mut writer) = stream.split();
    let mut line = String::new();
    BufReader::new(reader).take(REQUEST_BYTES_MAX).read_line(&mut line).await?;
    let answer = if line.ends_with('\n') {
        match serde_json::from_str(&line) {
            Ok(Request::Status {}) => instance.status().await,
            Ok(Request::Kill { session }) => instance.kill(&session).await,
            Err(error) => serde_json::json!({ "error": format!("not a request: {error}") }),
        }
    } else {
        serde_json::json!({ "error": "a request is one line of JSON" })
    };
    let mut bytes = serde_json::to_vec(&answer)?;
    bytes.push(b'\n');
    writer.write_all(&bytes).await?;
    writer.shutdown().await?;
    Ok(())
}

/// Asks one instance.
pub async fn ask(path: &Path, request: &Request) -> Result<Value> {
    let exchange = async {
        let mut stream = UnixStream::connect(path).await?;
        let mut bytes = serde_json::to_vec(request)?;
        bytes.push(b'\n');
        stream.write_all(&bytes).await?;
        let mut answer = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
        serde_json::from_slice(&answer).context("the answer is not JSON")
    };
    tokio::time::timeout(EXCHANGE_TIMEOUT, exchange).await.context("no answer")?
}

/// Asks all instances of this user, or the one at `path`. Sockets that processes left behind are removed.
pub async fn ask_all(path: Option<&Path>, request: &Request) -> Result<Vec<(PathBuf, Value)>> {
    if let Some(path) = path {
        let answer = ask(path, request).await;
        let answer = answer.map_err(|error| {
            let why = error.downcast_ref::<io::Error>().map_or_else(|| format!("{error:#}"), plain);
            Failure::system(format!("no outlast instance answers at {}: {why}", path.display()))
        })?;
        return Ok(vec![(path.to_owned(), answer)]);
    }
    let mut answers = Vec::new();
    for path in own_sockets() {
        match ask(&path, request).await {
            Ok(answer) => answers.push((path, answer)),
            Err(error) => {
                let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
                if kind == Some(io::ErrorKind::ConnectionRefused) {
                    std::fs::remove_file(&path).ok();
                } else if kind != Some(io::ErrorKind::NotFound) {
                    // An instance that has just ended is none.
                    tracing::warn!("{} does not answer: {error:#}", path.display());
                }
            }
        }
    }
    Ok(answers)
}

fn own_sockets() -> Vec<PathBuf> {
    let Ok(folder) = own_folder() else { return Vec::new() };
    let Ok(files) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = files
        .flatten()
        .map(|file| file.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "sock"))
        .collect();
    paths.sort();
    paths
}

/// The folder of this user's sockets: in `XDG_RUNTIME_DIR`, else in /tmp. Made if missing, and ours alone.
pub fn own_folder() -> Result<PathBuf> {
    let folder = match std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty()) {
        Some(runtime) => PathBuf::from(runtime).join("outlast"),
        None => PathBuf::from(format!("/tmp/outlast-{}", own_uid())),
    };
    let unusable =
        |why: &str| Failure::system(format!("cannot use {} for the admin socket: {why}", folder.display()));
    match std::fs::DirBuilder::new().mode(0o700).create(&folder) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(unusable(&plain(&error))),
    }
    // In /tmp somebody else may have been first; a link may lead anywhere.
    let metadata = std::fs::symlink_metadata(&folder).map_err(|error| unusable(&plain(&error)))?;
    if !metadata.is_dir() || metadata.uid() != own_uid() {
        return Err(unusable("it belongs to somebody else"));
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(unusable("others have access to it: chmod 700 it"));
    }
    Ok(folder)
}

/// Binds a socket that only this user can connect to. One that nobody listens on is replaced.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let listener = bind_replacing(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

pub fn own_uid() -> u32 {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}
