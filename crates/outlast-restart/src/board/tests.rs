//! The board, without processes.

use super::*;

#[test]
fn what_happens_is_written_down_and_the_last_is_kept() {
    let (_memory, board) = Board::create(&Policy { hang_timeout_ms: 7, ..Policy::default() }).unwrap();
    assert_eq!(board.policy().unwrap().hang_timeout_ms, 7);
    assert!(!board.is_ready());
    for pid in 1..=100 {
        let number = board.note_begin(pid, Duration::from_micros(20));
        board.note_end(number, None, Cause::Hang);
        board.note_end(number, Some(9), Cause::Killed);
    }
    let past = board.generations();
    assert_eq!((past.len(), board.generation()), (GENERATIONS as usize, 100));
    let last = past.last().unwrap();
    assert_eq!((last.number, last.death, last.cause), (100, Some(Death::Signal(9)), Cause::Hang));
    for number in 0..20 {
        board.note_quarantined(number, "127.0.0.1:1", &vec![7; number as usize * 100]);
    }
    let (count, list) = board.quarantined();
    assert_eq!((count, list.len(), list.last().unwrap().length), (20, QUARANTINED as usize, 1900));
    assert_eq!((list.last().unwrap().bytes.len(), list[0].peer.as_str()), (REQUEST_BYTES, "127.0.0.1:1"));
}

#[test]
fn a_server_that_is_started_anew_counts_anew_and_writes_down_its_own() {
    let (_memory, board) = Board::create(&Policy::default()).unwrap();
    for start in 0..3 {
        board.note_start(None);
        for number in 1..=2 {
            assert_eq!(board.note_begin(10 * start + number, Duration::ZERO), number);
            board.note_end(number, Some(9), Cause::Killed);
        }
    }
    let past = board.generations();
    assert_eq!(past.iter().map(|past| past.number).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    assert_eq!(past.iter().map(|past| past.pid).collect::<Vec<_>>(), [1, 2, 11, 12, 21, 22]);
    assert!(past.iter().all(|past| past.ended_ms.is_some() && past.cause == Cause::Killed), "{past:?}");
    board.note_quarantined(2, "127.0.0.1:1", b"");
    assert_eq!(board.quarantined().1.last().unwrap().generation, 6);
}

#[test]
fn a_generation_that_died_before_it_was_written_down_takes_nobody_elses_number() {
    let (_memory, board) = Board::create(&Policy::default()).unwrap();
    board.note_begin(7, Duration::ZERO);
    board.note_start(None);
    for number in [1, 3] {
        board.note_begin_of(number, 10 + number, Duration::ZERO);
        board.note_end(number, Some(9), Cause::Killed);
    }
    let past = board.generations();
    let seen: Vec<_> = past.iter().map(|past| (past.number, past.pid, past.ended_ms.is_some())).collect();
    assert_eq!(seen, [(1, 7, false), (2, 11, true), (4, 13, true)]);
}

#[test]
fn a_process_that_was_taken_for_a_generation_and_has_some_is_none() {
    let (_memory, board) = Board::create(&Policy::default()).unwrap();
    assert_eq!(board.note_begin(7, Duration::ZERO), 1);
    board.count_anew(7);
    assert_eq!(board.note_begin(8, Duration::ZERO), 1);
    board.count_anew(7);
    assert_eq!(board.note_begin(9, Duration::ZERO), 1);
    assert_eq!(board.generations().iter().map(|past| past.pid).collect::<Vec<_>>(), [8, 9]);
}

#[test]
fn want_of_memory_is_why_it_was_killed_whoever_says_so_first() {
    for causes in [[Cause::Killed, Cause::OutOfMemory], [Cause::OutOfMemory, Cause::Killed]] {
        let (_memory, board) = Board::create(&Policy::default()).unwrap();
        let number = board.note_begin(7, Duration::ZERO);
        for cause in causes {
            board.note_end(number, None, Cause::Unknown);
            board.note_end(number, Some(9), cause);
        }
        assert_eq!(board.past(number).unwrap().cause, Cause::OutOfMemory);
    }
}
