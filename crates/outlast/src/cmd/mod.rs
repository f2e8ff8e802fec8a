//! The commands.

pub mod completions;
pub mod config;
pub mod connect;
pub mod hold;
pub mod kill;
pub mod listen;
pub mod man;
pub mod recover;
pub mod replicate;
pub mod run;
pub mod status;
pub mod upgrade;
