//! What the lab asks the kernel for, in this process: no program is started to set up or break a link.

pub(crate) mod conntrack;
pub(crate) mod diag;
pub(crate) mod route;
