//! What replication adds to a round trip: the same server alone, and on one machine to four (TCP-ABC 2005, Figure 4).
//!
//! All connections of a repeat are open at the same time and take turns in blocks, as with 1-byte round trips of sessions.

use super::{Setting, claim_each};
use crate::options::{Options, PathKind, Placement};
use crate::replica::Machines;
use crate::series::{Bench, Lane, P50, P99};
use crate::stats::Latencies;
use crate::wire::blocking::Link;
use anyhow::Result;
use serde_json::Value;
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

/// Turns that each connection takes within a repeat.
const BLOCKS: u32 = 5;
/// Round trips before the first block, and before each.
const WARM_UP: usize = 300;
const WARM_UP_BLOCK: usize = 20;
/// Most round trips of a connection in a repeat that there is room for from the start.
const ROOM: usize = 100_000;
/// Machines with a server.
const COUNTS: [u8; 4] = [1, 2, 3, 4];
/// Of messages: those of NetPIPE's steps that tell most.
const SIZES: [usize; 5] = [1, 64, 1024, 8192, 65536];
const QUICK_SIZES: [usize; 2] = [1, 1024];

pub fn run(name: &'static str, options: &Options) -> Result<Value> {
    let begun = Instant::now();
    let (setting, report) = Setting::new(name, options, PathKind::Lo, Placement::Same)?;
    let ground = &setting.ground;
    let mut machines = Machines::new(options, ground.scratch(), &ground.cores.server)?;
    let alone = machines.alone()?;
    let groups = COUNTS.iter().map(|count| machines.group(*count)).collect::<Result<Vec<_>>>()?;
    let _inside = machines.client.enter_guard()?;
    let sizes = options.sizes(options.pick(&QUICK_SIZES[..1], &QUICK_SIZES, &SIZES));
    let mut bench = Bench::new(options, report, sizes.len(), &[]);
    bench.count_family();
    bench.spend(begun.elapsed());
    let addresses: Vec<SocketAddr> =
        [alone.address; 2].into_iter().chain(groups.iter().map(|group| group.portal)).collect();
    let nodes = |count: &u8| format!("{count} {}", if *count == 1 { "node" } else { "nodes" });
    for size in sizes {
        let replicas = COUNTS.iter().map(|count| Lane::against(nodes(count), 0));
        let lanes = [Lane::raw("alone"), Lane::again("alone again", 0)].into_iter().chain(replicas).collect();
        let outcome = bench.series(&format!("{size} bytes"), lanes, &[P50, P99], |order| {
            let mut links = addresses.iter().map(dial).collect::<Result<Vec<_>>>()?;
            let mut message = vec![0; size];
            let mut latencies = vec![Latencies::with_capacity(ROOM); links.len()];
            for _ in 0..BLOCKS {
                for &lane in order {
                    let link = &mut links[lane];
                    for _ in 0..WARM_UP_BLOCK {
                        std::io::Write::write_all(link, &message)?;
                        std::io::Read::read_exact(link, &mut message)?;
                    }
                    link.ping_pong(&mut message, options.window() / BLOCKS, &mut latencies[lane])?;
                }
            }
            let figures = |each: &mut Latencies| vec![each.quantile_us(0.5), each.quantile_us(0.99)];
            Ok(latencies.iter_mut().map(figures).collect())
        })?;
        claim_each(&mut bench, &outcome, 0, |lane| {
            format!("replica/latency/{}/{size}", nodes(&COUNTS[lane - 2]).replace(' ', "-"))
        });
    }
    bench.finish()
}

fn dial(address: &SocketAddr) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.warm_up(WARM_UP)?;
    Ok(stream)
}
