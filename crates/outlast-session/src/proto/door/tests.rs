//! Crowds of all kinds at one door, in virtual time, with honest clients among them.
#![allow(clippy::unwrap_used, clippy::panic, clippy::cast_possible_truncation)]

use super::*;
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use outlast_stream::SplitMix64;

const ROUND_TRIP: Duration = Duration::from_millis(80);
const TICK: Duration = Duration::from_millis(1);

/// A door with all that came to it.
struct Scene {
    door: Door,
    now: Duration,
    next: u64,
    random: SplitMix64,
    /// Attackers that stand there, and when those that drip say their next byte.
    crowd: Vec<(u64, Kind)>,
    turned_away: BTreeSet<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Says nothing.
    Silent,
    /// A byte from time to time.
    Drip,
    /// Says a whole Hello and proves nothing.
    Hello,
}

impl Scene {
    fn new(seed: u64) -> Self {
        let door = Door::new(DoorLimits::default());
        let random = SplitMix64::new(seed);
        Self { door, now: Duration::ZERO, next: 1, random, crowd: Vec::new(), turned_away: BTreeSet::new() }
    }

    fn tell(&mut self, input: DoorInput) {
        self.door.handle(self.now, input);
        while let Some(DoorEffect::Reset { conn, .. }) = self.door.poll_effect() {
            assert!(!self.door.holds(conn));
            assert!(self.turned_away.insert(conn), "turned away twice");
        }
        let limits = self.door.limits;
        assert!(self.door.len() <= limits.places);
        assert!(self.door.strangers <= limits.places_of_strangers() + self.known_now());
        let free_for_all = limits.places / 2;
        let bounded = |line: &Line, most: usize| line.len() <= most.max(free_for_all);
        assert!(self.door.peers.values().all(|line| bounded(line, limits.places_per_peer())));
        assert!(self.door.blocks.values().all(|line| bounded(line, limits.places_per_block())));
        assert_eq!(self.door.sizes.len(), self.door.blocks.len());
        assert!(self.door.poll_timeout().is_none_or(|at| at > self.now), "somebody is late");
    }

    /// Those who came as strangers and showed that they are none.
    fn known_now(&self) -> usize {
        self.door.guests.values().filter(|guest| guest.progress == Progress::Knows).count()
    }

    fn arrive(&mut self, peer: Ipv4Addr, known: bool, progress: Progress) -> u64 {
        let conn = self.next;
        self.next += 1;
        self.tell(DoorInput::Accepted { conn, peer: peer.into(), known, progress });
        conn
    }

    /// `per_tick` attackers come each millisecond, from `blocks` blocks with `peers` addresses each.
    fn tick(&mut self, kind: Kind, per_tick: usize, blocks: u8, peers: u8) {
        for _ in 0..per_tick {
            let (block, peer) = (self.below(blocks), self.below(peers));
            let progress = if kind == Kind::Hello { Progress::Greeted } else { Progress::Silent };
            let conn = self.arrive(Ipv4Addr::new(10, 0, block, peer), false, progress);
            self.crowd.push((conn, kind));
        }
        let mut crowd = core::mem::take(&mut self.crowd);
        crowd.retain(|(conn, _)| self.door.holds(*conn));
        for (conn, kind) in &crowd {
            if *kind == Kind::Drip && self.random.one_in(300) {
                self.tell(DoorInput::Progressed { conn: *conn, progress: Progress::Begun });
            }
        }
        self.crowd = crowd;
        self.now += TICK;
        if self.door.poll_timeout().is_some_and(|at| at <= self.now) {
            self.tell(DoorInput::Timeout);
        }
    }

    fn below(&mut self, limit: u8) -> u8 {
        (self.random.next_u64() % u64::from(limit.max(1))) as u8
    }
}

/// An honest client: connects, says its Hello, proves itself a round trip later. Whether it got in, which takes
/// it several attempts if it is turned away.
fn honest(
    scene: &mut Scene,
    peer: Ipv4Addr,
    known: bool,
    resumes: bool,
    crowd: (Kind, usize, u8, u8),
) -> Option<u32> {
    let (kind, per_tick, blocks, peers) = crowd;
    for attempt in 1..=20 {
        let conn = scene.arrive(peer, known, Progress::Greeted);
        if resumes && scene.door.holds(conn) {
            scene.tell(DoorInput::Progressed { conn, progress: Progress::Knows });
        }
        let proven = scene.now + ROUND_TRIP;
        while scene.now < proven && scene.door.holds(conn) {
            scene.tick(kind, per_tick, blocks, peers);
        }
        if scene.door.holds(conn) {
            scene.tell(DoorInput::Left { conn });
            return Some(attempt);
        }
        let again = scene.now + Duration::from_millis(50);
        while scene.now < again {
            scene.tick(kind, per_tick, blocks, peers);
        }
    }
    None
}

/// Over TLS a client says which session it knows when it has exchanged keys: until then only its address is known to have one. The
/// crowd is in the same network, and takes all its places many times over in that time.
#[test]
fn who_has_a_session_may_shake_hands_beside_a_crowd() {
    for kind in [Kind::Silent, Kind::Drip, Kind::Hello] {
        for crowd in [(9, 1, 250), (9, 4, 250), (30, 1, 250)] {
            let (per_tick, blocks, peers) = crowd;
            let mut scene = Scene::new(7);
            (0..2_000).for_each(|_| scene.tick(kind, per_tick, blocks, peers));
            for _ in 0..20 {
                let conn = scene.arrive(Ipv4Addr::new(10, 0, 0, 251), true, Progress::Begun);
                let proven = scene.now + 2 * ROUND_TRIP;
                while scene.now < proven {
                    scene.tick(kind, per_tick, blocks, peers);
                }
                assert!(scene.door.holds(conn), "{kind:?}, {crowd:?}: turned away");
                scene.tell(DoorInput::Left { conn });
            }
        }
    }
}

