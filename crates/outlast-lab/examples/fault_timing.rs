//! How long each fault takes to break and to heal: medians over real links. Needs root.
//!
//! `cargo run --example fault_timing`
#![allow(clippy::print_stdout, reason = "the report is what it is for")]

use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use outlast_lab::{Error, Fault, Host, Lab, Nat, Role, Service, Target, WireSpec};

const ROUNDS: usize = 51;

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn measure(
    place: &str,
    words: &str,
    target: &Target,
    connection: Option<(&Host, &Host)>,
) -> Result<(), Error> {
    let fault: Fault = words.parse()?;
    let (mut breaking, mut healing) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let _pair = connection.map(|(client, server)| connect(client, server)).transpose()?;
        let start = Instant::now();
        let injected = fault.inject(target)?;
        breaking.push(start.elapsed());
        let start = Instant::now();
        injected.heal()?;
        healing.push(start.elapsed());
    }
    println!("{place:6} {words:22} {:>12?} {:>12?}", median(breaking), median(healing));
    Ok(())
}

fn connect(client: &Host, server: &Host) -> Result<(TcpStream, TcpListener), Error> {
    let failed = |what: &'static str| move |source| Error::System { what: what.to_owned(), source };
    let address = server.socket_addr(0);
    let listener = server.enter(|| TcpListener::bind(address))?.map_err(failed("bind"))?;
    let address = listener.local_addr().map_err(failed("local address"))?;
    let stream = client.enter(|| TcpStream::connect(address))?.map_err(failed("connect"))?;
    Ok((stream, listener))
}

fn main() -> Result<(), Error> {
    let start = Instant::now();
    let lab = Lab::new("timing")?;
    let (client, server) = (lab.host("client")?, lab.host("server")?);
    let cable = lab.connect(&client, &server)?;
    println!("first lab with two hosts and a cable: {:?}", start.elapsed());
    let start = Instant::now();
    let wire = lab.wire(&client, &server, WireSpec::default())?;
    println!("a wire: {:?}", start.elapsed());
    let home = lab.router("home")?;
    let inside = lab.connect(&client, &home)?;
    let outside = lab.connect(&home, &server)?;
    client.route_default(&inside)?;
    let nat = Nat::masquerade(&home, &outside)?;
    let host = client.clone();
    let sleep = Service::start(move || host.command("sleep").arg("1000").stdin(Stdio::null()).spawn())?;

    println!("{:6} {:22} {:>12} {:>12}", "where", "fault", "break", "heal");
    for (place, link) in [("cable", &cable), ("wire", &wire)] {
        let mut target =
            Target::new(link).with_service(Role::Client, &sleep).with_service(Role::Server, &sleep);
        if place == "cable" {
            target = target.with_nat(&nat);
        }
        let both = Some((&client, &server));
        for words in ["drop both", "drop to-server", "link down client", "address change client", "suspend"] {
            measure(place, words, &target, None)?;
        }
        for words in ["reset both", "reset client"] {
            measure(place, words, &target, both)?;
        }
        if place == "cable" {
            for words in [
                "port closed 80",
                "port reset 80",
                "freeze client",
                "kill server",
                "nat rebind",
                "nat forget",
            ] {
                measure(place, words, &target, None)?;
            }
        }
    }
    let roaming = Target::between(&client, &server, &wire).with_second_link(&cable);
    client.route_default(&wire)?;
    measure("both", "roam", &roaming, None)?;
    let start = Instant::now();
    drop(lab);
    println!("dropping the lab: {:?}", start.elapsed());
    Ok(())
}
