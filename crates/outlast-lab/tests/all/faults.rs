//! Every fault does to a real TCP connection what it says, and healing it brings the network back.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed expectation is the message"
)]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use crate::common::{PATIENCE, Pair, SHORT, assert_silent, dial, pass, read_error};
use outlast_lab::{
    Event, Fault, FaultPlan, Host, Lab, Link, Menu, Role, Service, Stop, Target, WireSpec, require,
};

struct Bench {
    client: Host,
    server: Host,
    link: Link,
    target: Target,
    _lab: Lab,
}

fn bench(lab: Lab, link: impl FnOnce(&Lab, &Host, &Host) -> Link) -> Bench {
    let (client, server) = (lab.host("client").unwrap(), lab.host("server").unwrap());
    let link = link(&lab, &client, &server);
    let target = Target::new(&link);
    Bench { client, server, link, target, _lab: lab }
}

fn cable() -> Bench {
    bench(Lab::new("cable").unwrap(), |lab, client, server| lab.connect(client, server).unwrap())
}

fn wire() -> Bench {
    let spec = WireSpec::delay_ms(2);
    bench(Lab::new("wire").unwrap(), |lab, client, server| lab.wire(client, server, spec).unwrap())
}

fn fault(text: &str) -> Fault {
    text.parse().unwrap()
}

/// The kernel sends again after an outage when its timer says so.
fn eventually(from: &std::net::TcpStream, to: &std::net::TcpStream) {
    pass(from, to);
}

#[test]
fn drop_both_silences_and_heals_without_loss() {
    require!();
    for b in [cable(), wire()] {
        for pair in [Pair::v4(&b.client, &b.server), Pair::v6(&b.client, &b.server)] {
            pair.assert_works();
            let injected = fault("drop both").inject(&b.target).unwrap();
            (&pair.client).write_all(b"late").unwrap();
            assert_silent(&pair.server);
            let refused = dial(&b.client, pair.address, SHORT).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::TimedOut);
            injected.heal().unwrap();
            let mut bytes = [0; 4];
            (&pair.server).read_exact(&mut bytes).unwrap();
            assert_eq!(&bytes, b"late");
            pair.assert_works();
        }
    }
}

#[test]
fn drop_one_way_lets_the_other_way_through() {
    require!();
    for b in [cable(), wire()] {
        let pair = Pair::v4(&b.client, &b.server);
        let injected = fault("drop to-server").inject(&b.target).unwrap();
        pass(&pair.server, &pair.client);
        (&pair.client).write_all(b"x").unwrap();
        assert_silent(&pair.server);
        injected.heal().unwrap();
        (&pair.server).read_exact(&mut [0]).unwrap();

        let injected = fault("drop to-client").inject(&b.target).unwrap();
        pass(&pair.client, &pair.server);
        (&pair.server).write_all(b"x").unwrap();
        assert_silent(&pair.client);
        drop(injected);
        (&pair.client).read_exact(&mut [0]).unwrap();
        pair.assert_works();
    }
}

#[test]
fn a_drop_that_outlasts_the_user_timeout_ends_the_connection() {
    require!();
    let b = cable();
    let pair = Pair::v4(&b.client, &b.server);
    set_user_timeout(&pair.client, 300);
    let _injected = fault("drop both").inject(&b.target).unwrap();
    (&pair.client).write_all(b"x").unwrap();
    assert_eq!(read_error(&pair.client), libc::ETIMEDOUT);
}

fn set_user_timeout(stream: &std::net::TcpStream, ms: i32) {
    use std::os::fd::AsRawFd;
    let (fd, len) = (stream.as_raw_fd(), libc::socklen_t::try_from(size_of::<i32>()).unwrap());
    // SAFETY: the value outlives the call and is as long as said.
    let result = unsafe {
        libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, (&raw const ms).cast(), len)
    };
    assert_eq!(result, 0);
}

