//! The side of a service.

use super::backoff::Backoff;
use super::packet::{self, Packet};
use super::protocol::{Answer, MESSAGE_BYTES_MAX, Request};
use super::{Error, Keeper, Kept, Refusal, SOCKET_VARIABLE, check, socket};
use crate::sys::clock::monotonic_ms;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A holder that takes longer for an answer counts as gone.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A service's connection to its holder, `outlast hold`.
///
/// Where the holder dies, the service goes on: what is to be kept is noted here, with a duplicate of each descriptor, and
/// [`tend`](Keeper::tend) gives all of it to the next holder at that path. The connections outlive the death of either.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    service: String,
    socket: Option<OwnedFd>,
    /// All that should be kept.
    kept: BTreeMap<String, (OwnedFd, Vec<u8>)>,
    backoff: Backoff,
    /// The holder has had enough of us, for good.
    dismissed: Option<Refusal>,
}

impl Client {
    /// For the holder at `path`, as the service of that name. Nothing is connected yet.
    ///
    /// # Errors
    /// The name cannot be used.
    pub fn new(path: impl Into<PathBuf>, service: &str) -> Result<Self, Error> {
        check(service, b"")?;
        Ok(Self {
            path: path.into(),
            service: service.to_owned(),
            socket: None,
            kept: BTreeMap::new(),
            backoff: Backoff::default(),
            dismissed: None,
        })
    }

    /// For the holder that the environment names, in `OUTLAST_HOLDER`. None: it names none.
    ///
    /// # Errors
    /// The name cannot be used.
    pub fn from_environment(service: &str) -> Result<Option<Self>, Error> {
        std::env::var_os(SOCKET_VARIABLE).map(|path| Self::new(path, service)).transpose()
    }

    /// Where the holder is, or should be.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The connection, to wait for its end: it can be read from then. None while there is none.
    #[must_use]
    pub fn connection(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    fn note_refusal(&mut self, bytes: Option<&[u8]>) {
        if let Ok(Answer::Refused(refusal, _)) = Answer::parse(bytes.unwrap_or_default())
            && matches!(refusal, Refusal::Superseded | Refusal::NotAllowed | Refusal::Version)
        {
            self.dismissed = Some(refusal);
        }
    }

    /// Is connected after this, or says why not.
    fn connect(&mut self, at_once: bool) -> Result<(), Error> {
        if let Some(refusal) = self.dismissed {
            return Err(refused("anything", refusal, refusal.text()));
        }
        if self.socket.is_some() {
            return Ok(());
        }
        let now_ms = monotonic_ms();
        if !at_once && !self.backoff.may_try(now_ms) {
            return Err(self.away(io::ErrorKind::NotConnected.into()));
        }
        match self.introduce() {
            Ok(()) => {
                self.backoff.note_success();
                Ok(())
            }
            Err(error) => {
                self.socket = None;
                self.backoff.note_failure(now_ms);
                Err(error)
            }
        }
    }

    /// To a holder that may be another one: it knows nothing, or what is old.
    fn introduce(&mut self) -> Result<(), Error> {
        let reached = socket::reach(&self.path).and_then(|socket| {
            for which in [Timeout::Send, Timeout::Recv] {
                set_socket_timeout(&socket, which, Some(ANSWER_TIMEOUT))?;
            }
            Ok(socket)
        });
        self.socket = Some(reached.map_err(|error| self.away(error))?);
        let service = self.service.clone();
        let held = self.ask(&Request::Hello(&service), None)?;
        if self.kept.is_empty() {
            return Ok(());
        }
        let kept = std::mem::take(&mut self.kept);
        let outcome = self.give_all(&kept, held);
        self.kept = kept;
        outcome
    }

    fn give_all(&mut self, kept: &BTreeMap<String, (OwnedFd, Vec<u8>)>, held: u32) -> Result<(), Error> {
        for (name, (descriptor, state)) in kept {
            match self.ask(&Request::Keep(name, state), Some(descriptor.as_fd())) {
                // Its limits are for the service to find out when it gives more, not a reason to give up the others.
                Ok(_) | Err(Error::Refused { refusal: Refusal::Descriptors | Refusal::Bytes, .. }) => {}
                Err(error) => return Err(error),
            }
        }
        if held > 0 {
            // Some may have been released while we were away.
            let names: BTreeSet<String> = self.ask_for_all()?.into_iter().map(|kept| kept.name).collect();
            for name in names.iter().filter(|name| !kept.contains_key(*name)) {
                self.ask(&Request::Release(name), None)?;
            }
        }
        Ok(())
    }

    /// The number in the answer. Any failure but a refusal ends the connection.
    fn ask(&mut self, request: &Request<'_>, descriptor: Option<BorrowedFd<'_>>) -> Result<u32, Error> {
        self.say(request, descriptor)?;
        let mut room = [0; MESSAGE_BYTES_MAX];
        let (answer, _) = self.hear(&mut room)?;
        match answer {
            Answer::Welcome(number) | Answer::Done(number) => Ok(number),
            Answer::Refused(refusal, text) => Err(self.note(request, refusal, text)),
            Answer::Kept(..) | Answer::End(_) => {
                Err(self.lost(io::Error::other("it answers something else")))
            }
        }
    }

    fn ask_for_all(&mut self) -> Result<Vec<Kept>, Error> {
        self.say(&Request::Recover, None)?;
        let (mut all, mut room) = (Vec::new(), [0; MESSAGE_BYTES_MAX]);
        loop {
            let (answer, mut packet) = self.hear(&mut room)?;
            match (answer, packet.descriptors.pop()) {
                (Answer::Kept(name, state), Some(descriptor)) => {
                    all.push(Kept { name: name.to_owned(), descriptor, state: state.to_vec() });
                }
                (Answer::Kept(..), None) => {
                    let lacking = io::Error::other("this process may not open more files");
                    return Err(self.lost(lacking));
                }
                (Answer::End(given), _) if usize::try_from(given) == Ok(all.len()) => return Ok(all),
                (Answer::Refused(refusal, text), _) => {
                    return Err(self.note(&Request::Recover, refusal, text));
                }
                _ => return Err(self.lost(io::Error::other("it answers something else"))),
            }
        }
    }

    fn say(&mut self, request: &Request<'_>, descriptor: Option<BorrowedFd<'_>>) -> Result<(), Error> {
        let socket = self.socket.as_ref().ok_or_else(|| self.away(io::ErrorKind::NotConnected.into()))?;
        match packet::send(socket.as_fd(), &request.encode(), descriptor, true) {
            // Why it has closed is what can be heard.
            Err(error) if !matches!(error.kind(), BrokenPipe | ConnectionReset) => Err(self.lost(error)),
            _ => Ok(()),
        }
    }

    fn hear<'a>(&mut self, room: &'a mut [u8]) -> Result<(Answer<'a>, Packet), Error> {
        let socket = self.socket.as_ref().ok_or_else(|| self.away(io::ErrorKind::NotConnected.into()))?;
        let mut outcome = packet::receive(socket.as_fd(), room, true);
        if outcome.as_ref().is_err_and(|error| error.kind() == ConnectionReset) {
            // It has closed, and not read everything. What it had said before is behind this error.
            outcome = packet::receive(socket.as_fd(), room, true);
        }
        let packet = match outcome {
            Ok(packet) if packet.length > 0 => packet,
            Ok(_) => return Err(self.lost(io::ErrorKind::UnexpectedEof.into())),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(self.lost(io::ErrorKind::TimedOut.into()));
            }
            Err(error) => return Err(self.lost(error)),
        };
        match Answer::parse(room.get(..packet.length).unwrap_or_default()) {
            Ok(answer) => Ok((answer, packet)),
            Err(error) => Err(self.lost(io::Error::other(error))),
        }
    }

    fn note(&mut self, request: &Request<'_>, refusal: Refusal, text: &str) -> Error {
        if refusal.is_final() {
            self.note_refusal(Some(&Answer::Refused(refusal, text).encode()));
            self.socket = None;
        }
        let what = match request {
            Request::Hello(service) => format!("the service {service}"),
            Request::Keep(name, _) => format!("to keep {name}"),
            Request::Update(name, _) => format!("to change {name}"),
            Request::Release(name) => format!("to release {name}"),
            Request::Recover => "to give everything back".to_owned(),
        };
        refused(what, refusal, text)
    }

    fn lost(&mut self, source: io::Error) -> Error {
        self.socket = None;
        self.away(source)
    }

    fn away(&self, source: io::Error) -> Error {
        Error::Away { at: self.path.display().to_string(), source }
    }
}

