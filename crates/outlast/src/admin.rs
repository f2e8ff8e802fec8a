//! The local socket over which a running instance answers: one JSON line each way.

use crate::admin_folder::names::number_in;
use crate::admin_folder::{self, Socket};
use crate::cli::ProcessArgs;
use crate::exit::Failure;
use anyhow::Result;
use outlast_session::relay::dial::plain;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

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

/// What an instance can be asked.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "do", deny_unknown_fields)]
pub enum Request {
    /// How it and its sessions are.
    Status {},
    /// End sessions whose name begins so.
    Kill { session: String },
    /// Have the program that it runs go on as another binary, or as the same one if that is empty. One that cannot keep
    /// its connections is stopped and started, if that is forced. If the new one does not serve in that time, the old one
    /// goes on.
    Upgrade {
        program: String,
        force: bool,
        /// Left out where it was not said: so an instance of an earlier version understands it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_ms: Option<u64>,
    },
    /// How the upgrade of this number has ended.
    Outcome { wish: u32 },
    /// The upgrade of this number is no longer wanted: the old program goes on.
    Withdraw { wish: u32 },
}

/// Whoever can be asked.
pub trait Administered: Send + Sync + 'static {
    /// Answers. Which process asks is known unless that is in another world of processes (pid_namespaces(7)).
    fn answer(&self, request: Request, asker: Option<Pid>) -> impl Future<Output = Value> + Send;
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
    file: Option<File>,
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

/// A file's device and number, which no other file has while a socket listens at it.
type File = (u64, u64);

fn file_at(path: &Path) -> Option<File> {
    let metadata = std::fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
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

/// What the instances of this user have said.
#[derive(Debug, Default)]
pub struct Answers {
    pub answers: Vec<(PathBuf, Value)>,
    /// Sockets of instances that are there and say nothing.
    pub silent: Vec<PathBuf>,
}

impl Answers {
    /// The failure that names the silent ones, if there are any.
    pub fn complete(&self) -> Result<()> {
        let numbers: Vec<Option<u32>> = self.silent.iter().map(|path| number_in(path)).collect();
        let is_one_of_several = |number| numbers.iter().filter(|other| **other == number).count() > 1;
        let name = |path: &PathBuf| match number_in(path) {
            Some(number) if !is_one_of_several(Some(number)) => format!("process {number}"),
            // Containers have the same numbers.
            _ => format!("the process at {}", path.display()),
        };
        let names: Vec<String> = self.silent.iter().map(name).collect();
        match names.as_slice() {
            [] => Ok(()),
            [name] => Err(Failure::system(format!("{name} {SILENT}"))),
            names => Err(Failure::system(format!("{} {SILENT}", names.join(", ")))),
        }
    }
}

const SILENT: &str = "does not answer: stopped (SIGSTOP, a debugger) or overloaded";

/// What another user's instance has said: with that user, and with nothing that controls a terminal.
fn of_another(mut answer: Value, uid: u32) -> Value {
    fn cleaned(value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(crate::exit::clean(&text)),
            Value::Array(values) => Value::Array(values.into_iter().map(cleaned).collect()),
            Value::Object(fields) => Value::Object(
                fields.into_iter().map(|(name, value)| (crate::exit::clean(&name), cleaned(value))).collect(),
            ),
            other => other,
        }
    }
    answer = cleaned(answer);
    if let Value::Object(fields) = &mut answer {
        fields.insert("user".into(), uid.into());
    }
    answer
}

/// Asks one instance. `TimedOut` means that it is there and says nothing. If it is said whose it is, nobody else is asked.
async fn ask(path: &Path, of: Option<u32>, request: &[u8]) -> io::Result<Value> {
    let silent = |_| io::Error::new(io::ErrorKind::TimedOut, format!("it {SILENT}"));
    let begin = async {
        let mut stream = UnixStream::connect(path).await?;
        if of.is_some_and(|uid| stream.peer_cred().map_or(true, |peer| peer.uid() != uid)) {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
        stream.write_all(request).await?;
        let mut answer = vec![0];
        let count = stream.read(&mut answer).await?;
        answer.truncate(count);
        io::Result::Ok((stream, answer))
    };
    let (stream, mut answer) = tokio::time::timeout(ANSWER_TIMEOUT, begin).await.map_err(silent)??;
    let mut stream = stream.take(ANSWER_BYTES_MAX);
    tokio::time::timeout(EXCHANGE_TIMEOUT, stream.read_to_end(&mut answer)).await.map_err(silent)??;
    Ok(serde_json::from_slice(&answer)?)
}

/// Asks all instances of this user at once, or the one at `path`.
pub async fn ask_all(path: Option<&Path>, request: &Request) -> Result<Answers> {
    ask_some(path, request, false).await
}

/// The same; root asks the instances of all users.
pub async fn ask_everybody(path: Option<&Path>, request: &Request) -> Result<Answers> {
    ask_some(path, request, true).await
}

/// Sockets that processes of this user have left behind are removed.
async fn ask_some(path: Option<&Path>, request: &Request, of_everybody: bool) -> Result<Answers> {
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    if let Some(path) = path {
        let answer = ask(path, None, &line).await.map_err(|error| {
            let why = plain(&error);
            Failure::system(format!("no outlast instance answers at {}: {why}", path.display()))
        })?;
        return Ok(Answers { answers: vec![(path.to_owned(), answer)], silent: Vec::new() });
    }
    let mut asked = JoinSet::new();
    let own_uid = admin_folder::own_uid();
    for Socket { path, uid } in admin_folder::sockets(of_everybody)? {
        let line = line.clone();
        asked.spawn(async move {
            let answer = ask(&path, Some(uid), &line).await;
            let answer = if uid == own_uid { answer } else { answer.map(|answer| of_another(answer, uid)) };
            (path, uid, answer)
        });
    }
    let mut all = asked.join_all().await;
    all.sort_by(|(path, ..), (other, ..)| path.cmp(other));
    let mut answers = Answers::default();
    for (path, uid, answer) in all {
        match answer {
            Ok(answer) => answers.answers.push((path, answer)),
            Err(error) => match error.kind() {
                io::ErrorKind::TimedOut => answers.silent.push(path),
                // What another user has left is not root's to clear away.
                io::ErrorKind::ConnectionRefused if uid == own_uid => admin_folder::remove_left(&path),
                io::ErrorKind::ConnectionRefused => {}
                // An instance that has just ended is none.
                io::ErrorKind::NotFound => {}
                // It has let go of its socket, and then of those who waited there.
                _ if !path.exists() => {}
                _ => tracing::warn!("{} does not answer: {}", path.display(), plain(&error)),
            },
        }
    }
    Ok(answers)
}
