//! Which replies of Redis follow from what clients have sent, and which differ between servers that hold the same data.
//!
//! The commands are those that Redis itself marks so (redis.io/docs/latest/develop/reference/command-tips: `nondeterministic_output`,
//! `nondeterministic_output_order`), and those whose replies are about the server, the connection, or the time.

use super::session::Words;

/// How the replies of two servers to the same command are compared. Later ones compare less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// Byte by byte.
    #[default]
    Same,
    /// The parts of the reply may come in any order: each server has its own, by a random number.
    AnyOrder,
    /// So may pairs of parts.
    AnyOrderOfPairs,
    /// Not at all: each server has a reply of its own.
    Own,
}

/// Of a command, in capitals, and the words behind it.
pub(super) fn class(command: &[u8], mut words: Words<'_>) -> Class {
    match command {
        b"SMEMBERS" | b"SINTER" | b"SUNION" | b"SDIFF" | b"HKEYS" | b"HVALS" | b"KEYS" | b"PUBSUB" => {
            Class::AnyOrder
        }
        b"HGETALL" => Class::AnyOrderOfPairs,
        // BY NOSORT takes a set in the order of its own, and may take a part of it.
        b"SORT" | b"SORT_RO" if words.any(|word| word.eq_ignore_ascii_case(b"BY")) => Class::Own,
        // Any of these may be in a script.
        b"EVAL" | b"EVALSHA" | b"FCALL" | b"EVAL_RO" | b"EVALSHA_RO" | b"FCALL_RO" => Class::Own,
        // What is there is read at random, or in an order that only one server knows.
        b"RANDOMKEY" | b"SRANDMEMBER" | b"HRANDFIELD" | b"ZRANDMEMBER" | b"SCAN" | b"SSCAN" | b"HSCAN"
        | b"ZSCAN" => Class::Own,
        // The time, and what is left of it.
        b"TIME" | b"LASTSAVE" | b"TTL" | b"PTTL" | b"EXPIRETIME" | b"PEXPIRETIME" | b"HTTL" | b"HPTTL"
        | b"HEXPIRETIME" | b"HPEXPIRETIME" | b"XPENDING" | b"XINFO" => Class::Own,
        // The server, its memory, its files, its connections.
        b"INFO" | b"DBSIZE" | b"CONFIG" | b"COMMAND" | b"MEMORY" | b"OBJECT" | b"DUMP" | b"DEBUG"
        | b"LATENCY" | b"SLOWLOG" | b"MODULE" | b"FUNCTION" | b"CLUSTER" | b"ACL" | b"ROLE" | b"WAIT"
        | b"WAITAOF" | b"SAVE" | b"BGSAVE" | b"BGREWRITEAOF" | b"LOLWUT" => Class::Own,
        b"HELLO" | b"CLIENT" => Class::Own,
        _ => Class::Same,
    }
}
