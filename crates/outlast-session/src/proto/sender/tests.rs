use super::*;
use crate::proto::{Control, Piece, Receiver};
use outlast_stream::Heap;

fn inband(retain_bytes_max: usize) -> Sender<Heap> {
    let mut sender = Sender::new(Heap, retain_bytes_max);
    sender.link(LinkMode::Inband, 0, 0, true).unwrap();
    sender
}

/// Has the link take up to `bytes`, and returns them.
fn take(sender: &mut Sender<Heap>, bytes: usize) -> Vec<u8> {
    sender.prepare(0);
    let mut taken = sender.chunks().concat();
    taken.truncate(bytes);
    sender.sent(taken.len());
    taken
}

fn controls(bytes: &[u8]) -> Vec<Control> {
    let mut receiver = Receiver::default();
    receiver.link(LinkMode::Inband);
    let (mut rest, mut found) = (bytes, Vec::new());
    loop {
        match receiver.parse(rest).unwrap() {
            Piece::Incomplete => return found,
            Piece::Payload { skip_bytes } => {
                let payload = receiver.payload_left_bytes();
                receiver.took(payload);
                rest = &rest[skip_bytes + payload..];
            }
            Piece::Control { bytes, control } => {
                found.push(control);
                rest = &rest[bytes..];
            }
        }
    }
}

#[test]
fn a_control_frame_within_a_frame_waits_for_its_end() {
    let mut sender = inband(1000);
    sender.push(&[7; 100]);
    let mut wire = take(&mut sender, 50);
    sender.push_frame(&Frame::EndAck, 0);
    assert!(sender.has_output());
    while sender.has_output() {
        wire.extend(take(&mut sender, 1000));
    }
    assert_eq!(controls(&wire), [Control::EndAcked]);
}

#[test]
fn what_waited_for_a_link_that_broke_is_void() {
    let mut sender = inband(1000);
    sender.push(&[7; 100]);
    take(&mut sender, 50);
    sender.push_frame(&Frame::EndAck, 0);
    sender.unlink();
    sender.link(LinkMode::Inband, 0, 0, true).unwrap();
    assert_eq!(controls(&take(&mut sender, 1000)), []);
    assert!(!sender.has_output());
}

#[test]
fn answers_to_a_peer_that_only_asks_are_bounded_but_not_the_end() {
    let mut sender = inband(1000);
    for token in 0..10_000 {
        sender.push_frame(&Frame::Pong { token }, 0);
    }
    // And says so: what it was to tell is not told.
    assert!(!sender.push_frame(&Frame::Ack, 100));
    assert!(sender.push_frame(&Frame::EndAck, 0));
    let wire = take(&mut sender, usize::MAX);
    assert!(wire.len() < 2 * ANSWERS_BYTES_MAX);
    assert_eq!(controls(&wire).last(), Some(&Control::EndAcked));
}

#[test]
fn an_end_is_acknowledged_once_on_each_link() {
    let mut sender = inband(1000);
    for _ in 0..10_000 {
        assert!(sender.push_frame(&Frame::EndAck, 0));
    }
    assert_eq!(controls(&take(&mut sender, usize::MAX)), [Control::EndAcked]);
    assert!(sender.push_frame(&Frame::EndAck, 0));
    assert_eq!(controls(&take(&mut sender, usize::MAX)), []);
    sender.unlink();
    sender.link(LinkMode::Inband, 0, 0, true).unwrap();
    assert!(sender.push_frame(&Frame::EndAck, 0));
    assert_eq!(controls(&take(&mut sender, usize::MAX)), [Control::EndAcked]);
}

#[test]
fn an_acknowledged_end_means_everything_even_if_its_header_names_less() {
    let mut sender = inband(1000);
    sender.push(&[7; 100]);
    sender.end();
    take(&mut sender, 1000);
    take(&mut sender, 1000);
    assert!(sender.is_end_sent());
    sender.acked(50).unwrap();
    sender.end_acked();
    assert!(sender.is_delivered());
    assert_eq!((sender.acked_offset(), sender.retained_bytes()), (100, 0));
}

#[test]
fn an_end_that_was_not_sent_is_not_acknowledged() {
    let mut sender = inband(1000);
    sender.push(&[7; 100]);
    sender.end_acked();
    sender.end();
    take(&mut sender, 1000);
    sender.end_acked();
    assert!(!sender.is_end_sent() && !sender.is_delivered());
    assert_eq!(sender.acked_offset(), 0);
}

#[test]
fn a_ring_filled_before_the_welcome_gets_room_by_it() {
    let mut sender = Sender::new(Heap, 100);
    sender.link(LinkMode::Window, 0, 0, false).unwrap();
    sender.push(&[7; 100]);
    take(&mut sender, 1000);
    assert_eq!((sender.room_bytes(), sender.retained_offset()), (0, 0));
    sender.confirm(60);
    assert_eq!((sender.room_bytes(), sender.retained_offset()), (40, 40));
}

