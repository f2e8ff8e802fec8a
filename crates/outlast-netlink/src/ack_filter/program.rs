//! The program: instructions of BPF (RFC 9669), for a packet that leaves and begins with its IP header.

use super::{
    ACKNOWLEDGES_AT, ADDRESS_AT, HIGH_BITS, HIGH_SHIFT, LOW_BITS, MARK, MARK_MASK, PORT_AT, UNTIL_AT,
};
use std::os::fd::{AsRawFd, BorrowedFd};

/// One instruction, as the kernel reads it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Instruction {
    operation: u8,
    /// The one that is changed, and the one that is read, in the upper half.
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// What comes back, and is changed by each call.
const R0: u8 = 0;
/// Arguments of calls.
const R1: u8 = 1;
const R2: u8 = 2;
/// The packet: those that read it expect it there.
const PACKET: u8 = 6;
/// The connection's entry.
const ENTRY: u8 = 7;
/// Where the TCP header begins.
const TCP: u8 = 8;
/// The end of the program's own memory.
const FRAME: u8 = 10;

const LOAD_WORD: u8 = 0x61;
const LOAD_LONG: u8 = 0x79;
const STORE_WORD: u8 = 0x63;
const STORE_ZERO: u8 = 0x62;
const LOAD_MAP: u8 = 0x18;
/// Of the packet, in the order of this machine, from its beginning or from a register on.
const PACKET_BYTE: u8 = 0x30;
const PACKET_WORD: u8 = 0x20;
const PACKET_BYTE_FROM: u8 = 0x50;
const PACKET_HALF_FROM: u8 = 0x48;
const PACKET_WORD_FROM: u8 = 0x40;
const SET: u8 = 0xbf;
const SET_TO: u8 = 0xb7;
const ADD: u8 = 0x07;
const AND: u8 = 0x57;
const OR: u8 = 0x4f;
const AND_WORD: u8 = 0x54;
const SHIFT_LEFT: u8 = 0x67;
const SHIFT_RIGHT: u8 = 0x77;
const SUBTRACT_WORDS: u8 = 0x1c;
const GO: u8 = 0x05;
const IF_EQUAL: u8 = 0x15;
const IF_NOT: u8 = 0x55;
const IF_WORD_IS_NOT: u8 = 0x56;
const IF_DIFFERENT: u8 = 0x5d;
const IF_NOT_LESS: u8 = 0x3d;
const IF_WORD_IS_NEGATIVE: u8 = 0xc6;
const CALL: u8 = 0x85;
const RETURN: u8 = 0x95;
/// Functions of the kernel.
const LOOK_UP: i32 = 1;
const NOW_NS: i32 = 5;
/// Of struct __sk_buff.
const SKB_MARK_AT: i16 = 8;
/// What LOAD_MAP means is a descriptor.
const IS_DESCRIPTOR: u8 = 1;

const IPV4: i32 = 4;
const IPV6: i32 = 6;
const IPV4_DESTINATION_AT: i32 = 16;
const IPV6_DESTINATION_AT: i32 = 24;
const IPV6_NEXT_AT: i32 = 6;
const IPV6_BYTES: i32 = 40;
const TCP_PROTOCOL: i32 = 6;
const TCP_DESTINATION_AT: i32 = 2;
const TCP_ACK_AT: i32 = 8;
const TCP_FLAGS_AT: i32 = 13;
/// FIN, SYN, RST, and ACK.
const FLAGS: i32 = 0x17;
const ACK: i32 = 0x10;

/// Instructions, some of which jump to places that come later.
#[derive(Default)]
struct Assembler {
    list: Vec<Instruction>,
    /// Jumps to where the packet is not allowed.
    refusals: Vec<usize>,
}

impl Assembler {
    fn add(&mut self, operation: u8, (to, from): (u8, u8), offset: i16, immediate: i32) -> &mut Self {
        self.list.push(Instruction { operation, registers: to | from << 4, offset, immediate });
        self
    }

    /// The packet is not allowed where this is so.
    fn refuse(&mut self, operation: u8, registers: (u8, u8), immediate: i32) -> &mut Self {
        self.refusals.push(self.list.len());
        self.add(operation, registers, 0, immediate)
    }

    /// A jump whose place is not known yet.
    fn jump(&mut self, operation: u8, registers: (u8, u8), immediate: i32) -> usize {
        self.add(operation, registers, 0, immediate);
        self.list.len() - 1
    }

    /// It goes to what comes next.
    fn land(&mut self, jump: usize) {
        let offset = self.list.len() - jump - 1;
        self.list[jump].offset = i16::try_from(offset).unwrap_or(i16::MAX);
    }

