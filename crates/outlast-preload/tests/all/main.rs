//! Unmodified servers below the preloaded library.
//! One program, so that it is built and linked once.

mod common;
mod ends;
#[path = "../../../outlast-restart/tests/all/common/forbid.rs"]
mod forbid;
mod forbidden_calls;
mod limits;
mod lines;
mod masters;
mod programs;
mod upgrades;
