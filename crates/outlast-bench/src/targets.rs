//! What is to be reached, in one place. Experiments claim by name; a number without a name here has no target.

/// Which side of the number is good.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// This or less.
    AtMost(f64),
    /// This or more.
    AtLeast(f64),
}

impl Bound {
    /// Whether `value` is good enough.
    pub fn met(self, value: f64) -> bool {
        match self {
            Bound::AtMost(limit) => value <= limit,
            Bound::AtLeast(limit) => value >= limit,
        }
    }

    /// The number.
    pub fn limit(self) -> f64 {
        match self {
            Bound::AtMost(limit) | Bound::AtLeast(limit) => limit,
        }
    }

    /// For tables.
    pub fn sign(self) -> &'static str {
        match self {
            Bound::AtMost(_) => "≤",
            Bound::AtLeast(_) => "≥",
        }
    }
}

/// One promise.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name by which an experiment claims it.
    pub name: &'static str,
    /// What is promised.
    pub bound: Bound,
    /// What was reached before, and by whom.
    pub before: &'static str,
}

const fn at_most(name: &'static str, limit: f64, before: &'static str) -> Target {
    Target { name, bound: Bound::AtMost(limit), before }
}

const fn at_least(name: &'static str, limit: f64, before: &'static str) -> Target {
    Target { name, bound: Bound::AtLeast(limit), before }
}

/// Every promise. Ratios are to raw TCP with the same programming interface in the same series.
pub const TARGETS: &[Target] = &[
    // Time of a 1-byte round trip, median, both ends on one core.
    at_most("rr/blocking/kernel", 1.01, "1.057 (robust sockets 2002)"),
    at_most("rr/tokio/kernel", 1.02, "1.057 (robust sockets 2002)"),
    at_most("rr/blocking/inband", 1.05, "1.057 (robust sockets 2002)"),
    at_most("rr/tokio/inband", 1.05, "1.057 (robust sockets 2002)"),
    // Bytes per second, cubic, both ends on one core.
    at_least("stream/write/1", 30.0, "poor for small writes (robust sockets 2002)"),
    at_least("stream/write/64", 15.0, "poor for small writes (robust sockets 2002)"),
    at_least("stream/write/8192", 0.95, "0.99 for large writes (robust sockets 2002)"),
    at_least("stream/write/65536", 0.90, "0.99 for large writes (robust sockets 2002)"),
    at_least("stream/reserve/65536", 0.97, "-"),
    // Connect, request, response, close: transactions per second at the median.
    at_least("crr/kernel", 0.97, "0.39 (robust sockets 2002)"),
    // Microseconds from the break to both directions flowing, veth, detection excluded.
    at_most("resume/p50", 300.0, "5,250 us + 230 ms to connect (session patterns 2014)"),
    // 10,000 idle sessions, each side.
    at_most("idle/memory", 4096.0, "-"),
    at_most("idle/threads", 16.0, "-"),
    at_most("idle/wakeups", 0.001, "-"),
    // 1 to 1,000 clients.
    at_most("clients/latency", 1.005, "1.0052 (session patterns 2014)"),
    at_least("clients/throughput", 0.97, "just over 0.90 (session patterns 2014)"),
    // The relay pair against a pair of relays that only splice.
    at_least("peers/relay", 0.97, "-"),
    // The same server with Outlast and without: answers per second, median latency.
    at_least("restart/overhead/throughput", 0.99, "0.968 to 0.994 (Chang et al. 2006, Figure 13)"),
    at_most("restart/overhead/latency", 1.01, "-"),
    // KiB of all processes of the service, beyond what it needs without, and 256 B for each connection.
    at_most("restart/overhead/memory", 64.0, "-"),
    // With a crash every second.
    at_least("restart/faults/throughput", 0.98, "0.943 to 0.993 (Chang et al. 2006, Figure 17)"),
    at_most("restart/faults/failed", 0.0, "0"),
    at_most("restart/faults/wrong", 0.0, "0"),
    // Microseconds from a fault to the next generation, which has all descriptors, and to its first byte at the client.
    at_most("restart/latency/descriptors-p50", 20.0, "208 (Chang et al. 2006, Table I)"),
    at_most("restart/latency/descriptors-p99", 150.0, "-"),
    at_most("restart/latency/descriptors-1-gib-p50", 100.0, "-"),
    at_most("restart/latency/descriptors-core-dumps-p50", 100.0, "-"),
    at_most("restart/latency/answer-p50", 250.0, "-"),
    at_most("restart/peers/failed", 0.0, "-"),
    // Time of a 1-byte round trip, median, with everything on one core.
    at_most("replica/latency/2-nodes/1", 2.3, "1.2 to 1.3 on a wire (TCP-ABC 2005, Figure 4)"),
    // Bulk data through two nodes, everything on the cores that there are.
    at_least("replica/bulk/to-server", 0.4, "-"),
    at_least("replica/bulk/from-server", 0.4, "-"),
    // One client of MariaDB, two nodes.
    at_least("replica/db/update", 0.85, "-"),
    // Of a client whose data were under way, in milliseconds: its kernel sends them again after 200 ms.
    at_most("replica/failover/SIGKILL/longest", 220.0, "-"),
    at_most("replica/failover/power-off/longest", 220.0, "-"),
    at_most("replica/failover/cut-off/longest", 220.0, "-"),
    at_most("replica/failover/SIGSTOP/longest", 220.0, "-"),
    at_most("replica/failover/switchover/longest", 5.0, "-"),
    at_most("replica/failover/work/5000", 200.0, "-"),
];

/// The promise with this name.
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        for (i, target) in TARGETS.iter().enumerate() {
            assert!(TARGETS[i + 1..].iter().all(|other| other.name != target.name), "{}", target.name);
        }
    }

    #[test]
    fn bounds_include_their_limit() {
        assert!(Bound::AtMost(1.01).met(1.01) && !Bound::AtMost(1.01).met(1.011));
        assert!(Bound::AtLeast(0.9).met(0.9) && !Bound::AtLeast(0.9).met(0.89));
    }
}
