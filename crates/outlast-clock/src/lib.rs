//! `liboutlast_clock.so`: a program that loads it (`LD_PRELOAD`) has the time of day from a page of memory, in the place of its machine.
//!
//! `outlast replicate` starts a server with it where the group file says `clock = "order"`: the servers of all nodes then have the same time when they
//! work on the same request, and it goes on when the order says so. `OUTLAST_CLOCK` is the number of the descriptor of that page, which the program
//! inherits, and so do those that it executes.
//!
//! Only the time of day is replaced (`CLOCK_REALTIME`): how long something has taken (`CLOCK_MONOTONIC`) is as it was, and what waits until a time of day
//! waits as long as it would have (`pthread_cond_timedwait`, `pthread_cond_clockwait`, `pthread_mutex_timedlock`, `sem_timedwait`). Who asks the kernel by itself is not reached: programs that are linked statically, and those of Go.
#![cfg_attr(test, allow(dead_code, reason = "tests do not stand before the C library"))]

#[cfg(not(test))]
mod hooks;
#[cfg(not(test))]
mod next;
mod page;
#[cfg(not(test))]
mod waits;
