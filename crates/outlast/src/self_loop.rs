//! A client whose server is the client itself, or a server whose service is the server itself: every session would bring one
//! more.

use crate::exit::Failure;
use crate::plan::FrontPlan;
use anyhow::Result;
use outlast_session::Scoped;
use outlast_session::relay::Routes;
use outlast_session::relay::dial::Service;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Refuses servers whose addresses are those of this process's own listeners, as far as that shows without asking for names.
pub fn refuse(fronts: &[FrontPlan], routes: &Routes) -> Result<()> {
    let servers = routes.targets().flat_map(|targets| targets.iter());
    for (server, address) in
        servers.flat_map(|server| literal(server).into_iter().map(move |at| (server, at)))
    {
        let front = fronts.iter().filter_map(FrontPlan::address).find(|front| leads_to(address, *front));
        if let Some(front) = front {
            return Err(Failure::usage(format!(
                "--via {server} leads back to this process, which itself listens on {front}: give the address of \
                 `outlast listen`"
            )));
        }
    }
    Ok(())
}

/// Refuses a service that is the server's own listener, as far as that shows without asking for names.
pub fn refuse_service(listens: SocketAddr, service: &Service) -> Result<()> {
    let is_own = match service {
        Service::Unix(_) => false,
        Service::Tcp(_) | Service::Scoped(_) => {
            literal(&service.to_string()).into_iter().any(|at| leads_to(at, listens))
        }
    };
    if is_own {
        return Err(Failure::usage(format!(
            "--to {service} leads back to this process, which itself listens on {listens}: give the address of \
             the service"
        )));
    }
    Ok(())
}

/// The addresses of a server that is no name, or that of this machine.
fn literal(server: &str) -> Vec<SocketAddr> {
    if let Some(scoped) = Scoped::parse(server) {
        return scoped.resolve().into_iter().collect();
    }
    match server.rsplit_once(':') {
        Some((host, port)) if host.eq_ignore_ascii_case("localhost") => {
            let port = port.parse().unwrap_or_default();
            vec![(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()]
        }
        _ => server.parse().into_iter().collect(),
    }
}

/// Whether a connection to `server` comes in at `front`.
fn leads_to(server: SocketAddr, front: SocketAddr) -> bool {
    if server.port() != front.port() || front.port() == 0 {
        return false;
    }
    // What the kernel takes for "this machine" in a destination.
    let server_ip = match server.ip().to_canonical() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let front_ip = front.ip().to_canonical();
    if front_ip.is_unspecified() {
        // [::] is there for IPv4, too.
        let reachable = front_ip.is_ipv6() || server_ip.is_ipv4();
        return reachable && is_own(SocketAddr::new(server_ip, server.port()), server);
    }
    let scopes = match (server, front) {
        (SocketAddr::V6(server), SocketAddr::V6(front)) => server.scope_id() == front.scope_id(),
        _ => true,
    };
    server_ip == front_ip && scopes
}

/// Whether this machine has the address: its sockets can bind to it.
fn is_own(address: SocketAddr, as_given: SocketAddr) -> bool {
    if address.ip().is_loopback() {
        return true;
    }
    let (mut bound, family) = match address {
        SocketAddr::V4(_) => (address, "ipv4"),
        // With its interface.
        SocketAddr::V6(_) => (as_given, "ipv6"),
    };
    bound.set_port(0);
    // The kernel lets sockets bind to groups, too, and to any address where this setting says so.
    let nonlocal = std::fs::read(format!("/proc/sys/net/{family}/ip_nonlocal_bind"));
    let tells = !address.ip().is_multicast() && nonlocal.is_ok_and(|setting| setting.starts_with(b"0"));
    match UdpSocket::bind(bound) {
        Ok(_) if tells => true,
        Err(error) if error.kind() == std::io::ErrorKind::AddrNotAvailable => false,
        _ => is_sent_from(if address.is_ipv4() { address } else { as_given }),
    }
}

/// Whether this machine would send to the address from there: it does where it has the address, if that is not a secondary one.
fn is_sent_from(address: SocketAddr) -> bool {
    let any = match address {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    // Connecting a datagram socket sends nothing.
    let source = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(address)?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_this_process_is_seen() {
        for (server, front, expected) in [
            ("127.0.0.1:7", "127.0.0.1:7", true),
            ("127.0.0.1:7", "127.0.0.1:8", false),
            ("127.0.0.1:7", "127.0.0.2:7", false),
            ("127.0.0.9:7", "0.0.0.0:7", true),
            ("127.0.0.9:7", "[::]:7", true),
            ("[::1]:7", "[::]:7", true),
            ("[::1]:7", "0.0.0.0:7", false),
            ("0.0.0.0:7", "127.0.0.1:7", true),
            ("[::ffff:127.0.0.1]:7", "127.0.0.1:7", true),
            ("192.0.2.1:7", "0.0.0.0:7", false),
            ("localhost:7", "127.0.0.1:7", true),
            ("localhost:7", "[::1]:7", true),
            ("server.example:7", "0.0.0.0:7", false),
            ("127.0.0.1:0", "127.0.0.1:0", false),
        ] {
            let front = front.parse().unwrap();
            let found = literal(server).into_iter().any(|server| leads_to(server, front));
            assert_eq!(found, expected, "{server} {front}");
        }
    }
}
