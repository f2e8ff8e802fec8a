//! Copies of the data of Redis, over its own protocol of replication (redis.io/docs/latest/operate/oss_and_stack/management/replication): the
//! source is asked as by a replica, and the other server is made the replica of this process for a moment. Files are not touched.

use super::Prepared;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Redis answers what is asked here at once, or is stuck. It says something every ten seconds while it writes a file (`repl-ping-replica-period`).
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Until Redis has begun to copy, while clients wait.
const FORK_TIMEOUT: Duration = Duration::from_secs(5);
/// Redis writes a file already: that is waited for.
const BUSY_TIMEOUT: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_millis(2);
const LOOK_RARELY: Duration = Duration::from_millis(50);
/// The other server connects to this process within this time.
const REPLICA_TIMEOUT: Duration = Duration::from_secs(15);
/// So often a replica hears that its source is there.
const PING: Duration = Duration::from_secs(5);
/// A line of a reply.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// A value of a reply: all that `INFO` says.
const VALUE_BYTES_MAX: usize = 1 << 20;
/// With what data end whose length is not known before (as many bytes as Redis says).
const MARK_BYTES: usize = 40;

fn other(what: impl Into<String>) -> io::Error {
    io::Error::other(what.into())
}

/// A connection to Redis.
#[derive(Debug)]
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    pub(crate) fn connect(server: SocketAddr, password: Option<&str>) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&server, CONNECT_TIMEOUT)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_nodelay(true)?;
        let mut client = Self { stream: BufReader::new(stream) };
        if let Some(password) = password {
            client.ask(&["AUTH", password])?;
        }
        Ok(client)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        (&mut self.stream).take(LINE_BYTES_MAX).read_line(&mut line)?;
        if !line.ends_with('\n') {
            return Err(other(
                "Redis has ended the connection (its log says why; before 7.0, client-output-buffer-limit may be too small for a replica)",
            ));
        }
        Ok(line.trim_end().to_owned())
    }

    /// The reply to a command, which is a line or a value.
    fn ask(&mut self, words: &[&str]) -> io::Result<String> {
        let mut bytes = format!("*{}\r\n", words.len());
        for word in words {
            bytes.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.write(bytes.as_bytes())?;
        let line = self.line()?;
        let verb = words.first().copied().unwrap_or_default();
        match line.split_at_checked(1) {
            Some(("+" | ":", text)) => Ok(text.to_owned()),
            Some(("-", text)) => Err(other(format!("Redis refuses {verb}: {text}"))),
            Some(("$", text)) => {
                let length = text.parse::<usize>().ok().filter(|length| *length <= VALUE_BYTES_MAX);
                let length = length.ok_or_else(|| other(format!("Redis answers {line:?} to {verb}")))?;
                let mut value = vec![0; length + 2];
                self.stream.read_exact(&mut value)?;
                Ok(String::from_utf8_lossy(&value).into_owned())
            }
            _ => Err(other(format!("Redis answers {line:?} to {verb}"))),
        }
    }

    /// What it says of itself.
    pub(crate) fn info(&mut self) -> io::Result<Info> {
        Ok(Info(self.ask(&["INFO"])?))
    }
}

/// What Redis says of itself.
pub(crate) struct Info(String);

impl Info {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    }

    fn number(&self, name: &str) -> io::Result<u64> {
        let number = self.field(name).and_then(|text| text.parse().ok());
        number.ok_or_else(|| {
            other(format!("this Redis does not say {name} in INFO: version 6.2 or later is needed"))
        })
    }

    fn is(&self, name: &str) -> bool {
        self.field(name) == Some("1")
    }

    /// It has a process at work that was forked from it. There is one at a time.
    fn is_forked(&self) -> bool {
        let names = ["rdb_bgsave_in_progress", "aof_rewrite_in_progress", "module_fork_in_progress"];
        names.into_iter().any(|name| self.is(name))
    }
}

