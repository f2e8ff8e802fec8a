//! Servers that are killed in every way, and answer as if they were not.
//! One program, so that it is built and linked once.

mod common;
mod core_dumps;
mod downloads;
mod every_call;
mod every_instruction;
mod exactly_once;
mod forbidden_calls;
mod full_table;
mod generations;
mod handlers;
mod holder;
mod keepers;
mod leaks;
mod matrix;
mod roles;
mod state;
mod state_kills;
mod state_steps;
mod systemd;
mod trouble;
mod upgrade;
