//! A service that has answered and is gone, while nobody has the answer yet: listener after listener hands it on.

use crate::common::restarts::{both_ends, connect, listen, stop};
use crate::common::{folder, nobody};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

#[test]
fn an_answer_goes_on_through_many_listeners_when_its_service_is_gone() {
    let folder = folder();
    let runtime = folder.path();
    let (address, service) = (nobody(), TcpListener::bind("127.0.0.1:0").unwrap());
    let to = service.local_addr().unwrap().to_string();
    let mut server = listen(runtime, address, &to, &[]);
    let (client, front) = connect(runtime, address, &[]);
    let asked = || {
        let (mut program, mut served) = both_ends(front, &service);
        program.write_all(b"the question").unwrap();
        program.shutdown(Shutdown::Write).unwrap();
        let mut question = Vec::new();
        served.read_to_end(&mut question).unwrap();
        assert_eq!(question, b"the question");
        (program, served)
    };
    let (mut early, mut early_served) = asked();
    let (mut late, late_served) = asked();
    client.freeze();
    stop(&mut server, 2);
    // Answered while nobody listens.
    early_served.write_all(b"the answer").unwrap();
    drop(early_served);
    let mut late_served = Some(late_served);
    for _ in 0..2 {
        let mut next = listen(runtime, address, &to, &[]);
        next.wait_for("going on with 2 sessions");
        // Answered while the client has not come back.
        if let Some(mut served) = late_served.take() {
            served.write_all(b"the answer").unwrap();
        }
        // It finds that the service is gone.
        std::thread::sleep(Duration::from_millis(200));
        let told_at = Instant::now();
        stop(&mut next, 2);
        assert!(
            told_at.elapsed() < Duration::from_secs(4),
            "it waits for clients that have nowhere to come to"
        );
    }
    let server = listen(runtime, address, &to, &[]);
    client.signal("CONT");
    for program in [&mut early, &mut late] {
        assert_eq!(whole(program), b"the answer");
    }
    drop(server);
}

/// The same for one that is gone without having read all that it was told, which is a reset.
#[test]
fn an_answer_goes_on_when_its_service_is_reset_behind_it() {
    let folder = folder();
    let runtime = folder.path();
    let (address, service) = (nobody(), TcpListener::bind("127.0.0.1:0").unwrap());
    let to = service.local_addr().unwrap().to_string();
    let mut server = listen(runtime, address, &to, &[]);
    let (client, front) = connect(runtime, address, &[]);
    let (mut program, mut served) = both_ends(front, &service);
    program.write_all(b"never read").unwrap();
    served.peek(&mut [0]).unwrap();
    client.freeze();
    stop(&mut server, 1);
    served.write_all(b"the answer").unwrap();
    served.shutdown(Shutdown::Write).unwrap();
    drop(served);
    for _ in 0..2 {
        let mut next = listen(runtime, address, &to, &[]);
        next.wait_for("going on with 1 session");
        std::thread::sleep(Duration::from_millis(200));
        stop(&mut next, 1);
    }
    let server = listen(runtime, address, &to, &[]);
    client.signal("CONT");
    let mut answer = [0; 10];
    program.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"the answer");
    drop(server);
}

/// One that has reset its connection in the middle of its answer has not ended it, however many listeners have had that since.
#[test]
fn a_reset_stays_one_through_many_listeners() {
    for mode in ["auto", "inband"] {
        let folder = folder();
        let runtime = folder.path();
        let (address, service) = (nobody(), TcpListener::bind("127.0.0.1:0").unwrap());
        let to = service.local_addr().unwrap().to_string();
        let mut server = listen(runtime, address, &to, &[]);
        let (client, front) = connect(runtime, address, &["--ack", mode]);
        let (mut program, mut served) = both_ends(front, &service);
        program.write_all(b"never read").unwrap();
        served.peek(&mut [0]).unwrap();
        client.freeze();
        served.write_all(b"half an").unwrap();
        // The relay has these, and then the reset.
        std::thread::sleep(Duration::from_millis(100));
        drop(served);
        std::thread::sleep(Duration::from_millis(100));
        server.signal("TERM");
        server.ended();
        for _ in 0..2 {
            let mut next = listen(runtime, address, &to, &[]);
            std::thread::sleep(Duration::from_millis(300));
            next.signal("TERM");
            next.ended();
        }
        let server = listen(runtime, address, &to, &[]);
        client.signal("CONT");
        let mut answer = Vec::new();
        let end = program.read_to_end(&mut answer);
        assert!(end.is_err(), "{mode}: a clean end after {answer:?}");
        assert!(b"half an".starts_with(&answer), "{mode}: {answer:?}");
        drop(server);
    }
}

fn whole(stream: &mut TcpStream) -> Vec<u8> {
    let mut content = Vec::new();
    stream.read_to_end(&mut content).unwrap();
    content
}
