//! What a user of the program sees: the relays, `outlast run`, their administration and their messages.
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

mod administration;
mod bad_input;
mod bad_peers;
mod client_certificates;
mod common;
mod containers;
mod end_messages;
mod ended_relays;
mod exit_codes;
mod few_descriptors;
mod file_size;
mod full_server;
mod handover;
mod handover_answers;
mod handover_failures;
mod handover_keep;
mod handover_turns;
mod histories;
mod hold;
mod interop;
mod kernel_memory;
mod key_memory;
mod killed_relays;
mod lab;
mod link_local;
mod modes;
mod nohup;
mod notify;
mod outages;
mod places;
mod proxies;
mod python_suites;
mod relay;
mod replicate;
mod replicate_agreeing;
mod replicate_answers;
mod replicate_clock;
mod replicate_histories;
mod replicate_ipv6;
mod replicate_join;
mod replicate_mysql;
mod replicate_mysql_histories;
mod replicate_postgres;
mod replicate_recover;
mod replicate_switchover;
mod restarting;
mod run;
mod run_activated;
mod run_config;
mod run_crashes;
mod run_file_size;
mod run_forks;
mod run_groups;
mod run_handed_on;
mod run_hangup;
mod run_held;
mod run_leftovers;
mod run_listen;
mod run_log;
mod run_marks;
mod run_metrics;
mod run_namespaces;
mod run_notify;
mod run_orphaned;
mod run_port_checks;
mod run_preload;
mod run_settling;
mod run_surroundings;
mod run_terminal;
mod run_unix;
mod run_unloadable;
mod run_upgrade;
mod run_upgrade_crashed;
mod run_upgrade_ends;
mod run_waiting;
mod run_without_proc;
mod segments;
mod self_loops;
mod shed_sessions;
mod small_ends;
mod splice;
mod stopping;
mod strangers;
mod transparent;
mod unix_ends;
mod unreachable;
mod urgent;
mod urgent_ways;
mod versions;
mod watcher;
mod watcher_patience;
