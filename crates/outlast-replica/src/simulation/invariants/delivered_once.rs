//! No entry has two indices.

use super::Violation;
use std::collections::BTreeMap;
use std::format;
extern crate std;

#[derive(Debug, Default)]
pub struct DeliveredOnce {
    index_of: BTreeMap<u64, u64>,
}

impl DeliveredOnce {
    pub fn delivered(&mut self, index: u64, entry: u64) -> Result<(), Violation> {
        let first = *self.index_of.entry(entry).or_insert(index);
        if first != index {
            let what = format!("entry {entry} is delivered at {first} and at {index}");
            return Err(Violation::new("delivered once", what));
        }
        Ok(())
    }
}
