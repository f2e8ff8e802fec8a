use super::super::wire::{LinkMode, Modes};
use super::*;
use crate::proto::direct::NotDirect;
use alloc::collections::BTreeMap;
use core::net::Ipv4Addr;
use outlast_stream::SplitMix64;

const DIRECT: DirectVerdict = DirectVerdict::Direct;
const RELAYED: DirectVerdict = DirectVerdict::NotDirect(NotDirect::NoProof);
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const OTHER_PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn id(number: u8) -> SessionId {
    SessionId::from_bytes([number; 16])
}

fn limits() -> RegistryLimits {
    RegistryLimits {
        sessions_max: 4,
        sessions_per_peer_max: 3,
        detached_max: 3,
        detached_per_peer_max: 2,
        keep: at(100),
        tombstone_keep: at(50),
        tombstones_max: 3,
    }
}

fn opening(number: u8) -> Hello {
    Hello::open(id(number), LinkMode::Inband)
}

fn resume(number: u8, epoch: u64) -> Hello {
    Hello { epoch, intent: Intent::Resume, ..opening(number) }
}

fn decide(registry: &mut Registry<u8>, now: u64, hello: &Hello) -> Decision<u8> {
    registry.decide(at(now), hello, PEER, Auth::Proven, DIRECT, &Policy::default())
}

