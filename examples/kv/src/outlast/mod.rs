//! With Outlast: the values and what each connection goes on with are in a region that every generation finds, connections
//! are held, and a step of the service is one transaction with the request that it deals with.

mod change;
mod master;

pub use change::{Change, Value};

use crate::Arguments;
use crate::http::Framing;
use crate::service::{self, Failure, Next, Step, Upload};
use master::Master;
use outlast_restart::Generation;
use outlast_restart::policy::Policy;
use outlast_restart::roles::{Role, Roles};
use outlast_restart::state::{Cell, Map, Options, Region, StateError, Transaction, View, bytemuck, field};
use outlast_restart::tokio::{Connection, incoming, watched};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::runtime::Runtime;

/// What a client is told whose request has crashed three generations.
const REFUSAL: &[u8] =
    b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// A master and 64 workers.
const PROCESSES: usize = 65;

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[bytemuck(crate = "bytemuck")]
#[repr(C)]
struct Root {
    /// By which the library knows which requests were dealt with: one for each process.
    served: [u64; PROCESSES],
    /// How many requests each process has dealt with.
    requests: [u64; PROCESSES],
    values: Map,
    counters: Map,
    /// By the [`key`] of a connection: what it goes on with, if that is not a new request.
    sessions: Map,
}

/// [`Next`], in memory that outlives the process; the key of an upload is behind it.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[bytemuck(crate = "bytemuck")]
#[repr(C)]
struct Session {
    /// Of the connection, which is in its note, too: numbers of descriptors are used again.
    id: u64,
    kind: u64,
    flags: u64,
    value: Value,
    length_bytes: u64,
    framing: [u64; 2],
}

const UPLOAD: u64 = 1;
const DOWNLOAD: u64 = 2;
const CLOSE: u64 = 3;
const CLOSES: u64 = 1;
const APPENDS: u64 = 2;

impl From<StateError> for Failure {
    fn from(error: StateError) -> Self {
        match error {
            StateError::OutOfSpace { .. }
            | StateError::TransactionTooLarge { .. }
            | StateError::NoRoomForAnswer { .. } => Self::Full,
            error => Self::Other(error.to_string()),
        }
    }
}

/// Serves, in one generation after the other, in one process or in several with the same region.
pub fn run(arguments: &Arguments, listeners: Vec<TcpListener>) -> Result<(), Box<dyn std::error::Error>> {
    let options = Options {
        size_bytes: arguments.memory_mib << 20,
        layout: "outlast-kv",
        layout_version: 2,
        ..Options::default()
    };
    let region = Arc::new(Region::anonymous("outlast-kv", &options)?);
    let policy = Policy {
        intensity: arguments.restarts,
        intensity_window_ms: arguments.restarts_window_ms,
        hang_timeout_ms: arguments.hang_timeout_ms,
        ..Policy::default()
    };
    if arguments.workers == 1 {
        let generation = outlast_restart::register_with(policy)?;
        // From here on, whatever crashes: the next generation begins here.
        let store = Store::new(&generation, region, 0)?;
        tell("", &generation);
        return serve(generation, store, listeners, arguments.crashes);
    }
    let workers = Role::new("worker").processes(arguments.workers.into()).policy(policy);
    let roles = Roles::new().role(Role::new("master").policy(policy)).role(workers);
    let member = roles.channels("master", "worker").split()?;
    // Once in each process: clients are none of the master's business.
    let listeners = if member.role() == "worker" { listeners } else { Vec::new() };
    let generation = member.register()?;
    // From here on, whatever crashes: the next generation of this process begins here.
    let store = Store::new(&generation, region, member.number())?;
    tell(&format!("{} {} ", member.role(), member.index()), &generation);
    match member.role() {
        "worker" => serve(generation, store, listeners, arguments.crashes),
        _ => master::serve(generation, &store, arguments.workers.into()),
    }
}

fn tell(who: &str, generation: &Generation) {
    crate::say(&format!("{who}generation {} {}", generation.number(), std::process::id()));
}

fn serve(
    mut generation: Generation,
    mut store: Store,
    listeners: Vec<TcpListener>,
    crashes: bool,
) -> Result<(), Box<dyn std::error::Error>> {
    generation.refuse_with(REFUSAL);
    let mut clients = incoming(&mut generation, listeners)?;
    let channel = generation.channels()?.into_iter().next();
    let runtime = Runtime::new()?;
    if let Some(channel) = channel {
        store.master = Some(Master::ask_through(channel.connection, &runtime)?);
    }
    let accept = async {
        loop {
            let Ok(connection) = clients.next().await else {
                // No more descriptors, perhaps.
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            };
            let store = store.clone();
            tokio::spawn(connection.attributed(async move |connection| {
                match Client::new(connection, store) {
                    Ok(client) => service::serve(client, crashes).await,
                    Err(failure) => failure.tell(),
                }
            }));
        }
    };
    runtime.block_on(watched(generation.heartbeat(), accept))
}