#[test]
fn what_passes_the_ring_by_is_retained_behind_it() {
    let mut sender = Sender::new(Heap, 100);
    sender.link(LinkMode::Kernel, 0, 0, true).unwrap();
    sender.push(b"ring");
    assert!(!sender.can_pass_by(), "the ring goes first");
    take(&mut sender, 100);
    assert!(sender.can_pass_by());
    sender.passed_by(40);
    assert_eq!((sender.end_offset(), sender.sent_offset(), sender.aside_bytes()), (44, 44, 40));
    assert_eq!((sender.room_bytes(), sender.retained_bytes()), (56, 44));
    // Acknowledgements empty the ring before they reach what is behind it.
    sender.kernel_holds(42);
    assert_eq!((sender.retained_offset(), sender.aside_bytes()), (2, 40));
    sender.kernel_holds(10);
    assert_eq!((sender.retained_offset(), sender.aside_bytes(), sender.end_offset()), (34, 10, 44));
    // The shell has the last ten bytes, and five that were not sent.
    assert_eq!(sender.put_back(b"0123456789"), 10);
    assert_eq!(sender.put_back(b"fresh"), 5);
    assert_eq!((sender.aside_bytes(), sender.end_offset(), sender.pending_bytes()), (0, 49, 5));
    sender.unlink();
    sender.link(LinkMode::Inband, 0, 36, true).unwrap();
    sender.prepare(0);
    assert_eq!(&sender.chunks().concat()[16..], b"23456789fresh");
}

#[test]
fn everything_that_passed_by_can_be_acknowledged() {
    let mut sender = Sender::new(Heap, 100);
    sender.link(LinkMode::Kernel, 0, 0, true).unwrap();
    sender.passed_by(100);
    assert_eq!(sender.room_bytes(), 0);
    sender.kernel_holds(0);
    assert_eq!((sender.aside_bytes(), sender.room_bytes(), sender.retained_offset()), (0, 100, 100));
    sender.end();
    assert!(sender.fin_due());
    sender.fin_sent();
    sender.kernel_holds(1);
    assert!(!sender.is_delivered());
    sender.kernel_holds(0);
    assert!(sender.is_delivered());
}

#[test]
fn a_frame_made_by_the_shell_is_the_one_that_would_have_been_made_here() {
    let (message, ack_offset) = ([7; 20], 12345);
    let mut by_itself = inband(1000);
    by_itself.push(&message);
    by_itself.prepare(ack_offset);
    let whole = by_itself.chunks().concat();
    for sent_bytes in 0..=whole.len() {
        let mut sender = inband(1000);
        assert!(sender.can_frame());
        sender.framed(&message, ack_offset, sent_bytes);
        assert_eq!(sender.has_output(), sent_bytes < whole.len());
        assert_eq!(sender.can_frame(), sent_bytes == whole.len());
        let mut wire = whole[..sent_bytes].to_vec();
        wire.extend(take(&mut sender, 1000));
        assert_eq!(wire, whole);
        assert_eq!((sender.sent_offset(), sender.retained_bytes()), (20, 20));
    }
}

/// The application has the ring's memory: links come and go, the handshake and control frames go out, payload waits.
#[test]
fn payload_waits_for_an_application_that_fills_its_reservation() {
    for mode in [LinkMode::Kernel, LinkMode::Inband] {
        let mut sender = Sender::new(Heap, 1000);
        sender.link(mode, 0, 0, true).unwrap();
        sender.push(b"early");
        sender.reserve(4).copy_from_slice(b"late");
        let mut lent = sender.lend().unwrap();
        assert!(sender.is_lent() && !sender.has_output() && !sender.fin_due());
        assert_eq!((sender.push(b"x"), sender.room_bytes(), sender.pending_bytes()), (0, 0, 5));
        sender.end();
        sender.unlink();
        sender.link(mode, 0, 0, true).unwrap();
        sender.push_head(b"Welcome");
        assert!(sender.has_output() && !sender.end_follows());
        assert_eq!(take(&mut sender, 1000), b"Welcome");
        if mode == LinkMode::Inband {
            sender.push_frame(&Frame::Ack, 0);
            assert_eq!(controls(&take(&mut sender, 1000)), [Control::Acked]);
        }
        assert!(!sender.has_output() && !sender.is_end_sent());
        lent.reserved_mut()[0] = b'L';
        sender.give_back(lent);
        assert_eq!(sender.commit(4), 4);
        let wire = take(&mut sender, 1000);
        assert!(wire.ends_with(b"earlyLate"), "{wire:?}");
    }
}

/// A frame that has begun is finished first, and its payload is not at hand.
#[test]
fn nothing_comes_between_the_parts_of_a_frame_whose_payload_is_elsewhere() {
    let mut sender = inband(1000);
    sender.push(b"0123456789");
    assert_eq!(take(&mut sender, FRAME_HEADER_BYTES + 4).len(), FRAME_HEADER_BYTES + 4);
    assert_eq!(sender.reserve(1).len(), 1);
    let lent = sender.lend().unwrap();
    sender.push_frame(&Frame::EndAck, 0);
    assert!(!sender.has_output());
    sender.give_back(lent);
    sender.commit(0);
    assert_eq!(take(&mut sender, 1000), b"456789");
    assert_eq!(controls(&take(&mut sender, 1000)), [Control::EndAcked]);
}
