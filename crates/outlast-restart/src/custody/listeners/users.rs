//! Who may have a listening socket: a process of another user gets none here that it could not have without us.

use super::{Listener, Listeners, open_of};
use crate::custody::address::Address;
use crate::custody::overlap::is_in_the_way;
use crate::sys::process::Pid;
use rustix::process::geteuid;
use std::os::fd::AsFd;

/// More have a socket in no program.
const USERS_MAX: usize = 8;
const ROOT: u32 = 0;

/// A user who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::custody) struct User(u32);

impl User {
    /// Of a process that was this user when it connected. If that was root, it may have given its rights away since; who was
    /// not may execute what is root's, such as `su`, which does not ask for it.
    pub(in crate::custody) fn of(pid: Pid, connected: u32) -> Self {
        Self(if connected == ROOT { effective(pid).unwrap_or(ROOT) } else { connected })
    }

    /// Who may have all of the program's: root, and whoever the program is started as.
    fn has_all(self) -> bool {
        self.0 == ROOT || self.0 == geteuid().as_raw()
    }
}

/// As whom a process acts.
fn effective(pid: Pid) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Of a socket: who has made it, and who has told of it, and so had it in hand.
#[derive(Debug)]
pub(super) struct Users(Vec<u32>);

impl Users {
    pub(super) fn of(socket: impl AsFd) -> Self {
        Self(maker(socket).into_iter().map(|User(user)| user).collect())
    }

    pub(super) fn add(&mut self, users: &[User]) {
        for User(user) in users {
            if self.0.len() < USERS_MAX && !self.0.contains(user) {
                self.0.push(*user);
            }
        }
    }

    /// Whether this user may have it; and may want it: root does not serve at what a stranger has made, and may still have.
    fn are_those_of(&self, user: User) -> bool {
        self.0.contains(&user.0) || (user.has_all() && self.is_ours())
    }

    fn is_ours(&self) -> bool {
        self.0.first().is_some_and(|made| User(*made).has_all())
    }

    /// Whether who serves here may have a connection that `served` had: what another user listens with is no place for what
    /// has come to ours. Ours is one for all: only who was given it has it, such as workers that have given their rights away.
    fn may_serve(&self, served: Option<User>) -> bool {
        self.is_ours() || served.is_some_and(|user| self.0.contains(&user.0))
    }
}

/// Whom an earlier supervisor's socket is for: us, who have found that it is ours, and who has it.
pub(super) fn of_left(pid: Pid) -> Vec<User> {
    [Some(geteuid().as_raw()), effective(pid)].into_iter().flatten().map(User).collect()
}

/// Who has made a socket: of an accepted one that is who has accepted it.
fn maker(socket: impl AsFd) -> Option<User> {
    rustix::fs::fstat(socket).ok().map(|socket| User(socket.st_uid))
}

/// Whether the holder may make a second name of a socket's file, which `owner` owns, for these users: it could do that where
/// they may not. The socket's `maker` counts as well: we may have found it with somebody else.
pub(super) fn may_link(users: &[User], maker: Option<User>, owner: u32) -> bool {
    let is_ours = maker.is_some_and(User::has_all);
    users
        .iter()
        .any(|user| if user.has_all() { is_ours || maker == Some(User(owner)) } else { user.0 == owner })
}

/// As [`may_link`], of a socket.
pub(super) fn may_link_file_of(socket: impl AsFd, users: &[User]) -> impl Fn(u32) -> bool {
    let maker = maker(socket);
    move |owner| may_link(users, maker, owner)
}

impl Listener {
    /// Whether a connection may be served by whoever has this listening socket.
    pub(super) fn may_serve(&self, connection: impl AsFd) -> bool {
        self.users.may_serve(maker(connection))
    }
}

impl Listeners {
    /// Whether a process that has accepted what has come to this address may have a held connection for it: where others
    /// listen, too, that may not, it has to have a socket that may.
    pub(in crate::custody) fn may_give(&self, pid: Pid, address: &Address, connection: impl AsFd) -> bool {
        let there = self.all.iter().filter(|listener| address.came_to(&listener.address));
        let (may, may_not): (Vec<_>, Vec<_>) = there.partition(|listener| listener.may_serve(&connection));
        let inodes: Vec<u64> = may.iter().map(|listener| listener.inode).collect();
        may_not.is_empty() || !open_of(&[pid], &inodes).is_empty()
    }