/// Where everything is.
#[derive(Clone)]
struct Store {
    region: Arc<Region>,
    values: Map,
    counters: Map,
    sessions: Map,
    /// Which process this is.
    process: usize,
    requests: Cell<[u64; PROCESSES]>,
    generation: u32,
    /// Who is asked for the status, if there is a master.
    master: Option<Master>,
}

impl Store {
    fn new(generation: &Generation, region: Arc<Region>, process: usize) -> Result<Self, StateError> {
        let cell = region.root::<Root>()?;
        generation.attach(Arc::clone(&region), field!(cell, Root, served)?.at(process)?)?;
        let root = region.transaction(|tx| {
            let mut root = tx.get(cell)?;
            if root.values.is_none() {
                (root.values, root.counters, root.sessions) =
                    (Map::create(tx)?, Map::create(tx)?, Map::create(tx)?);
                tx.set(cell, root)?;
            }
            Ok::<_, StateError>(root)
        })?;
        let Root { values, counters, sessions, .. } = root;
        let requests = field!(cell, Root, requests)?;
        let generation = generation.number();
        Ok(Self { region, values, counters, sessions, process, requests, generation, master: None })
    }
}

/// A connection.
pub struct Client {
    connection: Connection,
    store: Store,
    id: u64,
    next: Next,
}

impl Client {
    fn new(mut connection: Connection, store: Store) -> Result<Self, Failure> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let id = match connection.note().try_into() {
            Ok(id) => u64::from_ne_bytes(id),
            Err(_) => {
                let count = COUNT.fetch_add(1, Ordering::Relaxed);
                (store.process as u64) << 56 | u64::from(store.generation) << 32 | u64::from(count)
            }
        };
        // It counts from the first step on.
        connection.set_note(&id.to_ne_bytes())?;
        let key = key(&connection, &store);
        let saved = store.region.read(|view| saved(view, store.sessions, key))?;
        let next = saved
            .filter(|(session, _)| session.id == id)
            .map_or(Next::Request, |(session, key)| session.next(key));
        Ok(Self { connection, store, id, next })
    }

    /// What the last generation has answered and not sent.
    pub async fn begin(&mut self) -> Result<(), Failure> {
        Ok(self.connection.flush_answers().await?)
    }

    pub fn next(&mut self) -> Next {
        self.next.clone()
    }

    pub fn input(&mut self) -> &[u8] {
        self.connection.input()
    }

    pub async fn receive(&mut self) -> Result<usize, Failure> {
        Ok(self.connection.receive().await?)
    }

    /// What the master says, if there is one.
    pub async fn status(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let Some(master) = &self.store.master else { return Ok(None) };
        let gone = || Failure::Other("the master does not answer".to_owned());
        master.status().await.ok_or_else(gone).map(Some)
    }

    /// Makes a step: `bytes` of the input are dealt with, the state changes, the answer is said, and the connection goes on
    /// as the step says. All of it or nothing, and once, whatever crashes.
    pub async fn change(
        &mut self,
        bytes: usize,
        work: impl FnOnce(&mut Change) -> Result<Step, Failure>,
    ) -> Result<(), Failure> {
        let key = key(&self.connection, &self.store);
        let (store, id, before, mut next) = (&self.store, self.id, &self.next, None);
        let step = |tx: &mut Transaction<'_>| {
            let mut change = Change { tx, store, before };
            let step = work(&mut change)?;
            change.save(key, id, &step.next)?;
            change.count_request()?;
            next = Some(step.next);
            Ok(step.answer)
        };
        let done = self.connection.transact::<Failure>(bytes, step).await;
        // It was done if all that has failed is to send the answer.
        if let (Some(next), Ok(()) | Err(Failure::Io(_))) = (next, &done) {
            self.next = next;
        }
        done
    }

    /// Writes a value that is [held](Change::hold). What was sent of it before a crash is not sent again.
    pub async fn write_value(&mut self, value: &Value, length_bytes: u64) -> Result<(), Failure> {
        let region = &self.store.region;
        let mut next = region.read(|view| change::first_piece(view, *value))?;
        let mut left = usize::try_from(length_bytes).unwrap_or(usize::MAX);
        while left > 0 {
            let piece = region.read(|view| view.bytes(next).map(<[u8]>::to_vec))?;
            let (link, content) = change::parted(&piece);
            let content = &content[..content.len().min(left)];
            self.connection.write_all(content).await?;
            left -= content.len();
            next = link;
        }
        Ok(())
    }

    /// The client is told that nothing follows; what it still says is thrown away for a while, as a connection that is closed
    /// with something unread takes back what was said last.
    pub async fn close(&mut self) -> Result<(), Failure> {
        self.connection.shutdown().await?;
        let connection = &mut self.connection;
        let drain = async {
            while connection.receive().await.is_ok_and(|count| count > 0) {
                let all = connection.input().len();
                connection.done(all);
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(1), drain).await;
        Ok(())
    }

    /// It is gone: so is what it had begun.
    pub fn end(&mut self) {
        if let Next::Upload(_) | Next::Download { .. } = self.next {
            let key = key(&self.connection, &self.store);
            let (store, id, before) = (&self.store, self.id, &self.next);
            let _ = store.region.transaction(|tx| {
                let mut change = Change { tx, store, before };
                change.give_up()?;
                if let Next::Download { value, .. } = before {
                    change.release(*value)?;
                }
                change.save(key, id, &Next::Close)
            });
        }
    }
}

