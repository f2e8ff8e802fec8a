//! Others are faster.

use super::by_hand::ByHand;
use super::*;
use crate::engine::gap::{self, Gap};
use crate::engine::{Progress, SessionState};
use crate::proto::Hello;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn a_session_that_has_its_next_link_is_not_booked_as_without_one() {
    let pair = Arc::new(ByHand::new(quick(LinkMode::Kernel)));
    let server = pair.open();
    let client = pair.clone();
    gap::next_time(Gap::LostUntold, &server, move || {
        client.resume();
        false
    });
    server.lost(&server.link().unwrap(), "cut");
    assert_eq!((server.info().epoch, server.info().state), (2, SessionState::Connected));
    let stats = pair.acceptor.registry.lock().stats();
    assert_eq!((stats.attached, stats.detached), (1, 0));
    // And that one is lost as well.
    server.lost(&server.link().unwrap(), "cut");
    assert_eq!(pair.acceptor.registry.lock().stats().detached, 1);
}

#[test]
fn a_session_that_has_a_link_again_outlives_the_end_of_its_patience() {
    let patience = crate::config::Patience::For(Duration::from_millis(20));
    let pair = Arc::new(ByHand::new(Config { patience, ..quick(LinkMode::Kernel) }));
    let server = pair.open();
    server.lost(&server.link().unwrap(), "cut");
    pair.client.lost(&pair.client.link().unwrap(), "cut");
    std::thread::sleep(Duration::from_millis(30));
    let (resumed, other) = (Arc::new(AtomicBool::new(false)), pair.clone());
    let is_resumed = resumed.clone();
    gap::next_time(Gap::PatienceOver, &pair.client, move || {
        other.resume();
        is_resumed.store(true, Ordering::SeqCst);
        false
    });
    wait_until("looked at", || {
        pair.client.look_at_patience();
        resumed.load(Ordering::SeqCst)
    });
    assert_eq!(pair.client.info().state, SessionState::Connected);
}

#[test]
fn a_session_that_goes_on_in_another_process_is_not_ended_here() {
    let pair = ByHand::new(quick(LinkMode::Kernel));
    let server = pair.open();
    let other = server.clone();
    gap::next_time(Gap::GivesUp, &server, move || {
        other.detach().unwrap();
        false
    });
    assert!(server.aborted_by_peer(&Hello::open(server.id, LinkMode::Inband)).is_none(), "is not told there");
    assert!(!pair.acceptor.kill(&server.id), "nor killed");
}

#[test]
fn what_is_written_while_a_session_is_made_passive_wakes_it() {
    let pair = ByHand::new(quick(LinkMode::Kernel));
    let _server = pair.open();
    let (client, writing) = (pair.client.clone(), Arc::new(Mutex::new(None)));
    let started = writing.clone();
    gap::next_time(Gap::FoundQuiet, &pair.client, move || {
        let (written, done) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            // More than the server's kernel takes while nobody reads there.
            let chunk = [7; 64 << 10];
            while matches!(client.write(&chunk, None), Ok(Progress::Done(_))) {
                let _ = written.send(());
            }
        });
        // It is held up for as long as nothing may be written.
        while done.recv_timeout(Duration::from_millis(200)).is_ok() {}
        *started.lock().unwrap() = Some(thread);
        false
    });
    wait_until("quiet", || pair.client.passivate().unwrap());
    let thread = writing.lock().unwrap().take().unwrap();
    thread.join().unwrap();
    let info = pair.client.info();
    assert!(info.unacked_bytes > 0);
    assert_eq!(info.state, SessionState::Lost, "a new link is wanted");
}

#[test]
fn a_reservation_holds_nobody_up_but_other_writers() {
    for mode in [LinkMode::Kernel, LinkMode::Window, LinkMode::Udp, LinkMode::Inband] {
        within(move || {
            let mut pair = Pair::new(quick(mode));
            let mut other =
                Session::connect_with(&Targets::from(pair.listener.local_addr()), &Arc::new(quick(mode)))
                    .unwrap();
            other.established().unwrap();
            let mut other_server = pair.listener.accept().unwrap();
            for (ours, theirs) in
                [(pair.server.clone(), pair.client.clone()), (pair.client.clone(), pair.server.clone())]
            {
                let mut room = ours.reserve(5).unwrap();
                room.copy_from_slice(b"hello");
                // In the same thread.
                let epoch = ours.info().epoch;
                pair.cut();
                wait_until("resumed", || {
                    let link =
                        |session: &Session| session.info().epoch > epoch && session.info().mode.is_some();
                    link(&ours) && link(&theirs)
                });
                round_trip(&mut other, &mut other_server, 1);
                // The other direction flows.
                (&theirs).write_all(b"meanwhile").unwrap();
                let mut got = [0; 9];
                (&ours).read_exact(&mut got).unwrap();
                let writer = {
                    let ours = ours.clone();
                    std::thread::spawn(move || (&ours).write_all(b" there").unwrap())
                };
                std::thread::sleep(Duration::from_millis(20));
                room.commit(5);
                writer.join().unwrap();
                let mut got = [0; 11];
                (&theirs).read_exact(&mut got).unwrap();
                assert_eq!(&got, b"hello there");
                // Nothing is written.
                drop(ours.reserve(100).unwrap());
            }
            pair.round_trip(2);
        });
    }
}

/// The link takes nothing more, and answers to a peer's questions wait before an acknowledgement, which is not the last.
#[test]
fn an_acknowledgement_for_which_there_was_no_room_is_told_later() {
    within(|| {
        let pair = ByHand::new(quick(LinkMode::Inband));
        let server = pair.open();
        let full = || !server.tx().sender.push_frame(&crate::proto::Frame::Ack, 0);
        let mut token = 0;
        while !full() {
            server.send_pong(token);
            token += 1;
        }
        assert!(matches!(pair.client.write(b"hello", None), Ok(Progress::Done(5))));
        wait_until("read", || {
            let read = server.read(&mut [0; 5], crate::engine::Waiting::Never);
            matches!(read, Ok(Progress::Done(5)))
        });
        server.send_ack();
        assert!(server.owes_ack(), "it was not told");
        // The client has a look at what has come, and whoever has room again tells.
        wait_until("acknowledged", || {
            pair.client.pump_input();
            pair.client.info().unacked_bytes == 0
        });
    });
}
