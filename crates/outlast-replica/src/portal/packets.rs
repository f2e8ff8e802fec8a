//! Packets of the portal that the kernel holds, and connections that it has accepted.

use super::machine::Machine;
use super::repair;
use crate::connection::{Direction, Segment};
use crate::replica::PacketId;
use outlast_netlink::queue::{Hook, Received, Verdict};
use std::io;

impl Machine {
    pub(super) fn take_packets(&mut self) -> io::Result<()> {
        let now_ms = self.now_ms();
        let (has_slept, may_restore_again) = (self.has_slept, self.may_restore_again());
        loop {
            let drops = match self.queue.receive()? {
                Received::Nothing => {
                    self.has_packets = false;
                    return Ok(());
                }
                Received::Overflow => {
                    self.known.overflows += 1;
                    None
                }
                Received::Packet(packet) => {
                    let direction = if packet.hook == Hook::Input { Direction::In } else { Direction::Out };
                    match Segment::parse(packet.bytes, direction) {
                        Ok(segment) => {
                            if direction == Direction::In {
                                if has_slept && !self.replica.is_serving() {
                                    // It may have waited for minutes.
                                    self.verdicts.push((packet.id, Verdict::Drop));
                                    continue;
                                }
                                if self.replica.keeps_packets() || may_restore_again {
                                    let is_stale = !self.replica.is_serving();
                                    self.handing_over.keep(&packet, segment.ends, is_stale);
                                }
                                // When the kernel has it, it may say how far the client is.
                                self.heard.extend(self.by_ends.get(&segment.ends));
                            }
                            self.replica.handle_packet(PacketId(packet.id), direction, &segment, now_ms);
                            None
                        }
                        Err(_) => Some(packet.id),
                    }
                }
            };
            self.verdicts.extend(drops.map(|id| (id, Verdict::Drop)));
        }
    }

    pub(super) fn accept(&mut self) {
        self.has_accepted = false;
        loop {
            let (socket, client) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Else it is tried again: there may be no descriptor, or the client has gone.
                    self.has_accepted |= error.kind() != io::ErrorKind::WouldBlock;
                    return;
                }
            };
            if self.replica.is_serving() && !self.ends {
                self.add_client(socket, client);
            } else if let Err(error) = repair::close_silently(std::os::fd::OwnedFd::from(socket).into()) {
                // The kernel had it whole before this node stopped to serve.
                tracing::error!(%error, "a client may hear that its connection has ended here");
            }
        }
    }
}
