//! A process that dies at every single instruction of a transaction.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a failed expectation is the message of a test"
)]

use crate::common::bank::{Bank, Transfer, options, transfer};
use crate::common::state::{Area, child, ends, kill};
use outlast_restart::policy::Inheritance;
use outlast_restart::state::{Region, StateError};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

/// A child that does something one instruction at a time.
struct Stepped {
    pid: i32,
}

impl Stepped {
    /// None: nobody may be traced here.
    fn new(region: &Region, work: impl FnOnce(&Region)) -> Option<Self> {
        let pid = child(|| {
            // It knows itself from here on: that is no part of a transaction.
            Region::anonymous("warm", &options(Area::new().address())).unwrap();
            // SAFETY: takes integers.
            let traced = unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
            if traced < 0 {
                // SAFETY: does not return.
                unsafe { libc::_exit(77) };
            }
            // SAFETY: takes an integer.
            unsafe { libc::raise(libc::SIGSTOP) };
            work(region);
            // SAFETY: does not return.
            unsafe { libc::_exit(0) };
        });
        let status = ends(pid);
        if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 77 {
            eprintln!("SKIPPED: this process may not trace its children (PTRACE_TRACEME)");
            return None;
        }
        assert!(libc::WIFSTOPPED(status), "{status:#x}");
        Some(Self { pid })
    }

    /// One instruction. False if it has ended with that, which waits for it.
    fn step(&self) -> bool {
        // SAFETY: takes integers; the child is ours and is stopped.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, self.pid, 0, 0) }, 0);
        let status = ends(self.pid);
        if libc::WIFSTOPPED(status) {
            assert_eq!(libc::WSTOPSIG(status), libc::SIGTRAP);
            return true;
        }
        assert_eq!(status, 0);
        false
    }

    fn kill(self) {
        kill(self.pid);
        ends(self.pid);
    }
}

fn once(kind: Transfer) -> impl FnOnce(&Region) {
    move |region| assert!(transfer(region, kind).unwrap() > 0)
}

fn adopt(region: &Region) -> bool {
    region.adopt(Inheritance::Everything, |_| Ok::<_, StateError>(())).unwrap().rolled_back
}

/// What is there is the bank as it was, or after one more transfer: which of them is said by the transaction's number.
fn check(region: &Region, before: &Bank, committed: u64, kind: Transfer) -> bool {
    let found = Bank::read(region);
    let mut expected = before.clone();
    let counts = region.committed() == committed + 1;
    assert!(counts || region.committed() == committed);
    expected.advance_to(before.transfers() + u64::from(counts), kind);
    assert_eq!(found, expected);
    counts
}

/// Dies for good, at every `stride`th instruction of `rounds` transfers.
fn killed_at_every(stride: usize, rounds: usize, kind: Transfer) {
    let region = Region::anonymous("bank", &options(Area::new().address())).unwrap();
    Bank::new().found(&region);
    let (mut deaths, mut rolled_back, mut counted) = (0, 0, 0);
    for round in 0..rounds {
        let mut instructions = 1 + round * stride / rounds;
        loop {
            let (before, committed) = (Bank::read(&region), region.committed());
            let Some(stepped) = Stepped::new(&region, once(kind)) else { return };
            if (0..instructions).any(|_| !stepped.step()) {
                assert!(check(&region, &before, committed, kind));
                break;
            }
            stepped.kill();
            deaths += 1;
            rolled_back += usize::from(adopt(&region));
            counted += usize::from(check(&region, &before, committed, kind));
            instructions += stride;
        }
    }
    eprintln!("{kind:?}: {deaths} deaths, {rolled_back} rolled back, {counted} counted");
    assert!(rolled_back > deaths / 10 && (stride > 1 || counted > 0));
}

#[test]
fn a_death_at_every_instruction_of_a_small_transaction() {
    killed_at_every(1, 1, Transfer::Small);
}

#[test]
fn a_death_at_some_instructions_of_large_transactions() {
    killed_at_every(499, 2, Transfer::Large);
}

