//! A link that takes no more for now.

use super::by_hand::ByHand;
use super::*;
use std::io;

/// The kernel was asked to take more on a full link, and took nothing: who sends on tells that from a little.
#[test]
fn a_flush_tells_whether_a_full_link_has_taken_something() {
    within(|| {
        for mode in [LinkMode::Kernel, LinkMode::Inband] {
            let pair = ByHand::new(quick(mode));
            let server = pair.open();
            assert!(server.flush_some(&server.link().unwrap()), "there is nothing to send");
            // Past the session, which nobody reads.
            let link = server.link().unwrap();
            let socket = link.shared_socket();
            let peer = pair.client.link().unwrap().shared_socket();
            for socket in [&socket, &peer] {
                socket.set_nonblocking(true).unwrap();
            }
            let piece = vec![0; 64 << 10];
            wait_until("full", || {
                while socket.send(&piece).is_ok() {}
                socket.send(&piece).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
            });
            assert!(server.write(b"x", None).is_ok());
            assert!(!server.flush_some(&link), "it has taken a byte");
            wait_until("room again", || {
                while (&*peer).read(&mut vec![0; 1 << 20]).is_ok() {}
                server.flush_some(&link)
            });
        }
    });
}
