//! Requests that change the state, exactly once: the change counts, the request is done and its answer is said at one and
//! the same instant, which is when the transaction is committed.
//!
//! The mark of the connection is written before, and refers to the transaction; the transaction changes a word of the state
//! to its own number. So whoever comes after a crash compares the two. The answer is kept where input is, and sent
//! by whoever lives.

use crate::connection::Connection;
use crate::generation::{Generation, Shared};
use crate::slots::{BUFFER_BYTES_MAX, Mark};
use crate::state::{Cell, Region, StateError, Transaction};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The longest answer of a request that changes the state.
const ANSWER_BYTES_MAX: usize = BUFFER_BYTES_MAX - 1;

/// Where the state is that requests change.
#[derive(Debug)]
pub(crate) struct Attached {
    region: Arc<Region>,
    /// The number of the last transaction that a mark depends on.
    served: Cell<u64>,
    /// What is in the cell, as far as this process knows: it changes within transactions.
    last: AtomicU64,
}

impl Generation {
    /// Has [`Connection::transact`] change this state, of which `served` is a part that nothing else changes: one for each
    /// process that serves at the same time (see [`Member::number`](crate::roles::Member::number)). To be said in every generation, before the first connection is held.
    ///
    /// What the last generation has left undone is [taken back](Region::recover).
    ///
    /// # Errors
    /// The region is damaged, or the cell is none of it. Something is attached already.
    pub fn attach(&self, region: Arc<Region>, served: Cell<u64>) -> Result<(), StateError> {
        let Shared { control, slots, number, .. } = self.shared;
        region.recover()?;
        let committed = region.get(served)?;
        // A region can be older than this process.
        control.transactions.fetch_max(committed, Ordering::SeqCst);
        // Of all that may not have come to an end, one was not committed, and its number would be taken for an old one's.
        let last = control.transacting.load(Ordering::SeqCst).checked_sub(1).filter(|_| *number > 1);
        if let Some(slot) = last.and_then(|descriptor| slots.of(descriptor.cast_signed()))
            && slot.pending().is_some_and(|transaction| transaction > committed)
        {
            slot.settle(false);
        }
        let attached = Attached { region, served, last: committed.into() };
        let already = |_| StateError::System {
            what: "attach a region",
            source: io_error("another one is attached already"),
        };
        self.shared.state.set(attached).map_err(already)
    }
}

fn io_error(why: &str) -> io::Error {
    io::Error::other(why)
}

impl Shared {
    /// What a connection finds that depends on a transaction of a dead generation.
    pub(crate) fn settle(&self, slot: &crate::slots::Slot) -> io::Result<()> {
        let Some(transaction) = slot.pending() else { return Ok(()) };
        let missing = "its last request has changed a state that is not attached: attach it before connections are held";
        let state = self.state.get().ok_or_else(|| io_error(missing))?;
        let committed = state.region.get(state.served).map_err(io::Error::other)?;
        slot.settle(committed >= transaction);
        Ok(())
    }
}