    /// The entry of the number that is at the end of the program's memory.
    fn look_up(&mut self, map: BorrowedFd<'_>) -> &mut Self {
        self.add(LOAD_MAP, (R1, IS_DESCRIPTOR), 0, map.as_raw_fd()).add(0, (0, 0), 0, 0);
        self.add(SET, (R2, FRAME), 0, 0).add(ADD, (R2, 0), 0, -4);
        self.add(CALL, (0, 0), 0, LOOK_UP).refuse(IF_EQUAL, (R0, 0), 0)
    }

    /// The packet goes to this word of the other end's address, or it is not allowed.
    fn compare_address(&mut self, packet_at: i32, word: usize) {
        let entry_at = offset(ADDRESS_AT + 4 * word);
        self.add(PACKET_WORD, (0, 0), 0, packet_at).add(LOAD_WORD, (R1, ENTRY), entry_at, 0);
        self.refuse(IF_DIFFERENT, (R0, R1), 0);
    }
}

fn offset(at: usize) -> i16 {
    i16::try_from(at).unwrap_or(i16::MAX)
}

/// Says 1 of packets that may leave, and 0 of others.
pub(super) fn program(map: BorrowedFd<'_>) -> Vec<Instruction> {
    let mut code = Assembler::default();
    // The time is not over.
    code.add(SET, (PACKET, R1), 0, 0).add(STORE_ZERO, (FRAME, 0), -4, 0);
    code.look_up(map).add(LOAD_LONG, (TCP, R0), offset(UNTIL_AT), 0);
    code.add(CALL, (0, 0), 0, NOW_NS).refuse(IF_NOT_LESS, (R0, TCP), 0);
    // The socket's mark says which connection it is.
    code.add(LOAD_WORD, (ENTRY, PACKET), SKB_MARK_AT, 0).add(SET, (R1, ENTRY), 0, 0);
    code.add(AND_WORD, (R1, 0), 0, MARK_MASK.cast_signed());
    code.refuse(IF_WORD_IS_NOT, (R1, 0), MARK.cast_signed());
    code.add(SET, (R1, ENTRY), 0, 0).add(AND, (R1, 0), 0, LOW_BITS.cast_signed());
    code.add(SHIFT_RIGHT, (ENTRY, 0), 0, HIGH_SHIFT.cast_signed());
    code.add(AND, (ENTRY, 0), 0, HIGH_BITS.cast_signed()).add(OR, (ENTRY, R1), 0, 0);
    code.add(STORE_WORD, (FRAME, ENTRY), -4, 0);
    code.look_up(map).add(SET, (ENTRY, R0), 0, 0);
    // It is to the other end of that connection.
    code.add(PACKET_BYTE, (0, 0), 0, 0).add(SET, (TCP, R0), 0, 0).add(SHIFT_RIGHT, (R0, 0), 0, 4);
    let to_ipv6 = code.jump(IF_EQUAL, (R0, 0), IPV6);
    code.refuse(IF_NOT, (R0, 0), IPV4);
    // The length of the header, in words.
    code.add(AND, (TCP, 0), 0, 0xf).add(SHIFT_LEFT, (TCP, 0), 0, 2);
    code.compare_address(IPV4_DESTINATION_AT, 3);
    let to_tcp = code.jump(GO, (0, 0), 0);
    code.land(to_ipv6);
    // Behind no other header.
    code.add(PACKET_BYTE, (0, 0), 0, IPV6_NEXT_AT).refuse(IF_NOT, (R0, 0), TCP_PROTOCOL);
    for (word, at) in (0..4).zip((IPV6_DESTINATION_AT..).step_by(4)) {
        code.compare_address(at, word);
    }
    code.add(SET_TO, (TCP, 0), 0, IPV6_BYTES);
    code.land(to_tcp);
    code.add(PACKET_HALF_FROM, (0, TCP), 0, TCP_DESTINATION_AT);
    code.add(LOAD_WORD, (R1, ENTRY), offset(PORT_AT), 0).refuse(IF_DIFFERENT, (R0, R1), 0);
    // It acknowledges something, and neither begins nor ends the connection.
    code.add(PACKET_BYTE_FROM, (0, TCP), 0, TCP_FLAGS_AT).add(AND, (R0, 0), 0, FLAGS);
    code.refuse(IF_NOT, (R0, 0), ACK);
    // And that not too far: numbers of TCP go round.
    code.add(PACKET_WORD_FROM, (0, TCP), 0, TCP_ACK_AT);
    code.add(LOAD_WORD, (R1, ENTRY), offset(ACKNOWLEDGES_AT), 0).add(SUBTRACT_WORDS, (R1, R0), 0, 0);
    code.refuse(IF_WORD_IS_NEGATIVE, (R1, 0), 0);
    code.add(SET_TO, (R0, 0), 0, 1).add(RETURN, (0, 0), 0, 0);
    for refusal in std::mem::take(&mut code.refusals) {
        code.land(refusal);
    }
    code.add(SET_TO, (R0, 0), 0, 0).add(RETURN, (0, 0), 0, 0);
    code.list
}
