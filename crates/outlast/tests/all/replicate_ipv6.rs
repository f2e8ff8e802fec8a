//! A group whose clients and nodes speak IPv6.

use crate::common::eventually;
use crate::replicate::{Counters, Machines, PATIENCE, are_equal, has_all, take};
use crate::replicate_switchover::moves_much;
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn clients_of_ipv6_keep_their_connections_whatever_becomes_of_the_primary() {
    let Some(machines) = Machines::of_ipv6("replicate-ipv6", 4, 1) else { return };
    let mut nodes = machines.start_all(&[]);
    let mut living = vec!["a", "b", "c", "d"];
    let first = machines.primary(&living);
    let (counters, ends) = (Counters::start(&machines, 4), Arc::new(AtomicBool::new(false)));
    let much = moves_much(&machines, &ends);
    counters.go_on();
    let connecting = || TcpStream::connect_timeout(&machines.portal, PATIENCE);
    let mut idle = machines.client.enter(connecting).unwrap().unwrap();
    idle.set_read_timeout(Some(PATIENCE)).unwrap();
    let ping = |idle: &mut TcpStream| {
        idle.write_all(b"ping\r\n").unwrap();
        let mut pong = [0; 7];
        idle.read_exact(&mut pong).unwrap();
        assert_eq!(&pong, b"+PONG\r\n");
    };
    ping(&mut idle);

    // What else the primary's machine connects to does not hear from the portal's address: it would lose its connections by a switchover.
    let other = living.iter().find(|name| **name != first).unwrap();
    let other = (machines.address(other), 9);
    let own = machines.machine(&first).host.enter(|| {
        let socket = UdpSocket::bind("[::]:0").unwrap();
        socket.connect(other).unwrap();
        socket.local_addr().unwrap().ip()
    });
    assert_eq!(own.unwrap(), machines.address(&first));

    // While all are well.
    let next = living.iter().find(|name| **name != first).unwrap();
    assert_eq!(machines.ask(&first, &["switchover", next]), (true, format!("{next} is the primary\n")));
    eventually("it does not serve", || (machines.role(next) == "primary, serves clients").then_some(()));
    counters.go_on();

    // Cut off: it has the portal's address still, and reaches nobody.
    let second = (*next).to_owned();
    machines.cut_off(&second, true);
    living.retain(|name| *name != second);
    let third = machines.primary(&living);
    counters.go_on();
    machines.cut_off(&second, false);
    counters.go_on();
    take(&mut nodes, &second).outlast.wait_for("is no member of the group db any more");

    // Killed.
    drop(take(&mut nodes, &third));
    living.retain(|name| *name != third);
    machines.primary(&living);
    counters.go_on();
    ping(&mut idle);

    ends.store(true, Ordering::Relaxed);
    assert!(much.join().unwrap() > 1);
    let counts = counters.end();
    for name in &living {
        has_all(&machines, name, &counts);
    }
    are_equal(&machines, &living);
}
