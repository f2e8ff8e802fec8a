use super::*;
use alloc::vec;
use alloc::vec::Vec;
use outlast_stream::SplitMix64;

const TSVAL: u32 = 0x1122_3344;

/// The options of a Linux SYN: MSS, SACK permitted, timestamps, window scale.
const LINUX_OPTIONS: [u8; 20] = [2, 4, 5, 0xB4, 4, 2, 8, 10, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0, 1, 3, 3, 7];

fn tcp(flags: u8, options: &[u8]) -> Vec<u8> {
    let words = u8::try_from(5 + options.len() / 4).unwrap();
    let mut bytes =
        vec![0xA1, 0xB2, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, words << 4, flags, 0xFF, 0xFF, 0, 0, 0, 0];
    bytes.extend_from_slice(options);
    bytes
}

fn ipv4(ip_options: usize, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 20 + ip_options];
    bytes[0] = 0x45 + u8::try_from(ip_options / 4).unwrap();
    bytes[9] = 6;
    bytes[12..20].copy_from_slice(&[192, 0, 2, 1, 192, 0, 2, 2]);
    bytes.extend_from_slice(payload);
    bytes
}

fn ipv6(extensions: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 40];
    bytes[0] = 0x60;
    bytes[39] = 1;
    let mut next_field = 6;
    for kind in extensions {
        bytes[next_field] = *kind;
        next_field = bytes.len();
        bytes.extend_from_slice(&[0, 1]);
        bytes.extend_from_slice(&[0; 14]);
    }
    bytes[next_field] = 6;
    bytes.extend_from_slice(payload);
    bytes
}

#[test]
fn syns_of_both_families_are_read() {
    let expected = Ok(SavedSyn { source_port: 0xA1B2, tsval: Some(TSVAL), is_local: false });
    let syn = tcp(2, &LINUX_OPTIONS);
    assert_eq!(SavedSyn::parse(&ipv4(0, &syn)), expected);
    assert_eq!(SavedSyn::parse(&ipv4(40, &syn)), expected);
    assert_eq!(SavedSyn::parse(&ipv6(&[], &syn)), expected);
    assert_eq!(SavedSyn::parse(&ipv6(&[0, 43, 60], &syn)), expected);
    // With ECN (RFC 3168) and with data behind it (RFC 7413).
    let mut ecn = tcp(0b1100_0010, &LINUX_OPTIONS);
    ecn.extend_from_slice(b"early data");
    assert_eq!(SavedSyn::parse(&ipv4(0, &ecn)), expected);
}

#[test]
fn a_syn_from_this_machine_is_known() {
    let is_local = |bytes: &[u8]| SavedSyn::parse(bytes).unwrap().is_local;
    let syn = tcp(2, &LINUX_OPTIONS);
    let (mut v4, mut v6) = (ipv4(0, &syn), ipv6(&[], &syn));
    for (source, expected) in [([127, 0, 0, 9], true), ([192, 0, 2, 2], true), ([192, 0, 2, 3], false)] {
        v4[12..16].copy_from_slice(&source);
        assert_eq!(is_local(&v4), expected, "{source:?}");
    }
    assert!(!is_local(&v6));
    v6[23] = 1;
    assert!(is_local(&v6));
}

#[test]
fn a_syn_without_timestamps_is_still_a_syn() {
    for options in [&[][..], &[0, 8, 10, 1], &[1, 1, 1, 1], &[2, 4, 5, 0xB4]] {
        let syn = SavedSyn::parse(&ipv4(0, &tcp(2, options)));
        assert_eq!(syn, Ok(SavedSyn { source_port: 0xA1B2, tsval: None, is_local: false }), "{options:?}");
    }
}

