//! `liboutlast_preload.so`: tells the holder of a program's sockets what it has to know of them.
//!
//! A program that runs below `outlast run` loads it by `LD_PRELOAD`. It makes no process, no thread and no signal handler, and
//! does nothing at all until the program binds, listens, or accepts. What it does then, and why, is told in
//! `outlast_restart::custody`. A process of the program has one more descriptor from there on: a high one, which programs
//! that it executes do not inherit, and which is looked at before each use, as the program may have closed it.
//!
//! What a client has said before on a connection that is kept, such as a password, is not known to whoever gets it. So only
//! those are kept on which HTTP/1 is spoken, where each request says all. TLS, HTTP/2, and half answers are not kept.
//!
//! For whoever reads on: `hooks` stand before the C library's functions, `holder` asks, `marks` are what is known of this
//! process's connections, `http` what follows from the bytes, `accepted` and `bound` what a program gets in place of its
//! own, `watches` which epolls are not to report what it has closed, `shut` what is only shut down for the program, `program` and `environment` keep the library away from programs that would end of it.
#![cfg_attr(test, allow(dead_code, reason = "tests do not stand before the C library"))]

mod accepted;
mod bound;
mod environment;
mod holder;
#[cfg(not(test))]
mod hooks;
mod http;
mod marks;
mod memory;
mod program;
mod shut;
mod sys;
mod watches;
