//! The real kernel, in network namespaces.

mod queue;
