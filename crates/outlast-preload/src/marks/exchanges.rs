//! How requests and answers are noted in a connection's slot: by who reads and who writes, each for itself, as these may be two
//! threads.

use crate::http::{Exchange, Verdict};
use crate::memory::Parts;
use outlast_restart::custody::table::{Phase, Slot};

fn exchange(slot: &Slot) -> Exchange {
    Exchange::from_numbers(slot.sides(), slot.asked(), slot.answered())
}

/// As far as reading tells it.
fn phase(verdict: Verdict, exchange: &Exchange) -> Phase {
    match verdict {
        Verdict::Unclear | Verdict::Switched => Phase::Unclear,
        _ if exchange.reads_request_next() => Phase::Idle,
        _ => Phase::Busy,
    }
}

/// So much was read by a process that has the connection.
pub fn note_read(slot: &Slot, filled: Option<Parts<'_>>, count: usize) -> (Verdict, Exchange) {
    let mut exchange = exchange(slot);
    let verdict = filled.map_or(Verdict::Unclear, |filled| exchange.on_read(filled.until(count)));
    let (request, asked) = exchange.asked_numbers();
    slot.set_asked(request, asked);
    slot.on_read(phase(verdict, &exchange), count);
    (verdict, exchange)
}

/// A write that is noted: others may read meanwhile.
pub struct Written {
    exchange: Exchange,
    pub verdict: Verdict,
    count: usize,
}

impl Written {
    /// What the connection is like behind it; nothing is stored yet.
    pub fn new(slot: &Slot, parts: Option<Parts<'_>>, count: usize) -> Self {
        let mut exchange = exchange(slot);
        let verdict = match parts {
            Some(parts) => exchange.on_write(parts.until(count)),
            None => exchange.on_write_unseen(count as u64),
        };
        Self { exchange, verdict, count }
    }

    /// Stores it.
    pub fn note(&self, slot: &Slot) {
        let (answer, answered) = self.exchange.answer_numbers();
        slot.set_answering(answer);
        if matches!(self.verdict, Verdict::Unclear | Verdict::Switched) {
            slot.set_phase(Phase::Unclear);
        }
        slot.on_write(answered, self.count);
    }
}

/// Whatever was answered: another thread may be about to note that.
pub fn waits_for_request(slot: &Slot) -> bool {
    slot.phase() != Phase::Unclear && slot.reading_phase() == Phase::Idle
}

/// It was noted that something may be read, and nothing was. Another reader may have been faster.
pub fn note_nothing_read(slot: &Slot) {
    if slot.phase() != Phase::Unclear && exchange(slot).reads_request_next() {
        slot.set_phase(Phase::Idle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast_restart::custody::table::Table;

    const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    const HEAD: &[u8] = b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n";
    const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
    const OK_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";

    fn slot() -> &'static Slot {
        let (_, table) = Table::create(false, "exchanges").unwrap();
        table.slot(table.claim(1, 2, 3, Phase::Busy).unwrap()).unwrap()
    }

    fn parts(bytes: &[u8]) -> Option<Parts<'_>> {
        Some(Parts::one(bytes.as_ptr().cast(), bytes.len()))
    }

    fn read(slot: &Slot, bytes: &[u8]) {
        note_read(slot, parts(bytes), bytes.len());
    }

    fn write(slot: &Slot, bytes: &[u8]) -> Written {
        Written::new(slot, parts(bytes), bytes.len())
    }

    #[test]
    fn a_request_that_is_read_while_an_answer_is_noted_is_waited_for() {
        let slot = slot();
        // Numbers wrap around, and answers to HEAD have a place of their own.
        for count in 0..600 {
            read(slot, GET);
            assert_eq!(slot.phase(), Phase::Busy, "{count}");
            let written = write(slot, OK);
            let (next, answer) = if count % 3 == 0 { (HEAD, OK_HEAD) } else { (GET, OK) };
            read(slot, next);
            written.note(slot);
            assert_eq!(slot.phase(), Phase::Busy, "{count}");
            write(slot, answer).note(slot);
            assert_eq!(slot.phase(), Phase::Idle, "{count}");
        }
    }

    #[test]
    fn an_answer_that_is_noted_while_a_request_is_read_is_an_answer() {
        let slot = slot();
        read(slot, GET);
        let mut exchange = exchange(slot);
        exchange.on_read([GET].into_iter());
        write(slot, OK).note(slot);
        let (request, asked) = exchange.asked_numbers();
        slot.set_asked(request, asked);
        slot.on_read(Phase::Idle, GET.len());
        assert_eq!(slot.phase(), Phase::Busy);
        write(slot, OK).note(slot);
        assert_eq!(slot.phase(), Phase::Idle);
    }

    #[test]
    fn what_is_not_kept_is_not_taken_back() {
        let slot = slot();
        read(slot, GET);
        let written = write(slot, OK);
        slot.set_phase(Phase::Unclear);
        written.note(slot);
        read(slot, GET);
        assert_eq!(slot.phase(), Phase::Unclear);
    }

    #[test]
    fn nothing_that_is_read_hides_what_another_thread_has_read() {
        let slot = slot();
        read(slot, GET);
        write(slot, OK).note(slot);
        assert!(waits_for_request(slot));
        slot.set_phase(Phase::Busy);
        note_nothing_read(slot);
        assert_eq!(slot.phase(), Phase::Idle);
        // Two have noted that they may read; one does.
        slot.set_phase(Phase::Busy);
        read(slot, GET);
        note_nothing_read(slot);
        assert_eq!(slot.phase(), Phase::Busy);
        write(slot, OK).note(slot);
        slot.set_phase(Phase::Busy);
        read(slot, &GET[..10]);
        note_nothing_read(slot);
        assert_eq!(slot.phase(), Phase::Busy);
    }

    #[test]
    fn the_last_answer_ends_it() {
        let slot = slot();
        read(slot, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        assert_eq!(slot.phase(), Phase::Busy);
        write(slot, OK).note(slot);
        assert_eq!(slot.phase(), Phase::Unclear);
    }
}
