//! Sessions against what else there is, and the relay pair against a pair of relays that only splice.
//!
//! MPTCP and QUIC are used directly, as sessions are; relays stand at both ends of the cable, so that a byte takes
//! three connections. ssh and QUIC encrypt, the others do not. All processes of an end share its core.

use super::{Setting, in_turns, runtime};
use crate::options::{Options, PathKind, Placement};
use crate::peers::{self, Relay};
use crate::series::{Bench, Lane, MEDIAN_RATE, Metric, P50, P99, THROUGHPUT};
use crate::stats::Latencies;
use crate::wire::{Endpoint, Face, Guard, Kind, Mode, asynchronous, blocking};
use anyhow::Result;
use serde_json::Value;
use std::time::Duration;
use tokio::runtime::Runtime;

const ECHO: Endpoint = Endpoint { face: Face::Blocking, kind: Kind::Raw };
const QUIC: Endpoint = Endpoint { face: Face::Tokio, kind: Kind::Quic };
const WARM_UP: usize = 50;

enum Dialer {
    Blocking(blocking::Dialer),
    Tokio(asynchronous::Dialer),
}

/// One way to reach the server.
struct Peer {
    lane: Lane,
    dialer: Dialer,
}

pub fn run(name: &'static str, options: &Options) -> Result<Value> {
    let (setting, mut report) = Setting::new(name, options, PathKind::Veth, Placement::Same)?;
    let direct = [Mode::Kernel, Mode::Inband]
        .map(|mode| Endpoint::new(Face::Blocking, Kind::Session(mode, Guard::Open)));
    let mptcp = Endpoint::new(Face::Blocking, Kind::Mptcp);
    let mut endpoints = vec![ECHO, QUIC];
    endpoints.extend(direct);
    match socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, Some(socket2::Protocol::MPTCP)) {
        Ok(_) => endpoints.push(mptcp),
        Err(error) => report.warn(format!("skipped: MPTCP: {error}")),
    }
    let server = setting.serve(&endpoints, 1)?;
    let (relays, skipped) = peers::start_all(&setting.ground, options, server.address(ECHO)?);
    for why in skipped {
        report.warn(format!("skipped: {why}"));
    }
    let helpers: Vec<u32> = relays.iter().flat_map(Relay::pids).chain([server.pid()]).collect();
    let mut all = Vec::new();
    for endpoint in &endpoints {
        let dialer = match endpoint.face {
            Face::Blocking => {
                let made = blocking::Dialer::new(*endpoint, server.address(*endpoint)?, &setting.identity)?;
                if *endpoint == ECHO {
                    let lane = Lane::raw("direct");
                    all.push(Peer { lane, dialer: Dialer::Blocking(made.clone()) });
                    let lane = Lane::again("direct again", 0);
                    all.push(Peer { lane, dialer: Dialer::Blocking(made) });
                    continue;
                }
                Dialer::Blocking(made)
            }
            Face::Tokio => Dialer::Tokio(asynchronous::Dialer::new(
                *endpoint,
                server.address(*endpoint)?,
                &setting.identity,
            )?),
        };
        all.push(Peer { lane: Lane::against(endpoint.kind.to_string().replace('-', " "), 0), dialer });
    }
    let splice = all.len();
    for relay in &relays {
        let dialer = |_: ()| {
            Ok::<_, anyhow::Error>(Dialer::Blocking(blocking::Dialer::new(
                ECHO,
                relay.address,
                &setting.identity,
            )?))
        };
        if relay.name == peers::SPLICE {
            all.push(Peer { lane: Lane::against(format!("{} pair", relay.name), 0), dialer: dialer(())? });
            all.push(Peer {
                lane: Lane::again(format!("{} pair again", relay.name), splice),
                dialer: dialer(())?,
            });
        } else {
            let against = if relay.name.starts_with(peers::OUTLAST) { splice } else { 0 };
            all.push(Peer {
                lane: Lane::against(format!("{} pair", relay.name), against),
                dialer: dialer(())?,
            });
        }
    }
    let sizes = options.sizes(options.pick(
        &[8192],
        &[8 << 10, 64 << 10],
        &[64, 1 << 10, 8 << 10, 64 << 10, 1 << 20],
    ));
    let mut bench = Bench::new(options, report, 2 + sizes.len(), &helpers);
    let runtime = runtime()?;
    let window = Duration::from_millis(options.pick(4, 60, 150));
    measure(&mut bench, "round trips", &all, &[MEDIAN_RATE, P50, P99], |peer| {
        round_trips(peer, &runtime, window)
    })?;
    let metrics = [MEDIAN_RATE, P50, P99];
    measure(&mut bench, "transactions", &all, &metrics, |peer| transactions(peer, &runtime, window))?;
    for &size in &sizes {
        let group = format!("{size} B writes");
        measure(&mut bench, &group, &all, &[THROUGHPUT], |peer| flood(peer, &runtime, size, window))?;
    }
    bench.finish()
}