    /// Whether what is held at this address, or overlaps it, is for this user, if anything is. If it is not, and the program
    /// `begins`, it is another user's program from here on: what nobody has any more is closed, and the program can bind to
    /// its address as far as the system lets it. `used` gives which of these sockets some process has.
    pub(in crate::custody) fn admit(
        &mut self,
        user: User,
        (address, ipv6_only): (&Address, bool),
        begins: bool,
        used: impl FnOnce(&[u64]) -> Vec<u64>,
    ) -> bool {
        let is_at = |it: &Listener| {
            it.address == *address || is_in_the_way((&it.address, it.ipv6_only), (address, ipv6_only))
        };
        let is_denied = |it: &Listener| is_at(it) && !it.users.are_those_of(user);
        let denied: Vec<u64> = self.all.iter().filter(|it| is_denied(it)).map(|it| it.inode).collect();
        if denied.is_empty() {
            return true;
        }
        // It is a stranger's, for whom it is not kept if its address is wanted by who may have all.
        if begins || user.has_all() {
            let used = used(&denied);
            self.all.retain(|it| !denied.contains(&it.inode) || used.contains(&it.inode));
            return used.is_empty();
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_for_who_made_it_or_told_of_it_and_for_us_if_it_is_ours() {
        let own = geteuid().as_raw();
        let (a, b) = (own + 1, own + 2);
        let mut ours = Users(vec![own]);
        assert!(ours.are_those_of(User(own)) && ours.are_those_of(User(ROOT)));
        assert!(!ours.are_those_of(User(a)));
        ours.add(&[User(a)]);
        assert!(ours.are_those_of(User(a)) && !ours.are_those_of(User(b)));
        let mut strangers = Users(vec![a]);
        assert!(strangers.are_those_of(User(a)));
        assert!(!strangers.are_those_of(User(own)) && !strangers.are_those_of(User(b)));
        // As its program that gives its rights away has told of it before it did.
        strangers.add(&[User(own)]);
        assert!(strangers.are_those_of(User(own)));
        (0..100).for_each(|user| strangers.add(&[User(user)]));
        assert_eq!(strangers.0.len(), USERS_MAX);
    }

    #[test]
    fn what_has_come_to_ours_is_served_by_who_has_ours_and_by_nobody_else() {
        let own = geteuid().as_raw();
        let (a, b) = (own + 1, own + 2);
        let (ours, strangers) = (Users(vec![own]), Users(vec![a]));
        // Workers that have given their rights away serve at ours.
        assert!([own, a].into_iter().all(|user| ours.may_serve(Some(User(user)))));
        assert!(strangers.may_serve(Some(User(a))));
        assert!(
            [Some(User(own)), Some(User(b)), None].into_iter().all(|served| !strangers.may_serve(served))
        );
    }

    #[test]
    fn a_file_gets_a_second_name_for_its_owner_and_for_us_if_the_socket_is_ours_or_the_file_its_makers() {
        let own = geteuid().as_raw();
        let (us, a) = (User(own), User(own + 1));
        assert!(may_link(&[us], Some(us), own) && may_link(&[us], Some(us), a.0));
        assert!(may_link(&[a], Some(a), a.0) && may_link(&[us, a], Some(a), a.0));
        assert!(!may_link(&[a], Some(a), own) && !may_link(&[a], Some(us), own));
        assert!(!may_link(&[us], Some(a), own) && !may_link(&[us, a], Some(a), own));
        assert!(!may_link(&[], Some(us), own));
    }

    #[test]
    fn a_process_is_asked_for_who_it_is_only_if_it_was_root() {
        let us = crate::sys::process::pid();
        assert_eq!(effective(us), Some(geteuid().as_raw()));
        assert_eq!(User::of(us, 12345).0, 12345);
        assert_eq!(User::of(us, ROOT).0, geteuid().as_raw());
    }
}