impl Connection {
    /// Deals with the next `request_bytes` of the input by a change of the [attached](Generation::attach) state: `change`
    /// makes it and gives the answer, all of it. State, request and answer are one: after a crash the request was dealt
    /// with and its answer is sent, or nothing was changed and the request is still there.
    ///
    /// Where the socket does not block, what it does not take at once is kept, for [`flush`](Self::flush).
    ///
    /// # Errors
    /// Those of `change`, and a [`StateError`]: nothing has changed, and the request is not done. An [`io::Error`] is the
    /// socket's: the request is done.
    pub fn transact<E: From<StateError> + From<io::Error>>(
        &mut self,
        request_bytes: usize,
        change: impl FnOnce(&mut Transaction<'_>) -> Result<Vec<u8>, E>,
    ) -> Result<(), E> {
        let control = self.shared.control;
        let Some(state) = self.shared.state.get() else {
            return Err(StateError::NotAttached.into());
        };
        let mut transaction = state.region.begin()?;
        // Nothing of a region that was cleared.
        let last = Some(transaction.get(state.served)?).filter(|last| *last != 0);
        if last.is_some_and(|last| last != state.last.load(Ordering::Relaxed)) {
            return Err(StateError::SharedCell.into());
        }
        let answer = change(&mut transaction)?;
        // In the order of commits, as the region has one transaction at a time.
        let number = control.transactions.fetch_add(1, Ordering::SeqCst) + 1;
        transaction.set(state.served, number)?;
        let before = self.mark;
        let mark = self.answered_by(&answer, request_bytes)?;
        self.stir();
        control.transacting.store(self.socket.as_raw_fd().cast_unsigned().wrapping_add(1), Ordering::SeqCst);
        self.carry_note(&mark, true);
        self.slot.set_mark_with(&mark, number);
        // Still within the region's lock.
        state.last.store(number, Ordering::Relaxed);
        if let Err(error) = transaction.commit() {
            self.slot.settle(false);
            self.shared.buffers.give_back(mark.outbox);
            return Err(error.into());
        }
        self.slot.settle(true);
        self.answered_bytes = mark.written_bytes;
        self.set_done(mark);
        if before.outbox != 0 {
            self.shared.buffers.give_back(before.outbox);
        }
        match self.flush() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// The mark that says that a request was answered so, behind what was not sent of earlier answers.
    fn answered_by(&mut self, answer: &[u8], request_bytes: usize) -> Result<Mark, StateError> {
        // SAFETY: copied at once.
        let unsent = unsafe { self.unsent() }.to_vec();
        let outbox_bytes = unsent.len() + answer.len();
        if outbox_bytes > ANSWER_BYTES_MAX {
            return Err(StateError::AnswerTooLong { found: outbox_bytes, limit: ANSWER_BYTES_MAX });
        }
        let no_room = |_| StateError::NoRoomForAnswer { length: outbox_bytes };
        let outbox = self.shared.buffers.lend(outbox_bytes, self.socket.as_raw_fd()).map_err(no_room)?;
        // SAFETY: it was lent just now, so that nobody else uses it; and `unsent` is a copy.
        let room = unsafe { self.shared.buffers.room(outbox, 0, outbox_bytes) };
        let (first, second) = room.split_at_mut(unsent.len());
        first.copy_from_slice(&unsent);
        second.copy_from_slice(answer);
        Ok(Mark {
            written_bytes: self.answered_bytes + answer.len() as u64,
            outbox,
            outbox_bytes: u32::try_from(outbox_bytes).unwrap_or(0),
            ..self.mark_after(request_bytes)
        })
    }

    /// Sends what is left of answers of [`transact`](Self::transact). Nothing else can be written before.
    ///
    /// # Errors
    /// As for any socket; [`WouldBlock`](io::ErrorKind::WouldBlock) when it does not take more for now.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.mark.outbox == 0 {
            return Ok(());
        }
        loop {
            // SAFETY: used in this round only, after which it may be given back.
            let unsent = unsafe { self.unsent() };
            if unsent.is_empty() {
                break;
            }
            self.stir();
            match self.transport.send(self.socket(), self.slot, unsent, true) {
                Ok(count) => self.sent_bytes += count as u64,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let mark = Mark { outbox: 0, outbox_bytes: 0, ..self.mark };
        let outbox = std::mem::replace(&mut self.mark, mark).outbox;
        self.carry_note(&mark, false);
        self.slot.set_mark(&mark);
        self.shared.buffers.give_back(outbox);
        self.rest();
        Ok(())
    }

    /// Whether [`flush`](Self::flush) has something to send.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        self.mark.outbox != 0
    }

    /// What is left of answers.
    ///
    /// # Safety
    /// The result is not used any more when the outbox is given back.
    unsafe fn unsent(&self) -> &'static [u8] {
        let length = self.mark.outbox_bytes as usize;
        let begin_bytes = self.mark.written_bytes - length as u64;
        let sent = usize::try_from(self.sent_bytes.saturating_sub(begin_bytes)).unwrap_or(length).min(length);
        // SAFETY: an outbox is lent to this connection, and filled before its mark tells of it. It is not changed until it is
        // given back, as the caller says.
        unsafe { self.shared.buffers.bytes(self.mark.outbox, sent, length - sent) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::Board;
    use crate::control::Control;
    use crate::slots::Slots;
    use crate::state::Options;
    use crate::sys::tcp;
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::FromRawFd;
    use std::os::unix::net::UnixStream;
    use std::sync::OnceLock;

    /// What one process has of its own.
    fn shared(region: &Arc<Region>, served: Cell<u64>) -> &'static Shared {
        let attached =
            Attached { region: Arc::clone(region), served, last: region.get(served).unwrap().into() };
        shared_with(attached.into())
    }

    fn shared_with(state: OnceLock<Attached>) -> &'static Shared {
        let control = crate::sys::shared::share::<Control>().unwrap();
        let slots = Slots::new().unwrap();
        let buffers = Box::leak(Box::new(crate::buffers::Buffers::new().unwrap()));
        let board = Board::private().unwrap();
        Box::leak(Box::new(Shared { control, board, slots, buffers, number: 1, state }))
    }

