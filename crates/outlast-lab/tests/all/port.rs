//! Ports that tests which run side by side do not take from each other.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use outlast_lab::free_port;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

#[test]
fn a_port_is_given_to_one_test_alone() {
    let given: BTreeSet<u16> = (0..100).map(|_| free_port().unwrap()).collect();
    assert_eq!(given.len(), 100);
    for port in given {
        // Nobody listens, and nobody else, in another process either, is given it.
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap();
        let name = SocketAddr::from_abstract_name(format!("outlast-lab port {port}")).unwrap();
        UnixListener::bind_addr(&name).unwrap_err();
    }
}

#[test]
fn a_port_on_which_somebody_listens_is_not_given() {
    // Half of what comes next is in use.
    let next = free_port().unwrap();
    let used: Vec<TcpListener> = (1..100)
        .filter_map(|ahead| TcpListener::bind((Ipv4Addr::LOCALHOST, next.checked_add(2 * ahead)?)).ok())
        .collect();
    let given: Vec<u16> = (0..100).map(|_| free_port().unwrap()).collect();
    let used: Vec<u16> = used.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
    assert!(used.iter().all(|port| !given.contains(port)), "{given:?} {used:?}");
}
