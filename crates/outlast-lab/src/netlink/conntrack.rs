//! Forgetting translations: the connection tracking table of a NAT, through ctnetlink.

use std::io;

use outlast_netlink::{Message, Socket};

/// Removes every entry from the connection tracking table of the namespace that `socket` was opened in.
pub(crate) fn flush(socket: &mut Socket) -> io::Result<()> {
    const SUBSYSTEM_CTNETLINK: u16 = 1;
    const DELETE: u16 = 2;
    const ANY_FAMILY_VERSION_0: [u8; 4] = [0; 4];
    socket.request(Message::new(SUBSYSTEM_CTNETLINK << 8 | DELETE, 0, &ANY_FAMILY_VERSION_0))
}
