//! How long a client of a replicated server waits when the primary dies: by the kind of death and by what the client does; and how long the next
//! primary works until it serves so many connections.
//!
//! A client asks, and waits for each answer. In the middle of it the primary dies. The pause is the longest time that the client has waited for
//! an answer: what was under way when the machine died comes again when the client's kernel sends it again (200 ms at the least).

use super::Setting;
use crate::options::{Options, PathKind, Placement};
use crate::replica::{Machines, Mortal};
use crate::series::{Bench, Better, Lane, Metric};
use crate::stats::quantile;
use crate::wire::blocking::Link;
use anyhow::{Context, Result, anyhow};
use outlast_lab::replicas::Death;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PAUSES: [Metric; 2] = [
    Metric { name: "pause p50", unit: "ms", better: Better::Lower },
    Metric { name: "longest pause", unit: "ms", better: Better::Lower },
];
const WORK: [Metric; 1] = [Metric { name: "take-over", unit: "ms", better: Better::Lower }];
/// A client that gets no answer for so long has lost its connection.
const PATIENCE: Duration = Duration::from_secs(20);
/// The client asks for so long before the primary dies, and goes on for as long afterwards.
const CALM: Duration = Duration::from_millis(150);

/// The default.
const DETECT: &str = "100ms";

/// How the primary stops being it.
#[derive(Clone, Copy)]
enum End {
    Switchover,
    Dies(Death),
}

const LANES: [(&str, End); 6] = [
    ("SIGKILL", End::Dies(Death::Killed)),
    ("SIGKILL again", End::Dies(Death::Killed)),
    ("power off", End::Dies(Death::PowerOff)),
    ("cut off", End::Dies(Death::CutOff)),
    ("SIGSTOP", End::Dies(Death::Stopped)),
    ("switchover", End::Switchover),
];

/// What the client does.
const TRAFFIC: [(&str, Duration); 2] =
    [("asks again at once", Duration::ZERO), ("asks every 10 ms", Duration::from_millis(10))];

pub fn run(name: &'static str, options: &Options) -> Result<Value> {
    let begun = Instant::now();
    let (setting, report) = Setting::new(name, options, PathKind::Lo, Placement::Cross)?;
    let ground = &setting.ground;
    crate::place::raise_descriptor_limit(crate::serve::DESCRIPTORS)?;
    let mut machines = Machines::new(options, ground.scratch(), ground.home())?;
    // Where it is to be shown alone that all runs, others keep this machine busy.
    let mut group = machines.mortal(3, options.pick("1s", DETECT, DETECT))?;
    let _inside = machines.client.enter_guard()?;
    let traffic = options.pick(&TRAFFIC[..1], &TRAFFIC[..1], &TRAFFIC[..]);
    let connections: &[usize] = options.pick(&[10], &[10, 1_000], &[10, 1_000, 5_000]);
    let deaths = options.pick(1, 2, 10);
    let mut bench = Bench::new(options, report, traffic.len() + 1, &[]);
    bench.count_family();
    bench.spend(begun.elapsed());
    // Each repeat takes a minute, and has all kinds of deaths several times.
    bench.set_repeats(Some(options.pick(1, 1, 5)));
    for (what, every) in traffic {
        let lanes = LANES.iter().enumerate().map(|(index, (name, _))| match index {
            0 => Lane::raw(*name),
            1 => Lane::again(*name, 0),
            _ => Lane::against(*name, 0),
        });
        let outcome = bench.series(what, lanes.collect(), &PAUSES, |order| {
            super::in_turns(order, |lane| {
                let pauses = (0..deaths).map(|_| pause(&mut group, LANES[lane].1, *every));
                let pauses = pauses.collect::<Result<Vec<f64>>>()?;
                Ok(vec![quantile(&pauses, 0.5).unwrap_or(0.0), quantile(&pauses, 1.0).unwrap_or(0.0)])
            })
        })?;
        for (lane, (name, _)) in LANES.iter().enumerate().filter(|(lane, _)| *lane != 1) {
            for (metric, which) in ["p50", "longest"].into_iter().enumerate() {
                let name = format!("replica/failover/{}/{which}", name.replace(' ', "-"));
                bench.report.claim_value(&name, &outcome, lane, metric);
            }
        }
    }
    let lanes = connections.iter().enumerate().map(|(index, count)| match index {
        0 => Lane::raw(format!("{count} connections")),
        _ => Lane::against(format!("{count} connections"), 0),
    });
    let outcome = bench.series("work of the next primary", lanes.collect(), &WORK, |order| {
        super::in_turns(order, |lane| Ok(vec![work(&mut group, connections[lane])?]))
    })?;
    for (lane, count) in connections.iter().enumerate() {
        bench.report.claim_value(&format!("replica/failover/work/{count}"), &outcome, lane, 0);
    }
    bench.finish()
}

/// The pause of a client that does this, in milliseconds. All machines are members again afterwards.
fn pause(group: &mut Mortal, end: End, every: Duration) -> Result<f64> {
    group.wait_for_all()?;
    let primary = group.primary()?;
    let stop = AtomicBool::new(false);
    let mut stream = dial(group.portal())?;
    let longest = std::thread::scope(|scope| {
        let client = group.client().clone();
        let stop = &stop;
        let client = scope.spawn(move || {
            let _inside = client.enter_guard()?;
            ask(&mut stream, every, stop)
        });
        std::thread::sleep(CALM);
        let ended = match end {
            End::Dies(death) => group.kill(&primary, death),
            End::Switchover => group.switch_over(),
        };
        let ended = ended.and_then(|()| group.other_primary(&primary));
        std::thread::sleep(CALM);
        stop.store(true, Ordering::Relaxed);
        let longest = client.join().map_err(|_| anyhow!("the client has crashed"))?;
        ended.and(longest)
    })?;
    if let End::Dies(death) = end {
        group.heal(&primary, death)?;
    }
    Ok(longest.as_secs_f64() * 1e3)
}

/// Asks until it is to stop. The longest time for an answer.
fn ask(stream: &mut TcpStream, every: Duration, stop: &AtomicBool) -> Result<Duration> {
    let (mut longest, mut byte) = (Duration::ZERO, [0]);
    while !stop.load(Ordering::Relaxed) {
        let begin = Instant::now();
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte).context("a client has lost its connection")?;
        longest = longest.max(begin.elapsed());
        std::thread::sleep(every);
    }
    Ok(longest)
}

/// How long the next primary has worked until it served so many connections, in milliseconds.
fn work(group: &mut Mortal, connections: usize) -> Result<f64> {
    group.wait_for_all()?;
    let primary = group.primary()?;
    let mut streams = (0..connections).map(|_| dial(group.portal())).collect::<Result<Vec<_>>>()?;
    group.kill(&primary, Death::Killed)?;
    group.other_primary(&primary)?;
    let took = group.take_over()?;
    for stream in &mut streams {
        stream.warm_up(1)?;
    }
    drop(streams);
    group.heal(&primary, Death::Killed)?;
    Ok(took.as_secs_f64() * 1e3)
}

fn dial(address: SocketAddr) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.warm_up(1)?;
    Ok(stream)
}
