//! In the zygote: going on as another binary.

use super::{Child, Common, GAVE_UP_CODE, KILLED_WITHIN_MS, SOON_POLL, SPLIT_PAUSE, Zygote};
use crate::board::{Cause, UpgradeEnd, WhyNot};
use crate::sys::process::{self, Pid, Side};
use crate::sys::{clock, descriptors, family, signals};
use crate::{Error, Generation, STOP_SIGNALS, handover, inherited, passed, upgrade};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

impl Zygote {
    /// Goes on as another binary, or as this one if that does not. Returns in a new generation.
    pub(super) fn upgrade(&mut self) -> Result<Option<Generation>, Error> {
        let (Common { control, board, slots, buffers }, mask) = (self.origin.common, self.origin.mask);
        let Some((wish, path)) = upgrade::wanted(board) else { return Ok(None) };
        // Who stands by would take over otherwise.
        let serving = control.serving_pid.load(Ordering::SeqCst).cast_signed();
        self.children.sort_by_key(|pid| *pid == serving);
        for pid in self.children.drain(..) {
            let _ = process::kill(pid, libc::SIGKILL);
            if let Some(status) = process::await_end(pid)
                && let Some(number) = control.number_of(pid.cast_unsigned())
            {
                board.note_end(number, Some(status), Cause::Upgrade);
            }
        }
        let (zygote, began_ns) = (process::pid(), clock::monotonic_ns());
        // Already a copy, if an upgrade was undone before.
        let main_pid = board.main_pid();
        let mut why = WhyNot::Unable;
        inherited::tidy(slots);
        let prepared = passed::find(&self.origin.known).and_then(|passed| {
            let (reader, writer) = std::io::pipe()?;
            let writer = std::os::fd::OwnedFd::from(writer);
            let list = handover::write(control, slots, buffers, &passed, writer.as_raw_fd())?;
            Ok((std::os::fd::OwnedFd::from(reader), writer, list, passed))
        });
        if let Ok((reader, writer, list, passed)) = prepared {
            let earlier = family::below_this();
            let side = process::split(self.origin.list.thread_word());
            let Ok(Side::Child) = side else {
                if let Ok(Side::Parent(copy)) = side {
                    board.set_main_pid(copy.cast_unsigned());
                    passed::let_pass(&passed);
                    [writer.as_raw_fd(), list.as_raw_fd()].into_iter().for_each(descriptors::set_inherited);
                    if let Some(stop) = STOP_SIGNALS.into_iter().find(|number| signals::is_pending(*number)) {
                        // It would end this process alone, and the copy would go on as if nobody was told to end.
                        control.stop_signal.store(stop.cast_unsigned(), Ordering::SeqCst);
                        board.note_upgrade(wish, UpgradeEnd::undone(why));
                        process::exit_now(GAVE_UP_CODE);
                    }
                    let _ = mask.restore();
                    let error = upgrade::execute(&path, list.as_raw_fd());
                    // The copy goes on.
                    board.note_upgrade(wish, UpgradeEnd::undone(upgrade::cannot_run(&error)));
                    process::exit_now(GAVE_UP_CODE);
                }
                board.note_upgrade(wish, UpgradeEnd::undone(why));
                return Ok(self.begin_again());
            };
            // In the copy, which shares its table with nobody when the other one executes.
            self.origin.zygote = process::pid();
            while process::parent() == zygote && process::shares_table_with(zygote) {
                std::thread::sleep(SOON_POLL);
            }
            drop((writer, list));
            passed::keep(&passed);
            match upgrade::await_ready(reader, board, wish) {
                // Or it was about to serve when it was given up.
                served if served.is_ok() || board.decide_upgrade(wish, false) => {
                    board.set_main_pid(main_pid);
                    board.note_upgrade(wish, UpgradeEnd::Done);
                    process::exit_now(0);
                }
                served => why = served.err().unwrap_or(why),
            }
            if process::parent() == zygote {
                kill_all_but_this(zygote, &earlier);
            }
            board.set_main_pid(process::pid().cast_unsigned());
        }
        board.note_upgrade(wish, UpgradeEnd::undone(why));
        if let Some(UpgradeEnd::Failed { why: first, .. }) = board.upgrade_end(wish) {
            why = first;
        }
        let pause_ms = (clock::monotonic_ns() - began_ns) / 1_000_000;
        let why =
            format!("outlast: {}: {why}: the old program goes on, after {pause_ms} ms\n", path.display());
        let _ = std::io::Write::write_all(&mut std::io::stderr(), why.as_bytes());
        Ok(self.begin_again())
    }

    /// Where nobody is left. What is not possible now is tried again: there is somebody to serve.
    fn begin_again(&mut self) -> Option<Generation> {
        let control = self.origin.common.control;
        self.origin.ready = None;
        self.origin.before = control.generation.load(Ordering::SeqCst);
        (self.lacking, self.replaced) = (1, self.origin.before);
        control.baton.forget();
        loop {
            match self.split(Child::First) {
                Ok(None) => return self.provide(),
                Ok(generation) => return generation,
                Err(_) => std::thread::sleep(SPLIT_PAUSE),
            }
        }
    }
}

/// Ends a program that does not serve, and what it has started: each of those has the sockets, too. What the program before it
/// had started, `earlier`, goes on.
fn kill_all_but_this(root: Pid, earlier: &[Pid]) {
    let mut others = family::and_below(root);
    others.retain(|pid| *pid != process::pid() && !earlier.contains(pid));
    for pid in &others {
        let _ = process::kill(*pid, libc::SIGKILL);
    }
    // Each would go on with what it does until it has heard of that.
    let ends = clock::monotonic_ms() + KILLED_WITHIN_MS;
    while others.iter().any(|pid| !process::has_ended(*pid)) && clock::monotonic_ms() < ends {
        std::thread::sleep(SOON_POLL);
    }
}
