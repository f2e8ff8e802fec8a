//! Outlast against what else there is: the same server, the same load, killed every half second.
//!
//! *Restarted* by a supervisor, which is the least that anybody does; with *socket activation*, where the supervisor keeps
//! the socket that listens; with a *store of descriptors* as systemd has it, where it keeps the connections, too; and
//! restarted behind *HAProxy*, which asks again where it may. What a server without Outlast has read and not answered is
//! lost with it in all of them.

use super::restart_faults::{FAILED, PAUSE_MAX, PAUSE_P50, PAUSE_P99, WRONG, figures};
use super::{Setting, in_turns};
use crate::ground::{End, Ground};
use crate::launch::{Launch, Program};
use crate::options::{Options, PathKind, Placement};
use crate::peers::{find_program, free_address};
use crate::report::Report;
use crate::restart::answer::{Exchange, pattern};
use crate::restart::load::Fleet;
use crate::restart::service::Service;
use crate::series::{Bench, Lane, RATE};
use anyhow::{Context, Result};
use rustix::process::Signal;
use serde_json::Value;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Between two crashes.
const EVERY: Duration = Duration::from_millis(500);
/// A client that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(1);
const CLIENTS: usize = 50;
/// A server that crashes does so at work, or while it answers.
const WORK_US: usize = 100;
const BODY_BYTES: usize = 256 << 10;
const READY_WAIT_MAX: Duration = Duration::from_secs(5);

/// One way to live with crashes.
struct Way {
    name: &'static str,
    service: Service,
    address: SocketAddr,
    fleet: Option<Fleet>,
    _front: Option<Program>,
}

pub fn run(name: &'static str, options: &Options) -> Result<Value> {
    let started = Instant::now();
    let (setting, mut report) = Setting::new(name, options, PathKind::Lo, Placement::Cross)?;
    let clients = options.pick(4, CLIENTS, CLIENTS);
    let mut ways = start(&setting.ground, &mut report)?;
    let mut bench = Bench::new(options, report, 1, &[]);
    bench.count_family();
    bench.spend(started.elapsed());
    bench.set_repeats(options.repeats.map_or_else(|| options.pick(None, Some(3), None), |_| None));
    let window = EVERY * options.pick(1, 2, 10);
    let faults: Vec<Duration> = std::iter::successors(Some(EVERY / 2), |at| Some(*at + EVERY))
        .take_while(|at| *at < window)
        .collect();
    let exchange = Exchange::get(&format!("/work/{WORK_US}/{BODY_BYTES}"), Some(pattern(BODY_BYTES).into()));
    for way in &mut ways {
        way.fleet = Some(Fleet::connect(way.address, clients, exchange.clone(), PATIENCE)?);
    }
    let lanes = ways.iter().enumerate().map(|(index, way)| match index {
        0 => Lane::raw(way.name),
        1 => Lane::again(way.name, 0),
        _ => Lane::against(way.name, 0),
    });
    let metrics = [RATE, FAILED, WRONG, PAUSE_P50, PAUSE_P99, PAUSE_MAX];
    let group = format!("{clients} clients, SIGKILL every {} ms", EVERY.as_millis());
    let outcome = bench.series(&group, lanes.collect(), &metrics, |order| {
        in_turns(order, |lane| {
            let Way { service, fleet, .. } = &mut ways[lane];
            let fleet = fleet.as_mut().context("there are no clients")?;
            let mut seen = fleet.run(window, &faults, || service.crash(Signal::KILL))?;
            Ok(figures(&mut seen))
        })
    })?;
    for lane in 0..outcome.lanes.len() {
        let own = if lane < 2 { "restart/peers/failed" } else { "restart/peers/others-failed" };
        bench.report.claim_value(own, &outcome, lane, 1);
        bench.report.claim_value("restart/peers/pause-p99", &outcome, lane, 4);
        bench.report.claim_ratio("restart/peers/throughput", &outcome, lane, 0);
    }
    bench.finish()
}

fn start(ground: &Ground, report: &mut Report) -> Result<Vec<Way>> {
    let direct = |name, service: Service| {
        let address = service.address();
        Way { name, service, address, fleet: None, _front: None }
    };
    let mut ways = vec![
        direct("Outlast", Service::own(ground, None, &["--registered"])?),
        direct("Outlast again", Service::own(ground, None, &["--registered"])?),
        direct("restart", supervised(ground, "nothing")?),
        direct("socket activation", supervised(ground, "listener")?),
        direct("descriptor store", supervised(ground, "everything")?),
    ];
    match haproxy(ground) {
        Ok(way) => ways.push(way),
        Err(why) => report.warn(format!("HAProxy is left out: {why:#}")),
    }
    Ok(ways)
}

fn supervised(ground: &Ground, kept: &str) -> Result<Service> {
    // Its port must stay its own while nobody listens there.
    let address = free_address(ground, End::Server, ground.server_address())?.to_string();
    let launch = Launch::this(ground, End::Server)?.arguments(["restart-supervise", "--address", &address]);
    let launch = launch.arguments(["--kept", kept, "--scratch"]).arguments([ground.scratch()]);
    let service = Service::start(launch)?;
    service.wait_generation(1)?;
    Ok(service)
}

/// Retries whatever it may, on whatever it sees of a crash.
fn haproxy(ground: &Ground) -> Result<Way> {
    let program = find_program("haproxy")?;
    let service = supervised(ground, "nothing")?;
    let address = free_address(ground, End::Server, ground.server_address())?;
    let config = ground.scratch().join("restart-haproxy.cfg");
    let text = format!(
        "global\n  nbthread 1\n  maxconn 4000\n\
         defaults\n  mode http\n  timeout connect 1s\n  timeout client 1m\n  timeout server 1s\n  \
         retries 10\n  option redispatch 1\n  retry-on all-retryable-errors\n  option http-keep-alive\n  \
         http-reuse safe\n\
         listen front\n  bind {address}\n  server first {0}\n  server second {0}\n",
        service.address()
    );
    std::fs::write(&config, text).with_context(|| format!("cannot write {}", config.display()))?;
    let arguments = ["-db".as_ref(), "-q".as_ref(), "-f".as_ref(), config.as_os_str()];
    let mut front = Launch::new(ground, End::Server, program).arguments(arguments).start()?;
    let deadline = Instant::now() + READY_WAIT_MAX;
    while TcpStream::connect(address).is_err() {
        anyhow::ensure!(!front.has_ended() && Instant::now() < deadline, "it does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(Way { name: "restart behind HAProxy", service, address, fleet: None, _front: Some(front) })
}
