//! The master of several workers: it answers them what all of them have done. Both sides of the channel are here.
//!
//! A question is a line, and so is its answer. There is one at a time on a channel, and all are the same: so a worker's next
//! generation, which cannot know which client the last one has asked for, goes on with the right bytes.

use super::{PROCESSES, Store};
use crate::service::Failure;
use outlast_restart::{Connection, Generation, tokio as held};
use std::io;
use tokio::io::AsyncWriteExt;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};

const QUESTION: &[u8] = b"status\n";
/// In the note of a worker's channel: there is a question that may be written in part.
const ASKED: &[u8] = b"asked";
/// Clients that wait for the status. More wait for those.
const WAITING: usize = 64;

/// In the master: answers all workers, each by a thread of its own.
pub fn serve(
    mut generation: Generation,
    store: &Store,
    workers: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    std::thread::scope(|scope| {
        for channel in generation.channels()? {
            scope.spawn(move || {
                if let Err(failure) = answer(channel.connection, store, workers) {
                    failure.tell();
                }
            });
        }
        Ok(())
    })
}

fn answer(mut worker: Connection, store: &Store, workers: usize) -> Result<(), Failure> {
    // What the last generation has answered and not sent.
    worker.flush()?;
    loop {
        while let Some(length) = line(worker.input()) {
            // The next generation would read other counts: so what is answered is a part of the state.
            worker.transact::<Failure>(length, |tx| {
                let requests: [u64; PROCESSES] = tx.get(store.requests)?;
                let counts: Vec<String> = requests.iter().skip(1).take(workers).map(u64::to_string).collect();
                Ok(format!("{}\n", counts.join(" ")).into_bytes())
            })?;
        }
        if worker.receive()? == 0 {
            return Err(Failure::Other("a worker's channel has ended".to_owned()));
        }
    }
}

/// How long the first line is, with its end.
fn line(input: &[u8]) -> Option<usize> {
    input.iter().position(|&byte| byte == b'\n').map(|place| place + 1)
}

/// In a worker: whom its clients ask.
#[derive(Clone, Debug)]
pub struct Master(mpsc::Sender<oneshot::Sender<Vec<u8>>>);

impl Master {
    pub fn ask_through(channel: Connection, runtime: &Runtime) -> io::Result<Self> {
        let (sender, waiting) = mpsc::channel(WAITING);
        let channel = {
            let _runtime = runtime.enter();
            held::Connection::new(channel)?
        };
        runtime.spawn(channel.attributed(async move |channel| {
            if let Err(error) = ask(channel, waiting).await {
                Failure::from(error).tell();
            }
        }));
        Ok(Self(sender))
    }

    /// None: there is no answer, and will be none.
    pub async fn status(&self) -> Option<Vec<u8>> {
        let (sender, answer) = oneshot::channel();
        self.0.send(sender).await.ok()?;
        answer.await.ok()
    }
}

/// For one client after the other.
async fn ask(
    mut master: held::Connection,
    mut waiting: mpsc::Receiver<oneshot::Sender<Vec<u8>>>,
) -> io::Result<()> {
    if master.note() == ASKED {
        // By the last generation. What it has written of it is not written again, and nobody waits for the answer.
        question(&mut master).await?;
    }
    while let Some(client) = waiting.recv().await {
        master.set_note(ASKED)?;
        master.done(0);
        let _ = client.send(question(&mut master).await?);
    }
    Ok(())
}

async fn question(master: &mut held::Connection) -> io::Result<Vec<u8>> {
    master.write_all(QUESTION).await?;
    loop {
        if let Some(length) = line(master.input()) {
            let answer = master.input()[..length].to_vec();
            master.set_note(b"")?;
            master.done(length);
            return Ok(answer);
        }
        if master.receive().await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}
