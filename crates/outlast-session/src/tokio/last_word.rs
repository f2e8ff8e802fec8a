//! Giving up a session of a process that has died.

use super::reconnect::abort;
use crate::config::Config;
use crate::engine::Engine;
use crate::proto::LastWord;
use crate::targets::Targets;
use std::sync::Arc;

/// Tells a server that a session was given up, and why; for half a minute at the most (PROTOCOL 3.11, 6.9). Whether it
/// has answered, if only that it has no such session.
///
/// The session need not have been opened by this process: `word` is what [`Session::last_word`](super::Session::last_word)
/// gave, and `config` has the TLS settings for `targets`, if the session was opened with TLS.
pub async fn say_last_word(word: LastWord, reason: &str, targets: &Targets, config: &Arc<Config>) -> bool {
    let engine = Engine::for_last_word(word, reason, config);
    abort(&engine, targets).await;
    !engine.owes_abort()
}
