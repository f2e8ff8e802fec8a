//! The process that stays: it has split the program off before that began, waits for its end, and begins it again.
//!
//! The next generation is a copy of this process, which has only been loaded and linked: the program runs from its very
//! beginning and reads its files, as if it had been executed. But it has the table of descriptors, which the two share,
//! so that nothing was closed when the last one died. Unlike a process that is executed after a crash it is a child of
//! the process that service managers know, whose id stays, and which sees how every generation has ended.

use crate::left::{Known, Left};
use crate::passed::Passed;
use crate::role::{self, Role};
use crate::room;
use crate::settings::{self, Keep, Mark};
use crate::signals::{self, Arrived};
use crate::snapshot;
use crate::sys::{self, Pid};
use crate::table::{self, Table};
use crate::upgrade::{self, Upgrade};
use outlast_restart::Death;
use outlast_restart::board::{Backend, Board, Cause, UpgradeEnd, WhyNot, Wish};
use outlast_restart::parts;
use outlast_restart::policy::{Decision, Inheritance, Restarts};
use std::ffi::{CStr, c_char};
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A server that is told to make room for another binary may go on with what it is doing for so long, or for half of the
/// upgrade's time if that is less: the new one needs some, too.
const GRACE: Duration = Duration::from_secs(10);
/// How often the supervisor is told how many connections there are.
const TELL_PAUSE: Duration = Duration::from_secs(1);
/// Between two looks at whether it is done.
const LOOK: Duration = Duration::from_millis(10);
/// By which a signal of the program's says that it executes another one.
const STAND_ASIDE: usize = 0x6f75_746c;

/// What service managers and `ps` see of it.
const NAME: &CStr = c"outlast-keeper";

struct Keeper {
    table: &'static Table,
    known: Known,
    keep: Keep,
    restarts: Restarts,
    mask: signals::Mask,
    children: signals::Children,
    name: [u8; 16],
    /// The keeper's own process, and that of the generation that serves.
    own: Pid,
    pid: Pid,
    /// Somebody has asked for the end.
    stopped: bool,
    /// The generations are another one's now, who has more knowledge of them.
    aside: bool,
    /// The program was killed for this wish.
    begun: Option<Wish>,
    upgrade: Option<Upgrade>,
    /// The generations on the board when this process began.
    before: u32,
    /// A wish from before this process, with which whoever has started it deals.
    earlier: Option<u32>,
    /// Why that was given up.
    undone: Option<WhyNot>,
    hang: Hang,
    supervised: parts::Supervised,
}

/// A program that does nothing any more for those who wait for an answer.
#[derive(Default)]
struct Hang {
    /// What it does, and since when, in nanoseconds.
    busy: Option<(u32, u64)>,
    /// The generation that serves was killed for it.
    killed: bool,
}

/// Makes this process a keeper. Returns in each generation of the program, and never in the keeper.
///
/// # Errors
/// The program is not looked after: why.
pub fn begin(mark: Mark, environment: *mut *mut c_char) -> io::Result<()> {
    let is_below = mark != Mark::Start && sys::name_of(sys::parent()).as_deref() == NAME.to_str().ok();
    if is_below {
        // Executing has given this process a table of its own: the one that has been its keeper holds an old one.
        signals::tell(sys::parent(), STAND_ASIDE);
    }
    let upgrade = Upgrade::found();
    let (known, left_by_another) = match (&upgrade, mark) {
        (Some(upgrade), _) => (upgrade.known().clone(), true),
        (None, Mark::Again(passed)) => passed.apart(crate::left::known()?),
        (None, Mark::Start) => (crate::left::known()?, false),
    };
    parts::can_wait_for_signals()?;
    let table = Table::new()?;
    table.counts.count_main();
    let left = if left_by_another { Left::found(table, &known)? } else { Left::default() };
    let mut keeper = Keeper {
        table,
        known,
        keep: settings::keep(),
        restarts: Restarts::new(settings::policy()),
        mask: signals::hold_all()?,
        children: signals::Children::watch(),
        name: sys::name(),
        own: sys::pid(),
        pid: 0,
        stopped: false,
        aside: false,
        begun: None,
        upgrade,
        before: settings::board().map_or(0, Board::generation),
        earlier: settings::board().and_then(Board::upgrade_wanted).map(|wish| wish.number),
        undone: None,
        hang: Hang::default(),
        supervised: parts::Supervised::begin(),
    };
    let (mask, children) = (keeper.mask, keeper.children);
    match keeper.run(left) {
        Ok(left) => {
            sys::set_name(&keeper.name);
            if !signals::die_with_parent(keeper.own) {
                sys::exit_now(1);
            }
            keeper.children.restore();
            keeper.mask.restore()?;
            settings::set_mark(environment, &Passed::find(left.numbers()));
            settings::guard_board();
            table::set_current(Some(keeper.table));
            role::set_role(Role::Main);
            snapshot::expect(settings::wants_snapshot());
            left.give_out();
            Ok(())
        }
        Err(error) => {
            children.restore();
            mask.restore()?;
            Err(error)
        }
    }
}

