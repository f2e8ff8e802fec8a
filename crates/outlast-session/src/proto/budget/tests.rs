use super::*;
use core::net::Ipv4Addr;

const MIB: u64 = 1 << 20;

fn block(number: u8) -> Block {
    Block::of(Ipv4Addr::new(10, 0, number, 1).into())
}

fn holder(number: u8, of: u8, held_bytes: u64, detached_s: u64) -> Holder {
    let detached_for = Duration::from_secs(detached_s);
    let id = SessionId::from_bytes([number; 16]);
    Holder {
        id,
        block: block(of),
        held_bytes,
        released: false,
        detached_for,
        lived_for: SETTLED,
        handed_over: false,
        here_for: Duration::MAX,
    }
}

fn numbers(budget: Budget, used_bytes: u64, live: &[(u8, u64)], holders: &[Holder]) -> Vec<u8> {
    let mut blocks: BTreeMap<Block, u64> = live.iter().map(|(of, bytes)| (block(*of), *bytes)).collect();
    for holder in holders {
        *blocks.entry(holder.block).or_default() += holder.held_bytes;
    }
    budget.shed(used_bytes, false, &blocks, holders).iter().map(|id| id.as_bytes()[0]).collect()
}

#[test]
fn nobody_goes_while_there_is_enough() {
    let budget = Budget { bytes: 160 * MIB };
    assert!(budget.admits(119 * MIB, 119 * MIB) && budget.buffer_bytes_max(119 * MIB, true) == usize::MAX);
    assert!(!budget.admits(120 * MIB, 11 * MIB) && budget.admits(120 * MIB, 10 * MIB));
    assert_eq!(budget.buffer_bytes_max(120 * MIB, true), 256 << 10);
    assert_eq!(budget.buffer_bytes_max(120 * MIB, false), usize::MAX);
    assert!(!budget.admits(144 * MIB, 0));
    assert_eq!(budget.buffer_bytes_max(144 * MIB, false), 64 << 10);
    assert!(numbers(budget, 143 * MIB, &[], &[holder(1, 1, 100 * MIB, 9)]).is_empty());
}

#[test]
fn large_buffers_leave_room_for_small_ones() {
    const KIB: usize = 1 << 10;
    let budget = Budget { bytes: 160 * MIB };
    let granted = |used_bytes, buffer_bytes, wanted_bytes| {
        budget.buffer_bytes_granted(used_bytes, false, buffer_bytes, wanted_bytes)
    };
    assert_eq!(granted(0, 0, 9000 * KIB), 9000 * KIB);
    // 16 MiB would be taken, less what it has.
    assert_eq!(granted(103 * MIB, 0, 9000 * KIB), 9000 * KIB);
    assert_eq!(granted(104 * MIB, 0, 9000 * KIB), 256 * KIB);
    assert_eq!(granted(111 * MIB, 8192 * KIB, 9000 * KIB), 9000 * KIB);
    assert_eq!(granted(112 * MIB, 8192 * KIB, 9000 * KIB), 8192 * KIB);
    // And below nine tenths a little for everybody.
    assert_eq!(granted(143 * MIB, 64 * KIB, 9000 * KIB), 256 * KIB);
    assert_eq!(granted(144 * MIB - 1, 64 * KIB, 9000 * KIB), 64 * KIB);
    assert_eq!(granted(150 * MIB, 0, 9000 * KIB), 64 * KIB);
    assert_eq!(granted(150 * MIB, 0, KIB), KIB);
}

/// As long as each of them is chosen by a look at all blocks this takes minutes, and everybody waits.
#[test]
fn one_session_of_each_of_many_blocks_goes() {
    let budget = Budget { bytes: 10_000 * MIB };
    let holder = |number: u32| Holder {
        handed_over: false,
        here_for: Duration::MAX,
        id: SessionId::from_bytes(u128::from(number).to_be_bytes()),
        block: Block::of(Ipv4Addr::from(0x0a00_0001 + (number << 8)).into()),
        held_bytes: MIB,
        released: false,
        detached_for: Duration::from_secs(60),
        lived_for: Duration::ZERO,
    };
    let holders: Vec<Holder> = (0..40_000).map(holder).collect();
    let blocks: BTreeMap<Block, u64> = holders.iter().map(|holder| (holder.block, MIB)).collect();
    let mut gone = budget.shed(40_000 * MIB, false, &blocks, &holders);
    gone.sort_unstable();
    gone.dedup();
    assert_eq!((blocks.len(), gone.len()), (40_000, 33_125));
}

