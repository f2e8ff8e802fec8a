//! The hosts: a client behind its home's NAT, and a server; or all on loopback.

use crate::program::Host;
use anyhow::Result;
use outlast_lab::{Lab, Nat, Target, WireSpec};
use std::time::Duration;

/// Fastest rate of the wire to the server. The rate makes transfers last long enough to be broken.
const RATE_MAX_BYTES_PER_S: u64 = 60 << 20;
const RATE_MIN_BYTES_PER_S: u64 = 2 << 20;
/// A transfer would take about so long if nothing broke.
const TRANSFER_SECONDS: u64 = 20;

/// Where it all happens.
pub struct Stage {
    pub client: Host,
    /// Between the two: the NAT, and where relays run.
    pub home: Host,
    pub server: Host,
    pub ports: Ports,
    /// What can be broken besides programs. None without a lab.
    pub net: Option<Net>,
    /// Why there is no lab.
    pub without_lab: Option<String>,
    pub rate_bytes_per_s: u64,
    // Goes last: everything above is in it.
    _lab: Option<Lab>,
}

/// What is cut.
pub struct Net {
    /// Between the client and its home; with a second link that does not go through it.
    pub near: Target,
    /// Between home and the server.
    pub far: Target,
}

/// Where the programs listen.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    pub web: u16,
    pub ssh: u16,
    pub listen: u16,
    pub local: u16,
    pub socat: u16,
    pub nginx: u16,
}

impl Stage {
    /// In a lab if there can be one, else on loopback.
    pub fn build(bytes: u64, seed: u64, loopback: bool) -> Result<Self> {
        let rate = (bytes / TRANSFER_SECONDS).clamp(RATE_MIN_BYTES_PER_S, RATE_MAX_BYTES_PER_S);
        let unavailable = Lab::available().err().map(|why| why.to_string());
        match unavailable.or_else(|| loopback.then(|| "--loopback was given".to_owned())) {
            None => Self::lab(rate, seed),
            Some(why) => Ok(Self {
                client: Host::Here,
                home: Host::Here,
                server: Host::Here,
                ports: Ports::free()?,
                net: None,
                without_lab: Some(why),
                rate_bytes_per_s: rate,
                _lab: None,
            }),
        }
    }

    fn lab(rate: u64, seed: u64) -> Result<Self> {
        let lab = Lab::new("demo")?;
        let (client, home, server) = (lab.host("client")?, lab.router("home")?, lab.host("server")?);
        let ports = Ports { web: 80, ssh: 22, listen: 7000, local: 2222, socat: 7001, nginx: 7002 };
        let spec = WireSpec::delay_ms(5).with_rate(rate).with_seed(seed);
        // A tenth of a second of traffic: as much as the queues of home routers hold.
        let spec = WireSpec { queue_bytes: (rate / 10).max(256 << 10), ..spec };
        let inside = lab.connect(&client, &home)?;
        let outside = lab.wire(&home, &server, spec)?;
        // The other way, as from a telephone: through a NAT, too.
        let mast = lab.router("mast")?;
        let air = lab.connect(&client, &mast)?;
        let mobile = lab.wire(&mast, &server, spec)?;
        mast.route_default(&mobile)?;
        client.route_default(&inside)?;
        for host in [&client, &home, &mast, &server] {
            host.use_cubic()?;
        }
        let nat = Nat::masquerade(&home, &outside)?;
        Nat::masquerade(&mast, &mobile)?;
        let near = Target::between(&client, &server, &inside).with_second_link(&air);
        let far = Target::between(&client, &server, &outside).with_nat(&nat);
        let net = Net { near: near.with_port(ports.listen), far: far.with_port(ports.listen) };
        Ok(Self {
            client: Host::Lab(client),
            home: Host::Lab(home),
            server: Host::Lab(server),
            ports,
            net: Some(net),
            without_lab: None,
            rate_bytes_per_s: rate,
            _lab: Some(lab),
        })
    }

    /// Where the server listens: nobody else can reach it in a lab; on this machine only itself shall.
    pub fn any_address(&self) -> &'static str {
        if self.net.is_some() { "0.0.0.0" } else { "127.0.0.1" }
    }

    /// Where no wire limits the rate, the programs have to do it themselves.
    pub fn rate_without_wire(&self) -> Option<u64> {
        self.net.is_none().then_some(self.rate_bytes_per_s)
    }

    /// The picture of it.
    pub fn picture(&self) -> String {
        let rate = self.rate_bytes_per_s >> 20;
        match self.net {
            Some(_) => format!(
                "\n                .-- home --.\n    client ----:    NATs    :---- server      {rate} MiB/s, 10 ms there and back\n                '-- mast --'\n"
            ),
            None => "\n  client, relays and server on loopback\n".to_owned(),
        }
    }
}

impl Ports {
    fn free() -> Result<Self> {
        let port = outlast_lab::free_port;
        Ok(Self {
            web: port()?,
            ssh: port()?,
            listen: port()?,
            local: port()?,
            socat: port()?,
            nginx: port()?,
        })
    }
}

/// Waits until somebody listens at a port of a host.
pub fn wait_for_port(host: &Host, port: u16) -> Result<()> {
    const WAIT: Duration = Duration::from_secs(20);
    let listening = match host {
        Host::Lab(host) => host.wait_for_listener(Some(port), WAIT)?,
        Host::Here => {
            let deadline = std::time::Instant::now() + WAIT;
            // Looking without connecting: a connection would be a session's first.
            loop {
                if listens_here(port) {
                    break true;
                }
                if std::time::Instant::now() > deadline {
                    break false;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    };
    anyhow::ensure!(listening, "nobody listens on port {port} of {}", host.name());
    Ok(())
}

fn listens_here(port: u16) -> bool {
    let local = format!(":{port:04X} ");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let table = std::fs::read_to_string(table).unwrap_or_default();
        table.lines().any(|line| {
            let mut words = line.split_whitespace();
            let listens = words.nth(1).is_some_and(|address| format!("{address} ").ends_with(&local));
            listens && words.nth(1) == Some("0A")
        })
    })
}