/// By the number of its descriptor, which each process has its own of.
fn key(connection: &Connection, store: &Store) -> [u8; 8] {
    let number = connection.get_ref().socket().as_raw_fd().cast_unsigned();
    ((store.process as u64) << 32 | u64::from(number)).to_be_bytes()
}

/// What is known of a connection.
fn saved(view: &View<'_>, sessions: Map, key: [u8; 8]) -> Result<Option<(Session, Vec<u8>)>, StateError> {
    let Some(bytes) = sessions.get(view, &key)? else { return Ok(None) };
    let (session, key) = bytes.split_at(size_of::<Session>().min(bytes.len()));
    Ok(bytemuck::try_pod_read_unaligned(session).ok().map(|session| (session, key.to_vec())))
}

impl Session {
    fn of(id: u64, next: &Next) -> Option<(Self, &[u8])> {
        let none = Self { id, kind: CLOSE, flags: 0, value: Value::NONE, length_bytes: 0, framing: [0; 2] };
        let closing = |closes: bool| u64::from(closes) * CLOSES;
        Some(match next {
            Next::Request => return None,
            Next::Close => (none, &[]),
            Next::Download { value, length_bytes, closes } => {
                let (value, length_bytes) = (*value, *length_bytes);
                (Self { kind: DOWNLOAD, flags: closing(*closes), value, length_bytes, ..none }, &[])
            }
            Next::Upload(upload) => {
                let flags = closing(upload.closes) | (u64::from(upload.appends) * APPENDS);
                let (value, framing) = (upload.value, upload.framing.to_words());
                (Self { kind: UPLOAD, flags, value, framing, ..none }, &upload.key)
            }
        })
    }

    fn next(self, key: Vec<u8>) -> Next {
        let (closes, value) = (self.flags & CLOSES != 0, self.value);
        match self.kind {
            UPLOAD => {
                let (appends, framing) = (self.flags & APPENDS != 0, Framing::from_words(self.framing));
                Next::Upload(Upload { key, appends, value, framing, closes })
            }
            DOWNLOAD => Next::Download { value, length_bytes: self.length_bytes, closes },
            _ => Next::Close,
        }
    }
}

impl Change<'_, '_> {
    /// Where there is a master who tells of it.
    fn count_request(&mut self) -> Result<(), Failure> {
        if let (Some(_), Next::Request) = (&self.store.master, self.before) {
            let mine = self.store.requests.at(self.store.process)?;
            let before = self.tx.get(mine)?;
            self.tx.set(mine, before + 1)?;
        }
        Ok(())
    }

    /// For whoever goes on with the connection after a crash.
    fn save(&mut self, key: [u8; 8], id: u64, next: &Next) -> Result<(), Failure> {
        if let (Next::Request, Next::Request) = (self.before, next) {
            return Ok(());
        }
        let sessions = self.store.sessions;
        // What a connection with the same number has left that was refused, or lost.
        let left = saved(self.tx, sessions, key)?.filter(|(session, _)| session.id != id);
        if let Some((session, _)) = left
            && session.kind != CLOSE
        {
            self.release(session.value)?;
        }
        match Session::of(id, next) {
            Some((session, upload_key)) => {
                let bytes = [bytemuck::bytes_of(&session), upload_key].concat();
                sessions.insert(self.tx, &key, &bytes)?;
            }
            None => {
                sessions.remove(self.tx, &key)?;
            }
        }
        Ok(())
    }
}