/// From one address, from one block, from a few and from many: whoever has a session here gets in at the first
/// attempt, and a stranger, too, as long as its block has not more connections than its share.
#[test]
fn honest_clients_get_in_through_every_crowd() {
    for seed in 0..4 {
        for kind in [Kind::Silent, Kind::Drip, Kind::Hello] {
            for (per_tick, blocks, peers) in [(9, 1, 1), (9, 1, 250), (9, 4, 250), (3, 60, 30), (9, 200, 200)]
            {
                let mut scene = Scene::new(seed);
                for _ in 0..2_000 {
                    scene.tick(kind, per_tick, blocks, peers);
                }
                let crowd = (kind, per_tick, blocks, peers);
                let apart = Ipv4Addr::new(192, 168, 0, 1);
                let beside = Ipv4Addr::new(10, 0, 0, 251);
                let same = Ipv4Addr::new(10, 0, 0, 0);
                for _ in 0..3 {
                    let told = format!("seed {seed}, {crowd:?}");
                    // Who resumes is at its place, wherever it comes from.
                    assert_eq!(honest(&mut scene, apart, true, true, crowd), Some(1), "{told}");
                    assert_eq!(honest(&mut scene, beside, true, true, crowd), Some(1), "{told}");
                    assert_eq!(honest(&mut scene, same, true, true, crowd), Some(1), "{told}");
                    // A stranger from another block, too.
                    assert_eq!(honest(&mut scene, apart, false, false, crowd), Some(1), "{told}");
                }
            }
        }
    }
}

/// Many clients behind one address that come back at once are all let in, while nobody else wants their places.
#[test]
fn an_office_behind_one_address_comes_back_at_once() {
    let mut scene = Scene::new(3);
    let gateway = Ipv4Addr::new(10, 0, 0, 1);
    let all: Vec<u64> = (0..500).map(|_| scene.arrive(gateway, true, Progress::Greeted)).collect();
    assert!(scene.turned_away.is_empty() && all.iter().all(|conn| scene.door.holds(*conn)));
}

/// A stranger behind the same address as a crowd that says nothing is told apart by its Hello.
#[test]
fn a_hello_is_worth_more_than_silence() {
    for kind in [Kind::Silent, Kind::Drip] {
        let mut scene = Scene::new(7);
        let crowd = (kind, 9, 1, 1);
        for _ in 0..2_000 {
            scene.tick(crowd.0, crowd.1, crowd.2, crowd.3);
        }
        assert_eq!(honest(&mut scene, Ipv4Addr::new(10, 0, 0, 0), false, false, crowd), Some(1), "{kind:?}");
    }
}

/// The first byte is due sooner when the door is crowded, and everything is due in the end.
#[test]
fn time_is_up_sooner_in_a_crowd() {
    let mut scene = Scene::new(1);
    let first = scene.arrive(Ipv4Addr::new(10, 1, 0, 1), false, Progress::Silent);
    scene.now += Duration::from_millis(4_999);
    scene.tell(DoorInput::Timeout);
    assert!(scene.door.holds(first));
    scene.now += TICK;
    scene.tell(DoorInput::Timeout);
    assert!(!scene.door.holds(first) && scene.door.is_empty() && scene.door.poll_timeout().is_none());
    let says = scene.arrive(Ipv4Addr::new(10, 1, 0, 1), false, Progress::Begun);
    for number in 0..800u16 {
        let [high, low] = number.to_be_bytes();
        scene.arrive(Ipv4Addr::new(10, high + 2, low, 1), false, Progress::Silent);
    }
    assert_eq!(scene.door.poll_timeout(), Some(scene.now + Duration::from_secs(1)));
    scene.now += Duration::from_secs(1);
    scene.tell(DoorInput::Timeout);
    assert_eq!(scene.door.len(), 767, "as many as do not make a crowd");
    assert!(scene.door.holds(says));
}

/// What comes late concerns nobody any more.
/// Where there is no descriptor for the next one, who says nothing goes first, and nobody who has a session here.
#[test]
fn strangers_make_room_where_descriptors_are_short() {
    let mut scene = Scene::new(1);
    let from = |number: u8| IpAddr::from(Ipv4Addr::new(10, 0, number, 1));
    let guests = [
        (1, false, Progress::Begun),
        (2, true, Progress::Begun),
        (3, false, Progress::Silent),
        (4, false, Progress::Silent),
        (5, false, Progress::Knows),
    ];
    for (conn, known, progress) in guests {
        let peer = from(if conn == 4 { 3 } else { conn });
        scene.tell(DoorInput::Accepted { conn: conn.into(), peer, known, progress });
    }
    let mut gone = Vec::new();
    for _ in 0..5 {
        let before = scene.turned_away.clone();
        scene.tell(DoorInput::Short);
        gone.extend(scene.turned_away.difference(&before).copied());
    }
    assert_eq!(gone, [3, 4, 1]);
}

#[test]
fn who_has_left_is_forgotten() {
    let mut scene = Scene::new(1);
    let conn = scene.arrive(Ipv4Addr::LOCALHOST, false, Progress::Silent);
    scene.tell(DoorInput::Left { conn });
    scene.tell(DoorInput::Left { conn });
    scene.tell(DoorInput::Progressed { conn, progress: Progress::Knows });
    assert!(scene.door.is_empty() && scene.door.peers.is_empty() && scene.door.blocks.is_empty());
    assert!(scene.door.sizes.is_empty() && scene.door.silent.is_empty() && scene.door.strangers == 0);
}