#[test]
fn link_down_fails_new_connections_at_once_and_comes_back_complete() {
    require!();
    for b in [cable(), wire()] {
        let pairs = [Pair::v4(&b.client, &b.server), Pair::v6(&b.client, &b.server)];
        let injected = fault("link down client").inject(&b.target).unwrap();
        for pair in &pairs {
            let refused = dial(&b.client, pair.address, PATIENCE).unwrap_err();
            assert!(
                matches!(refused.raw_os_error(), Some(libc::ENETUNREACH | libc::EADDRNOTAVAIL)),
                "{refused}"
            );
        }
        injected.heal().unwrap();
        for pair in &pairs {
            eventually(&pair.client, &pair.server);
            eventually(&pair.server, &pair.client);
            drop(dial(&b.client, pair.address, PATIENCE).unwrap());
        }
        let injected = fault("link down server").inject(&b.target).unwrap();
        (&pairs[0].client).write_all(b"x").unwrap();
        assert_silent(&pairs[0].server);
        injected.heal().unwrap();
        (&pairs[0].server).read_exact(&mut [0]).unwrap();
    }
}

#[test]
fn reset_both_tells_both_and_the_link_lives_on() {
    require!();
    for b in [cable(), wire()] {
        for make in [Pair::v4, Pair::v6] {
            let pair = make(&b.client, &b.server);
            pair.assert_works();
            fault("reset both").inject(&b.target).unwrap().heal().unwrap();
            assert_eq!(read_error(&pair.client), libc::ECONNRESET);
            assert_eq!(read_error(&pair.server), libc::ECONNABORTED);
            drop(dial(&b.client, pair.address, PATIENCE).unwrap());
        }
    }
}

#[test]
fn reset_of_one_side_leaves_the_other_in_the_dark() {
    require!();
    for b in [cable(), wire()] {
        let pair = Pair::v4(&b.client, &b.server);
        fault("reset client").inject(&b.target).unwrap().heal().unwrap();
        assert_eq!(read_error(&pair.client), libc::ECONNABORTED);
        assert_silent(&pair.server);
        // Only when it speaks up does the server learn that nobody is there.
        (&pair.server).write_all(b"hello?").unwrap();
        assert_eq!(read_error(&pair.server), libc::ECONNRESET);

        let pair = Pair::v4(&b.client, &b.server);
        fault("reset server").inject(&b.target).unwrap().heal().unwrap();
        assert_eq!(read_error(&pair.server), libc::ECONNABORTED);
        assert_silent(&pair.client);
    }
}

#[test]
fn reset_spares_connections_on_other_ports() {
    require!();
    let b = cable();
    let (hit, spared) = (Pair::v4(&b.client, &b.server), Pair::v4(&b.client, &b.server));
    let target = b.target.clone().with_port(hit.address.port());
    fault("reset both").inject(&target).unwrap().heal().unwrap();
    assert_eq!(read_error(&hit.client), libc::ECONNRESET);
    spared.assert_works();
}

#[test]
fn reset_spares_connections_that_stay_on_a_host() {
    require!();
    let b = cable();
    let across = Pair::v4(&b.client, &b.server);
    let inside = Pair::at(&b.server, &b.server, ([127, 0, 0, 1], 0).into());
    let to_itself = Pair::v4(&b.server, &b.server);
    fault("reset both").inject(&b.target).unwrap().heal().unwrap();
    read_error(&across.client);
    inside.assert_works();
    to_itself.assert_works();
}

#[test]
fn address_change_cuts_off_old_connections_and_serves_new_ones() {
    require!();
    for b in [cable(), wire()] {
        for _ in 0..3 {
            let pairs = [Pair::v4(&b.client, &b.server), Pair::v6(&b.client, &b.server)];
            let before = b.client.address();
            fault("address change").inject(&b.target).unwrap().heal().unwrap();
            assert_ne!(b.client.address(), before);
            for pair in pairs {
                (&pair.server).write_all(b"x").unwrap();
                assert_silent(&pair.client);
                let fresh = dial(&b.client, pair.address, PATIENCE).unwrap();
                let seen = fresh.local_addr().unwrap().ip();
                assert!([b.client.address(), b.client.address_v6()].contains(&seen), "{seen}");
            }
        }
    }
}

