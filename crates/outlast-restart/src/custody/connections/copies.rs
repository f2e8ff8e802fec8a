//! Copies of connections that have become idle, which processes of the program serve.

use super::{Connection, Connections, SILENT, State};
use crate::custody::address::Address;
use crate::custody::table::{FREE, NEW, Phase, TAKEN};
use crate::sys::custody as sys;
use crate::sys::process::{self, Pid};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

impl Connections {
    /// Whether the table has connections of which there may soon be a copy.
    pub(in crate::custody) fn has_new(&mut self) -> bool {
        self.table.take_new(&mut self.head, &mut self.new);
        !self.new.is_empty()
    }

    /// The processes that have those of which there is no copy yet, as they say, and whether anything was said there.
    pub(in crate::custody) fn owners(&mut self) -> Vec<(Pid, bool)> {
        self.table.take_new(&mut self.head, &mut self.new);
        let owner = |number: &u32| {
            let slot = self.table.slot(*number)?;
            Some((slot.owner.load(SeqCst).cast_signed(), slot.phase() != Phase::Untouched))
        };
        let mut owners: Vec<(Pid, bool)> = self.new.iter().filter_map(owner).collect();
        owners.sort_unstable();
        owners.dedup();
        owners
    }

    /// Frees the places of those whose processes are gone and were never known here: a process that serves one client may have ended
    /// before anybody looked, and nothing tells of that. Asks for each such process: not often.
    pub(in crate::custody) fn forget_gone(&mut self, is_known: impl Fn(Pid) -> bool) {
        self.table.take_new(&mut self.head, &mut self.new);
        let mut gone = BTreeMap::new();
        let mut has_gone = |number: u32| {
            let Some(slot) = self.table.slot(number).filter(|slot| slot.state.load(SeqCst) == NEW) else {
                return true;
            };
            let owner = slot.owner.load(SeqCst).cast_signed();
            let has_ended = || owner > 0 && !is_known(owner) && process::has_ended(owner);
            let has_gone = *gone.entry(owner).or_insert_with(has_ended);
            if has_gone {
                slot.free();
            }
            has_gone
        };
        self.new.retain(|number| !has_gone(*number));
        self.uncopied.retain(|number| !has_gone(*number));
    }

    /// This process is known from here on. It may have had connections before, of which there is no copy as it was not.
    pub(in crate::custody) fn look_again(&mut self, pid: Pid) {
        let (table, new) = (self.table, &mut self.new);
        self.uncopied.retain(|number| {
            let is_its = table.slot(*number).is_some_and(|slot| {
                slot.state.load(SeqCst) == NEW
                    && slot.owner.load(SeqCst) == pid.cast_unsigned()
                    && slot.phase() != Phase::Unclear
            });
            if is_its {
                new.push(*number);
            }
            !is_its
        });
    }

    /// Copies those that have become idle. `known` gives the process of this number, if it is one of the program's.
    pub(in crate::custody) fn take<'a>(&mut self, known: impl FnMut(Pid) -> Option<BorrowedFd<'a>>) -> bool {
        self.take_of(None, known)
    }

    /// The same, of one process alone if it is given.
    pub(in crate::custody) fn take_of<'a>(
        &mut self,
        only: Option<Pid>,
        mut known: impl FnMut(Pid) -> Option<BorrowedFd<'a>>,
    ) -> bool {
        self.table.take_new(&mut self.head, &mut self.new);
        let before = self.new.len();
        if self.silent_at.elapsed() >= SILENT {
            self.silent_at = Instant::now();
            self.silent.swap(0, 1);
            self.silent[0].clear();
        }
        let mut new = std::mem::take(&mut self.new);
        new.retain(|&number| {
            let Some(slot) = self.table.slot(number) else { return false };
            if slot.state.load(SeqCst) != NEW {
                return false;
            }
            match slot.phase() {
                Phase::Unclear => {
                    self.uncopied.insert(number);
                    return false;
                }
                Phase::Busy => return true,
                Phase::Idle | Phase::Untouched => {}
            }
            let owner = slot.owner.load(SeqCst).cast_signed();
            if only.is_some_and(|only| only != owner) {
                return true;
            }
            let (at, cookie) = (slot.descriptor.load(SeqCst).cast_signed(), slot.cookie.load(SeqCst));
            if only.is_none() && slot.phase() == Phase::Untouched && !self.silent[1].contains(&cookie) {
                self.silent[0].insert(cookie);
                return true;
            }
            let Some(process) = known(owner).filter(|_| self.make_room()) else {
                self.uncopied.insert(number);
                return false;
            };
            let copy = sys::copy_of(process, at).ok();
            if copy.is_none() && sys::is_exiting(owner) {
                // It is lost, and counts as closed when the end of its process is heard of.
                return true;
            }
            let Some(socket) = copy.filter(|socket| self.can_be_offered(socket.as_fd())) else {
                self.uncopied.insert(number);
                return false;
            };
            // Closed meanwhile in a way that is not seen: the number stands for another one.
            if cookie == 0 || sys::cookie(socket.as_fd()) != cookie {
                if slot.advance(NEW, FREE) {
                    slot.free();
                }
                return false;
            }
            if slot.advance(NEW, TAKEN) {
                let address = Address::parse(&sys::local_address(socket.as_fd()));
                let state = State::Served;
                let got_at = Instant::now();
                self.next_age += 1;
                let age = self.next_age;
                let connection = Connection {
                    tries: 0,
                    socket,
                    cookie,
                    age,
                    owner,
                    number: at,
                    address,
                    got_at,
                    given: None,
                    looks_closed: false,
                    state,
                };
                self.all.insert(number, connection);
                self.by_age.insert(age, number);
            }
            false
        });
        let taken = new.len() < before;
        new.append(&mut self.new);
        self.new = new;
        taken
    }
}