impl Keeper {
    /// Splits generations off. Returns in them, with what is left for them.
    fn run(&mut self, mut left: Left) -> io::Result<Left> {
        // Without the first one the program runs as ever, in this process.
        let mut split = parts::split()?;
        while let Some(pid) = split {
            self.pid = pid;
            sys::set_name_to(NAME);
            let status = self.until_dead();
            let next = self.bury(status).and_then(|next| {
                left = next;
                split_in_time()
            });
            split = next.unwrap_or_else(|error| {
                sys::say(&format!("the server is not restarted: {error}"));
                end(parts::death(status));
            });
        }
        Ok(left)
    }

    /// Waits for the end of the generation that serves.
    fn until_dead(&mut self) -> i32 {
        let mut waited = Duration::ZERO;
        loop {
            self.note_upgrade();
            self.supervised.tell_once(sys::say);
            let tell = self.tell();
            let arrived = if self.upgrade.is_some() {
                // Until it is known whether the new binary serves.
                self.end_upgrade();
                signals::wait(Some(LOOK))
            } else if let Some(wish) = self.wanted() {
                if self.is_quiet() || waited >= GRACE.min(wish.timeout / 2) {
                    self.begun = Some(wish);
                    let _ = signals::send(self.pid, libc::SIGKILL);
                    signals::wait(None)
                } else {
                    waited += LOOK;
                    signals::wait(Some(LOOK))
                }
            } else {
                waited = Duration::ZERO;
                signals::wait(tell.into_iter().chain(self.end_hang()).min())
            };
            let Some(arrived) = arrived else { continue };
            if arrived.number != libc::SIGCHLD {
                self.pass_on(arrived);
                continue;
            }
            while let Some((pid, status)) = sys::reap() {
                if pid == self.pid {
                    // What it said before it died is behind this in the queue.
                    while let Some(arrived) = signals::wait(Some(Duration::ZERO)) {
                        self.pass_on(arrived);
                    }
                    return status;
                }
            }
        }
    }

    /// Tells the supervisor how many connections there are. Gives the time until the next time, if there is one.
    fn tell(&self) -> Option<Duration> {
        let board = settings::board().filter(|board| !self.aside && board.backend() != Backend::Library)?;
        // What was not read is in the kernel.
        board.note_held(self.table.counts.sum(), 0);
        Some(TELL_PAUSE)
    }

    /// Kills the program if it hangs. Gives the time until the next look, if there is to be one.
    fn end_hang(&mut self) -> Option<Duration> {
        let limit = Duration::from_millis(settings::policy().hang_timeout_ms);
        if limit.is_zero() || self.aside || self.has_snapshot() {
            return None;
        }
        let now_ns = sys::monotonic_ns();
        let busy = self.table.busy_with();
        match (busy, self.hang.busy) {
            (Some(busy), Some((before, since_ns))) if busy == before => {
                if Duration::from_nanos(now_ns - since_ns) >= limit {
                    self.hang.killed = true;
                    let _ = signals::send(self.pid, libc::SIGKILL);
                }
            }
            _ => self.hang.busy = busy.map(|busy| (busy, now_ns)),
        }
        Some(limit / 4)
    }