/// The block that holds most gives first, and stops at its guarantee; live sessions count and stay.
#[test]
fn who_holds_most_goes_first_and_the_guarantee_holds() {
    let budget = Budget { bytes: 160 * MIB };
    let mut holders = alloc::vec![holder(1, 1, 9 * MIB, 100), holder(2, 1, MIB, 900)];
    // A block within its guarantee loses nothing, however short it gets.
    assert!(numbers(budget, 160 * MIB, &[], &holders).is_empty());
    // With what its live sessions hold it is above: the longest without a link first.
    assert_eq!(numbers(budget, 160 * MIB, &[(1, 11 * MIB)], &holders), [2, 1]);
    // Another block holds more: it gives until it holds less, and only as much as is needed.
    holders.extend((10..40).map(|number| holder(number, 2, 4 * MIB, u64::from(number))));
    assert_eq!(numbers(budget, 145 * MIB, &[(1, 11 * MIB)], &holders), [39, 38]);
    // One that no application holds goes first in its block.
    holders[5].released = true;
    assert_eq!(numbers(budget, 145 * MIB, &[(1, 11 * MIB)], &holders), [13, 39]);
}

/// Where somebody was refused room is made sooner; who holds next to nothing goes last.
#[test]
fn who_is_refused_makes_those_go_that_hold_much() {
    let budget = Budget { bytes: 160 * MIB };
    let holders = [holder(1, 1, 60 << 10, 9_000), holder(2, 1, 15 * MIB, 5), holder(3, 1, 15 * MIB, 9)];
    let blocks = BTreeMap::from([(block(1), 125 * MIB)]);
    let gone = |used_bytes, wanted| -> Vec<u8> {
        let gone = budget.shed(used_bytes, wanted, &blocks, &holders);
        gone.iter().map(|id| id.as_bytes()[0]).collect()
    };
    assert!(gone(119 * MIB, true).is_empty() && gone(125 * MIB, false).is_empty());
    assert_eq!(gone(125 * MIB, true), [3]);
    assert_eq!(gone(135 * MIB, true), [3, 2]);
    assert_eq!(gone(145 * MIB, true), [3, 2, 1]);
}

/// None of them holds more than a sixteenth, and together they hold all.
#[test]
fn many_blocks_that_hold_a_little_make_room_too() {
    let budget = Budget { bytes: 160 * MIB };
    // A block that holds less than its part keeps it, though its session has been away for longest.
    let mut holders = alloc::vec![holder(255, 255, MIB, 9_000)];
    holders.extend((0..36).map(|number| holder(number, number, 4 * MIB, 5 + u64::from(number))));
    let mut blocks: BTreeMap<Block, u64> = BTreeMap::new();
    for holder in &holders {
        *blocks.entry(holder.block).or_default() += holder.held_bytes;
    }
    let gone = budget.shed(145 * MIB, true, &blocks, &holders);
    // From 145 MiB to 110.
    assert_eq!(gone.len(), 9);
    assert!(!gone.contains(&SessionId::from_bytes([255; 16])));
    assert_eq!(budget.shed(145 * MIB, false, &blocks, &holders).len(), 2);
    // A client that has just lost its link is about to come back.
    holders.iter_mut().for_each(|holder| holder.detached_for = Duration::from_millis(4999));
    assert!(budget.shed(145 * MIB, true, &blocks, &holders).is_empty());
}

/// A crowd from many blocks opens sessions and abandons them: it cannot push out somebody who holds more than any of them.
#[test]
fn who_was_in_use_goes_after_all_that_never_were() {
    let budget = Budget { bytes: 160 * MIB };
    let in_use = holder(255, 255, 20 * MIB, 9_000);
    let crowd = |each_bytes| {
        let abandoned = move |number: u8| Holder {
            lived_for: Duration::from_millis(9_999),
            ..holder(number, number, each_bytes, 5)
        };
        (0..36).map(abandoned).chain([in_use]).collect::<Vec<Holder>>()
    };
    let gone = numbers(budget, 145 * MIB, &[], &crowd(4 * MIB));
    assert!(gone.len() == 9 && !gone.contains(&255), "{gone:?}");
    let gone = numbers(budget, 159 * MIB, &[], &crowd(MIB / 4));
    assert_eq!((gone.len(), gone.last()), (37, Some(&255)), "{gone:?}");
    // One that has just lost its link may come back, and its block has its guarantee.
    let mut young = crowd(MIB);
    young[36] = Holder { detached_for: Duration::from_secs(4), ..in_use };
    assert!(!numbers(budget, 159 * MIB, &[], &young).contains(&255));
}

