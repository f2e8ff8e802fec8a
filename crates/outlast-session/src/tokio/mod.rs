//! Sessions for tokio: the names and the behaviour of `tokio::net`, over links that may break.
//!
//! There is no task per session. A session is driven by whoever reads and writes it; a task exists only for a
//! connection that shakes hands, for an outage of a client, and one for each [`Listener`]. Service code sees a byte
//! stream and nothing of all this.

mod halves;
mod last_word;
mod listener;
pub(crate) mod lookup;
mod reconnect;
mod session;
mod turns;

pub use halves::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
pub use last_word::say_last_word;
pub use listener::Listener;
pub use session::Session;
