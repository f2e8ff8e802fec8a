//! The near side: local programs come in, sessions go out.

use crate::carry::{Carrier, Program};
use crate::exit::Failure;
use crate::narrate::Narrator;
use crate::plan::{ConnectPlan, FrontPlan};
use crate::registry::Registry;
use crate::server::{cannot_listen, listen};
use crate::sparingly::Sparingly;
use crate::unix_socket::{FileId, bind_replacing, file_at};
use anyhow::Result;
use outlast_session::relay::dial::plain;
use outlast_session::relay::transparent::TransparentListener;
use outlast_session::relay::{Destination, Local, LocalListener};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// As often as it is tried again while descriptors are short.
static CANNOT_ACCEPT: Sparingly = Sparingly::new();
static PROGRAMS_WAIT: Sparingly = Sparingly::new();

/// One listener for local programs.
#[derive(Debug)]
pub struct Front {
    socket: Socket,
    carrier: Arc<Carrier>,
    places: Arc<Semaphore>,
    /// Those of the whole process.
    descriptors: Arc<Semaphore>,
}

/// Where local programs come in.
#[derive(Debug)]
enum Socket {
    Tcp(LocalListener),
    Unix { listener: UnixListener, path: PathBuf, file: Option<FileId> },
    Socks5(TcpListener),
    HttpConnect(TcpListener),
    Transparent(TransparentListener),
}

/// Places for so many programs, for all fronts of a process.
pub fn places_for(programs: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(programs.min(Semaphore::MAX_PERMITS)))
}

/// Listens on all fronts of a plan but standard input and output. Each program that comes takes one of `descriptors`.
pub async fn bind(plan: ConnectPlan, descriptors: &Arc<Semaphore>) -> Result<Vec<Front>> {
    let places = places_for(plan.sessions_max);
    let fronts = plan.fronts.clone();
    let carrier = Arc::new(Carrier::new(plan));
    let mut bound = Vec::new();
    for front in fronts {
        let socket = match front {
            FrontPlan::Stdio => continue,
            FrontPlan::Tcp(address) => Socket::Tcp(LocalListener::new(listen(address)?)?),
            FrontPlan::Socks5(address) => Socket::Socks5(tcp(address)?),
            FrontPlan::HttpConnect(address) => Socket::HttpConnect(tcp(address)?),
            FrontPlan::Transparent(address) => Socket::Transparent(transparent(address)?),
            FrontPlan::Unix(path) => {
                let listener = unix(&path)?;
                Socket::Unix { listener, file: file_at(&path), path }
            }
        };
        bound.push(Front {
            socket,
            carrier: Arc::clone(&carrier),
            places: Arc::clone(&places),
            descriptors: Arc::clone(descriptors),
        });
    }
    Ok(bound)
}

fn tcp(address: SocketAddr) -> Result<TcpListener> {
    Ok(TcpListener::from_std(listen(address)?)?)
}

fn unix(path: &Path) -> Result<UnixListener> {
    let name = format!("unix:{}", path.display());
    let listener = bind_replacing(path).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => Failure::system(format!(
            "cannot listen on {name}: the path is in use: choose another, or remove it"
        )),
        _ => cannot_listen(&name, &error),
    })?;
    listener.set_nonblocking(true)?;
    Ok(UnixListener::from_std(listener)?)
}

fn transparent(address: SocketAddr) -> Result<TransparentListener> {
    let listener =
        TransparentListener::bind(address).map_err(|error| cannot_listen(&address.to_string(), &error))?;
    if !listener.serves_tproxy() {
        tracing::warn!("no CAP_NET_ADMIN: --transparent serves REDIRECT rules, not TPROXY");
    }
    Ok(listener)
}

impl Front {
    /// What it does, on one line.
    pub fn describe(&self) -> String {
        let kind = match &self.socket {
            Socket::Tcp(_) | Socket::Unix { .. } => "",
            Socket::Socks5(_) => " (SOCKS5)",
            Socket::HttpConnect(_) => " (HTTP CONNECT)",
            Socket::Transparent(_) => " (transparent)",
        };
        let address = match &self.socket {
            Socket::Unix { path, .. } => format!("unix:{}", path.display()),
            Socket::Tcp(listener) => {
                listener.local_addr().map(|address| address.to_string()).unwrap_or_default()
            }
            Socket::Socks5(listener) | Socket::HttpConnect(listener) => {
                listener.local_addr().map(|address| address.to_string()).unwrap_or_default()
            }
            Socket::Transparent(listener) => listener.local_addr().to_string(),
        };
        format!("listening on {address}{kind}, via {}, {}", self.carrier.via(), self.carrier.security())
    }

    /// Accepts local programs until dropped. In a full house one waits here, and others in the kernel's queue: a place that is taken
    /// before anybody has come would be one that other fronts do not have.
    pub async fn accept(self, registry: Arc<Registry>, narrator: Narrator) {
        loop {
            match self.next().await {
                Ok(program) => {
                    let Ok(place) = Arc::clone(&self.places).acquire_owned().await else { return };
                    let Some(descriptors) = self.descriptors().await else { return };
                    let carrier = Arc::clone(&self.carrier);
                    let (registry, narrator) = (Arc::clone(&registry), narrator.clone());
                    tokio::spawn(async move {
                        carrier.carry(program, &registry, &narrator).await;
                        drop((place, descriptors));
                    });
                }
                Err(error) => {
                    // Out of descriptors, most likely: others have to end first.
                    if let Some(skipped) = CANNOT_ACCEPT.due(Instant::now()) {
                        tracing::error!(skipped, "cannot accept local connections: {}", plain(&error));
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Descriptors for one program and its link.
    async fn descriptors(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = Arc::clone(&self.descriptors).try_acquire_owned() {
            return Some(place);
        }
        if let Some(skipped) = PROGRAMS_WAIT.due(Instant::now()) {
            tracing::warn!(
                skipped,
                "local programs wait until others end: there would be no descriptors for their links. Raise the limit \
                 (ulimit -n, in a unit LimitNOFILE)"
            );
        }
        Arc::clone(&self.descriptors).acquire_owned().await.ok()
    }

    async fn next(&self) -> io::Result<Program> {
        let accepted = |(stream, _): (TcpStream, SocketAddr)| stream;
        Ok(match &self.socket {
            Socket::Tcp(listener) => Program::Plain(listener.accept().await?),
            Socket::Unix { listener, .. } => Program::Plain(Local::from(listener.accept().await?.0)),
            Socket::Socks5(listener) => Program::Socks5(accepted(listener.accept().await?)),
            Socket::HttpConnect(listener) => Program::HttpConnect(accepted(listener.accept().await?)),
            Socket::Transparent(listener) => {
                let (stream, peer, destination) = listener.accept().await?;
                Program::Diverted(stream, self.diverted(peer, destination))
            }
        })
    }

    fn diverted(&self, peer: SocketAddr, destination: Option<Destination>) -> Option<Destination> {
        if destination.is_none() {
            tracing::warn!(%peer, "connected to the transparent listener itself: no rule has diverted it");
        }
        destination
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        if let Socket::Unix { path, file, .. } = &self.socket
            && file.is_some()
            && file_at(path) == *file
        {
            std::fs::remove_file(path).ok();
        }
    }
}