/// A Redis whose data are to be copied.
#[derive(Debug)]
pub(super) struct Source {
    asks: Client,
    data: Client,
}

impl Source {
    pub(super) fn prepare(server: SocketAddr, password: Option<&str>) -> io::Result<Self> {
        let mut asks = Client::connect(server, password)?;
        let mut data = Client::connect(server, password)?;
        // Nor does Redis keep what happens meanwhile, as it does for replicas, up to a limit. Before 7.0 it knows nothing of that.
        if let Err(error) = data.ask(&["REPLCONF", "rdb-only", "1"]) {
            tracing::debug!(%error, "redis keeps for this copy what happens meanwhile");
        }
        let begun = Instant::now();
        while asks.info()?.is_forked() {
            if begun.elapsed() > BUSY_TIMEOUT {
                return Err(other("Redis writes its data to a file already, and does not come to an end"));
            }
            std::thread::sleep(LOOK_RARELY);
        }
        Ok(Self { asks, data })
    }
}

impl Prepared for Source {
    /// Redis forks a process, which writes the data as they are then. It does not say so; but it counts.
    fn capture(mut self: Box<Self>) -> io::Result<Box<dyn Read + Send>> {
        let before = self.asks.info()?;
        if before.is_forked() {
            return Err(other("Redis has begun to write its data to a file: it is tried again"));
        }
        let (forks, syncs) = (before.number("total_forks")?, before.number("sync_full")?);
        self.data.write(b"SYNC\r\n")?;
        let begun = Instant::now();
        loop {
            let now = self.asks.info()?;
            match now.number("total_forks")? - forks {
                0 => {}
                // The copy, or a file that Redis writes now and then: then there will be one more.
                1 if now.number("sync_full")? > syncs => break,
                1 => {}
                _ => {
                    return Err(other(
                        "Redis has begun to write its data to a file meanwhile: it is tried again",
                    ));
                }
            }
            if begun.elapsed() > FORK_TIMEOUT {
                return Err(other("Redis does not begin to copy its data"));
            }
            std::thread::sleep(LOOK);
        }
        Ok(Box::new(Data { source: *self, forks: forks + 1, left: None }))
    }
}

/// The data, once Redis has written all of them to a file.
struct Data {
    source: Source,
    /// Redis has forked so many processes: with one more, it is not known which of the two has written the data.
    forks: u64,
    left: Option<u64>,
}

impl Data {
    fn begin(&mut self) -> io::Result<u64> {
        let mut line = self.source.data.line()?;
        // So it says that it is at work.
        while line.is_empty() {
            line = self.source.data.line()?;
        }
        if let Some(text) = line.strip_prefix('-') {
            return Err(other(format!("Redis refuses SYNC: {text}")));
        }
        let length = line.strip_prefix('$').and_then(|text| text.parse().ok());
        let length = length.ok_or_else(|| other(format!("Redis answers {line:?} to SYNC")))?;
        if self.source.asks.info()?.number("total_forks")? != self.forks {
            return Err(other("Redis has written its data to a file meanwhile: it is tried again"));
        }
        Ok(length)
    }
}

impl Read for Data {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let left = match self.left {
            Some(left) => left,
            None => self.begin()?,
        };
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(room.len());
        let count = match room.get_mut(..most) {
            Some(room) if !room.is_empty() => self.source.data.stream.read(room)?,
            _ => 0,
        };
        if count == 0 && left > 0 && !room.is_empty() {
            return Err(other("Redis has ended the connection before all of its data"));
        }
        self.left = Some(left - count as u64);
        Ok(count)
    }
}