fn refused(what: impl Into<String>, refusal: Refusal, text: &str) -> Error {
    Error::Refused { what: what.into(), refusal, text: text.to_owned() }
}

impl Keeper for Client {
    /// It is noted whatever the holder says, and if that is [away](Error::Away), given to the next one.
    fn keep(&mut self, name: &str, descriptor: BorrowedFd<'_>, state: &[u8]) -> Result<(), Error> {
        check(name, state)?;
        let copy = descriptor.try_clone_to_owned();
        let copy = copy.map_err(|source| Error::System { what: "duplicate the descriptor", source })?;
        let connected = self.connect(false);
        let outcome = connected.and_then(|()| self.ask(&Request::Keep(name, state), Some(descriptor)));
        // What a holder refuses is not kept by the next one, either.
        if !matches!(outcome, Err(Error::Refused { .. })) {
            self.kept.insert(name.to_owned(), (copy, state.to_vec()));
        }
        outcome.map(|_| ())
    }

    fn update(&mut self, name: &str, state: &[u8]) -> Result<(), Error> {
        check(name, state)?;
        let connected = self.connect(false);
        if let Some((_, noted)) = self.kept.get_mut(name) {
            noted.clear();
            noted.extend(state);
        }
        connected.and_then(|()| self.ask(&Request::Update(name, state), None)).map(|_| ())
    }

    fn release(&mut self, name: &str) -> Result<(), Error> {
        check(name, b"")?;
        // First of all: what is away is given everything that is noted when it is back.
        self.kept.remove(name);
        self.connect(false).and_then(|()| self.ask(&Request::Release(name), None)).map(|_| ())
    }

    fn recover(&mut self) -> Result<Vec<Kept>, Error> {
        self.connect(true)?;
        let all = self.ask_for_all()?;
        for Kept { name, descriptor, state } in &all {
            let copy = descriptor.try_clone();
            let copy = copy.map_err(|source| Error::System { what: "duplicate the descriptor", source })?;
            self.kept.insert(name.clone(), (copy, state.clone()));
        }
        Ok(all)
    }

    /// It is tried after 10 ms, and then less and less often, down to once a second.
    fn tend(&mut self) -> Result<(), Error> {
        if let Some(socket) = &self.socket {
            let mut room = [0; MESSAGE_BYTES_MAX];
            match packet::receive(socket.as_fd(), &mut room, false) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // Nothing was asked: it is the end, or says why it ends.
                Ok(packet) if packet.length > 0 => self.note_refusal(room.get(..packet.length)),
                _ => {}
            }
            self.socket = None;
        }
        self.connect(false)
    }
}