    /// The wish for another binary that is to be dealt with here and now. What cannot be begun has failed.
    fn wanted(&self) -> Option<Wish> {
        let others = self.aside || self.has_snapshot();
        let board = settings::board().filter(|_| !others && self.upgrade.is_none())?;
        let wish = board.upgrade_wanted().filter(|wish| self.earlier != Some(wish.number))?;
        let over = board.upgrade_is_over(wish.number).map_or(Ok(()), Err);
        match over.and_then(|()| upgrade::can_execute(&wish.program)) {
            Ok(()) => Some(wish),
            Err(why) => {
                board.note_upgrade(wish.number, UpgradeEnd::untouched(why));
                None
            }
        }
    }

    /// Kills the new binary, once, if it is waited for no longer.
    fn end_upgrade(&mut self) {
        if self.undone.is_none()
            && let Some(why) = self.upgrade.as_ref().and_then(Upgrade::is_over)
        {
            self.undone = Some(why);
            parts::kill_all(self.pid);
        }
    }

    /// The child is the zygote of a snapshot: it knows how its generations end.
    fn has_snapshot(&self) -> bool {
        self.table.has_snapshot.load(Ordering::SeqCst)
    }

    /// The new binary serves.
    fn note_upgrade(&mut self) {
        // What it has executed has another keeper, who says so on the board.
        let serves_below = || settings::board().is_some_and(|board| board.generation() != self.before);
        let serves = self.table.listens.load(Ordering::SeqCst) || self.aside && serves_below();
        if serves && let Some(upgrade) = self.upgrade.take() {
            upgrade.succeeded();
            if self.aside {
                sys::close_from(3);
            }
        }
    }

    /// The generation that serves executes another program, and is its keeper.
    fn stand_aside(&mut self) {
        let wish = self.wanted();
        self.aside = true;
        // Only the new table counts; but until it is known whether a new binary serves, the old one may have to go on.
        if self.upgrade.is_none() {
            if let (Some(board), Some(wish)) = (settings::board(), wish) {
                board.note_upgrade(wish.number, UpgradeEnd::untouched(WhyNot::Unable));
            }
            sys::close_from(3);
        }
    }

    fn is_quiet(&self) -> bool {
        self.table.connections().all(|number| self.table.is_idle(number))
    }

    fn pass_on(&mut self, arrived: Arrived) {
        let upgrade = arrived.number == outlast_restart::supervisor::upgrade_signal();
        let has_snapshot = self.has_snapshot();
        if upgrade && arrived.pid == self.pid && arrived.value == STAND_ASIDE {
            return self.stand_aside();
        }
        if signals::STOP.contains(&arrived.number) {
            self.stopped = true;
        }
        // The wish is on the board; to a program, the signal would be deadly.
        let ours = upgrade && !self.aside && !has_snapshot;
        // Those of a terminal it has got already.
        if arrived.by_process && arrived.number != libc::SIGCHLD && !ours {
            let _ = signals::send(self.pid, arrived.number);
        }
    }

    /// What is left for the next generation; ends with the last one, if there is to be none.
    fn bury(&mut self, status: i32) -> io::Result<Left> {
        let died_ns = sys::monotonic_ns();
        let death = parts::death(status);
        self.note_upgrade();
        if self.has_snapshot() {
            end(death);
        }
        let wanted = self.begun.take().or_else(|| self.wanted());
        let of_library = settings::board().is_some_and(|board| board.backend() == Backend::Library);
        if !of_library {
            self.note_end(status, death, wanted.is_some());
        }
        let by_request = matches!(death, Death::Signal(signal) if signals::STOP.contains(&signal));
        let in_order = death == Death::Exited(0) || by_request || of_library;
        // However a binary on trial has ended, it was not to.
        if self.stopped || ((self.aside || in_order) && self.upgrade.is_none()) {
            end(death);
        }
        let listened = self.table.listens.swap(false, Ordering::SeqCst);
        let first = self.table.deaths.fetch_add(1, Ordering::SeqCst) == 0;
        self.table.died_ns.store(died_ns, Ordering::SeqCst);
        if let Some(upgrade) = self.upgrade.take() {
            let left = self.sort(self.keep)?;
            let undone = self.undone.take().unwrap_or(WhyNot::Ended { death: Some(death) });
            let why = upgrade.undo(undone, &left, &self.known, self.mask);
            sys::say(&format!("the new binary does not serve, and the old one does not run any more: {why}"));
            end(death);
        }
        if let Some(Wish { number, program, .. }) = wanted {
            let left = self.sort(self.keep)?;
            let why = upgrade::execute(number, &program, &left, &self.known, self.mask);
            sys::say(&format!("the server goes on with this binary: cannot run the other one: {why}"));
            return Ok(left);
        }
        if first && !listened {
            // It has not come as far as to serve: whoever started it is to know.
            end(death);
        }
        let keep = match self.restarts.on_death(died_ns / 1_000_000) {
            Decision::Succeed(inheritance) => {
                settings::board().into_iter().for_each(|board| board.note_inheritance(inheritance));
                if inheritance == Inheritance::Listeners { Keep::Listeners } else { self.keep }
            }
            Decision::GiveUp => {
                sys::say(&format!(
                    "the server has {death}, and is not restarted: the restarts are more than the policy allows"
                ));
                end(death);
            }
        };
        self.sort(keep)
    }