#[test]
fn roaming_moves_the_client_to_its_second_link() {
    require!();
    let lab = Lab::new("roam").unwrap();
    let (client, middle, server) =
        (lab.host("client").unwrap(), lab.router("middle").unwrap(), lab.host("server").unwrap());
    let wifi = lab.wire(&client, &middle, WireSpec::delay_ms(1)).unwrap();
    let cell = lab.connect(&client, &middle).unwrap();
    let far = lab.connect(&server, &middle).unwrap();
    client.route_default(&wifi).unwrap();
    server.route_default(&far).unwrap();
    let target = Target::between(&client, &server, &wifi).with_second_link(&cell);

    for make in [Pair::v4, Pair::v6] {
        let old = make(&client, &server);
        old.assert_works();
        let injected = fault("roam").inject(&target).unwrap();
        (&old.server).write_all(b"x").unwrap();
        assert_silent(&old.client);
        let new = make(&client, &server);
        let addresses = cell.addresses(outlast_lab::Side::Client).unwrap();
        let from = new.client.local_addr().unwrap().ip();
        assert!(from == addresses.v4 || from == addresses.v6, "{from}");
        injected.heal().unwrap();
        let home = make(&client, &server);
        home.assert_works();
        let addresses = wifi.addresses(outlast_lab::Side::Client).unwrap();
        let from = home.client.local_addr().unwrap().ip();
        assert!(from == addresses.v4 || from == addresses.v6, "{from}");
        old.assert_works_after_x();
    }
}

impl Pair {
    /// As `assert_works`, past the byte that was sent while the connection was cut off.
    fn assert_works_after_x(&self) {
        (&self.client).read_exact(&mut [0]).unwrap();
        self.assert_works();
    }
}

#[test]
fn a_closed_port_refuses_new_connections_only() {
    require!();
    let b = cable();
    for make in [Pair::v4, Pair::v6] {
        let pair = make(&b.client, &b.server);
        let port = pair.address.port();
        let injected = fault(&format!("port closed {port}")).inject(&b.target).unwrap();
        pair.assert_works();
        let refused = dial(&b.client, pair.address, PATIENCE).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        injected.heal().unwrap();
        drop(dial(&b.client, pair.address, PATIENCE).unwrap());

        let injected = fault(&format!("port silent {port}")).inject(&b.target).unwrap();
        pair.assert_works();
        assert_eq!(dial(&b.client, pair.address, SHORT).unwrap_err().kind(), ErrorKind::TimedOut);
        injected.heal().unwrap();
        drop(dial(&b.client, pair.address, PATIENCE).unwrap());
    }
}

#[test]
fn a_port_that_resets_tells_the_client_alone() {
    require!();
    let b = cable();
    for make in [Pair::v4, Pair::v6] {
        let pair = make(&b.client, &b.server);
        let injected = fault(&format!("port reset {}", pair.address.port())).inject(&b.target).unwrap();
        (&pair.client).write_all(b"x").unwrap();
        assert_eq!(read_error(&pair.client), libc::ECONNRESET);
        assert_silent(&pair.server);
        injected.heal().unwrap();
    }
}

