//! From a broken link to bytes flowing in both directions again.
//!
//! The client's end of the link is aborted by its kernel, which the session notices at once: detection, which is a
//! matter of time-outs, is left out. Measured is the time from there until a byte written by the client has come
//! back from the server's application, which includes noticing the abort, connecting, the handshake with whatever
//! is sent again, and the round trip. The session's own account (from noticing to resumed) is given beside it, and so
//! is what a program without sessions needs to connect again and get its first byte back.

use super::{Setting, in_turns, runtime};
use crate::ground::{End, Ground};
use crate::options::{Faces, Options, PathKind, Placement};
use crate::series::{Bench, Better, Lane, Metric, P50, P99};
use crate::stats::Latencies;
use crate::wire::blocking::Link;
use crate::wire::{Endpoint, Face, Guard, Kind, Mode, asynchronous, blocking};
use anyhow::{Context, Result, ensure};
use outlast_lab::Connections;
use outlast_session::{EventKind, Events};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The session's own account of a pause, from noticing the loss to the new link.
const OWN: Metric = Metric { name: "own pause p50", unit: "us", better: Better::Lower };
/// Between a resume and the next break, so that the server is done with the old link.
const REST: Duration = Duration::from_millis(1);

pub fn run(name: &'static str, options: &Options) -> Result<Value> {
    let (setting, report) = Setting::new(name, options, PathKind::Veth, Placement::Same)?;
    let faces = options.faces(Faces::Both);
    let kinds = kinds(options);
    let endpoints: Vec<Endpoint> =
        faces.iter().flat_map(|face| kinds.iter().map(|kind| Endpoint::new(*face, *kind))).collect();
    let server = setting.serve(&endpoints, 1)?;
    let mut bench = Bench::new(options, report, faces.len(), &[server.pid()]);
    let times = options.pick(2, 40, 100);
    for &face in faces {
        let lanes = kinds.iter().enumerate().map(|(index, kind)| match (index, kind) {
            (0, _) => Lane::raw("raw, connect again"),
            (1, _) => Lane::again("raw, connect again, again", 0),
            (_, kind) => Lane::against(kind.to_string().replace('-', " "), 0),
        });
        let breakages = kinds
            .iter()
            .map(|kind| {
                let endpoint = Endpoint::new(face, *kind);
                Breakages::new(&setting, endpoint, server.address(endpoint)?, times)
            })
            .collect::<Result<Vec<_>>>()?;
        let outcome = bench.series(face.name(), lanes.collect(), &[P50, P99, OWN], |order| {
            in_turns(order, |lane| breakages[lane].measure())
        })?;
        for (lane, kind) in kinds.iter().enumerate() {
            if let Kind::Session(mode, guard) = kind {
                let named = match (mode, guard) {
                    (Mode::Auto | Mode::Kernel, Guard::Open) => "resume/p50".to_owned(),
                    _ => format!("resume/p50/{}/{}", mode.name(), guard.name()),
                };
                bench.report.claim_value(&named, &outcome, lane, 0);
            }
        }
    }
    bench.finish()
}

/// The modes asked for, each with `open`, and the securities with the modes that they suit.
fn kinds(options: &Options) -> Vec<Kind> {
    let modes = options.modes(&[Mode::Kernel, Mode::Inband]);
    let mut kinds = vec![Kind::Raw, Kind::Raw];
    kinds.extend(modes.iter().map(|mode| Kind::Session(*mode, Guard::Open)));
    if let Some(first) = modes.first() {
        kinds.push(Kind::Session(*first, Guard::Psk));
    }
    if modes.contains(&Mode::Inband) || modes.contains(&Mode::Auto) {
        kinds.push(Kind::Session(Mode::Inband, Guard::Tls));
    }
    kinds
}

/// Breaks a connection again and again.
struct Breakages<'a> {
    ground: &'a Ground,
    address: SocketAddr,
    times: usize,
    way: Way,
}

enum Way {
    Reconnect(blocking::Dialer),
    ReconnectTokio(asynchronous::Dialer, tokio::runtime::Runtime),
    Resume(blocking::Dialer),
    ResumeTokio(asynchronous::Dialer, tokio::runtime::Runtime),
}

impl<'a> Breakages<'a> {
    fn new(setting: &'a Setting, endpoint: Endpoint, address: SocketAddr, times: usize) -> Result<Self> {
        let session = matches!(endpoint.kind, Kind::Session(..));
        let way = match endpoint.face {
            Face::Blocking => {
                let dialer = blocking::Dialer::new(endpoint, address, &setting.identity)?;
                if session { Way::Resume(dialer) } else { Way::Reconnect(dialer) }
            }
            Face::Tokio => {
                let dialer = asynchronous::Dialer::new(endpoint, address, &setting.identity)?;
                let runtime = runtime()?;
                if session { Way::ResumeTokio(dialer, runtime) } else { Way::ReconnectTokio(dialer, runtime) }
            }
        };
        Ok(Self { ground: &setting.ground, address, times, way })
    }

