//! What is taken for the end of a stream, and what is not.

use super::{Pair, quick, wait_until, within};
use crate::engine::Pumped;
use crate::proto::LinkMode;
use crate::sys;
use std::io::{Read, Write};

/// The kernel counts a FIN as a byte. A byte that nobody has read yet is none.
#[test]
fn a_byte_that_waits_to_be_read_is_not_the_end_of_the_stream() {
    for mode in [LinkMode::Udp, LinkMode::Kernel, LinkMode::Window] {
        within(move || {
            let mut pair = Pair::new(quick(mode));
            pair.round_trip(1);
            pair.client.write_all(&[2]).unwrap();
            let link = pair.server.engine().link().unwrap();
            wait_until("there", || sys::unread_bytes(&*link).is_ok_and(|unread_bytes| unread_bytes == 1));
            // As the helper does while the application is elsewhere.
            let pumped = pair.server.engine().pump_input();
            assert_ne!(pumped, Pumped::Last, "{mode:?}: nothing more is expected");
            let mut got = [0];
            assert_eq!(pair.server.read(&mut got).unwrap(), 1, "{mode:?}: the end of the stream");
            assert_eq!(got, [2]);
            pair.round_trip(3);
        });
    }
}

/// It is noticed all the same where nothing else is left to be read.
#[test]
fn an_end_with_nothing_before_it_is_noticed_without_a_reader() {
    within(|| {
        let mut pair = Pair::new(quick(LinkMode::Udp));
        pair.round_trip(1);
        pair.client.shutdown(std::net::Shutdown::Write).unwrap();
        let link = pair.server.engine().link().unwrap();
        wait_until("noticed", || {
            pair.server.engine().pump_input();
            link.is_fin_seen()
        });
        assert_eq!(pair.server.read(&mut [0]).unwrap(), 0);
    });
}