/// Who takes back what a dead one has left dies of that, too, and the next one does it.
#[test]
fn a_death_at_some_instructions_of_a_recovery_is_recovered_from() {
    let options = options(Area::new().address());
    let region = Region::anonymous("bank", &options).unwrap();
    Bank::new().found(&region);
    let (before, committed) = (Bank::read(&region), region.committed());
    let file = File::from(region.fd().unwrap().as_fd().try_clone_to_owned().unwrap());
    let mut settled = vec![0; region.size_bytes()];
    file.read_exact_at(&mut settled, 0).unwrap();
    // Somewhere in the second half of a large transaction.
    let Some(stepped) = Stepped::new(&region, once(Transfer::Large)) else { return };
    let instructions = (1..).find(|_| !stepped.step()).unwrap();
    file.write_all_at(&settled, 0).unwrap();
    let Some(stepped) = Stepped::new(&region, once(Transfer::Large)) else { return };
    assert!((0..instructions * 2 / 3).all(|_| stepped.step()));
    stepped.kill();
    let mut open = vec![0; region.size_bytes()];
    file.read_exact_at(&mut open, 0).unwrap();
    let mut unfinished = 0;
    for round in 1.. {
        file.write_all_at(&open, 0).unwrap();
        let Some(stepped) = Stepped::new(&region, |region| region.check().unwrap()) else { return };
        let ended = (0..round * 149).any(|_| !stepped.step());
        if !ended {
            stepped.kill();
        }
        let rolled_back = adopt(&region);
        unfinished += usize::from(rolled_back);
        assert!(!check(&region, &before, committed, Transfer::Large));
        if ended {
            assert!(!rolled_back && unfinished > 3, "{unfinished} unfinished");
            break;
        }
    }
}

/// To forget everything is a transaction as well.
#[test]
fn a_death_at_some_instructions_of_a_clearing_leaves_all_or_nothing() {
    let region = Region::anonymous("bank", &options(Area::new().address())).unwrap();
    let mut bank = Bank::new();
    bank.found(&region);
    (0..20).for_each(|_| once(Transfer::Large)(&region));
    bank.advance_to(20, Transfer::Large);
    let mut rolled_back = 0;
    for round in 1.. {
        let Some(stepped) = Stepped::new(&region, |region| region.clear().unwrap()) else { return };
        let ended = (0..round * 499).any(|_| !stepped.step());
        if !ended {
            stepped.kill();
        }
        rolled_back += usize::from(adopt(&region));
        if region.committed() == 22 {
            assert_eq!(region.usage().unwrap().records, 0);
            assert!(rolled_back > 10, "{rolled_back} rolled back");
            break;
        }
        assert!(!ended);
        assert_eq!(Bank::read(&region), bank);
    }
}

/// After each instruction that has changed the region, somebody adopts a copy of it, with the owner of the lock dead.
#[test]
fn whatever_a_death_leaves_at_any_instruction_of_large_transactions_is_adopted() {
    let area = Area::new();
    let options = options(area.address());
    let region = Region::anonymous("bank", &options).unwrap();
    Bank::new().found(&region);
    let file = File::from(region.fd().unwrap().as_fd().try_clone_to_owned().unwrap());
    drop(region);
    // Two regions at the same address, in two processes.
    let copy = Region::anonymous("copy", &options).unwrap();
    let copied = File::from(copy.fd().unwrap().as_fd().try_clone_to_owned().unwrap());
    drop(copy);
    let dead = child(|| {});
    ends(dead);
    let (mut instructions, mut changes, mut rolled_back) = (0u64, 0, 0);
    for _ in 0..8 {
        let region = Region::from_fd(file.try_clone().unwrap().into(), &options).unwrap();
        let (before, committed) = (Bank::read(&region), region.committed());
        let Some(stepped) = Stepped::new(&region, once(Transfer::Large)) else { return };
        let mut image = vec![0; region.size_bytes()];
        drop(region);
        let copy = Region::from_fd(copied.try_clone().unwrap().into(), &options).unwrap();
        let mut last = Vec::new();
        while stepped.step() {
            instructions += 1;
            file.read_exact_at(&mut image, 0).unwrap();
            if image == last {
                continue;
            }
            last.clone_from(&image);
            changes += 1;
            // The word of the lock, of which the lower half has the owner.
            let owner = &mut image[LOCK_BYTES..LOCK_BYTES + 4];
            if owner == stepped.pid.to_le_bytes() {
                owner.copy_from_slice(&dead.to_le_bytes());
            }
            copied.write_all_at(&image, 0).unwrap();
            rolled_back += usize::from(adopt(&copy));
            check(&copy, &before, committed, Transfer::Large);
            // What was found can be gone on with.
            transfer(&copy, Transfer::Large).unwrap();
            copy.check().unwrap();
        }
    }
    eprintln!("{instructions} instructions, {changes} changed the region, {rolled_back} were rolled back");
    assert!(changes > 1000 && rolled_back > changes / 2);
}

const LOCK_BYTES: usize = 128;
