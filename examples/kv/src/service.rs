//! The service: which request means what, and how a connection goes on. The same with and without Outlast.
//!
//! | request | |
//! |---|---|
//! | `GET`, `HEAD /kv/KEY` | the value |
//! | `PUT /kv/KEY` | a new value, of any length |
//! | `POST /kv/KEY` | more at the end of it; says how long it is now |
//! | `DELETE /kv/KEY` | none any more |
//! | `GET /kv?prefix=P&after=K` | the keys that begin with `P`, those after `K`, a line each; to be continued until there are none |
//! | `POST`, `GET /counter/NAME` | counts one more, or not; says how many there are |
//! | `GET /status` | with `--workers`: how many requests each of them has dealt with, in the order of the workers |
//! | `GET /crash?how=segv` | with `--crashes`: `segv`, `abort`, `exit`, `panic`, `hang`, `oom` |
//!
//! A connection is a machine with few states, [`Next`]. Each step takes something of the input, changes the state
//! of the service and that of the connection, and answers; with Outlast, all of that at once. So whoever goes on with the
//! connection begins at the right step, in the middle of an upload, too.

#[cfg(feature = "outlast")]
pub use crate::outlast::{Change, Client, Value};
#[cfg(not(feature = "outlast"))]
pub use crate::plain::{Change, Client, Value};

use crate::http::{self, Framing, Method, Refusal, Request};
use std::io;

/// Of content that is taken in one step.
const PIECE_BYTES: usize = 64 << 10;
/// Less is waited for, as long as more is to come: a step costs as much as kilobytes do.
const PIECE_BYTES_LEAST: usize = 16 << 10;
/// Values up to that are answered in one step.
const SHORT_BYTES: u64 = 64 << 10;
/// Of a list, in one answer.
const LIST_BYTES: usize = 64 << 10;
const KEY_BYTES_MAX: usize = 1 << 10;

/// What a connection goes on with.
#[derive(Clone, Debug)]
pub enum Next {
    /// The next request.
    Request,
    /// The content of a request that is not all there.
    Upload(Upload),
    /// The content of an answer that was begun. Others may change the key meanwhile: this value stays what it is.
    Download { value: Value, length_bytes: u64, closes: bool },
    /// Nothing.
    Close,
}

/// A value that comes.
#[derive(Clone, Debug)]
pub struct Upload {
    pub key: Vec<u8>,
    /// At the end of what there is.
    pub appends: bool,
    pub value: Value,
    pub framing: Framing,
    pub closes: bool,
}

/// What a step comes to.
pub struct Step {
    pub answer: Vec<u8>,
    pub next: Next,
}

impl Step {
    fn with(status: u16, content: &[u8], closes: bool) -> Self {
        let mut answer = http::head(status, content.len() as u64, closes);
        answer.extend_from_slice(content);
        Self { answer, next: if closes { Next::Close } else { Next::Request } }
    }
}

/// Why a connection is not served any further.
#[derive(Debug)]
#[cfg_attr(not(feature = "outlast"), allow(dead_code, reason = "a map behind a mutex has no failures"))]
pub enum Failure {
    /// There is no room for more values.
    Full,
    Io(io::Error),
    Other(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Failure {
    /// To whoever runs the service. That a client is gone is none of it.
    pub fn tell(&self) {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected, TimedOut};
        let why = match self {
            Self::Io(error)
                if matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected | TimedOut) =>
            {
                return;
            }
            Self::Io(error) => error.to_string(),
            Self::Full => "no room for it".to_owned(),
            Self::Other(why) => why.clone(),
        };
        crate::complain(&format!("a connection is given up: {why}"));
    }
}

/// Serves a client until it goes.
pub async fn serve(mut client: Client, crashes: bool) {
    if let Err(failure) = go_on(&mut client, crashes).await {
        failure.tell();
    }
    // What it has not finished.
    client.end();
}

