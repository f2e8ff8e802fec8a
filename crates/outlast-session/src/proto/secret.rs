//! Secret bytes where there is no operating system to ask for special memory: wiped when they are dropped.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Deref;
use zeroize::Zeroizing;

/// Secret bytes. Clones share them.
#[derive(Clone)]
pub(crate) struct Secret(Arc<Zeroizing<Vec<u8>>>);

impl Secret {
    /// Room for so many bytes, filled in place.
    pub(crate) fn fill(bytes: usize, fill: impl FnOnce(&mut [u8])) -> Self {
        let mut memory = Zeroizing::new(alloc::vec![0; bytes]);
        fill(&mut memory);
        Self(Arc::new(memory))
    }
}

impl Deref for Secret {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}
