use super::*;

#[test]
fn connections_find_a_place_and_are_found_once() {
    let (_memory, table) = Table::create(false, "a test").unwrap();
    let (mut head, mut found) = (0, Vec::new());
    for cookie in 1..=200u64 {
        // All want the same place.
        let claimed = table.claim(cookie * SLOTS as u64, 7, 8, Phase::Busy);
        assert_eq!(claimed.is_some(), cookie <= PROBES as u64, "{cookie}");
    }
    table.take_new(&mut head, &mut found);
    assert_eq!(found.len(), PROBES);
    table.take_new(&mut head, &mut found);
    assert_eq!(found.len(), PROBES);
    let slot = table.slot(found[3]).unwrap();
    assert!(slot.advance(NEW, TAKEN) && !slot.advance(NEW, FREE));
    slot.free();
    assert_eq!(table.claim(5 * SLOTS as u64, 7, 8, Phase::Untouched), Some(found[3]));
    assert_eq!(table.slot(found[3]).unwrap().phase(), Phase::Untouched);
}

#[test]
fn connections_behind_a_place_that_is_never_written_are_found_at_once() {
    let (_memory, table) = Table::create(false, "a test").unwrap();
    let (mut head, mut found) = (0, Vec::new());
    table.announce(1);
    // A process is killed before it writes.
    table.tail.fetch_add(1, Ordering::SeqCst);
    for number in 2..=200 {
        table.announce(number);
        table.take_new(&mut head, &mut found);
    }
    assert_eq!(found, (1..=200).collect::<Vec<_>>());
    // One that was only slow is found, too.
    let place = table.tail.fetch_add(1, Ordering::SeqCst);
    table.announce(300);
    table.take_new(&mut head, &mut found);
    table.ring[place as usize % SLOTS].store(400 + 1, Ordering::SeqCst);
    table.take_new(&mut head, &mut found);
    assert_eq!(found[200..], [300, 400]);
}

#[test]
fn a_wild_write_costs_no_time_and_hides_nothing_later() {
    let (_memory, table) = Table::create(false, "a test").unwrap();
    let (mut head, mut found) = (0, Vec::new());
    for wild in [u32::MAX - 999, 1 << 31, 7] {
        table.announce(1);
        table.take_new(&mut head, &mut found);
        table.tail.fetch_add(wild, Ordering::SeqCst);
        let began = std::time::Instant::now();
        table.take_new(&mut head, &mut found);
        // It was minutes, or for ever.
        assert!(began.elapsed() < std::time::Duration::from_secs(2), "{wild}");
        found.clear();
        table.announce(5);
        table.take_new(&mut head, &mut found);
        assert_eq!(found, [5], "{wild}");
    }
}

#[test]
fn what_is_not_kept_is_noted_by_its_kind() {
    let (_memory, table) = Table::create(false, "a test").unwrap();
    assert_eq!(table.not_kept().count(), 0);
    table.note_speaks_first();
    assert!(table.speaks_first() && table.not_kept().count() == 0);
    table.note_speaks_http();
    assert!(!table.clients_begin() && table.not_kept().count() == 0);
    for kind in [NotKept::Other, NotKept::Tls, NotKept::Other] {
        table.note_not_kept(kind);
    }
    assert_eq!(table.not_kept().collect::<Vec<_>>(), [NotKept::Tls, NotKept::Other]);
    assert!(table.is_noted(NotKept::Tls) && !table.is_noted(NotKept::Http2));
}

#[test]
fn clients_begin_where_they_have_and_nobody_greets_them() {
    let (_memory, table) = Table::create(false, "a test").unwrap();
    assert!(!table.clients_begin());
    table.note_speaks_http();
    assert!(table.clients_begin() && !table.speaks_first());
    table.note_not_kept(NotKept::Executed);
    assert!(!table.clients_begin());
}

#[test]
fn an_address_that_nobody_has_noted_is_not_asked_for() {
    let (_memory, table) = Table::create(true, "a test").unwrap();
    let address = |port: u16| Address::Internet { ip: vec![127, 0, 0, 1], port, scope: 0 };
    table.note_address(&address(80));
    assert!(table.may_have(&address(80)) && !table.may_have(&address(81)));
    for is_replaced in [false, true, false] {
        table.set_replaced(is_replaced);
        assert_eq!((table.keeps_connections(), table.is_replaced()), (false, is_replaced));
    }
}
