//! Who is below whom, while processes end. The kernel tells of one process at a time, and when one ends, its children become
//! those of somebody above it: between two looks a whole branch may have moved. Who asks about this process's own family must
//! not take such a branch for strangers.
//!
//! Nothing here looks by itself: how to look at a process is an argument.

use super::process::Pid;
use std::collections::{BTreeMap, BTreeSet};

/// More ancestors than any process has, and more looks than it takes to find them while some of them end.
const STEPS: usize = 1024;
/// Whole families are looked at so often again, if somebody has ended meanwhile.
const ROUNDS: usize = 16;

/// A process, as it was when it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// It has not ended. One that has, and is not buried, still shows what its parent is.
    pub(super) lives: bool,
    pub(super) parent: Pid,
}

/// What the kernel lists as the children of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Listed {
    Children(Vec<Pid>),
    /// It has ended: they are somebody else's by now.
    Ended,
    /// There are no such lists, or its threads come and go too fast.
    Unclear,
}

/// Whether a living process is below another one, however far.
pub(super) fn is_below(pid: Pid, root: Pid, look: impl Fn(Pid) -> Option<Seen>) -> bool {
    let Some(first) = look(pid).filter(|seen| seen.lives) else { return false };
    let (mut at, mut seen) = (pid, first);
    for _ in 0..STEPS {
        if seen.parent == root {
            return true;
        }
        if seen.parent <= 1 {
            return false;
        }
        let above = look(seen.parent);
        // As long as it is the parent, its number is nobody else's.
        match (look(at), above) {
            (Some(again), Some(above)) if again.parent == seen.parent => (at, seen) = (seen.parent, above),
            // One that may not be seen.
            (Some(again), None) if again.parent == seen.parent => return false,
            // Its parent has ended, or it has itself: whoever is below it has another one now.
            _ => match look(pid).filter(|seen| seen.lives) {
                Some(again) => (at, seen) = (pid, again),
                None => return false,
            },
        }
    }
    false
}

/// All living processes below these, found by a look at `all` that there are. The roots, too, are among them.
pub(super) fn and_below(roots: &[Pid], all: Vec<Pid>, look: impl Fn(Pid) -> Option<Seen>) -> Vec<Pid> {
    let mut known: BTreeMap<Pid, Seen> = all.into_iter().filter_map(|pid| Some((pid, look(pid)?))).collect();
    for _ in 0..ROUNDS {
        // Their parents have ended before they were looked at.
        let moved = |(_, seen): &(&Pid, &Seen)| seen.parent > 1 && !known.contains_key(&seen.parent);
        let moved: Vec<(Pid, Seen)> = known.iter().filter(moved).map(|(pid, seen)| (*pid, *seen)).collect();
        let mut is_new = false;
        for (pid, before) in moved {
            let now = look(pid);
            is_new |= now != Some(before);
            let parent = now.and_then(|now| Some((now.parent, look(now.parent)?)));
            is_new |= parent.is_some();
            known.extend(parent);
            match now {
                Some(now) => drop(known.insert(pid, now)),
                None => drop(known.remove(&pid)),
            }
        }
        if !is_new {
            break;
        }
    }
    let mut children: BTreeMap<Pid, Vec<Pid>> = BTreeMap::new();
    for (&pid, seen) in &known {
        children.entry(seen.parent).or_default().push(pid);
    }
    let (mut found, mut next) = (roots.to_vec(), 0);
    let mut seen: BTreeSet<Pid> = roots.iter().copied().collect();
    while let Some(parent) = found.get(next) {
        next += 1;
        let theirs = children.get(parent).into_iter().flatten();
        found.extend(theirs.filter(|child| seen.insert(**child)));
    }
    found.retain(|pid| roots.contains(pid) || known.get(pid).is_some_and(|seen| seen.lives));
    found
}