fn measure(
    bench: &mut Bench,
    group: &str,
    peers: &[Peer],
    metrics: &[Metric],
    mut one: impl FnMut(&Peer) -> Result<Vec<f64>>,
) -> Result<()> {
    let lanes: Vec<Lane> = peers.iter().map(|peer| peer.lane.clone()).collect();
    let outcome = bench.series(group, lanes, metrics, |order| in_turns(order, |lane| one(&peers[lane])))?;
    for (lane, peer) in peers.iter().enumerate() {
        let name = peer.lane.name.as_str();
        if peer.lane.again || peer.lane.against.is_none() || name.starts_with(peers::SPLICE) {
            continue;
        }
        if name.starts_with(peers::OUTLAST) {
            bench.report.claim_ratio_to_both("peers/relay", &outcome, lane, 0);
        } else if name.starts_with("session") {
            bench.report.claim_ratio("peers/session-to-direct", &outcome, lane, 0);
        } else if let Some(session) = outcome.lane("session kernel open") {
            // How many times as fast as each of the others.
            let name = format!("peers/session-to-{}", name.replace(' ', "-"));
            bench.report.claim_ratio_to(&name, &outcome, lane, session, 0);
        }
    }
    Ok(())
}

fn round_trips(peer: &Peer, runtime: &Runtime, window: Duration) -> Result<Vec<f64>> {
    let mut latencies = Latencies::with_capacity(50_000);
    match &peer.dialer {
        Dialer::Blocking(dialer) => {
            let mut link = dialer.dial()?;
            link.warm_up(WARM_UP)?;
            link.round_trips(window, &mut latencies)?;
        }
        Dialer::Tokio(dialer) => runtime.block_on(async {
            let mut stream = dialer.dial().await?;
            stream.warm_up(WARM_UP).await?;
            stream.round_trips(window, &mut latencies).await?;
            anyhow::Ok(())
        })?,
    }
    let p50 = latencies.quantile_us(0.5);
    Ok(vec![1e6 / p50, p50, latencies.quantile_us(0.99)])
}

fn transactions(peer: &Peer, runtime: &Runtime, window: Duration) -> Result<Vec<f64>> {
    let mut latencies = Latencies::with_capacity(20_000);
    match &peer.dialer {
        Dialer::Blocking(dialer) => dialer.transactions(window, &mut latencies)?,
        Dialer::Tokio(dialer) => runtime.block_on(dialer.transactions(window, &mut latencies))?,
    }
    let p50 = latencies.quantile_us(0.5);
    Ok(vec![1e6 / p50, p50, latencies.quantile_us(0.99)])
}

fn flood(peer: &Peer, runtime: &Runtime, size: usize, window: Duration) -> Result<Vec<f64>> {
    let flood = match &peer.dialer {
        Dialer::Blocking(dialer) => dialer.dial()?.flood(size, window, false)?,
        Dialer::Tokio(dialer) => {
            runtime.block_on(async { anyhow::Ok(dialer.dial().await?.flood(size, window, false).await?) })?
        }
    };
    Ok(vec![flood.megabytes_per_second()])
}