    /// And a connection.
    fn process(region: &Arc<Region>, served: Cell<u64>) -> (Connection, UnixStream) {
        let (server, mut client) = UnixStream::pair().unwrap();
        client.write_all(&[7; 100]).unwrap();
        let mut connection = Connection::new(shared(region, served), server.into()).unwrap();
        assert_eq!(connection.receive().unwrap(), 100);
        (connection, client)
    }

    fn transact(connection: &mut Connection) -> Result<(), Failure> {
        transact_with(connection, b"yes".to_vec())
    }

    fn transact_with(connection: &mut Connection, answer: Vec<u8>) -> Result<(), Failure> {
        connection.transact(1, |_| Ok(answer))
    }

    #[derive(Debug)]
    enum Failure {
        NotDone(StateError),
        Done(io::Error),
    }

    impl From<io::Error> for Failure {
        fn from(error: io::Error) -> Self {
            Self::Done(error)
        }
    }

    impl From<StateError> for Failure {
        fn from(error: StateError) -> Self {
            Self::NotDone(error)
        }
    }

    #[test]
    fn what_was_done_is_told_from_what_was_not() {
        let options = Options { layout: "transact", address: Some(0x5f20_0000_0000), ..Options::default() };
        let region = Arc::new(Region::anonymous("transact", &options).unwrap());
        let served = region.root::<u64>().unwrap();
        let (mut connection, client) = process(&region, served);
        let error = transact_with(&mut connection, vec![1; BUFFER_BYTES_MAX]).unwrap_err();
        assert!(matches!(error, Failure::NotDone(StateError::AnswerTooLong { .. })), "{error:?}");
        let (shared, mut lent) = (connection.shared, Vec::new());
        while let Ok(number) = shared.buffers.lend(BUFFER_BYTES_MAX, 0) {
            lent.push(number);
        }
        let error = transact_with(&mut connection, vec![1; 1 << 20]).unwrap_err();
        assert!(matches!(error, Failure::NotDone(StateError::NoRoomForAnswer { .. })), "{error:?}");
        lent.into_iter().for_each(|number| shared.buffers.give_back(number));
        let (mut without, _its_client) = connected(shared_with(OnceLock::new()));
        let error = transact(&mut without).unwrap_err();
        assert!(matches!(error, Failure::NotDone(StateError::NotAttached)), "{error:?}");
        assert_eq!((connection.done_bytes(), region.get(served).unwrap()), (0, 0));
        drop(client);
        let error = transact(&mut connection).unwrap_err();
        assert!(matches!(&error, Failure::Done(error) if error.kind() == ErrorKind::BrokenPipe), "{error:?}");
        assert_eq!(connection.done_bytes(), 1);
        // Numbers that were not committed are not used again.
        assert_eq!(region.get(served).unwrap(), 3);
    }

    #[test]
    fn the_answer_of_a_change_is_not_replaced_by_what_was_refused_before() {
        let options = Options { layout: "transact", address: Some(0x5f30_0000_0000), ..Options::default() };
        let region = Arc::new(Region::anonymous("transact", &options).unwrap());
        let (mut connection, mut client) = process(&region, region.root::<u64>().unwrap());
        crate::sys::local::set_nonblocking(connection.socket.as_raw_fd()).unwrap();
        let mut said = Vec::new();
        while let Ok(count) = connection.write(&[1; 1000]) {
            said.resize(said.len() + count, 1);
        }
        transact(&mut connection).unwrap();
        said.extend(b"yes");
        client.set_nonblocking(true).unwrap();
        let mut heard = Vec::new();
        while connection.has_unsent() || heard.len() < said.len() {
            let _ = client.read_to_end(&mut heard);
            let _ = connection.flush();
        }
        assert!(heard == said, "another answer: {:?}", &heard[said.len() - 3..]);
    }