#[test]
fn a_frozen_program_answers_late_and_a_killed_one_restarts() {
    require!();
    let b = cable();
    let host = b.server.clone();
    let echo = Service::start(move || {
        let server = "import socket\ns=socket.create_server(('',7000))\nprint('up',flush=True)\n\
             while 1:\n c,_=s.accept()\n c.sendall(c.recv(9)); c.close()";
        let mut command = host.command("python3");
        let process = command.args(["-c", server]).stdout(std::process::Stdio::piped()).spawn()?;
        if let Some(mut out) = process.take_stdout() {
            let _ = out.read_exact(&mut [0; 3]);
        }
        Ok(process)
    })
    .unwrap();
    let target = b.target.clone().with_service(Role::Server, &echo).with_service(Role::Client, &echo);
    let address = b.server.socket_addr(7000);
    let ask = || -> std::io::Result<Vec<u8>> {
        let mut stream = dial(&b.client, address, PATIENCE)?;
        stream.set_read_timeout(Some(SHORT))?;
        stream.write_all(b"ping")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    };
    assert_eq!(ask().unwrap(), b"ping");

    let injected = fault("freeze server").inject(&target).unwrap();
    assert_eq!(ask().unwrap_err().kind(), ErrorKind::WouldBlock);
    injected.heal().unwrap();
    assert_eq!(ask().unwrap(), b"ping");

    let first = echo.id();
    let injected = fault("kill server").inject(&target).unwrap();
    assert_eq!(ask().unwrap_err().kind(), ErrorKind::ConnectionRefused);
    injected.heal().unwrap();
    assert_eq!(ask().unwrap(), b"ping");
    assert_ne!(echo.id(), first);

    let injected = fault("suspend").inject(&target).unwrap();
    assert_eq!(dial(&b.client, address, SHORT).unwrap_err().kind(), ErrorKind::TimedOut);
    injected.heal().unwrap();
    assert_eq!(ask().unwrap(), b"ping");
}

#[test]
fn what_the_target_lacks_is_said() {
    require!();
    let b = cable();
    for text in ["nat rebind", "roam", "kill relay", "suspend"] {
        let error = fault(text).inject(&b.target).unwrap_err().to_string();
        assert!(error.contains(text) && error.contains("with_"), "{error}");
    }
}

#[test]
fn a_dropped_fault_heals() {
    require!();
    let b = cable();
    let pair = Pair::v4(&b.client, &b.server);
    drop(fault("drop both").inject(&b.target).unwrap());
    drop(fault("link down").inject(&b.target).unwrap());
    pair.assert_works();
    assert!(b.link.set_spec(WireSpec::default()).is_err(), "a cable has no spec");
}

fn restless(count: usize) -> FaultPlan {
    let faults = [
        "drop both",
        "drop to-server",
        "drop to-client",
        "link down client",
        "link down server",
        "reset both",
        "reset client",
        "reset server",
        "address change client",
        "address change server",
    ];
    let menu = Menu {
        faults: faults.map(fault).to_vec(),
        after: Duration::from_micros(10)..=Duration::from_micros(500),
        lasts: Duration::from_micros(10)..=Duration::from_millis(1),
    };
    FaultPlan::random(11, count, &menu).unwrap()
}

#[test]
fn a_thousand_faults_under_traffic_leave_a_working_network() {
    require!();
    for b in [cable(), wire()] {
        let stop = Stop::new();
        let mut broken = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.wait(Duration::ZERO) {
                    let _ = transfer(&b, &stop);
                }
            });
            let observe = |event: Event<'_>| broken += usize::from(matches!(event, Event::Broken { .. }));
            let done = restless(1000).run(&b.target, &Stop::new(), observe);
            stop.pull();
            done.unwrap();
        });
        assert_eq!(broken, 1000);
        Pair::v4(&b.client, &b.server).assert_works();
        Pair::v6(&b.client, &b.server).assert_works();
    }
}

/// Sends as much as it can until something breaks or all is over.
fn transfer(b: &Bench, stop: &Stop) -> std::io::Result<()> {
    let address = b.server.socket_addr(0);
    let listener = b.server.enter(|| TcpListener::bind(address)).unwrap()?;
    let mut near = dial(&b.client, listener.local_addr()?, Duration::from_millis(20))?;
    listener.set_nonblocking(true)?;
    let (mut far, _) = listener.accept()?;
    near.set_write_timeout(Some(Duration::from_millis(20)))?;
    far.set_read_timeout(Some(Duration::from_millis(20)))?;
    let mut bytes = vec![0; 16_384];
    while !stop.wait(Duration::ZERO) {
        near.write_all(&bytes)?;
        far.read_exact(&mut bytes)?;
    }
    Ok(())
}
