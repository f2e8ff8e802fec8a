//! The real kernel, in network namespaces.

mod ack_filter;
mod queue;
