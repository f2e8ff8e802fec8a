//! TCP services that outlast the link, the process, the machine and the load.
//!
//! This crate is the `outlast` program and the front door to the libraries behind it. Programs that want a
//! session without a relay use [`session`] directly:
//!
//! ```no_run
//! use std::io::Write;
//!
//! # fn main() -> Result<(), outlast::session::Error> {
//! let mut session = outlast::session::blocking::Session::connect("server.example:7000")?;
//! session.write_all(b"this arrives once, whatever happens to the link\n").ok();
//! session.finish()?;
//! # Ok(())
//! # }
//! ```

pub use outlast_session as session;
