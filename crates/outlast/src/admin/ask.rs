//! Asking the instances of this user, or of everybody.

use super::{ANSWER_BYTES_MAX, ANSWER_TIMEOUT, EXCHANGE_TIMEOUT};
use crate::admin_folder::names::number_in;
use crate::admin_folder::{self, Socket};
use crate::exit::Failure;
use anyhow::{Context, Result};
use outlast_admin::exchange::Refused;
use outlast_admin::{Request, Status};
use outlast_session::relay::dial::plain;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinSet;

/// The fields of [`Status`] that the asker notes.
const USER: &str = "user";
const SOCKET: &str = "admin_socket";

/// Root asks so many instances of another user at the most: whoever may make sockets may make any number.
const OF_ANOTHER_MAX: usize = 64;
/// And hears so much of all of these together: as text it takes some twenty times the memory.
const OF_ANOTHER_BYTES_MAX: u64 = 8 << 20;

/// How the instances are that were asked.
#[derive(Debug, Default)]
pub struct Answers {
    pub instances: Vec<Instance>,
    /// Sockets of instances that are there and say nothing.
    pub silent: Vec<PathBuf>,
}

/// One of them.
#[derive(Debug)]
pub struct Instance {
    /// Where it is asked.
    pub path: PathBuf,
    pub status: Status,
    /// The whole answer: a later version says more than is known here.
    pub answer: Value,
}

impl Instance {
    fn new(path: &Path, mut answer: Value) -> Result<Self> {
        if let Value::Object(fields) = &mut answer {
            // Some have nothing else that tells them apart.
            fields.insert(SOCKET.into(), path.to_string_lossy().into());
        }
        let status = Status::read(answer.clone()).with_context(|| other_answer(path))?;
        Ok(Self { path: path.to_owned(), status, answer })
    }
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
        fields.insert(USER.into(), uid.into());
    }
    answer
}

/// Asks one instance. `TimedOut` means that it is there and says nothing. If it is said whose it is, nobody else is asked.
async fn exchange(path: &Path, of: Option<u32>, request: &[u8], bytes_max: u64) -> io::Result<Value> {
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
    let mut stream = stream.take(bytes_max);
    tokio::time::timeout(EXCHANGE_TIMEOUT, stream.read_to_end(&mut answer)).await.map_err(silent)??;
    if stream.limit() == 0 {
        return Err(io::Error::other(format!("it says more than {bytes_max} bytes")));
    }
    Ok(serde_json::from_slice(&answer)?)
}

/// Asks one instance, at the path of its socket.
///
/// # Errors
/// It is not there, says nothing, or will not.
pub async fn one<T: DeserializeOwned>(path: &Path, request: &Request) -> Result<T> {
    let answer = anything(path, request).await?;
    if let Ok(Refused { error }) = Refused::deserialize(&answer) {
        return Err(Failure::system(format!("the outlast instance at {} says: {error}", path.display())));
    }
    serde_json::from_value(answer).with_context(|| other_answer(path))
}

/// The same, also where that is no answer to this request.
pub async fn anything(path: &Path, request: &Request) -> Result<Value> {
    exchange(path, None, &line_of(request)?, ANSWER_BYTES_MAX).await.map_err(|error| {
        let why = plain(&error);
        Failure::system(format!("no outlast instance answers at {}: {why}", path.display()))
    })
}

fn other_answer(path: &Path) -> String {
    format!("what is at {} answers, but not as outlast does", path.display())
}

/// Asks all instances of this user at once how they are, or the one at `path`.
pub async fn all(path: Option<&Path>) -> Result<Answers> {
    some(path, false).await
}

/// The same; root asks the instances of all users.
pub async fn everybody(path: Option<&Path>) -> Result<Answers> {
    some(path, true).await
}

fn line_of(request: &Request) -> Result<Vec<u8>> {
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    Ok(line)
}

/// Sockets that processes of this user have left behind are removed.
async fn some(path: Option<&Path>, of_everybody: bool) -> Result<Answers> {
    if let Some(path) = path {
        let instance = Instance::new(path, anything(path, &Request::Status {}).await?)?;
        return Ok(Answers { instances: vec![instance], silent: Vec::new() });
    }
    let line = line_of(&Request::Status {})?;
    let mut asked = JoinSet::new();
    let own_uid = admin_folder::own_uid();
    let sockets = admin_folder::sockets(of_everybody)?;
    let mut counts = BTreeMap::<u32, usize>::new();
    sockets.iter().for_each(|socket| *counts.entry(socket.uid).or_default() += 1);
    for (uid, count) in counts.iter().filter(|(uid, count)| **uid != own_uid && **count > OF_ANOTHER_MAX) {
        tracing::warn!("user {uid} has {count} instances: {OF_ANOTHER_MAX} of them are asked");
    }
    let mut chosen = BTreeMap::<u32, usize>::new();
    for Socket { path, uid } in sockets {
        let line = line.clone();
        let number = chosen.entry(uid).or_default();
        *number += 1;
        let bytes_max = if uid == own_uid {
            ANSWER_BYTES_MAX
        } else if *number > OF_ANOTHER_MAX {
            continue;
        } else {
            let count = counts.get(&uid).copied().unwrap_or(1).clamp(1, OF_ANOTHER_MAX);
            OF_ANOTHER_BYTES_MAX / count as u64
        };
        asked.spawn(async move {
            let answer = exchange(&path, Some(uid), &line, bytes_max).await;
            let answer = if uid == own_uid { answer } else { answer.map(|answer| of_another(answer, uid)) };
            (path, uid, answer)
        });
    }
    let mut all = asked.join_all().await;
    all.sort_by(|(path, ..), (other, ..)| path.cmp(other));
    let mut answers = Answers::default();
    for (path, uid, answer) in all {
        match answer {
            Ok(answer) => match Instance::new(&path, answer) {
                Ok(instance) => answers.instances.push(instance),
                Err(error) => tracing::warn!("{error:#}"),
            },
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