    fn measure(&self) -> Result<Vec<f64>> {
        let mut seen = Latencies::default();
        let mut own = Latencies::default();
        match &self.way {
            Way::Reconnect(dialer) => {
                for _ in 0..self.times {
                    let start = Instant::now();
                    dialer.dial()?.warm_up(1)?;
                    seen.push(start.elapsed());
                }
            }
            Way::ReconnectTokio(dialer, runtime) => runtime.block_on(async {
                for _ in 0..self.times {
                    let start = Instant::now();
                    dialer.dial().await?.warm_up(1).await?;
                    seen.push(start.elapsed());
                }
                anyhow::Ok(())
            })?,
            Way::Resume(dialer) => self.resume(dialer, &mut seen, &mut own)?,
            Way::ResumeTokio(dialer, runtime) => {
                runtime.block_on(self.resume_tokio(dialer, &mut seen, &mut own))?;
            }
        }
        // Who has no sessions has no account either.
        let own_p50 = if own.len() == 0 { f64::NAN } else { own.quantile_us(0.5) };
        Ok(vec![seen.quantile_us(0.5), seen.quantile_us(0.99), own_p50])
    }

    fn resume(&self, dialer: &blocking::Dialer, seen: &mut Latencies, own: &mut Latencies) -> Result<()> {
        let mut session = dialer.session()?;
        session.warm_up(10)?;
        let mut events = session.events();
        let mut byte = [0];
        for _ in 0..self.times {
            self.cut(session.local_addr().ok())?;
            let start = Instant::now();
            session.write_all(&byte)?;
            session.read_exact(&mut byte)?;
            seen.push(start.elapsed());
            session.warm_up(2)?;
            std::thread::sleep(REST);
            ensure!(drain(&mut events, own) > 0, "a link was cut and the session did not notice");
        }
        Ok(())
    }

    async fn resume_tokio(
        &self,
        dialer: &asynchronous::Dialer,
        seen: &mut Latencies,
        own: &mut Latencies,
    ) -> Result<()> {
        let mut session = dialer.session().await?;
        let mut byte = [crate::wire::wants::ECHO];
        for _ in 0..10 {
            session.write_all(&byte).await?;
            session.read_exact(&mut byte).await?;
        }
        let mut events = session.events();
        for _ in 0..self.times {
            self.cut(session.local_addr().ok())?;
            let start = Instant::now();
            session.write_all(&byte).await?;
            session.read_exact(&mut byte).await?;
            seen.push(start.elapsed());
            tokio::time::sleep(REST).await;
            ensure!(drain(&mut events, own) > 0, "a link was cut and the session did not notice");
        }
        Ok(())
    }

    /// Returns when the link is broken at the client.
    fn cut(&self, local: Option<SocketAddr>) -> Result<()> {
        if let Some(host) = self.ground.host(End::Client) {
            let cut = host.abort_connections(Connections::on_port(self.address.port()))?;
            ensure!(cut > 0, "there was no link to cut");
            return Ok(());
        }
        let local = local.context("the session has no address")?;
        disconnect_own_socket(local)
    }
}

/// How often the session resumed; adds its own account of the pauses.
fn drain(events: &mut Events, own: &mut Latencies) -> usize {
    let mut resumed = 0;
    while let Some(event) = events.try_recv() {
        if let EventKind::Resumed { pause, .. } = event.kind {
            own.push(pause);
            resumed += 1;
        }
    }
    resumed
}

/// Without a lab: aborts the connection of this process that has this address, with a reset to the peer.
fn disconnect_own_socket(local: SocketAddr) -> Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd")?.flatten() {
        let Some(fd) = entry.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok()) else {
            continue;
        };
        if !std::fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:")) {
            continue;
        }
        // SAFETY: the descriptor was open a moment ago and its owner, the session, is not in use meanwhile.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let socket = socket2::SockRef::from(&fd);
        if socket.local_addr().ok().and_then(|address| address.as_socket()) == Some(local) {
            return disconnect(fd.as_raw_fd()).context("cannot break the link");
        }
    }
    anyhow::bail!("no socket has the address {local}")
}

/// Connecting to no address at all aborts a connection.
fn disconnect(fd: RawFd) -> std::io::Result<()> {
    // SAFETY: an all-zero address is a valid one; its family says that there is none.
    let mut nowhere: libc::sockaddr = unsafe { std::mem::zeroed() };
    nowhere.sa_family = libc::sa_family_t::try_from(libc::AF_UNSPEC).map_err(std::io::Error::other)?;
    let size = libc::socklen_t::try_from(std::mem::size_of_val(&nowhere)).map_err(std::io::Error::other)?;
    // SAFETY: the address is ours and its size is given.
    match unsafe { libc::connect(fd, &raw const nowhere, size) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
