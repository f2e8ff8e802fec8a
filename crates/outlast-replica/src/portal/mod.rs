//! Connections of clients as the kernel has them: how they are made again on another machine, and how they end so that no client
//! hears of it.

mod actions;
pub mod announce;
mod asker;
mod clients;
pub mod clock;
pub mod copying;
pub mod handing_over;
mod handle;
pub mod machine;
mod packets;
pub mod peers;
mod primary;
pub mod raw;
mod refresher;
pub mod repair;
pub mod rules;
pub(crate) mod server_process;
mod servers;
pub(crate) mod sql_asker;
mod stream;
mod sys;
mod unqueued;
