//! What must hold, whatever happens.

use super::bytes;
use super::endpoint::{Ctx, Endpoint};

/// The highest positions seen so far.
#[derive(Debug, Default)]
pub struct Seen {
    acked_offset: u64,
    retained_offset: u64,
    next_offset: u64,
    sent_offset_max: u64,
}

/// The application reads what the other one wrote, and nothing else.
pub fn check_read(end: &Endpoint, cx: &mut Ctx, read: &[u8]) {
    let app = &end.app;
    if let Some(at) = bytes::first_wrong(app.reads_seed, app.read_bytes, read) {
        cx.violated(|| format!("{:?}: a wrong byte at {at}", end.side));
    }
    if app.read_bytes + read.len() as u64 > app.peer_total_bytes {
        cx.violated(|| format!("{:?}: reads beyond the end of the stream", end.side));
    }
    if app.saw_end {
        cx.violated(|| format!("{:?}: reads on after the end of the stream", end.side));
    }
}

/// The end of the stream comes after all of it.
pub fn check_end(end: &Endpoint, cx: &mut Ctx) {
    let app = &end.app;
    if app.read_bytes != app.peer_total_bytes {
        cx.violated(|| {
            format!(
                "{:?}: end of the stream after {} of {} bytes",
                end.side, app.read_bytes, app.peer_total_bytes
            )
        });
    }
}

/// Positions are in order and only rise; memory is bounded; nothing is counted that was not read.
pub fn check_end_state(end: &mut Endpoint, cx: &mut Ctx) {
    check_positions(end, cx);
    check_rising(end, cx);
    let retained_bytes = end.sender.retained_bytes();
    if retained_bytes > cx.plan.retain_bytes_max {
        cx.violated(|| format!("{:?}: {retained_bytes} bytes retained", end.side));
    }
    if end.consumed_offset() != end.app.read_bytes {
        let consumed_offset = end.consumed_offset();
        cx.violated(|| format!("{:?}: {} read, {consumed_offset} counted", end.side, end.app.read_bytes));
    }
    if end.link.is_none() && end.sender.has_output() {
        cx.violated(|| format!("{:?}: output without a link", end.side));
    }
}

fn check_positions(end: &Endpoint, cx: &mut Ctx) {
    let sender = &end.sender;
    let ordered = sender.retained_offset() <= sender.sent_offset_max()
        && sender.sent_offset() <= sender.sent_offset_max()
        && sender.sent_offset_max() <= sender.end_offset()
        && sender.acked_offset() <= sender.sent_offset_max()
        && sender.end_offset() == end.app.wrote_bytes;
    let held = end.link.is_none() || sender.retained_offset() <= sender.sent_offset();
    if !(ordered && held) {
        cx.violated(|| format!("{:?}: impossible positions: {sender:?}", end.side));
    }
    let receiver = &end.receiver;
    if receiver.end_offset().is_some_and(|end_offset| end_offset < receiver.next_offset()) {
        cx.violated(|| format!("{:?}: received beyond the end: {receiver:?}", end.side));
    }
}

fn check_rising(end: &mut Endpoint, cx: &mut Ctx) {
    let now = Seen {
        acked_offset: end.sender.acked_offset(),
        retained_offset: end.sender.retained_offset(),
        next_offset: end.receiver.next_offset(),
        sent_offset_max: end.sender.sent_offset_max(),
    };
    let seen = &end.seen;
    let rising = now.acked_offset >= seen.acked_offset
        && now.retained_offset >= seen.retained_offset
        && now.next_offset >= seen.next_offset
        && now.sent_offset_max >= seen.sent_offset_max;
    if !rising {
        cx.violated(|| format!("{:?}: a position fell: {seen:?}, then {now:?}", end.side));
    }
    end.seen = now;
}
