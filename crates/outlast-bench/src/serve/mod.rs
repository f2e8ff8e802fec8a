//! The other end of every experiment: a process that listens with several endpoints and does what clients want.

mod asynchronous;
mod blocking;
pub mod hold;

use crate::ground::{End, Ground};
use crate::launch::{Helper, Launch};
use crate::options::ServeArguments;
use crate::place;
use crate::wire::identity::Identity;
use crate::wire::{Endpoint, Face};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::io::Read;
use std::net::SocketAddr;

/// Descriptors for 10,000 connections and what else there is.
pub const DESCRIPTORS: u64 = 32_768;
/// Bytes read at once by those that echo and count.
const BUFFER_BYTES: usize = 128 << 10;

/// Serves until the standard input ends.
pub fn run(arguments: &ServeArguments) -> Result<()> {
    place::raise_descriptor_limit(DESCRIPTORS).context("cannot have many descriptors")?;
    let identity = match &arguments.identity {
        Some(folder) => Identity::load(folder)?,
        None => Identity::new()?,
    };
    let runtime = asynchronous::Runtime::start(arguments.workers)?;
    let mut ports = BTreeMap::new();
    for endpoint in &arguments.endpoints {
        let address = SocketAddr::new(arguments.address, 0);
        let bound = match endpoint.face {
            Face::Blocking => blocking::listen(*endpoint, address, &identity),
            Face::Tokio => runtime.listen(*endpoint, address, &identity),
        };
        ports.insert(endpoint.to_string(), bound.with_context(|| format!("cannot serve {endpoint}"))?.port());
    }
    println!("{}", serde_json::to_string(&ports)?);
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// A serving process at the server's end of an experiment.
pub struct Server {
    helper: Helper,
    ports: BTreeMap<String, u16>,
    address: std::net::IpAddr,
}

impl Server {
    /// Starts one that listens for all these clients.
    pub fn start(ground: &Ground, clients: &[Endpoint], workers: usize) -> Result<Self> {
        let mut arguments =
            vec!["serve".to_owned(), "--address".to_owned(), ground.server_address().to_string()];
        arguments.extend(["--workers".to_owned(), workers.to_string()]);
        arguments.extend(["--identity".to_owned(), ground.scratch().display().to_string()]);
        let mut listening: Vec<Endpoint> = Vec::new();
        for endpoint in clients.iter().map(|client| client.served_by()) {
            if !listening.contains(&endpoint) {
                listening.push(endpoint);
                arguments.extend(["--endpoint".to_owned(), endpoint.to_string()]);
            }
        }
        let mut helper = Launch::this(ground, End::Server)?.arguments(arguments).start_helper()?;
        let ports = serde_json::from_str(&helper.hear()?).context("the serving process is not understood")?;
        Ok(Self { helper, ports, address: ground.server_address() })
    }

    /// Where a client connects.
    pub fn address(&self, client: Endpoint) -> Result<SocketAddr> {
        let endpoint = client.served_by().to_string();
        let port = self.ports.get(&endpoint).with_context(|| format!("{endpoint} is not served"))?;
        Ok(SocketAddr::new(self.address, *port))
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.helper.pid()
    }
}
