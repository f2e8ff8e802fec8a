//! `liboutlast_preload.so`: lets a server that knows nothing of it keep its listening sockets, and the connections on
//! which nobody waits for an answer, over a crash.
//!
//! With `LD_PRELOAD` naming this library and `OUTLAST_PRELOAD=start`, a program becomes two processes before its `main`
//! runs: a *keeper*, which only waits, and the program, which runs below it and shares its table of descriptors. When the
//! program crashes the keeper closes what belonged to what it was doing, and begins the program again from the beginning.
//! That reads its files and opens its sockets, and gets the old ones, as this library stands before the functions of the
//! C library that it uses for that; and when it accepts connections it gets those first that were idle. The same
//! functions tell which those are.
//!
//! Processes that the program forks, and which wait for clients themselves, go on from a *snapshot* instead.
//!
//! | variable | meaning |
//! |---|---|
//! | `OUTLAST_PRELOAD` | `start`: look after this program. It is changed in it, so that what it executes is left alone. |
//! | `OUTLAST_KEEP` | `idle` (what is kept if nothing is said), or `listeners` alone |
//! | `OUTLAST_SNAPSHOT` | `1`: the program itself, too, goes on from where it first waited for clients, with its memory |
//! | `OUTLAST_BOARD` | the descriptor of a supervisor's board, with its policy; without one, the usual limits |
//!
//! What a client has said before on a connection that is kept, such as a password, is not known to the next generation.
//! TLS, HTTP/2, and connections on which the server ever speaks unasked are not kept.
//!
//! For whoever reads on: `keeper` and `snapshot` are the processes, `hooks` the functions, `table` what they write down of
//! each connection, `traffic` and `http` what follows from that, and `left` what is given out.
#![cfg_attr(test, allow(dead_code, reason = "tests do not stand before the C library"))]

mod address;
mod counts;
#[cfg(not(test))]
mod hooks;
mod http;
mod keeper;
mod left;
mod listeners;
mod memory;
mod passed;
mod role;
mod room;
mod settings;
mod signals;
mod snapshot;
#[cfg(not(test))]
mod start;
mod sys;
mod table;
mod traffic;
mod upgrade;