/// Makes Redis the replica of this process, which has only these data, and then a server of its own again.
pub(super) fn restore(server: SocketAddr, password: Option<&str>, data: &mut dyn Read) -> io::Result<()> {
    let mut asks = Client::connect(server, password)?;
    // It may be long until there are data, and the replica would not wait.
    let mut first = vec![0; 64 << 10];
    let count = data.read(&mut first)?;
    first.truncate(count);
    let listener = TcpListener::bind((asks.stream.get_ref().local_addr()?.ip(), 0))?;
    let here = listener.local_addr()?;
    let result = asks
        .ask(&["REPLICAOF", &here.ip().to_string(), &here.port().to_string()])
        .and_then(|_| be_the_source(&listener, &mut asks, first.as_slice().chain(data)));
    // Whatever has come of it, it is no replica of this process any more.
    let alone = asks.ask(&["REPLICAOF", "NO", "ONE"]);
    drop(result?);
    alone?;
    match asks.info()?.field("role") {
        Some("master") => Ok(()),
        role => Err(other(format!("Redis is still {}", role.unwrap_or("of no role")))),
    }
}

/// The connection of the replica: it ends when that is none any more.
fn be_the_source(listener: &TcpListener, asks: &mut Client, data: impl Read) -> io::Result<Client> {
    let mut replica = accept(listener)?;
    greet(&mut replica)?;
    let mark = mark();
    replica.write(format!("$EOF:{mark}\r\n").as_bytes())?;
    let mut data = data;
    let mut room = vec![0; 64 << 10];
    loop {
        match data.read(&mut room)? {
            0 => break,
            count => replica.write(room.get(..count).unwrap_or_default())?,
        }
    }
    replica.write(mark.as_bytes())?;
    let mut pinged = Instant::now();
    loop {
        let info = asks.info()?;
        if info.field("role") != Some("slave") {
            return Err(other("Redis was made no replica, or another process has changed that"));
        }
        if info.field("master_link_status") == Some("up") {
            return Ok(replica);
        }
        // It loads the data, or has given up.
        if !info.is("loading") && !info.is("master_sync_in_progress") && is_closed(&replica) {
            return Err(other("Redis has not taken the data (its log says why)"));
        }
        if pinged.elapsed() > PING {
            pinged = Instant::now();
            // It reads that when it has loaded them.
            let _ = replica.write(b"*1\r\n$4\r\nPING\r\n");
        }
        std::thread::sleep(LOOK_RARELY);
    }
}

/// Nobody else knows of this port but the replica; and who is not one does not say what one says.
fn accept(listener: &TcpListener) -> io::Result<Client> {
    listener.set_nonblocking(true)?;
    let begun = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
                stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
                return Ok(Client { stream: BufReader::new(stream) });
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if begun.elapsed() > REPLICA_TIMEOUT {
            return Err(other("Redis does not connect as a replica (its log says why)"));
        }
        std::thread::sleep(LOOK);
    }
}

/// What a replica says before it wants the data.
fn greet(replica: &mut Client) -> io::Result<()> {
    loop {
        let line = replica.line()?;
        let words = match line.strip_prefix('*').and_then(|count| count.parse::<u32>().ok()) {
            None => line.split_whitespace().map(str::to_owned).collect(),
            Some(count) => {
                let mut words = Vec::new();
                for _ in 0..count.min(64) {
                    replica.line()?;
                    words.push(replica.line()?);
                }
                words
            }
        };
        match words.first().map(|word| word.to_ascii_uppercase()).as_deref() {
            Some("PING") => replica.write(b"+PONG\r\n")?,
            Some("PSYNC") => return replica.write(format!("+FULLRESYNC {} 0\r\n", mark()).as_bytes()),
            Some("SYNC") => return Ok(()),
            Some("AUTH" | "REPLCONF") => replica.write(b"+OK\r\n")?,
            _ => return Err(other(format!("Redis says {line:?} as a replica"))),
        }
    }
}

fn mark() -> String {
    (0..MARK_BYTES / 8).map(|_| format!("{:08x}", rand::random::<u32>())).collect()
}

fn is_closed(replica: &Client) -> bool {
    let socket = replica.stream.get_ref();
    if socket.set_nonblocking(true).is_err() {
        return true;
    }
    let mut byte = [0];
    let is_closed = match socket.peek(&mut byte) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    };
    is_closed || socket.set_nonblocking(false).is_err()
}