#[test]
fn sessions_without_a_link_make_room_in_descriptors() {
    let files = Descriptors { most: 160 };
    let holders: Vec<Holder> =
        (0..100).map(|number| holder(number, number % 50, 0, 5 + u64::from(number))).collect();
    let blocks: BTreeMap<Block, u64> = (0..50).map(|number| (block(number), 2)).collect();
    assert!(files.shed(119, &blocks, &holders).is_empty());
    let gone = files.shed(120, &blocks, &holders);
    assert_eq!(gone.len(), 10);
    // Of ten blocks one each, the one that has been away for longer.
    assert!(gone.iter().all(|id| id.as_bytes()[0] >= 50));
    // Live sessions of a block count, and stay.
    assert!(files.shed(159, &BTreeMap::from([(block(1), 110)]), &[]).is_empty());
}

/// Who opens sessions only to abandon them keeps nobody out; who was there stays.
#[test]
fn abandoned_sessions_make_room_for_newcomers_and_others_do_not() {
    let places = Places { most: 160 };
    let abandoned = |number| Holder {
        lived_for: Duration::from_secs(9),
        ..holder(number, number % 20, 0, 5 + u64::from(number))
    };
    let used = |number| Holder { lived_for: Duration::from_secs(10), ..holder(number, 30, 0, 36_000) };
    let holders: Vec<Holder> = (0..100).map(abandoned).chain((100..160).map(used)).collect();
    let blocks: BTreeMap<Block, u64> =
        (0..20).map(|number| (block(number), 5)).chain([(block(30), 60)]).collect();
    let gone = places.shed(160, &blocks, &holders);
    assert_eq!(gone.len(), 50, "down to eleven sixteenths");
    assert!(gone.iter().all(|id| id.as_bytes()[0] < 100), "{gone:?}");
    assert!(places.shed(160, &blocks, &holders[100..]).is_empty());
    // A client may be about to come back.
    let just_lost: Vec<Holder> = holders
        .iter()
        .map(|holder| Holder { detached_for: Duration::from_millis(4_999), ..*holder })
        .collect();
    assert!(places.shed(160, &blocks, &just_lost).is_empty());
}

#[test]
fn openings_end_before_descriptors_do() {
    let files = Descriptors { most: 20_000 };
    assert!(files.admits(14_999) && !files.admits(15_000));
    assert_eq!(files.sessions_per_block_max(9_999), usize::MAX);
    assert_eq!(files.sessions_per_block_max(10_000), 1_250);
    assert_eq!((files.places(1024), files.places(10_000)), (1024, 3_000));
    let few = Descriptors { most: 256 };
    assert_eq!((few.sessions_per_block_max(200), few.places(1024)), (16, 36));
    assert_eq!(Descriptors { most: u64::MAX }.places(1024), 1024);
}

#[test]
fn bytes_weigh_double_after_an_hour() {
    let budget = Budget { bytes: 160 * MIB };
    let fresh = holder(1, 1, 40 * MIB, 3599);
    let stale = holder(2, 2, 30 * MIB, 3600);
    assert_eq!(numbers(budget, 150 * MIB, &[], &[fresh, stale]), [2]);
    let little = holder(3, 3, 60 << 10, 36_000);
    assert_eq!(little.weight(), 60 << 10);
}

/// A client that reads has what its path takes; one that reads nothing has what is left for everybody.
#[test]
fn a_servers_buffer_grows_as_its_client_acknowledges() {
    assert_eq!(ring_bytes_max(0), 256 << 10);
    assert_eq!(ring_bytes_max(64 << 10), 256 << 10);
    assert_eq!(ring_bytes_max(65 << 10), 260 << 10);
    assert_eq!(ring_bytes_max(u64::MAX), usize::MAX);
    // In slow start nothing is sent in a round that was not acknowledged in the one before, or was in the first window: the
    // kernel's send queue is twice that.
    let (mut acked_bytes, mut window_bytes) = (0u64, 14u64 << 10);
    for _ in 0..20 {
        assert!(2 * window_bytes <= ring_bytes_max(acked_bytes) as u64);
        acked_bytes += window_bytes;
        window_bytes *= 2;
    }
}

