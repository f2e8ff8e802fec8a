//! Without Outlast: the values are in a map behind a mutex, and gone with the process, as the connections are.

use crate::Arguments;
use crate::service::{self, Failure, Next, Step};
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

const READ_BYTES: usize = 64 << 10;

/// Downloads have what there was when they began.
pub type Value = Arc<Vec<u8>>;

/// As any server does.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address)
}

pub fn run(arguments: &Arguments, listeners: Vec<TcpListener>) -> Result<(), Box<dyn std::error::Error>> {
    if arguments.workers > 1 {
        return Err("--workers: without Outlast there is one process only, as nothing is shared".into());
    }
    let (tables, crashes) = (Arc::<Mutex<Tables>>::default(), arguments.crashes);
    Runtime::new()?.block_on(async {
        let mut accepting = tokio::task::JoinSet::<()>::new();
        for listener in listeners {
            listener.set_nonblocking(true)?;
            let (listener, tables) = (tokio::net::TcpListener::from_std(listener)?, Arc::clone(&tables));
            accepting.spawn(async move {
                loop {
                    let Ok((stream, _)) = listener.accept().await else {
                        // No more descriptors, perhaps.
                        tokio::time::sleep(Duration::from_millis(10)).await;
                        continue;
                    };
                    let tables = Arc::clone(&tables);
                    let client = Client { stream, input: Vec::new(), tables, next: Next::Request };
                    tokio::spawn(service::serve(client, crashes));
                }
            });
        }
        accepting.join_all().await;
        Ok(())
    })
}

#[derive(Default)]
struct Tables {
    values: BTreeMap<Vec<u8>, Value>,
    counters: BTreeMap<Vec<u8>, u64>,
}

/// A connection.
pub struct Client {
    stream: TcpStream,
    input: Vec<u8>,
    tables: Arc<Mutex<Tables>>,
    next: Next,
}

impl Client {
    pub async fn begin(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    pub fn next(&mut self) -> Next {
        std::mem::replace(&mut self.next, Next::Request)
    }

    pub fn input(&mut self) -> &[u8] {
        &self.input
    }

    pub async fn receive(&mut self) -> Result<usize, Failure> {
        self.input.reserve(READ_BYTES);
        Ok(self.stream.read_buf(&mut self.input).await?)
    }

    /// There is nobody to ask.
    pub async fn status(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        Ok(None)
    }

    /// Makes a step: `bytes` of the input are dealt with, the state changes, the answer is said, and the connection goes on
    /// as the step says.
    pub async fn change(
        &mut self,
        bytes: usize,
        work: impl FnOnce(&mut Change) -> Result<Step, Failure>,
    ) -> Result<(), Failure> {
        let tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        let step = work(&mut Change { tables })?;
        self.input.drain(..bytes);
        self.next = step.next;
        Ok(self.stream.write_all(&step.answer).await?)
    }

    pub async fn write_value(&mut self, value: &Value, _length_bytes: u64) -> Result<(), Failure> {
        Ok(self.stream.write_all(value).await?)
    }

    /// The client is told that nothing follows; what it still says is thrown away for a while, as a connection that is closed
    /// with something unread takes back what was said last.
    pub async fn close(&mut self) -> Result<(), Failure> {
        self.stream.shutdown().await?;
        let drain = async {
            while self.receive().await.is_ok_and(|count| count > 0) {
                self.input.clear();
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(1), drain).await;
        Ok(())
    }

    pub fn end(&mut self) {}
}

/// What can be done in a step.
pub struct Change<'a> {
    tables: MutexGuard<'a, Tables>,
}

impl Change<'_> {
    pub fn new_value(&mut self) -> Result<Value, Failure> {
        Ok(Value::default())
    }

    /// More of a value.
    pub fn append(&mut self, value: &mut Value, content: &[u8]) -> Result<(), Failure> {
        Arc::make_mut(value).extend_from_slice(content);
        Ok(())
    }

    pub fn length_bytes(&self, value: &Value) -> Result<u64, Failure> {
        Ok(value.len() as u64)
    }

    /// All of it.
    pub fn content(&self, value: &Value) -> Result<Vec<u8>, Failure> {
        Ok(value.to_vec())
    }

    pub fn hold(&mut self, _value: &Value) -> Result<(), Failure> {
        Ok(())
    }

    pub fn release(&mut self, _value: Value) -> Result<(), Failure> {
        Ok(())
    }

    pub fn get(&self, key: &[u8]) -> Result<Option<Value>, Failure> {
        Ok(self.tables.values.get(key).cloned())
    }

    /// Gives a key a value, or puts its content behind what the key has. How long it is then.
    pub fn store(&mut self, key: &[u8], value: Value, appends: bool) -> Result<u64, Failure> {
        let there = self.tables.values.entry(key.to_vec()).or_default();
        if appends {
            Arc::make_mut(there).extend_from_slice(&value);
        } else {
            *there = value;
        }
        Ok(there.len() as u64)
    }

    /// Whether there was one.
    pub fn remove(&mut self, key: &[u8]) -> Result<bool, Failure> {
        Ok(self.tables.values.remove(key).is_some())
    }

    /// Visits the keys that begin with `prefix` and come after `after`, until there are enough.
    pub fn keys(
        &self,
        prefix: &[u8],
        after: &[u8],
        mut visit: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), Failure> {
        let begin = if prefix > after { Bound::Included(prefix) } else { Bound::Excluded(after) };
        for (key, _) in self.tables.values.range::<[u8], _>((begin, Bound::Unbounded)) {
            if !key.starts_with(prefix) || !visit(key) {
                break;
            }
        }
        Ok(())
    }

    /// Counts on, by so many. Up to where.
    pub fn count(&mut self, name: &[u8], by: u64) -> Result<u64, Failure> {
        if by == 0 {
            return Ok(self.tables.counters.get(name).copied().unwrap_or(0));
        }
        let count = self.tables.counters.entry(name.to_vec()).or_default();
        *count += by;
        Ok(*count)
    }

    pub fn give_up(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}
