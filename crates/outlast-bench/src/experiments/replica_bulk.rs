//! Bulk data through a replicated server, to it and from it: the same server alone, and on two machines.

use super::{Setting, claim_each, in_turns};
use crate::options::{Options, PathKind, Placement};
use crate::replica::Machines;
use crate::series::{Bench, Lane, THROUGHPUT};
use crate::wire::blocking::Link;
use anyhow::Result;
use serde_json::Value;
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

/// Of each write.
const WRITE_BYTES: usize = 64 << 10;
/// From the server in each repeat.
const BYTES: u64 = 256 << 20;
const QUICK_BYTES: u64 = 64 << 20;
const SMOKE_BYTES: u64 = 1 << 20;

pub fn run(name: &'static str, options: &Options) -> Result<Value> {
    let begun = Instant::now();
    let (setting, report) = Setting::new(name, options, PathKind::Lo, Placement::Cross)?;
    let ground = &setting.ground;
    let mut machines = Machines::new(options, ground.scratch(), ground.home())?;
    let alone = machines.alone()?;
    let group = machines.group(2)?;
    let _inside = machines.client.enter_guard()?;
    let mut bench = Bench::new(options, report, 2, &[]);
    bench.count_family();
    bench.spend(begun.elapsed());
    let addresses = [alone.address, alone.address, group.portal];
    let lanes = || vec![Lane::raw("alone"), Lane::again("alone again", 0), Lane::against("2 nodes", 0)];
    let bytes = options.pick(SMOKE_BYTES, QUICK_BYTES, BYTES);
    let to = bench.series("to the server", lanes(), &[THROUGHPUT], |order| {
        in_turns(order, |lane| {
            let sent = dial(addresses[lane])?.flood(WRITE_BYTES, options.window(), false)?;
            Ok(vec![sent.megabytes_per_second()])
        })
    })?;
    claim_each(&mut bench, &to, 0, |_| "replica/bulk/to-server".to_owned());
    let from = bench.series("from the server", lanes(), &[THROUGHPUT], |order| {
        in_turns(order, |lane| Ok(vec![dial(addresses[lane])?.drain(bytes)?.megabytes_per_second()]))
    })?;
    claim_each(&mut bench, &from, 0, |_| "replica/bulk/from-server".to_owned());
    bench.finish()
}

/// No other connection is closed meanwhile: that waits for an answer on this one, for up to a second (`delivery = "serial"`).
fn dial(address: SocketAddr) -> Result<TcpStream> {
    Ok(TcpStream::connect(address)?)
}
