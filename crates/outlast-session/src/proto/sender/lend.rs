//! Room that the application fills while others use the sender: nobody waits for it but other writers.

use super::Sender;
use outlast_stream::{BufferSource, Lent};

impl<S: BufferSource> Sender<S> {
    /// Hands out the room last [reserved](Sender::reserve), with the memory around it; `None` if there is none.
    ///
    /// Until it is back nothing can be written and no payload sent; handshake messages and control frames can, links may
    /// come and go, and what the peer acknowledges is forgotten.
    pub fn lend(&mut self) -> Option<Lent> {
        self.ring.lend()
    }

    /// Whether the application has it.
    #[inline]
    pub fn is_lent(&self) -> bool {
        self.ring.is_lent()
    }

    /// It is back: [`commit`](Sender::commit) what was filled.
    pub fn give_back(&mut self, lent: Lent) {
        self.ring.give_back(lent);
    }
}
