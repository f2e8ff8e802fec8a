//! What is taken for the end of a stream, and what is not.

use super::by_hand::ByHand;
use super::{Pair, quick, wait_until, within};
use crate::engine::gap::{self, Gap};
use crate::engine::{Engine, Progress, Pumped, Shaken, Waiting};
use crate::proto::{ClientHandshake, Credentials, Hello, Intent, LinkMode};
use crate::sys;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

/// The kernel counts a FIN as a byte. A byte that nobody has read yet is none.
#[test]
fn a_byte_that_waits_to_be_read_is_not_the_end_of_the_stream() {
    for mode in [LinkMode::Udp, LinkMode::Kernel, LinkMode::Window] {
        within(move || {
            let mut pair = Pair::new(quick(mode));
            pair.round_trip(1);
            pair.client.write_all(&[2]).unwrap();
            let link = pair.server.engine().link().unwrap();
            wait_until("there", || sys::unread_bytes(&*link).is_ok_and(|unread_bytes| unread_bytes == 1));
            // As the helper does while the application is elsewhere.
            let pumped = pair.server.engine().pump_input();
            assert_ne!(pumped, Pumped::Last, "{mode:?}: nothing more is expected");
            let mut got = [0];
            assert_eq!(pair.server.read(&mut got).unwrap(), 1, "{mode:?}: the end of the stream");
            assert_eq!(got, [2]);
            pair.round_trip(3);
        });
    }
}

/// It is noticed all the same where nothing else is left to be read.
#[test]
fn an_end_with_nothing_before_it_is_noticed_without_a_reader() {
    within(|| {
        let mut pair = Pair::new(quick(LinkMode::Udp));
        pair.round_trip(1);
        pair.client.shutdown(std::net::Shutdown::Write).unwrap();
        let link = pair.server.engine().link().unwrap();
        wait_until("noticed", || {
            pair.server.engine().pump_input();
            link.is_fin_seen()
        });
        assert_eq!(pair.server.read(&mut [0]).unwrap(), 0);
    });
}

/// A client of mode `inband` that has said all and read all, of a server that has not heard of it: it has read nothing.
fn through() -> (ByHand, Arc<Engine>) {
    let pair = ByHand::new(quick(LinkMode::Inband));
    let server = pair.open();
    pair.client.shutdown(Shutdown::Write).unwrap();
    server.shutdown(Shutdown::Write).unwrap();
    wait_until("the server's end", || {
        matches!(pair.client.read(&mut [0], Waiting::Never), Ok(Progress::Done(0)))
    });
    (pair, server)
}

/// It exited when it found, while it looked, that a helper had the receiving half in hand. Its server kept the session.
#[test]
fn a_client_waits_for_the_last_word_whoever_has_its_receiving_half_in_hand() {
    within(|| {
        let (pair, _server) = through();
        let in_hand = pair.client.rx.lock();
        pair.client.tx().sender.end_acked();
        assert!(pair.client.is_delivered() && pair.client.awaits_farewell());
        drop(in_hand);
        assert!(pair.client.awaits_farewell());
    });
}

/// And when its link was lost before it had begun to wait.
#[test]
fn a_client_without_a_link_makes_another_for_the_last_word() {
    within(|| {
        let (pair, server) = through();
        let link = pair.client.link().unwrap();
        // What the link brought last, and nobody has acted on.
        pair.client.rx.lock().ended_by_peer = Some(crate::engine::rx::EndedByPeer::EndAck);
        pair.client.lost(&link, "cut");
        assert!(pair.client.is_delivered() && pair.client.awaits_farewell());
        pair.resume();
        wait_until("over at both ends", || {
            server.flush();
            server.pump_input();
            pair.client.pump_input();
            server.is_over() && !pair.client.awaits_farewell()
        });
        assert!(pair.client.is_over());
    });
}

