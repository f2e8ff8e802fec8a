//! What the experiments with servers that crash have in common: clients of HTTP, servers, and what those use.

pub mod answer;
pub mod load;
pub mod memory;
pub mod serve;
pub mod service;
pub mod store;
pub mod supervise;
