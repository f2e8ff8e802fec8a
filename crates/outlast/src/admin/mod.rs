//! The local socket over which a running instance answers: one line of JSON each way. What is in them says `outlast-admin`.

pub mod ask;

use crate::admin_folder;
use crate::cli::ProcessArgs;
use crate::exit::Failure;
use crate::unix_socket::{FileId, file_at};
use anyhow::Result;
use outlast_admin::{Answer, Request, Status};
use outlast_session::relay::dial::plain;
use rustix::process::Pid;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

/// Longest request. Default 32 KiB: a verb, and a path, each byte of which may be written in six, or a session's name.
pub const REQUEST_BYTES_MAX: u64 = 32 << 10;
/// Longest answer: about 700 bytes for each of 65,536 sessions.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Time for one exchange.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for the first byte of an answer, which says that the instance is awake.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Most exchanges at a time.
const EXCHANGES_MAX: usize = 16;

/// An instance that can be asked.
pub trait Administered: Send + Sync + 'static {
    /// How it is, also for Prometheus.
    fn status(&self) -> impl Future<Output = Status> + Send;

    /// Answers. Which process asks is known unless that is in another PID namespace (pid_namespaces(7)).
    fn answer(&self, request: Request, asker: Option<Pid>) -> impl Future<Output = Answer> + Send;
}

/// The socket that a process is to have. Where it is not asked for, it is welcome but not needed: `without` says what will
/// not work.
pub fn socket(process: &ProcessArgs, without: &str) -> Result<Option<AdminSocket>> {
    match process.admin_socket.as_deref() {
        Some(path) if path == Path::new("none") => Ok(None),
        Some(path) => AdminSocket::bind(Some(path)).map(Some),
        None => match AdminSocket::bind(None) {
            Ok(socket) => Ok(Some(socket)),
            Err(error) => {
                tracing::warn!("{error}; {without}");
                Ok(None)
            }
        },
    }
}

/// The socket of this process. Removed when dropped.
#[derive(Debug)]
pub struct AdminSocket {
    path: PathBuf,
    /// What is at the path as long as the socket is: somebody may have removed it, and another process may listen there.
    file: Option<FileId>,
    /// In the folder of all instances, which goes with the last.
    shares_folder: bool,
    listener: UnixListener,
}

impl AdminSocket {
    /// Makes the socket: at `path`, or in the folder that `outlast status` looks into.
    pub fn bind(path: Option<&Path>) -> Result<Self> {
        let (path, listener, shares_folder) = match path {
            Some(path) => {
                let listener = admin_folder::bind_private(path).map_err(|error| {
                    let why = plain(&error);
                    Failure::system(format!("cannot make the admin socket {}: {why}", path.display()))
                })?;
                (path.to_owned(), listener, false)
            }
            None => {
                let (path, listener) = admin_folder::bind_instance()?;
                (path, listener, true)
            }
        };
        let listener = UnixListener::from_std(listener)?;
        let file = file_at(&path);
        Ok(Self { path, file, shares_folder, listener })
    }

    /// Answers until dropped.
    pub async fn serve(self, instance: Arc<impl Administered>) {
        let places = Arc::new(Semaphore::new(EXCHANGES_MAX));
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let Ok((stream, _)) = self.listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let instance = Arc::clone(&instance);
            tokio::spawn(async move {
                let exchange = answer(stream, instance.as_ref());
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
        if self.file.is_none() || file_at(&self.path) != self.file {
            return;
        }
        if self.shares_folder {
            admin_folder::remove(&self.path);
        } else {
            std::fs::remove_file(&self.path).ok();
        }
    }
}

async fn answer(mut stream: UnixStream, instance: &impl Administered) -> Result<()> {
    // The file's mode keeps others out; this holds even where a file system ignores it.
    let credentials = stream.peer_cred()?;
    let (peer, asker) = (credentials.uid(), credentials.pid().and_then(Pid::from_raw));
    anyhow::ensure!(peer == 0 || peer == admin_folder::own_uid(), "user {peer} may not ask");
    let (reader, mut writer) = stream.split();
    let mut line = String::new();
    BufReader::new(reader).take(REQUEST_BYTES_MAX).read_line(&mut line).await?;
    // Awake: white space before JSON means nothing. The answer may take a while where there are many sessions.
    writer.write_all(b" ").await?;
    let answer = if line.ends_with('\n') {
        match serde_json::from_str(&line) {
            Ok(request) => instance.answer(request, asker).await,
            Err(error) => Answer::refused(format!("not a request: {error}")),
        }
    } else {
        Answer::refused("a request is one line of JSON")
    };
    let mut bytes = serde_json::to_vec(&answer)?;
    bytes.push(b'\n');
    writer.write_all(&bytes).await?;
    writer.shutdown().await?;
    Ok(())
}