async fn go_on(client: &mut Client, crashes: bool) -> Result<(), Failure> {
    client.begin().await?;
    loop {
        let is_over = match client.next() {
            Next::Request => !request(client, crashes).await?,
            Next::Upload(upload) => !upload_more(client, upload).await?,
            Next::Download { value, length_bytes, closes } => {
                client.write_value(&value, length_bytes).await?;
                let next = if closes { Next::Close } else { Next::Request };
                let done = |change: &mut Change| {
                    change.release(value)?;
                    Ok(Step { answer: Vec::new(), next })
                };
                client.change(0, done).await?;
                false
            }
            Next::Close => return client.close().await,
        };
        if is_over {
            return Ok(());
        }
    }
}

/// Deals with the next request, or waits for more of it. Whether the client is still there.
async fn request(client: &mut Client, crashes: bool) -> Result<bool, Failure> {
    let request = match http::parse(client.input()) {
        Ok(Some(request)) => request,
        Ok(None) => return Ok(client.receive().await? > 0),
        Err(refusal) => return refuse(client, refusal).await,
    };
    if crashes && request.path == "/crash" {
        crate::crash::crash(&http::field(&request.query, "how").unwrap_or_default());
    }
    if (request.method, request.path.as_str(), request.framing)
        == (Method::Get, "/status", Framing::Length(0))
        && let Some(status) = client.status().await?
    {
        let told = |_: &mut Change| Ok(Step::with(200, &status, request.closes));
        return client.change(request.bytes, told).await.map(|()| true);
    }
    let (mut framing, mut content) = (request.framing, Vec::new());
    let behind = client.input().get(request.bytes..).unwrap_or_default();
    let taken = match framing.decode(&behind[..behind.len().min(PIECE_BYTES)], &mut content) {
        Ok(taken) => request.bytes + taken,
        Err(refusal) => return refuse(client, refusal).await,
    };
    match client.change(taken, |change| answer(change, &request, framing, &content)).await {
        Err(Failure::Full) => refuse(client, (507, "no room for it")).await,
        done => done.map(|()| true),
    }
}

/// Says why, and nothing after that: where the next request would begin is not known.
async fn refuse(client: &mut Client, (status, why): Refusal) -> Result<bool, Failure> {
    let all = client.input().len();
    let refused = |change: &mut Change| {
        change.give_up()?;
        Ok(Step::with(status, format!("{why}\n").as_bytes(), true))
    };
    client.change(all, refused).await.map(|()| true)
}

/// Takes what has come of a value, or waits for more of it. Whether the client is still there.
async fn upload_more(client: &mut Client, mut upload: Upload) -> Result<bool, Failure> {
    let (taken, content) = loop {
        let (mut framing, mut content) = (upload.framing, Vec::new());
        let input = client.input();
        let input = &input[..input.len().min(PIECE_BYTES)];
        match framing.decode(input, &mut content) {
            Err(refusal) => return refuse(client, refusal).await,
            Ok(taken)
                if framing == Framing::Over
                    || content.len() >= PIECE_BYTES_LEAST
                    || input.len() == PIECE_BYTES =>
            {
                upload.framing = framing;
                break (taken, content);
            }
            Ok(_) if client.receive().await? == 0 => return Ok(false),
            Ok(_) => {}
        }
    };
    let more = |change: &mut Change| {
        change.append(&mut upload.value, &content)?;
        uploaded(change, upload, false)
    };
    match client.change(taken, more).await {
        Err(Failure::Full) => refuse(client, (507, "no room for it")).await,
        done => done.map(|()| true),
    }
}

/// What was asked for, by its path.
enum Thing {
    Value(Vec<u8>),
    List,
    Counter(Vec<u8>),
}

fn thing(path: &str) -> Result<Thing, Refusal> {
    let (kind, name) =
        path.strip_prefix('/').unwrap_or(path).split_once('/').unwrap_or((&path[path.len().min(1)..], ""));
    let name =
        http::decoded(name).filter(|name| name.len() <= KEY_BYTES_MAX).ok_or((400, "this is no name"))?;
    match (kind, name.is_empty()) {
        ("kv", true) => Ok(Thing::List),
        ("kv", false) => Ok(Thing::Value(name)),
        ("counter", false) => Ok(Thing::Counter(name)),
        _ => Err((404, "there is /kv/KEY, /kv?prefix= and /counter/NAME")),
    }
}

