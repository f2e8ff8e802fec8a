//! What a byte stream has to do, in the spirit of Go's `nettest.TestConn`: both faces, every mode, every security.

#[path = "conformance/blocking.rs"]
mod blocking_face;
#[path = "conformance/common.rs"]
mod common;
#[path = "conformance/ends.rs"]
mod ends;
#[path = "conformance/tokio.rs"]
mod tokio_face;