    fn sort(&self, keep: Keep) -> io::Result<Left> {
        // Instances of epoll are closed with everything else.
        let mut left = Left::sort(self.table, &self.known, keep, &[])?;
        room::make(&mut left, self.table);
        Ok(left)
    }

    fn note_end(&mut self, status: i32, death: Death, upgrade: bool) {
        let hang = std::mem::take(&mut self.hang);
        let cause = match death {
            _ if hang.killed => Cause::Hang,
            _ if upgrade => Cause::Upgrade,
            Death::Exited(0) => Cause::Ended,
            Death::Exited(_) if self.stopped => Cause::Ended,
            Death::Signal(signal) if self.stopped && signals::STOP.contains(&signal) => Cause::Ended,
            Death::Signal(libc::SIGKILL) => Cause::Killed,
            _ => Cause::Crash,
        };
        let number = self.table.number.swap(0, Ordering::SeqCst);
        if let Some(board) = settings::board().filter(|_| number != 0) {
            board.note_end(number, Some(status), cause);
        }
    }
}

/// A process for the next generation. That the system has none may be over soon.
fn split_in_time() -> io::Result<Option<Pid>> {
    let mut waited = Duration::ZERO;
    loop {
        match parts::split() {
            Err(_) if waited < GRACE => {
                waited += Duration::from_millis(100);
                sys::pause();
            }
            result => return result,
        }
    }
}

/// As the program has ended: also by the same signal, without another core dump.
fn end(death: Death) -> ! {
    if let Death::Signal(signal) = death {
        signals::die_by(signal);
    }
    sys::exit_now(match death {
        Death::Exited(code) => code,
        Death::Signal(_) => death.exit_code(),
    })
}

/// Whether this is a generation that does not listen yet.
pub fn is_beginning() -> bool {
    let listens = |table: &Table| table.listens.load(Ordering::SeqCst);
    role::role() == Role::Main && role::is_own() && table::current().is_some_and(|table| !listens(table))
}

/// The program listens: it serves.
pub fn note_listening() {
    let Some(table) = table::current().filter(|_| role::role() == Role::Main && role::is_own()) else {
        return;
    };
    if table.listens.swap(true, Ordering::SeqCst) {
        return;
    }
    room::give_back();
    if !snapshot::is_pending() {
        note_serving();
    }
}

/// What listens serves.
pub fn note_serving() {
    let serves = |table: &&Table| table.listens.load(Ordering::SeqCst) && role::role() == Role::Main;
    let Some(table) = table::current().filter(serves) else { return };
    if table.number.load(Ordering::SeqCst) != 0 {
        return;
    }
    let Some(board) = settings::board().filter(|board| board.backend() != Backend::Library) else { return };
    let died_ns = table.died_ns.load(Ordering::SeqCst);
    let pause_ns = if died_ns == 0 { 0 } else { sys::monotonic_ns().saturating_sub(died_ns) };
    board.set_backend(Backend::Exec);
    let number = board.note_begin(sys::pid().unsigned_abs(), Duration::from_nanos(pause_ns));
    table.number.store(number, Ordering::SeqCst);
}