fn answer(change: &mut Change, request: &Request, framing: Framing, content: &[u8]) -> Result<Step, Failure> {
    let closes = request.closes;
    let refused = |(status, why): Refusal| Step::with(status, format!("{why}\n").as_bytes(), closes);
    let thing = match thing(&request.path) {
        Ok(thing) => thing,
        // Content that nobody takes would be taken for the next request.
        Err((status, why)) if framing != Framing::Over => {
            return Ok(Step::with(status, why.as_bytes(), true));
        }
        Err(refusal) => return Ok(refused(refusal)),
    };
    if let (Thing::Value(key), Method::Put | Method::Post) = (&thing, request.method) {
        let mut value = change.new_value()?;
        change.append(&mut value, content)?;
        let appends = request.method == Method::Post;
        return uploaded(
            change,
            Upload { key: key.clone(), appends, value, framing, closes },
            request.expects,
        );
    }
    if framing != Framing::Over {
        return Ok(Step::with(400, b"no content is asked for\n", true));
    }
    match (thing, request.method) {
        (Thing::Value(key), Method::Get | Method::Head) => match change.get(&key)? {
            Some(value) => show(change, value, request),
            None => Ok(bodyless(refused((404, "no such key")), request)),
        },
        (Thing::Value(key), _) => match change.remove(&key)? {
            true => Ok(Step::with(204, b"", closes)),
            false => Ok(refused((404, "no such key"))),
        },
        (Thing::List, Method::Get | Method::Head) => {
            let field = |name| http::field(&request.query, name).unwrap_or_default();
            let mut list = Vec::new();
            change.keys(&field("prefix"), &field("after"), |key| {
                list.extend_from_slice(format!("{}\n", http::encoded(key)).as_bytes());
                list.len() < LIST_BYTES
            })?;
            Ok(bodyless(Step::with(200, &list, closes), request))
        }
        (Thing::Counter(name), method @ (Method::Get | Method::Head | Method::Post)) => {
            let count = change.count(&name, u64::from(method == Method::Post))?;
            Ok(bodyless(Step::with(200, format!("{count}\n").as_bytes(), closes), request))
        }
        _ => Ok(refused((405, "not with this"))),
    }
}

/// An answer to HEAD is that to GET, without its content.
fn bodyless(mut step: Step, request: &Request) -> Step {
    if request.method == Method::Head {
        let end = step.answer.windows(4).position(|four| four == b"\r\n\r\n").map_or(0, |at| at + 4);
        step.answer.truncate(end);
    }
    step
}

fn show(change: &mut Change, value: Value, request: &Request) -> Result<Step, Failure> {
    let (length_bytes, closes) = (change.length_bytes(&value)?, request.closes);
    if length_bytes <= SHORT_BYTES {
        // Others may change it before all of the answer is sent: so what was read is a part of the step.
        return Ok(bodyless(Step::with(200, &change.content(&value)?, closes), request));
    }
    let answer = http::head(200, length_bytes, closes);
    if request.method == Method::Head {
        return Ok(bodyless(
            Step { answer, next: if closes { Next::Close } else { Next::Request } },
            request,
        ));
    }
    change.hold(&value)?;
    Ok(Step { answer, next: Next::Download { value, length_bytes, closes } })
}

/// A part of a value has come, or all of it.
fn uploaded(change: &mut Change, upload: Upload, expects: bool) -> Result<Step, Failure> {
    if upload.framing != Framing::Over {
        let answer = if expects { b"HTTP/1.1 100 Continue\r\n\r\n".to_vec() } else { Vec::new() };
        return Ok(Step { answer, next: Next::Upload(upload) });
    }
    let Upload { key, appends, value, closes, .. } = upload;
    let is_new = change.get(&key)?.is_none();
    let length_bytes = change.store(&key, value, appends)?;
    Ok(match (appends, is_new) {
        (true, _) => Step::with(200, format!("{length_bytes}\n").as_bytes(), closes),
        (false, true) => Step::with(201, b"", closes),
        (false, false) => Step::with(204, b"", closes),
    })
}