/// All living processes below this one, found by their parents' lists. None: some of those are unclear.
pub(super) fn by_lists(
    root: Pid,
    children: impl Fn(Pid) -> Listed,
    lives: impl Fn(Pid) -> bool,
) -> Option<Vec<Pid>> {
    let listed = |pid| match children(pid) {
        Listed::Children(found) => Some(found),
        Listed::Ended => Some(Vec::new()),
        Listed::Unclear => None,
    };
    let walk = || {
        let mut order = listed(root)?;
        let (mut found, mut next): (BTreeSet<Pid>, _) = (order.iter().copied().collect(), 0);
        while let Some(&parent) = order.get(next) {
            next += 1;
            order.extend(listed(parent)?.into_iter().filter(|child| found.insert(*child)));
        }
        Some(found)
    };
    let mut found = walk()?;
    for _ in 0..ROUNDS {
        // Whoever has moved to a list that was read before is on that list now, and is new.
        let again = walk()?;
        let is_same = again == found;
        found = again;
        if is_same {
            break;
        }
    }
    found.retain(|pid| lives(*pid));
    Some(found.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    const ROOT: Pid = 40;

    /// Processes, one of which ends before each look that is due.
    struct World {
        parents: BTreeMap<Pid, Pid>,
        /// Before how many looks from here on somebody ends, and who.
        ends: Vec<(usize, Pid)>,
    }

    impl World {
        /// The first process, one that adopts orphans, and a line of four below it, the last of which stays.
        fn new(line: [Pid; 4], ends: &[(usize, Pid)]) -> RefCell<Self> {
            let mut parents = BTreeMap::from([(1, 0), (ROOT, 1), (line[0], ROOT)]);
            parents.extend(line.windows(2).map(|pair| (pair[1], pair[0])));
            RefCell::new(Self { parents, ends: ends.to_vec() })
        }

        /// Its children are the root's from here on, at the same moment.
        fn end(&mut self, dead: Pid) {
            self.parents.remove(&dead);
            self.parents.values_mut().filter(|parent| **parent == dead).for_each(|parent| *parent = ROOT);
        }

        fn step(&mut self) {
            let due: Vec<Pid> = self.ends.iter().filter(|(at, _)| *at == 0).map(|(_, pid)| *pid).collect();
            self.ends.retain(|(at, _)| *at > 0);
            self.ends.iter_mut().for_each(|(at, _)| *at -= 1);
            due.into_iter().for_each(|pid| self.end(pid));
        }

        fn look(world: &RefCell<Self>, pid: Pid) -> Option<Seen> {
            let mut world = world.borrow_mut();
            world.step();
            world.parents.get(&pid).map(|parent| Seen { lives: true, parent: *parent })
        }

        fn children(world: &RefCell<Self>, of: Pid) -> Listed {
            let mut world = world.borrow_mut();
            world.step();
            if !world.parents.contains_key(&of) {
                return Listed::Ended;
            }
            let its = world.parents.iter().filter(|(_, parent)| **parent == of);
            Listed::Children(its.map(|(pid, _)| *pid).collect())
        }
    }

    /// Numbers rise, fall, or do neither: they begin again when they have come to the last one.
    const LINES: [[Pid; 4]; 3] = [[50, 51, 52, 53], [53, 52, 51, 50], [52, 9, 60, 8]];

    /// Each of those between, and each two, end before each of the looks.
    fn every_end(mut check: impl FnMut(&RefCell<World>, Pid)) {
        for line in LINES {
            let [first, second, third, last] = line;
            for one in 0..16 {
                for other in 0..16 {
                    for pair in [(first, second), (second, first), (third, first), (second, third)] {
                        let world = World::new(line, &[(one, pair.0), (other, pair.1)]);
                        check(&world, last);
                    }
                }
            }
        }
    }

    #[test]
    fn who_is_below_is_so_whoever_ends_between() {
        every_end(|world, last| {
            assert!(is_below(last, ROOT, |pid| World::look(world, pid)), "{:?}", world.borrow().parents);
        });
    }

    #[test]
    fn who_is_below_is_found_whoever_ends_between() {
        every_end(|world, last| {
            let all = world.borrow().parents.keys().copied().collect();
            let found = and_below(&[ROOT], all, |pid| World::look(world, pid));
            assert!(found.contains(&last) && !found.contains(&1), "{found:?}");
        });
    }

    #[test]
    fn who_is_below_is_on_the_lists_whoever_ends_between() {
        every_end(|world, last| {
            let lives = |pid| World::look(world, pid).is_some();
            let found = by_lists(ROOT, |pid| World::children(world, pid), lives).unwrap();
            assert!(found.contains(&last), "{found:?}");
        });
    }

    #[test]
    fn a_list_that_is_unclear_is_not_taken_for_an_empty_one() {
        let world = World::new(LINES[0], &[]);
        for unclear in [ROOT, 51, 53] {
            let children = |pid| if pid == unclear { Listed::Unclear } else { World::children(&world, pid) };
            assert_eq!(by_lists(ROOT, children, |_| true), None, "{unclear}");
        }
    }

    #[test]
    fn strangers_are_not_below() {
        let world = World::new(LINES[0], &[]);
        world.borrow_mut().parents.extend([(70, 1), (71, 70), (72, 99)]);
        let look = |pid| World::look(&world, pid);
        for stranger in [1, ROOT, 70, 71, 72, 98, 0, -1] {
            assert!(!is_below(stranger, ROOT, look), "{stranger}");
        }
        assert!(!is_below(50, 51, look) && is_below(53, 51, look));
        let all: Vec<Pid> = world.borrow().parents.keys().copied().collect();
        assert_eq!(and_below(&[51, 71], all, look), [51, 71, 52, 53]);
    }

    #[test]
    fn one_that_is_dead_and_not_buried_is_a_link_and_not_a_process() {
        let look = |pid| match pid {
            50 => Some(Seen { lives: false, parent: ROOT }),
            51 => Some(Seen { lives: true, parent: 50 }),
            ROOT => Some(Seen { lives: true, parent: 1 }),
            _ => None,
        };
        assert!(is_below(51, ROOT, look) && !is_below(50, ROOT, look));
        assert_eq!(and_below(&[ROOT], vec![50, 51, ROOT], look), [ROOT, 51]);
    }
}