fn refusal(decision: Decision<u8>) -> Refusal {
    match decision {
        Decision::Refuse(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_session_is_opened_lost_resumed_and_ended() {
    let mut registry = Registry::new(limits());
    assert_eq!(decide(&mut registry, 0, &opening(1)), Decision::Create);
    registry.insert(id(1), 10, 1, PEER).unwrap();
    assert!(registry.detach(&id(1), 1, at(1)));
    assert_eq!(registry.stats().detached, 1);
    assert_eq!(decide(&mut registry, 2, &resume(1, 2)), Decision::Resume(10));
    registry.attach(&id(1), 2, OTHER_PEER).unwrap();
    assert_eq!((registry.stats().attached, registry.stats().detached), (1, 0));
    assert_eq!(registry.end(&id(1), 77, None, at(3)), Some(10));
    assert!(registry.is_empty());
    assert_eq!(refusal(decide(&mut registry, 4, &resume(1, 3))), Refusal::Ended { offset: 77 });
    assert_eq!(refusal(decide(&mut registry, 4, &opening(1))), Refusal::Ended { offset: 77 });
    registry.expire(at(53));
    assert_eq!(refusal(decide(&mut registry, 54, &resume(1, 3))), Refusal::UnknownSession);
    assert_eq!(registry.next_expiry(), None);
}

#[test]
fn a_session_is_aborted_by_its_client_only_and_only_once() {
    let mut registry = Registry::new(limits());
    registry.insert(id(1), 10, 3, PEER).unwrap();
    let abort = |epoch| Hello { intent: Intent::Abort, ..resume(1, epoch) };
    let unproven = registry.decide(at(0), &abort(4), PEER, Auth::Unproven, DIRECT, &Policy::default());
    assert!(matches!(unproven, Decision::Refuse(_)));
    assert_eq!(refusal(decide(&mut registry, 0, &abort(3))), Refusal::StaleEpoch { current: 3 });
    let refused = registry.stats().refused_total();
    // PROTOCOL 3.11: neither mode nor path matter, nor whether the server takes new links.
    let nothing = Policy { modes: Modes::NONE, draining_retry_after_ms: Some(5), ..Policy::default() };
    let decision = registry.decide(at(0), &abort(4), OTHER_PEER, Auth::Proven, RELAYED, &nothing);
    assert_eq!(decision, Decision::Abort(10));
    registry.end(&id(1), 77, None, at(1));
    assert_eq!(refusal(decide(&mut registry, 2, &abort(5))), Refusal::Ended { offset: 77 });
    assert_eq!(registry.stats().refused_total(), refused, "that was not a no");
    assert_eq!(refusal(decide(&mut registry, 2, &Hello { id: id(2), ..abort(1) })), Refusal::UnknownSession);
}

#[test]
fn opening_twice_is_harmless() {
    let mut registry = Registry::new(limits());
    registry.insert(id(1), 10, 1, PEER).unwrap();
    let again = Hello { epoch: 2, ..opening(1) };
    assert_eq!(decide(&mut registry, 0, &again), Decision::Resume(10));
    assert_eq!(registry.insert(id(1), 11, 2, PEER), Err(AttachError::Exists));
    let claims_to_be_further = Hello { next_offset: 5, ..again };
    assert_eq!(refusal(decide(&mut registry, 0, &claims_to_be_further)), Refusal::OffsetOutOfRange);
    let forgot = Hello { retained_offset: 5, sent_offset: 5, ..opening(2) };
    assert_eq!(refusal(decide(&mut registry, 0, &forgot)), Refusal::OffsetOutOfRange);
}

#[test]
fn epochs_rise_and_an_older_link_never_wins() {
    let mut registry = Registry::new(limits());
    registry.insert(id(1), 10, 5, PEER).unwrap();
    for epoch in [1, 5] {
        let refused = refusal(decide(&mut registry, 0, &resume(1, epoch)));
        assert_eq!(refused, Refusal::StaleEpoch { current: 5 });
    }
    // Two newcomers are decided on, the older one is booked last.
    assert_eq!(decide(&mut registry, 0, &resume(1, 6)), Decision::Resume(10));
    assert_eq!(decide(&mut registry, 0, &resume(1, 7)), Decision::Resume(10));
    registry.attach(&id(1), 7, PEER).unwrap();
    assert_eq!(registry.attach(&id(1), 6, PEER), Err(AttachError::Stale { current: 7 }));
    assert_eq!(registry.attach(&id(9), 6, PEER), Err(AttachError::Unknown));
    // The late report of an older link's loss does not touch the present one.
    assert!(!registry.detach(&id(1), 5, at(1)));
    assert!(registry.detach(&id(1), 7, at(1)));
    assert!(!registry.detach(&id(1), 7, at(2)), "only once");
}

#[test]
fn a_decision_books_nothing() {
    let mut registry = Registry::new(limits());
    registry.insert(id(1), 10, 1, PEER).unwrap();
    for _ in 0..10 {
        assert_eq!(decide(&mut registry, 0, &resume(1, 2)), Decision::Resume(10));
        assert_eq!(decide(&mut registry, 0, &opening(2)), Decision::Create);
    }
    assert_eq!(registry.len(), 1);
}

#[test]
fn without_proof_there_is_nothing_to_learn() {
    let mut registry = Registry::new(limits());
    registry.insert(id(1), 10, 9, PEER).unwrap();
    let mut unproven = |hello: &Hello| {
        refusal(registry.decide(at(0), hello, PEER, Auth::Unproven, DIRECT, &Policy::default()))
    };
    // PROTOCOL 3.7: not the epoch, and not that it is there.
    for intent in [Intent::Resume, Intent::Abort] {
        for number in [1, 2] {
            assert_eq!(unproven(&Hello { intent, ..resume(number, 2) }), Refusal::UnknownSession);
        }
    }
    for number in [1, 2] {
        assert_eq!(unproven(&opening(number)), Refusal::BadKey);
    }
    // Nor that it was there; who has the key is told what became of it.
    registry.set_key(&id(1), Some(SessionKey::from_bytes([1; 32])));
    registry.set_key(&id(2), Some(SessionKey::from_bytes([2; 32])));
    registry.end(&id(1), 5, None, at(0));
    assert!(registry.key(&id(1)).is_some_and(|key| *key == SessionKey::from_bytes([1; 32])));
    assert!(registry.key(&id(2)).is_none());
    assert_eq!(refusal(decide(&mut registry, 0, &resume(1, 10))), Refusal::Ended { offset: 5 });
    let unproven = registry.decide(at(0), &resume(1, 10), PEER, Auth::Unproven, DIRECT, &Policy::default());
    assert_eq!(refusal(unproven), Refusal::UnknownSession);
    registry.expire(at(60));
    assert!(registry.key(&id(1)).is_none());
}

#[test]
fn a_session_belongs_to_the_certificate_that_opened_it() {
    let mut registry = Registry::new(limits());
    for number in 1..=3 {
        registry.insert(id(number), number, 1, PEER).unwrap();
    }
    registry.set_owner(&id(1), Some([1; 32]));
    registry.set_owner(&id(2), Some([2; 32]));
    registry.end(&id(2), 0, None, at(0));
    // PROTOCOL 6.10: also when it has ended; where nobody is known, whoever proves itself.
    for (number, newcomer, expected) in [
        (1, Some([1; 32]), true),
        (1, Some([2; 32]), false),
        (1, None, false),
        (2, Some([2; 32]), true),
        (2, Some([1; 32]), false),
        (3, Some([1; 32]), true),
        (3, None, true),
        (4, None, true),
    ] {
        assert_eq!(registry.may_own(&id(number), newcomer.as_ref()), expected, "{number} {newcomer:?}");
    }
}

#[test]
fn why_a_session_ended_is_remembered_as_long_as_that_it_did() {
    let mut registry = Registry::new(limits());
    for number in [1, 2, 3] {
        registry.insert(id(number), number, 1, PEER).unwrap();
    }
    registry.end(&id(1), 5, Some("no way there"), at(0));
    registry.end(&id(2), 5, Some(&"x".repeat(300)), at(0));
    registry.end(&id(3), 5, None, at(0));
    assert_eq!(registry.why_ended(&id(1)), Some("no way there"));
    assert_eq!(registry.why_ended(&id(2)).map(str::len), Some(255));
    assert_eq!([3, 4].map(|number| registry.why_ended(&id(number))), [None, None]);
    registry.expire(at(60));
    assert_eq!(registry.why_ended(&id(1)), None);
}

#[test]
fn sessions_expire_and_latecomers_are_told() {
    let mut registry = Registry::new(limits());
    for number in 1..=3 {
        registry.insert(id(number), number, 1, PEER).unwrap();
    }
    registry.detach(&id(2), 1, at(5));
    registry.detach(&id(1), 1, at(7));
    assert_eq!(registry.next_expiry(), Some(at(105)));
    assert_eq!(registry.expire(at(104)), []);
    assert_eq!(refusal(decide(&mut registry, 105, &resume(2, 2))), Refusal::Expired, "before it is swept");
    assert_eq!(registry.expire(at(106)), [(id(2), 2)]);
    assert_eq!(refusal(decide(&mut registry, 106, &resume(2, 2))), Refusal::Expired);
    assert_eq!(registry.next_expiry(), Some(at(107)));
    // Back in time.
    registry.attach(&id(1), 2, PEER).unwrap();
    assert_eq!(registry.next_expiry(), Some(at(156)));
    assert_eq!(registry.expire(at(1000)), []);
    assert_eq!(registry.len(), 2);
    assert_eq!(registry.stats().expired, 1);
}

#[test]
fn what_is_full_turns_newcomers_away_and_takes_nothing_from_anyone() {
    let mut registry = Registry::new(limits());
    for number in 1..=3 {
        registry.insert(id(number), number, 1, PEER).unwrap();
    }
    assert_eq!(refusal(decide(&mut registry, 0, &opening(4))), Refusal::Quota);
    let from_elsewhere = |registry: &mut Registry<u8>, number| {
        registry.decide(at(0), &opening(number), OTHER_PEER, Auth::Proven, DIRECT, &Policy::default())
    };
    assert_eq!(from_elsewhere(&mut registry, 4), Decision::Create);
    registry.insert(id(4), 4, 1, OTHER_PEER).unwrap();
    assert_eq!(refusal(from_elsewhere(&mut registry, 5)), Refusal::Busy { retry_after_ms: 1000 });
    let policy = Policy::default();
    assert_eq!(registry.shortage(PEER, &policy), Some(Shortage::Address));
    assert_eq!(registry.shortage(OTHER_PEER, &policy), Some(Shortage::Sessions));
    assert_eq!(decide(&mut registry, 0, &resume(1, 2)), Decision::Resume(1), "a resume needs no room");
    // Two of the address's three sessions have no link, and one has ended.
    registry.detach(&id(1), 1, at(0));
    registry.detach(&id(2), 1, at(0));
    registry.end(&id(3), 0, None, at(0));
    assert_eq!(refusal(decide(&mut registry, 0, &opening(6))), Refusal::Quota);
    registry.attach(&id(2), 2, PEER).unwrap();
    assert_eq!(decide(&mut registry, 0, &opening(6)), Decision::Create);
    // A session that moves takes its place in the counts along.
    registry.attach(&id(2), 3, OTHER_PEER).unwrap();
    assert_eq!(registry.peers.of(PeerName::of(PEER)).sessions, 1);
    assert_eq!(registry.peers.of(PeerName::of(OTHER_PEER)).sessions, 2);
}

fn from(registry: &mut Registry<u8>, number: u8, peer: &str) -> Decision<u8> {
    let peer = peer.parse().unwrap();
    let decision = registry.decide(at(0), &opening(number), peer, Auth::Proven, DIRECT, &Policy::default());
    if decision == Decision::Create {
        registry.insert(id(number), number, 1, peer).unwrap();
    }
    decision
}

#[test]
fn an_ipv6_network_is_one_peer_and_its_neighbour_another() {
    let mut registry = Registry::new(RegistryLimits { sessions_max: 20, ..limits() });
    for (number, peer) in ["2001:db8::1", "2001:db8::2", "2001:db8:0:0:ffff::"].into_iter().enumerate() {
        assert_eq!(from(&mut registry, u8::try_from(number).unwrap(), peer), Decision::Create);
    }
    assert_eq!(refusal(from(&mut registry, 3, "2001:db8::3")), Refusal::Quota);
    assert_eq!(from(&mut registry, 3, "2001:db8:0:1::1"), Decision::Create);
    // What leaves makes room, whichever address it had.
    registry.end(&id(1), 0, None, at(0));
    assert_eq!(from(&mut registry, 4, "2001:db8::4"), Decision::Create);
}

#[test]
fn an_ipv4_address_is_the_same_peer_through_a_dual_stack_socket() {
    let mut registry = Registry::new(RegistryLimits { sessions_max: 20, ..limits() });
    for (number, peer) in ["192.0.2.7", "::ffff:192.0.2.7", "192.0.2.7"].into_iter().enumerate() {
        assert_eq!(from(&mut registry, u8::try_from(number).unwrap(), peer), Decision::Create);
    }
    for peer in ["192.0.2.7", "::ffff:192.0.2.7"] {
        assert_eq!(refusal(from(&mut registry, 3, peer)), Refusal::Quota);
    }
    // All IPv4 addresses are in one network of 64 bits when they are written so: that is not meant.
    assert_eq!(from(&mut registry, 3, "::ffff:192.0.2.8"), Decision::Create);
}

#[test]
fn a_server_that_drains_takes_no_new_sessions_and_all_links_of_those_it_has() {
    let mut registry = Registry::new(limits());
    registry.insert(id(1), 10, 1, PEER).unwrap();
    registry.detach(&id(1), 1, at(0));
    let policy = Policy { draining_retry_after_ms: Some(70), ..Policy::default() };
    let mut ask = |hello: &Hello| registry.decide(at(1), hello, PEER, Auth::Proven, DIRECT, &policy);
    assert_eq!(ask(&opening(2)), Decision::Refuse(Refusal::Draining { retry_after_ms: 70 }));
    assert_eq!(ask(&resume(1, 2)), Decision::Resume(10));
    // Its first Welcome was lost.
    assert_eq!(ask(&Hello { epoch: 2, ..opening(1) }), Decision::Resume(10));
    assert_eq!(ask(&resume(2, 2)), Decision::Refuse(Refusal::UnknownSession), "not to try again");
}

#[test]
fn what_keeps_a_newcomer_out_is_named() {
    let mut registry = Registry::new(limits());
    assert_eq!(registry.shortage(PEER, &Policy::default()), None);
    registry.insert(id(1), 1, 1, PEER).unwrap();
    let policy = Policy { sessions_per_block_max: 1, ..Policy::default() };
    assert_eq!(registry.shortage(PEER, &policy), Some(Shortage::Network));
    assert_eq!(registry.shortage(IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1)), &policy), None);
    for short_of in [Shortage::Application, Shortage::Descriptors, Shortage::Memory] {
        let policy = Policy { short_of: Some(short_of), ..Policy::default() };
        assert_eq!(registry.shortage(OTHER_PEER, &policy), Some(short_of));
        let decision = registry.decide(at(0), &opening(2), OTHER_PEER, Auth::Proven, DIRECT, &policy);
        assert_eq!(decision, Decision::Refuse(Refusal::Busy { retry_after_ms: 1000 }), "{short_of}");
    }
}

#[test]
fn what_is_kept_for_ever_never_expires_and_asks_for_no_time() {
    let mut registry = Registry::new(RegistryLimits { keep: Duration::MAX, ..limits() });
    registry.insert(id(1), 10, 1, PEER).unwrap();
    assert!(registry.detach(&id(1), 1, at(5)));
    assert_eq!(registry.next_expiry(), None);
    let late = Duration::MAX - Duration::from_nanos(1);
    assert_eq!(registry.expire(late), []);
    assert_eq!(registry.stats().detached, 1);
    let decision = registry.decide(late, &resume(1, 2), PEER, Auth::Proven, DIRECT, &Policy::default());
    assert_eq!(decision, Decision::Resume(10));
    // Beside it, what has an end is not forgotten.
    registry.insert(id(2), 20, 1, PEER).unwrap();
    registry.end(&id(2), 0, None, at(10));
    assert_eq!(registry.next_expiry(), Some(at(60)));
}

#[test]
fn tombstones_are_bounded() {
    let mut registry = Registry::new(limits());
    for number in 0..10 {
        registry.insert(id(number), number, 1, PEER).unwrap();
        registry.end(&id(number), 0, None, at(u64::from(number)));
    }
    assert_eq!(registry.stats().tombstones, 3);
    assert_eq!(refusal(decide(&mut registry, 10, &resume(9, 2))), Refusal::Ended { offset: 0 });
    assert_eq!(refusal(decide(&mut registry, 10, &resume(1, 2))), Refusal::UnknownSession);
    let mut without = Registry::new(RegistryLimits { tombstones_max: 0, ..limits() });
    without.insert(id(1), 1, 1, PEER).unwrap();
    without.end(&id(1), 0, None, at(0));
    assert_eq!(without.stats().tombstones, 0);
}

#[test]
fn modes_that_need_a_direct_path_get_one_or_are_refused() {
    let mut registry = Registry::<u8>::new(limits());
    let mut ask = |mode, auto, direct, policy: &Policy| {
        let hello = Hello { auto, ..Hello::open(id(1), mode) };
        registry.decide(at(0), &hello, PEER, Auth::Proven, direct, policy)
    };
    let policy = Policy::default();
    let trusting = Policy { proof_required: false, ..policy };
    let not_direct = Decision::Refuse(Refusal::NotDirect);
    for mode in [LinkMode::Kernel, LinkMode::Window] {
        assert_eq!(ask(mode, false, DIRECT, &policy), Decision::Create);
        assert_eq!(ask(mode, false, RELAYED, &policy), not_direct);
        assert_eq!(ask(mode, false, RELAYED, &trusting), Decision::Create, "the client insists");
        assert_eq!(ask(mode, true, RELAYED, &trusting), not_direct, "the client can do otherwise");
    }
    for mode in [LinkMode::Udp, LinkMode::Inband] {
        assert_eq!(ask(mode, false, RELAYED, &policy), Decision::Create);
    }
    let inband_only = Policy { modes: Modes::only(LinkMode::Inband), ..policy };
    let refused = Refusal::ModeRefused { offered: inband_only.modes };
    assert_eq!(ask(LinkMode::Kernel, false, DIRECT, &inband_only), Decision::Refuse(refused));
    assert_eq!(ask(LinkMode::Inband, false, DIRECT, &inband_only), Decision::Create);
    let draining = Policy { draining_retry_after_ms: Some(5), ..policy };
    let refused = ask(LinkMode::Inband, false, DIRECT, &draining);
    assert_eq!(refused, Decision::Refuse(Refusal::Draining { retry_after_ms: 5 }));
    assert_eq!(registry.stats().refused(&Refusal::NotDirect), 4);
    assert_eq!(registry.stats().refused_total(), 6);
    let named: Vec<_> = registry.stats().refusals().filter(|(_, count)| *count > 0).collect();
    assert_eq!(named, [("not_direct", 4), ("mode_refused", 1), ("draining", 1)]);
}

/// What the registry ought to know, kept in the plainest way.
#[derive(Default)]
struct Model {
    sessions: BTreeMap<u8, (u64, IpAddr, Option<u64>)>,
}

#[test]
fn random_lives_agree_with_a_plain_model() {
    for seed in 0..200 {
        let mut random = SplitMix64::new(seed);
        let mut registry = Registry::new(limits());
        let mut model = Model::default();
        let mut now = 0;
        for _ in 0..300 {
            now += random.below(20);
            let number = u8::try_from(random.below(6)).unwrap();
            let peer = if random.one_in(2) { PEER } else { OTHER_PEER };
            let epoch = 1 + random.below(12);
            match random.below(5) {
                0 | 1 => {
                    let hello = if random.one_in(2) { opening(number) } else { resume(number, 1) };
                    let hello = Hello { epoch, ..hello };
                    let policy = Policy::default();
                    let alive =
                        model.sessions.get(&number).filter(|known| known.2.is_none_or(|end| end > now));
                    match registry.decide(at(now), &hello, peer, Auth::Proven, DIRECT, &policy) {
                        Decision::Create => {
                            assert!(!model.sessions.contains_key(&number));
                            registry.insert(id(number), number, epoch, peer).unwrap();
                            model.sessions.insert(number, (epoch, peer, None));
                        }
                        Decision::Resume(value) => {
                            assert_eq!(value, number);
                            assert!(alive.is_some_and(|known| known.0 < epoch));
                            registry.attach(&id(number), epoch, peer).unwrap();
                            model.sessions.insert(number, (epoch, peer, None));
                        }
                        Decision::Refuse(Refusal::StaleEpoch { current }) => {
                            assert!(alive.is_some_and(|known| known.0 == current && epoch <= current));
                        }
                        Decision::Refuse(_) => assert!(alive.is_none()),
                        Decision::Abort(_) => panic!("nobody asked for it"),
                    }
                }
                2 => {
                    let known = model.sessions.get_mut(&number);
                    let lost = known.filter(|known| known.0 == epoch && known.2.is_none());
                    assert_eq!(registry.detach(&id(number), epoch, at(now)), lost.is_some());
                    if let Some(known) = lost {
                        known.2 = Some(now + 100);
                    }
                }
                3 => {
                    let gone = model.sessions.remove(&number);
                    assert_eq!(registry.end(&id(number), 0, None, at(now)).is_some(), gone.is_some());
                }
                _ => {
                    let mut expired: Vec<u8> =
                        registry.expire(at(now)).into_iter().map(|(_, value)| value).collect();
                    expired.sort_unstable();
                    let over = |known: &(u64, IpAddr, Option<u64>)| known.2.is_some_and(|end| end <= now);
                    let expected: Vec<u8> = model
                        .sessions
                        .iter()
                        .filter(|(_, known)| over(known))
                        .map(|(number, _)| *number)
                        .collect();
                    model.sessions.retain(|_, known| !over(known));
                    assert_eq!(expired, expected);
                }
            }
            check(&registry, &model);
        }
    }
}

fn check(registry: &Registry<u8>, model: &Model) {
    assert_eq!(registry.len(), model.sessions.len());
    let detached = model.sessions.values().filter(|known| known.2.is_some()).count();
    assert_eq!(registry.stats().detached, detached);
    assert!(registry.stats().tombstones <= 3);
    assert_eq!(registry.tombstones.len(), registry.tombstone_deadlines.len());
    for peer in [PEER, OTHER_PEER] {
        let counts = registry.peers.of(PeerName::of(peer));
        let of_peer = model.sessions.values().filter(|known| known.1 == peer);
        assert_eq!(counts.sessions, of_peer.clone().count());
        assert_eq!(counts.detached, of_peer.filter(|known| known.2.is_some()).count());
    }
}

#[test]
fn only_sessions_without_a_link_are_shed_and_latecomers_are_told() {
    let mut registry = Registry::new(limits());
    registry.insert(id(1), 10, 1, PEER).unwrap();
    assert_eq!(registry.shed(&id(1), at(1)), None, "it has a link");
    registry.detach(&id(1), 1, at(1));
    registry.attach(&id(1), 2, PEER).unwrap();
    assert_eq!(registry.shed(&id(1), at(1)), None, "it has a link again");
    registry.detach(&id(1), 2, at(2));
    assert_eq!(registry.shed(&id(1), at(2)), Some(10));
    assert_eq!(registry.shed(&id(1), at(2)), None);
    assert_eq!(refusal(decide(&mut registry, 3, &resume(1, 3))), Refusal::Expired);
    assert!(registry.is_empty() && !registry.knows(PEER));
    assert_eq!(registry.stats().expired, 1);
}

/// When places are short a block has its share only, however many addresses it has; resumes are none of that.
#[test]
fn a_block_has_its_share_and_one_of_its_addresses_does_not_use_that_up() {
    let limits = RegistryLimits { sessions_per_peer_max: 100, sessions_max: 100, ..limits() };
    let mut registry = Registry::new(limits);
    let short = Policy { sessions_per_block_max: 8, ..Policy::default() };
    let at_host = |host: u8| IpAddr::from([192, 0, 2, host]);
    let opens = |registry: &mut Registry<u32>, from: IpAddr, hello: &Hello| {
        registry.decide(at(0), hello, from, Auth::Proven, DIRECT, &short)
    };
    // Before places were short.
    for number in 0..20 {
        registry.insert(id(number), u32::from(number), 1, at_host(1)).unwrap();
    }
    let busy = Decision::Refuse(Refusal::Busy { retry_after_ms: 1000 });
    assert_eq!(opens(&mut registry, at_host(1), &opening(99)), busy);
    assert_eq!(opens(&mut registry, IpAddr::from([192, 0, 3, 1]), &opening(99)), Decision::Create);
    assert_eq!(opens(&mut registry, at_host(1), &resume(1, 2)), Decision::Resume(1));
    // Its neighbours have four.
    for number in 20..24 {
        assert_eq!(opens(&mut registry, at_host(number), &opening(number)), Decision::Create);
        registry.insert(id(number), u32::from(number), 1, at_host(number)).unwrap();
    }
    assert_eq!(opens(&mut registry, at_host(99), &opening(99)), busy);
    registry.end(&id(20), 0, None, at(1));
    assert_eq!(opens(&mut registry, at_host(99), &opening(99)), Decision::Create);
    // One with many leaves no more room for those with few, until it has few itself.
    registry.insert(id(25), 25, 1, at_host(25)).unwrap();
    for number in 0..16 {
        registry.end(&id(number), 0, None, at(1));
    }
    assert_eq!(opens(&mut registry, at_host(99), &opening(99)), busy);
    registry.end(&id(16), 0, None, at(1));
    assert_eq!(opens(&mut registry, at_host(99), &opening(99)), Decision::Create);
    assert_eq!(opens(&mut registry, at_host(1), &opening(98)), Decision::Create);
}