/// Who is gone at once, and left much behind, goes before anybody is refused for it; the more it is the sooner.
#[test]
fn much_that_was_left_behind_at_once_makes_room_soon() {
    let budget = Budget { bytes: 1600 * MIB };
    let left = |held_bytes, detached_ms| Holder {
        detached_for: Duration::from_millis(detached_ms),
        lived_for: Duration::from_millis(9_999),
        ..holder(1, 1, held_bytes, 0)
    };
    let goes = |used_bytes, holder: Holder| {
        let gone = budget.shed(used_bytes, false, &BTreeMap::from([(block(1), used_bytes)]), &[holder]);
        !gone.is_empty()
    };
    assert!(goes(1200 * MIB, left(3 * MIB, 500)) && !goes(1200 * MIB, left(3 * MIB, 499)));
    assert!(goes(1200 * MIB, left(MIB / 4, 1_250)) && !goes(1200 * MIB, left(MIB / 4, 1_249)));
    assert!(!goes(1200 * MIB - 1, left(3 * MIB, 500)));
    // Who holds no more than anybody may goes when there is need, and was in use when it lived for longer.
    assert!(!goes(1200 * MIB, left(64 << 10, 9_000)) && goes(1500 * MIB, left(64 << 10, 5_000)));
    let settled = Holder { lived_for: SETTLED, ..left(3 * MIB, 4_999) };
    assert!(!goes(1599 * MIB, settled));
    // Where its process has changed its client may be slower.
    let handed_over = |detached_ms| Holder { handed_over: true, ..left(3 * MIB, detached_ms) };
    assert!(!goes(1599 * MIB, handed_over(4_999)) && goes(1200 * MIB, handed_over(5_000)));
    let just_here = Holder { here_for: Duration::from_millis(4_999), ..handed_over(60_000) };
    assert!(!goes(1599 * MIB, just_here));
    // And nothing of a block that holds no more than it keeps.
    let little = BTreeMap::from([(block(1), 100 * MIB)]);
    assert!(budget.shed(1200 * MIB, false, &little, &[left(3 * MIB, 600)]).is_empty());
}

/// In virtual time, looked at as the shell does. The kind of network, sessions a second, what each holds.
#[derive(Clone, Copy, Debug)]
struct Crowd {
    networks: u32,
    openings_per_s: u64,
    held_bytes: u64,
}

/// How often newcomers of other networks were refused, of 20, and how many of those were given up that had been in use.
fn crowd_and_others(crowd: Crowd) -> (usize, usize) {
    const LOOK_MS: u64 = 20;
    let budget = Budget { bytes: 1024 * MIB };
    let network = |number: u32| Block::of(Ipv4Addr::from(0x0a00_0001 + (number << 8)).into());
    let id = |number: u64| SessionId::from_bytes(u128::from(number).to_be_bytes());
    // Number, network, bytes, opened and lost at.
    let mut sessions: Vec<(u64, u32, u64, u64, u64)> = (0..50)
        .map(|number| (number, 100_000 + u32::try_from(number).unwrap(), 3 * MIB, 0, 10_000))
        .collect();
    let (mut refused, mut next, mut wanted) = (0, 1_000, false);
    for now_ms in (10_000..30_000).step_by(usize::try_from(LOOK_MS).unwrap()) {
        let mut blocks: BTreeMap<Block, u64> = BTreeMap::new();
        for (_, of, held_bytes, ..) in &sessions {
            *blocks.entry(network(*of)).or_default() += held_bytes;
        }
        let mut used_bytes = blocks.values().sum::<u64>();
        for _ in 0..crowd.openings_per_s * LOOK_MS / 1000 {
            let of = u32::try_from(next % u64::from(crowd.networks)).unwrap();
            let held = blocks.entry(network(of)).or_default();
            next += 1;
            if budget.admits(used_bytes, *held) {
                sessions.push((next, of, crowd.held_bytes, now_ms, now_ms));
                *held += crowd.held_bytes;
                used_bytes += crowd.held_bytes;
            } else {
                wanted = true;
            }
        }
        if now_ms % 1_000 == 0 && !budget.admits(used_bytes, 0) {
            refused += 1;
            wanted = true;
        }
        let holder = |(number, of, held_bytes, opened_ms, lost_ms): &(u64, u32, u64, u64, u64)| Holder {
            handed_over: false,
            here_for: Duration::MAX,
            id: id(*number),
            block: network(*of),
            held_bytes: *held_bytes,
            released: false,
            detached_for: Duration::from_millis(now_ms - lost_ms),
            lived_for: Duration::from_millis(lost_ms - opened_ms),
        };
        let holders: Vec<Holder> = sessions.iter().map(holder).collect();
        let gone: BTreeSet<SessionId> =
            budget.shed(used_bytes, core::mem::take(&mut wanted), &blocks, &holders).into_iter().collect();
        sessions.retain(|(number, ..)| !gone.contains(&id(*number)));
    }
    (refused, 50 - sessions.iter().filter(|session| session.0 < 50).count())
}

/// Each asks for a download and leaves at once: what was under way to it stays in the kernel.
#[test]
fn who_asks_for_much_and_leaves_keeps_no_newcomer_out() {
    for networks in [1, 16, 64, 235, 16_384] {
        for (openings_per_s, held_bytes) in [(100, 3 * MIB), (100, 8 * MIB), (300, 3 * MIB), (1_000, MIB / 2)]
        {
            let crowd = Crowd { networks, openings_per_s, held_bytes };
            assert_eq!(crowd_and_others(crowd), (0, 0), "{crowd:?}");
        }
    }
}