#[test]
fn anything_else_is_an_error() {
    let syn = tcp(2, &LINUX_OPTIONS);
    assert_eq!(SavedSyn::parse(&[]), Err(SynError::Truncated));
    assert_eq!(SavedSyn::parse(&[0x55; 60]), Err(SynError::IpVersion));
    for flags in [0, 0b1_0010, 0b0_0110, 0b0_0011] {
        assert_eq!(SavedSyn::parse(&ipv4(0, &tcp(flags, &[]))), Err(SynError::NotSyn));
    }
    let changed = |index: usize, value: u8| {
        let mut bytes = ipv4(0, &syn);
        bytes[index] = value;
        SavedSyn::parse(&bytes)
    };
    assert_eq!(changed(9, 17), Err(SynError::NotTcp));
    assert_eq!(changed(7, 1), Err(SynError::NotTcp), "a later fragment");
    assert_eq!(changed(0, 0x44), Err(SynError::Garbled));
    assert_eq!(changed(0, 0x4F), Err(SynError::Truncated), "an ip header longer than the packet");
    assert_eq!(changed(32, 0x40), Err(SynError::Garbled), "a tcp header shorter than its fixed part");
    assert_eq!(changed(32, 0xF0), Err(SynError::Truncated));
    assert_eq!(changed(41, 0), Err(SynError::Garbled), "an option of length 0");
    assert_eq!(changed(41, 60), Err(SynError::Garbled), "an option longer than the header");
    assert_eq!(SavedSyn::parse(&ipv6(&[44], &syn)), Err(SynError::NotTcp));
    assert_eq!(SavedSyn::parse(&ipv6(&[59], &syn)), Err(SynError::NotTcp));
    for bytes in [ipv4(0, &syn), ipv6(&[0, 60], &syn)] {
        for length in 0..bytes.len() {
            assert_eq!(SavedSyn::parse(&bytes[..length]), Err(SynError::Truncated), "{length}");
        }
    }
}

#[test]
fn random_bytes_never_panic() {
    let mut random = SplitMix64::new(21);
    for _ in 0..200_000 {
        let mut bytes = vec![0; usize::try_from(random.below(160)).unwrap()];
        random.fill(&mut bytes);
        if let Some(first) = bytes.first_mut() {
            *first = if random.one_in(2) { 0x40 | (*first & 15) } else { 0x60 };
        }
        let protocol_at = if random.one_in(2) { 9 } else { 6 };
        if let Some(protocol) = bytes.get_mut(protocol_at) {
            *protocol = [0, 6, 43, 60][usize::try_from(random.below(4)).unwrap()];
        }
        let _ = SavedSyn::parse(&bytes);
    }
}

fn judge(claimed: u32, seen: u32) -> DirectVerdict {
    let syn = SavedSyn { source_port: 1, tsval: Some(seen), is_local: false };
    DirectPath::default().judge(Some(claimed), None, Some(&syn))
}

#[test]
fn only_a_small_step_forward_is_direct() {
    for seen in [0, 1, 5000, u32::MAX / 2, u32::MAX - 500, u32::MAX] {
        for step in [0, 1, 30, 1000] {
            assert!(judge(seen.wrapping_add(step), seen).is_direct(), "{seen} + {step}");
        }
        assert!(judge(seen.wrapping_sub(1), seen).is_direct(), "a clock that reads a moment early");
        for step in [1001, 2000, 1 << 31, u32::MAX - 1] {
            assert!(!judge(seen.wrapping_add(step), seen).is_direct(), "{seen} + {step}");
        }
    }
}

#[test]
fn unrelated_numbers_hardly_ever_look_direct() {
    let mut random = SplitMix64::new(3);
    let drawn = 4_000_000u32;
    let hits = (0..drawn)
        .filter(|_| {
            let [a, b, c, d, e, f, g, h] = random.next_u64().to_be_bytes();
            judge(u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])).is_direct()
        })
        .count();
    // One in 4.3 million is expected.
    assert!(hits <= 6, "{hits} of {drawn}");
}

#[test]
fn what_is_missing_is_not_direct() {
    let path = DirectPath::default();
    let syn = SavedSyn { source_port: 7, tsval: Some(5), is_local: false };
    let verdict = |claimed, port, syn: Option<&SavedSyn>| path.judge(claimed, port, syn);
    assert_eq!(verdict(None, None, Some(&syn)), DirectVerdict::NotDirect(NotDirect::NoProof));
    assert_eq!(verdict(Some(5), None, None), DirectVerdict::NotDirect(NotDirect::NoTimestamp));
    let bare = SavedSyn { tsval: None, ..syn };
    assert_eq!(verdict(Some(5), None, Some(&bare)), DirectVerdict::NotDirect(NotDirect::NoTimestamp));
    let local = SavedSyn { is_local: true, ..syn };
    assert!(path.judge(Some(5), Some(7), Some(&local)).is_direct());
    for port in [None, Some(8)] {
        let verdict = path.judge(Some(5), port, Some(&local));
        assert_eq!(verdict, DirectVerdict::NotDirect(NotDirect::OtherPort));
    }
    let strict = DirectPath { same_port: true, ..path };
    assert!(strict.judge(Some(5), Some(7), Some(&syn)).is_direct());
    for port in [None, Some(8)] {
        let verdict = strict.judge(Some(5), port, Some(&syn));
        assert_eq!(verdict, DirectVerdict::NotDirect(NotDirect::OtherPort));
    }
}
