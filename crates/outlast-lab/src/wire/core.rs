//! What happens to each packet on one direction of a wire. No clock, no sockets: time is an argument.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::{Random, WireSpec};

/// A wire never holds more than this, whatever its delay and rate: what exceeds it is lost.
const IN_FLIGHT_BYTES_MAX: usize = 256 << 20;

/// What has become of the packets of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LaneStats {
    /// Packets that came out at the far end (a packet that came out twice counts twice).
    pub delivered: u64,
    /// Packets lost by chance.
    pub lost: u64,
    /// Packets lost because the queue was full.
    pub overflowed: u64,
    /// Packets lost because the direction was blocked.
    pub blocked: u64,
}

struct Parcel<P> {
    due: Duration,
    number: u64,
    packet: P,
}

impl<P> PartialEq for Parcel<P> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<P> Eq for Parcel<P> {}

impl<P> PartialOrd for Parcel<P> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Earlier is greater, as the heap gives the greatest first.
impl<P> Ord for Parcel<P> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.due, other.number).cmp(&(self.due, self.number))
    }
}

/// One direction of a wire.
///
/// The caller owns the time: `now` counts from the same moment in every call and never goes back.
/// Hand in packets with [`Self::send`], take them out with [`Self::receive`] until it gives nothing,
/// and come back at [`Self::next_due`].
pub(crate) struct Lane<P> {
    spec: WireSpec,
    random: Random,
    in_flight: BinaryHeap<Parcel<P>>,
    in_flight_bytes: usize,
    sent: u64,
    /// When the last byte handed in so far will have been put on the wire.
    wire_free: Duration,
    /// When the last packet that keeps its order comes out.
    last_due: Duration,
    blocked: bool,
    stats: LaneStats,
}

impl<P: AsRef<[u8]> + Clone> Lane<P> {
    /// A free lane; `salt` keeps the two directions of a wire from rolling the same dice.
    pub(crate) fn new(spec: WireSpec, salt: u64) -> Self {
        let random = Random::new(spec.seed ^ salt.wrapping_mul(0xd1b5_4a32_d192_ed03));
        Self {
            spec,
            random,
            in_flight: BinaryHeap::new(),
            in_flight_bytes: 0,
            sent: 0,
            wire_free: Duration::ZERO,
            last_due: Duration::ZERO,
            blocked: false,
            stats: LaneStats::default(),
        }
    }

    /// Changes what happens to packets from now on; those under way keep their fate.
    pub(crate) fn set_spec(&mut self, spec: WireSpec) {
        self.spec = spec;
    }

    /// Blocks or frees the lane. What is under way when it is blocked is lost: the wire is cut.
    pub(crate) fn set_blocked(&mut self, blocked: bool) {
        self.blocked = blocked;
        if blocked {
            self.stats.blocked += self.in_flight.len() as u64;
            self.in_flight.clear();
            self.in_flight_bytes = 0;
        }
    }

    /// What has happened so far.
    pub(crate) fn stats(&self) -> LaneStats {
        self.stats
    }

    /// Takes a packet in at time `now`.
    pub(crate) fn send(&mut self, now: Duration, packet: P) {
        let len = packet.as_ref().len();
        if self.blocked {
            self.stats.blocked += 1;
            return;
        }
        if self.random.chance(self.spec.loss) {
            self.stats.lost += 1;
            return;
        }
        if self.queue_is_full(now, len) {
            self.stats.overflowed += 1;
            return;
        }
        let on_wire = self.put_on_wire(now, len);
        let due = self.due(on_wire);
        if self.random.chance(self.spec.duplicate) {
            self.push(due, packet.clone());
        }
        self.push(due, packet);
    }

    fn queue_is_full(&self, now: Duration, len: usize) -> bool {
        if self.in_flight_bytes + len > IN_FLIGHT_BYTES_MAX {
            return true;
        }
        let Some(rate) = self.spec.rate_bytes_per_s else { return false };
        let waiting = self.wire_free.saturating_sub(now).as_nanos() * u128::from(rate) / 1_000_000_000;
        waiting > 0 && waiting + len as u128 > u128::from(self.spec.queue_bytes)
    }