/// One thread of the client has read the end and is about to send the HalfClose. Another thread ends the session first, which
/// takes the link away: the HalfClose was never sent, and the server kept the session.
#[test]
fn a_client_that_ends_while_its_reader_is_about_to_tell_has_told() {
    within(|| {
        let mut pair = Pair::new(quick(LinkMode::Udp));
        pair.round_trip(1);
        pair.client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(pair.server.read(&mut [0]).unwrap(), 0);
        wait_until("the server's word for that", || pair.client.engine().is_delivered());
        pair.server.shutdown(Shutdown::Write).unwrap();
        let client = pair.client.engine().clone();
        gap::next_time(Gap::EndUntold, pair.client.engine(), move || {
            client.check_over();
            false
        });
        assert_eq!(pair.client.read(&mut [0]).unwrap(), 0);
        drop(pair.client);
        wait_until("over", || pair.server.engine().is_over());
    });
}

/// The server's application has let go by then, and nobody else would confirm.
#[test]
fn a_client_that_reads_the_end_late_ends_at_once() {
    within(|| {
        let pair = ByHand::new(quick(LinkMode::Udp));
        let server = pair.open();
        pair.client.shutdown(Shutdown::Write).unwrap();
        server.shutdown(Shutdown::Write).unwrap();
        wait_until("the client's end", || {
            matches!(server.read(&mut [0], Waiting::Never), Ok(Progress::Done(0)))
        });
        // As a handshake tells it.
        server.tx().sender.end_acked();
        assert!(server.check_over());
        let gone = Arc::downgrade(&server);
        drop(server);
        wait_until("let go of", || gone.strong_count() == 0);
        wait_until("the server's end", || {
            matches!(pair.client.read(&mut [0], Waiting::Never), Ok(Progress::Done(0)))
        });
        wait_until("over", || pair.client.is_over());
    });
}

/// PROTOCOL 3.6: that the position is none is said by what came on the present link and nobody has read yet. The session was ended for
/// it, by somebody else's Hello.
#[test]
fn a_hello_that_is_refused_for_what_its_present_link_has_brought_ends_no_session() {
    within(|| {
        let pair = ByHand::new(quick(LinkMode::Inband));
        let server = pair.open();
        assert!(server.write(b"hello", None).is_ok());
        server.flush();
        let room = std::cell::Cell::new([0; 5]);
        let reads_five = || {
            let mut bytes = room.get();
            let read = pair.client.read(&mut bytes, Waiting::Never);
            room.set(bytes);
            matches!(read, Ok(Progress::Done(5)))
        };
        wait_until("five bytes", reads_five);
        // A reader at work hears of that at the worst instant.
        let reader = server.clone();
        gap::next_time(Gap::ResumeChecked, &server, move || {
            reader.peer_acked(5);
            false
        });
        assert!(server.could_continue_at(4));
        let mut hello = Hello::open(pair.client.id, LinkMode::Inband);
        (hello.epoch, hello.intent, hello.next_offset) = (2, Intent::Resume, 4);
        let handshake = ClientHandshake::new(hello, Credentials::Open, [0; 32]).unwrap();
        let mut other = TcpStream::connect(pair.socket.local_addr().unwrap()).unwrap();
        other.write_all(handshake.start()).unwrap();
        other.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        let mut shaking = pair.accept();
        loop {
            match shaking.step(&pair.acceptor).unwrap() {
                Shaken::Wait => std::thread::yield_now(),
                Shaken::Done => break,
                Shaken::Opened(_) => panic!("a second session"),
            }
        }
        drop(shaking);
        let mut refusal = [0; 9];
        other.read_exact(&mut refusal).unwrap();
        // Its kind, and why, behind the magic number, the version and the length.
        assert_eq!((refusal.get(5), refusal.get(8)), (Some(&5), Some(&11)), "{refusal:?}");
        assert!(server.failure().is_none() && !server.could_continue_at(4));
        // Its own client goes on, with an epoch that is higher than the other one's.
        pair.client.ctl().client.saw_epoch(2);
        pair.resume();
        assert!(server.write(b"again", None).is_ok());
        server.flush();
        wait_until("five bytes more", reads_five);
        assert_eq!(&room.get(), b"again");
    });
}
