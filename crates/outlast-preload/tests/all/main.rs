//! Unmodified servers below a supervisor that holds their sockets.
//! One program, so that it is built and linked once.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    reason = "a failed expectation is the message of a test"
)]

mod asked_helpers;
mod bad_pointers;
mod bound_to_devices;
mod changed_addresses;
mod closes;
mod closing_exits;
mod common;
mod connections;
mod crashed_masters;
mod descriptor_numbers;
#[path = "../../../outlast-restart/tests/all/common/forbid.rs"]
mod forbid;
mod forbidden_calls;
mod gone_clients;
mod half_read;
mod inner_connections;
mod inner_talk;
mod jumps;
mod killed_supervisors;
mod killed_young;
mod last_answers;
mod leaving_masters;
mod many_listeners;
mod other_networks;
mod other_users;
mod own_sandbox;
mod searched_folders;
mod servers;
mod session_listeners;
mod shared_memory;
mod shared_ports;
mod silent_clients;
mod slow_starts;
mod small_stacks;
mod stale_events;
mod strays;
mod swaps;
mod told_by_shutdown;
mod unasked_strangers;
mod unix_files;
mod unkept_sessions;
mod untold_parts;
mod watched_early;