    fn put_on_wire(&mut self, now: Duration, len: usize) -> Duration {
        let Some(rate) = self.spec.rate_bytes_per_s else { return now };
        let nanos = len as u128 * 1_000_000_000 / u128::from(rate.max(1));
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.wire_free = self.wire_free.max(now).saturating_add(takes);
        self.wire_free
    }

    fn due(&mut self, on_wire: Duration) -> Duration {
        let jitter = u64::try_from(self.spec.jitter.as_nanos()).unwrap_or(u64::MAX / 2);
        let spread = if jitter == 0 { 0 } else { self.random.below(jitter.saturating_mul(2)) };
        let due = (on_wire + self.spec.delay + Duration::from_nanos(spread)).saturating_sub(self.spec.jitter);
        let due = due.max(on_wire);
        if self.random.chance(self.spec.reorder) {
            return due.max(self.last_due) + self.spec.reorder_by;
        }
        self.last_due = due.max(self.last_due);
        self.last_due
    }

    fn push(&mut self, due: Duration, packet: P) {
        self.in_flight_bytes += packet.as_ref().len();
        self.in_flight.push(Parcel { due, number: self.sent, packet });
        self.sent += 1;
    }

    /// When the next packet comes out.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.in_flight.peek().map(|parcel| parcel.due)
    }

    /// The next packet that has come out by `now`.
    pub(crate) fn receive(&mut self, now: Duration) -> Option<P> {
        if self.next_due()? > now {
            return None;
        }
        let parcel = self.in_flight.pop()?;
        self.in_flight_bytes -= parcel.packet.as_ref().len();
        self.stats.delivered += 1;
        Some(parcel.packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn lane(spec: WireSpec) -> Lane<Vec<u8>> {
        Lane::new(spec, 0)
    }

    fn numbered(n: u32) -> Vec<u8> {
        n.to_be_bytes().to_vec()
    }

    /// Sends `count` packets a millisecond apart and returns what came out, in order, with the time of arrival.
    fn run(lane: &mut Lane<Vec<u8>>, count: u32) -> Vec<(Duration, u32)> {
        let mut out = Vec::new();
        let mut collect = |lane: &mut Lane<Vec<u8>>, now| {
            while let Some(due) = lane.next_due().filter(|due| *due <= now) {
                let packet = lane.receive(due).unwrap();
                out.push((due, u32::from_be_bytes(packet.try_into().unwrap())));
            }
        };
        for n in 0..count {
            collect(lane, MS * n);
            lane.send(MS * n, numbered(n));
        }
        collect(lane, MS * count + Duration::from_secs(3600));
        out
    }

    #[test]
    fn a_perfect_wire_delivers_at_once_and_in_order() {
        let out = run(&mut lane(WireSpec::default()), 10);
        assert_eq!(out, (0..10).map(|n| (MS * n, n)).collect::<Vec<_>>());
    }

    #[test]
    fn delay_is_exact_and_nothing_comes_before() {
        let mut lane = lane(WireSpec::delay_ms(20));
        lane.send(MS, numbered(1));
        assert_eq!(lane.next_due(), Some(21 * MS));
        assert!(lane.receive(21 * MS - Duration::from_nanos(1)).is_none());
        assert!(lane.receive(21 * MS).is_some());
        assert!(lane.receive(99 * MS).is_none());
    }

    #[test]
    fn jitter_stays_within_its_bounds_and_keeps_the_order() {
        let out = run(&mut lane(WireSpec { jitter: 5 * MS, ..WireSpec::delay_ms(20) }), 1000);
        assert!(out.iter().map(|(_, n)| *n).eq(0..1000));
        let late: Vec<_> = out.iter().map(|(at, n)| *at - MS * *n).collect();
        assert!(late.iter().all(|l| (15 * MS..=25 * MS).contains(l)));
        assert!(late.iter().any(|l| *l < 18 * MS) && late.iter().any(|l| *l > 22 * MS));
    }

    #[test]
    fn loss_is_the_fraction_asked_for_and_the_seed_decides_which() {
        let spec = WireSpec::default().with_loss(0.1);
        let first = run(&mut lane(spec), 10_000);
        assert!((8_700..9_300).contains(&first.len()), "{} of 10000 arrived", first.len());
        assert_eq!(first, run(&mut lane(spec), 10_000));
        assert_ne!(first, run(&mut lane(spec.with_seed(2)), 10_000));
        let salted = run(&mut Lane::new(spec, 1), 10_000);
        assert_ne!(first, salted, "the directions of a wire lose different packets");
    }

    #[test]
    fn everything_or_nothing_is_lost_at_the_ends_of_the_scale() {
        assert_eq!(run(&mut lane(WireSpec::default().with_loss(1.0)), 100), []);
        assert_eq!(run(&mut lane(WireSpec::default().with_loss(0.0)), 100).len(), 100);
    }

    #[test]
    fn reordered_packets_are_overtaken_and_none_is_lost() {
        let spec = WireSpec { reorder: 0.2, reorder_by: 5 * MS, ..WireSpec::delay_ms(1) };
        let mut out: Vec<_> = run(&mut lane(spec), 1000).into_iter().map(|(_, n)| n).collect();
        let overtaken = out.windows(2).filter(|w| w[0] > w[1]).count();
        assert!((100..300).contains(&overtaken), "{overtaken} overtaken");
        out.sort_unstable();
        assert!(out.into_iter().eq(0..1000));
    }

    #[test]
    fn duplicates_follow_their_originals() {
        let out = run(&mut lane(WireSpec { duplicate: 1.0, ..WireSpec::default() }), 50);
        assert_eq!(out.len(), 100);
        assert!(out.chunks(2).all(|pair| pair[0] == pair[1]));
    }

    #[test]
    fn rate_spaces_packets_and_a_full_queue_loses_them() {
        let spec = WireSpec { queue_bytes: 5_000, ..WireSpec::default().with_rate(1_000_000) };
        let mut lane = lane(spec);
        for _ in 0..10 {
            lane.send(Duration::ZERO, vec![0; 1000]); // 1 ms each
        }
        assert_eq!(lane.stats().overflowed, 5);
        for n in 1..=5 {
            assert!(lane.receive(MS * n - Duration::from_nanos(1)).is_none());
            assert!(lane.receive(MS * n).is_some());
        }
        lane.send(100 * MS, vec![0; 1000]);
        assert_eq!(lane.next_due(), Some(101 * MS), "an idle wire starts at once");
    }

    #[test]
    fn a_packet_larger_than_the_queue_still_passes_an_idle_wire() {
        let mut lane = lane(WireSpec { queue_bytes: 10, ..WireSpec::default().with_rate(1_000) });
        lane.send(Duration::ZERO, vec![0; 1000]);
        assert_eq!(lane.next_due(), Some(Duration::from_secs(1)));
    }

    #[test]
    fn blocking_loses_what_is_under_way_and_all_that_follows() {
        let mut lane = lane(WireSpec::delay_ms(10));
        lane.send(MS, numbered(1));
        lane.set_blocked(true);
        lane.send(2 * MS, numbered(2));
        assert_eq!(lane.next_due(), None);
        lane.set_blocked(false);
        lane.send(3 * MS, numbered(3));
        assert_eq!(lane.receive(13 * MS), Some(numbered(3)));
        assert_eq!(lane.stats(), LaneStats { delivered: 1, blocked: 2, ..LaneStats::default() });
    }

    #[test]
    fn a_wire_holds_a_bounded_number_of_bytes() {
        let mut lane = lane(WireSpec::delay_ms(1_000));
        let packet = vec![0; 1 << 20];
        for _ in 0..300 {
            lane.send(Duration::ZERO, packet.clone());
        }
        assert_eq!(lane.in_flight_bytes, IN_FLIGHT_BYTES_MAX);
        assert_eq!(lane.stats().overflowed, 300 - 256);
    }
}