    #[test]
    fn processes_that_share_a_cell_are_told_so_before_anything_is_lost() {
        let options = Options { layout: "transact", address: Some(0x5f00_0000_0000), ..Options::default() };
        let region = Arc::new(Region::anonymous("transact", &options).unwrap());
        let cells = region.root::<[u64; 2]>().unwrap();
        let [first, second] = [0, 1].map(|index| cells.at(index).unwrap());
        let (mut one, _client) = process(&region, first);
        let (mut other, _its_client) = process(&region, second);
        let (mut wrong, _wrong_client) = process(&region, first);
        for count in 1..=3 {
            transact(&mut one).unwrap();
            transact(&mut other).unwrap();
            assert_eq!((one.done_bytes(), other.done_bytes()), (count, count));
        }
        let error = transact(&mut wrong).unwrap_err();
        assert!(matches!(error, Failure::NotDone(StateError::SharedCell)), "{error:?}");
        assert_eq!((wrong.done_bytes(), region.get(first).unwrap()), (0, 3));
        // A region that begins again.
        region.clear().unwrap();
        transact(&mut one).unwrap();
        assert_eq!(region.get(first).unwrap(), 4);
    }

    /// Over TCP, where the server does not wait.
    fn connected(shared: &'static Shared) -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        server.set_nonblocking(true).unwrap();
        (Connection::new(shared, server.into()).unwrap(), client)
    }

    /// As if its process had died.
    fn left(connection: Connection) -> Connection {
        let (shared, number) = (connection.shared, connection.socket.as_raw_fd());
        std::mem::forget(connection);
        // SAFETY: it was open, and is nobody's now.
        Connection::new(shared, unsafe { std::os::fd::OwnedFd::from_raw_fd(number) }).unwrap()
    }

    /// Says something, and gets it.
    fn say(client: &mut TcpStream, connection: &mut Connection, words: &[u8]) {
        client.write_all(words).unwrap();
        while connection.receive().is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {}
        assert_eq!(connection.input(), words);
    }

