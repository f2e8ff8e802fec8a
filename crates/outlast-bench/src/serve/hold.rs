//! A process that opens connections when told to, and then does nothing.

use super::DESCRIPTORS;
use crate::ground::{End, Ground};
use crate::launch::{Helper, Launch};
use crate::options::HoldArguments;
use crate::place;
use crate::wire::Endpoint;
use crate::wire::asynchronous::Dialer;
use crate::wire::identity::Identity;
use anyhow::{Context, Result, bail};
use std::io::BufRead;
use std::net::SocketAddr;
use tokio::task::JoinSet;

/// Connections being opened at the same time.
const OPENING_MAX: usize = 64;

/// Opens connections and holds them until the standard input ends.
pub fn run(arguments: &HoldArguments) -> Result<()> {
    place::raise_descriptor_limit(DESCRIPTORS).context("cannot have many descriptors")?;
    let dialer = Dialer::new(arguments.endpoint, arguments.to, &Identity::new()?)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut held = Vec::with_capacity(arguments.count);
    // One goes first, so that what is there once does not count for each.
    runtime.block_on(open(&dialer, 1, &mut held))?;
    println!("ready");
    let (sender, mut told) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    runtime.block_on(async {
        if told.recv().await.is_none() {
            return Ok(());
        }
        open(&dialer, arguments.count, &mut held).await?;
        println!("open");
        // The runtime goes on working while it waits: what sessions do when idle is what is measured.
        while told.recv().await.is_some() {}
        anyhow::Ok(())
    })
}

async fn open(
    dialer: &Dialer,
    count: usize,
    held: &mut Vec<crate::wire::asynchronous::Stream>,
) -> Result<()> {
    let mut opening = JoinSet::new();
    for started in 0..count {
        if started >= OPENING_MAX {
            held.push(opening.join_next().await.context("nothing is opening")???);
        }
        let dialer = dialer.clone();
        opening.spawn(async move {
            let mut stream = dialer.dial().await?;
            stream.warm_up(1).await?;
            anyhow::Ok(stream)
        });
    }
    while let Some(opened) = opening.join_next().await {
        held.push(opened??);
    }
    Ok(())
}

/// A holding process at the client's end of an experiment.
pub struct Holder {
    helper: Helper,
}

impl Holder {
    /// Starts one; it has opened one connection.
    pub fn start(ground: &Ground, endpoint: Endpoint, to: SocketAddr, count: usize) -> Result<Self> {
        let arguments = [
            "hold",
            "--to",
            &to.to_string(),
            "--endpoint",
            &endpoint.to_string(),
            "--count",
            &count.to_string(),
        ]
        .map(str::to_owned);
        let mut helper = Launch::this(ground, End::Client)?.arguments(arguments).start_helper()?;
        match helper.hear()?.as_str() {
            "ready" => Ok(Self { helper }),
            other => bail!("the holding process says {other:?}"),
        }
    }

    /// Opens the connections; each has gone round once.
    pub fn open(&mut self) -> Result<()> {
        self.helper.say("open")?;
        match self.helper.hear()?.as_str() {
            "open" => Ok(()),
            other => bail!("the holding process says {other:?}"),
        }
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.helper.pid()
    }
}
