//! Connections that outlive their process, for services on tokio. With the feature `tokio`.
//!
//! A generation begins with one thread, so [`register`](crate::register()) comes before the runtime is built, and so does
//! [`incoming`], as what a generation opens itself is not left by another one: a `main` with `#[tokio::main]` is too late.
//!
//! ```no_run
//! use outlast_restart::tokio::{Connection, incoming};
//! use tokio::io::AsyncWriteExt;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let listener = std::net::TcpListener::bind("127.0.0.1:7")?;
//!     let mut generation = outlast_restart::register()?;
//!     generation.refuse_with(b"this line has crashed the server\n");
//!     let mut clients = incoming(&mut generation, [listener])?;
//!     tokio::runtime::Runtime::new()?.block_on(async {
//!         loop {
//!             let client = clients.next().await?;
//!             tokio::spawn(client.attributed(serve));
//!         }
//!     })
//! }
//!
//! /// Answers each line with itself.
//! async fn serve(mut client: Connection) -> std::io::Result<()> {
//!     loop {
//!         while let Some(length) = client.input().iter().position(|&byte| byte == b'\n') {
//!             let line = client.input()[..=length].to_vec();
//!             client.write_all(&line).await?;
//!             // From here on no generation answers it again.
//!             client.done(length + 1);
//!         }
//!         if client.receive().await? == 0 {
//!             return Ok(());
//!         }
//!     }
//! }
//! ```
//!
//! What is different from a service with threads:
//!
//! * Many requests share a thread. [`Connection::attributed`] says at each poll whose request the thread deals with, so that
//!   the right one is blamed when it crashes.
//! * A hang is one poll that takes longer than [`hang_timeout_ms`](crate::policy::Policy::hang_timeout_ms). The hooks of the
//!   runtime for threads that are parked do not tell: under load, threads are never parked.
//! * tokio catches a panic. One of a task that has a [`Connection`] aborts the process all the same, as that of a thread does.

mod attribute;
mod connection;
mod incoming;

pub use attribute::watched;
pub use connection::Connection;
pub use incoming::{Incoming, incoming};