    /// Its socket may wait, as those of servers with threads do.
    #[test]
    fn a_client_that_reads_nothing_is_not_waited_for_when_it_is_refused() {
        let (connection, mut client) = connected(shared_with(OnceLock::new()));
        rustix::io::ioctl_fionbio(connection.socket(), false).unwrap();
        let (done, refused) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            connection.refuse(&vec![7; 64 << 20]);
            done.send(()).unwrap();
        });
        refused.recv_timeout(std::time::Duration::from_secs(20)).unwrap();
        let ended = client.read_to_end(&mut Vec::new());
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }

    #[test]
    fn answers_that_are_done_arrive_whatever_becomes_of_the_next_request() {
        for shuts in [false, true] {
            let (mut connection, mut client) = connected(shared_with(OnceLock::new()));
            say(&mut client, &mut connection, b"asked");
            let block = vec![7; 1 << 20];
            let mut answered = 0;
            while let Ok(count) = connection.write(&block) {
                answered += count;
            }
            connection.done(5);
            if shuts {
                connection.shutdown_write().unwrap();
            }
            client.write_all(b"next").unwrap();
            while connection.receive().is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {}
            // As the next generation finds it.
            let connection = left(connection);
            connection.refuse(b"500");
            let mut heard = Vec::new();
            client.read_to_end(&mut heard).unwrap();
            // There may be room again for the refusal.
            assert!([answered, answered + 3].contains(&heard.len()), "{} of {answered}", heard.len());
        }
    }

    #[test]
    fn a_refusal_is_said_where_no_answer_has_begun() {
        let refuse = |begins: bool| {
            let (mut connection, mut client) = connected(shared_with(OnceLock::new()));
            say(&mut client, &mut connection, b"asked");
            if begins {
                connection.write_all(b"half").unwrap();
            }
            connection.refuse(b"500");
            let mut heard = Vec::new();
            (client.read_to_end(&mut heard).is_ok(), heard)
        };
        assert_eq!(refuse(false), (true, b"500".to_vec()));
        assert!(!refuse(true).0);
    }

    #[test]
    fn a_refusal_goes_on_where_a_generation_has_died_in_the_middle_of_it() {
        for (said, shuts) in [("", false), ("5", false), ("500", false), ("500", true)] {
            let (mut connection, mut client) = connected(shared_with(OnceLock::new()));
            say(&mut client, &mut connection, b"asked");
            connection.slot.set_refused();
            tcp::send_now(connection.socket(), said.as_bytes()).unwrap();
            if shuts {
                connection.shutdown_write().unwrap();
            }
            let connection = left(connection);
            assert!(connection.slot.is_refused());
            connection.refuse(b"500");
            let mut heard = Vec::new();
            let ended = client.read_to_end(&mut heard);
            assert!(ended.is_ok() && heard == b"500", "{said:?}: {ended:?}, {heard:?}");
        }
    }

    #[test]
    fn input_that_is_done_unseen_is_no_end() {
        let (mut connection, mut client) = connected(shared_with(OnceLock::new()));
        say(&mut client, &mut connection, b"answered");
        let mut connection = left(connection);
        connection.done(b"answered".len());
        assert_eq!(connection.receive().unwrap_err().kind(), ErrorKind::WouldBlock);
        say(&mut client, &mut connection, b"not answered");
        let mut connection = left(connection);
        connection.done(b"not ".len());
        assert_eq!(connection.receive().unwrap(), b"answered".len());
        assert_eq!(connection.input(), b"answered");
    }

    #[test]
    fn urgent_bytes_are_read_in_their_place_by_every_generation() {
        let (mut connection, mut client) = connected(shared_with(OnceLock::new()));
        // What is left in the buffer by somebody else.
        say(&mut client, &mut connection, &[b'S'; 60_000]);
        connection.done(60_000);
        let more = [&b"request!"[..], &[b'x'; 5000]].concat();
        client.write_all(&more[..7]).unwrap();
        rustix::net::send(&client, &more[7..8], rustix::net::SendFlags::OOB).unwrap();
        client.write_all(&more[8..]).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
        connection.receive().unwrap();
        for _ in 0..3 {
            connection = left(connection);
            let held = connection.input().to_vec();
            assert!(more.starts_with(&held) && held.len() >= 7, "{:?}", held.get(..20));
        }
        while connection.input().len() < more.len() {
            connection.receive().unwrap();
        }
        assert!(connection.input() == more);
    }

    #[test]
    fn an_answer_that_is_not_sent_does_not_end_as_if_it_were() {
        let options = Options { layout: "transact", address: Some(0x5f40_0000_0000), ..Options::default() };
        let region = Arc::new(Region::anonymous("transact", &options).unwrap());
        let (mut connection, mut client) = connected(shared(&region, region.root::<u64>().unwrap()));
        client.write_all(b"a request").unwrap();
        while connection.receive().is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {}
        while !connection.has_unsent() {
            while connection.write(&[1; 1000]).is_ok() {}
            transact(&mut connection).unwrap();
        }
        assert_eq!(connection.shutdown_write().unwrap_err().kind(), ErrorKind::WouldBlock);
        drop(connection);
        assert_eq!(client.read_to_end(&mut Vec::new()).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }

    #[test]
    fn the_buffer_of_an_answer_is_not_taken_for_that_of_the_input() {
        let options = Options { layout: "transact", address: Some(0x5f10_0000_0000), ..Options::default() };
        let region = Arc::new(Region::anonymous("transact", &options).unwrap());
        let shared = shared(&region, region.root::<u64>().unwrap());
        for flushes_first in [false, true] {
            let (mut connection, mut client) = connected(shared);
            // The buffer is given back, and is the next one that is lent.
            assert_eq!(connection.receive().unwrap_err().kind(), ErrorKind::WouldBlock);
            let mut said = Vec::new();
            while !connection.has_unsent() {
                while let Ok(count) = connection.write(&[1; 1000]) {
                    said.resize(said.len() + count, 1);
                }
                transact(&mut connection).unwrap();
                said.extend(b"yes");
            }
            assert_eq!(connection.mark.outbox, connection.mark.buffer);
            let mut connection = left(connection);
            if !flushes_first {
                say(&mut client, &mut connection, b"a request");
            }
            client.set_nonblocking(true).unwrap();
            let mut heard = Vec::new();
            while heard.len() < said.len() {
                let _ = client.read_to_end(&mut heard);
                let _ = connection.flush();
            }
            assert!(heard == said, "another answer: {:?}", &heard[heard.len() - 3..]);
            assert!(!connection.has_unsent());
            if flushes_first {
                say(&mut client, &mut connection, b"a request");
            }
            let (mut other, mut its_client) = connected(shared);
            say(&mut its_client, &mut other, b"another one");
            assert_eq!(connection.input(), b"a request");
        }
    }
}
