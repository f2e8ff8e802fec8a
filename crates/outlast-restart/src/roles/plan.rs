//! Which processes there are, and which channels: pure.

use super::{PROCESSES_MAX, Recovery, Role, Roles};
use crate::Error;
use crate::policy::INTENSITY_MAX;

/// So that it fits with a number into a [board](crate::board).
const NAME_BYTES_MAX: usize = 24;

/// One process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    /// In the list of roles.
    pub(super) role: usize,
    /// Of its role, from 0.
    pub(super) index: usize,
    /// Such as "worker 2"; where there is one only, "master".
    pub(super) name: String,
}

/// The program.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) roles: Vec<Role>,
    pub(super) processes: Vec<Process>,
    /// Pairs of processes.
    pub(super) channels: Vec<(usize, usize)>,
}

fn wrong(why: String) -> Error {
    Error::Roles { why }
}

impl Plan {
    pub(super) fn of(roles: Roles) -> Result<Self, Error> {
        let Roles { roles, channels } = roles;
        if roles.is_empty() {
            return Err(wrong("there are none".to_owned()));
        }
        for (place, role) in roles.iter().enumerate() {
            let name = &role.name;
            if name.is_empty() || name.len() > NAME_BYTES_MAX {
                return Err(wrong(format!("{name:?} is no name: 1 to {NAME_BYTES_MAX} bytes")));
            }
            if roles.iter().take(place).any(|other| other.name == *name) {
                return Err(wrong(format!("two are called {name:?}")));
            }
            if role.processes == 0 {
                return Err(wrong(format!("{name:?} has no process: it needs one at least")));
            }
            if role.policy.intensity > INTENSITY_MAX {
                return Err(Error::Policy);
            }
        }
        let count = roles.iter().fold(0, |count: usize, role| count.saturating_add(role.processes));
        if count > PROCESSES_MAX {
            return Err(wrong(format!("{count} processes are too many: {PROCESSES_MAX} at the most")));
        }
        let processes: Vec<Process> =
            roles.iter().enumerate().flat_map(|(place, role)| of_role(place, role)).collect();
        let mut pairs = Vec::new();
        for (one, other) in &channels {
            let known = |name: &String| {
                roles
                    .iter()
                    .position(|role| role.name == *name)
                    .ok_or_else(|| wrong(format!("there is none called {name:?}")))
            };
            let (one, other) = (known(one)?, known(other)?);
            for (first, _) in processes.iter().enumerate().filter(|(_, process)| process.role == one) {
                for (second, _) in processes.iter().enumerate().filter(|(_, process)| process.role == other) {
                    // Between two of the same role one is enough.
                    if one != other || first < second {
                        pairs.push((first, second));
                    }
                }
            }
        }
        Ok(Self { roles, processes, channels: pairs })
    }

    /// Whether a crash of one is a crash of both.
    pub(super) fn recover_together(&self, one: usize, other: usize) -> bool {
        let role = |process: usize| self.processes.get(process).map(|process| process.role);
        let together =
            |role: usize| self.roles.get(role).is_some_and(|role| role.recovery == Recovery::Together);
        one != other && role(one) == role(other) && role(one).is_some_and(together)
    }

    /// Whether the program ends with this process.
    pub(super) fn is_of_first_role(&self, process: usize) -> bool {
        self.processes.get(process).is_some_and(|process| process.role == 0)
    }
}

fn of_role(place: usize, role: &Role) -> impl Iterator<Item = Process> {
    (0..role.processes).map(move |index| {
        let name = if role.processes == 1 { role.name.clone() } else { format!("{} {index}", role.name) };
        Process { role: place, index, name }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn master_and_workers() -> Roles {
        Roles::new().role(Role::new("master")).role(Role::new("worker").processes(3))
    }

    #[test]
    fn processes_are_in_the_order_of_their_roles() {
        let roles = master_and_workers().channels("master", "worker").channels("worker", "worker");
        let plan = Plan::of(roles).unwrap();
        let names: Vec<&str> = plan.processes.iter().map(|process| process.name.as_str()).collect();
        assert_eq!(names, ["master", "worker 0", "worker 1", "worker 2"]);
        assert_eq!(plan.channels, [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]);
        assert!(plan.is_of_first_role(0) && !plan.is_of_first_role(1));
        assert!(!plan.recover_together(1, 2));
    }

    #[test]
    fn who_recovers_together_is_of_one_role() {
        let both = Role::new("worker").processes(2).recovery(Recovery::Together);
        let plan =
            Plan::of(Roles::new().role(Role::new("master").recovery(Recovery::Together)).role(both)).unwrap();
        assert!(plan.recover_together(1, 2) && plan.recover_together(2, 1));
        assert!(!plan.recover_together(0, 1) && !plan.recover_together(1, 1));
    }

    #[test]
    fn what_makes_no_program_is_refused() {
        let bad = [
            (Roles::new(), "there are none"),
            (Roles::new().role(Role::new("")), "\"\" is no name: 1 to 24 bytes"),
            (master_and_workers().role(Role::new("worker")), "two are called \"worker\""),
            (master_and_workers().channels("master", "walker"), "there is none called \"walker\""),
            (
                Roles::new().role(Role::new("none").processes(0)),
                "\"none\" has no process: it needs one at least",
            ),
            (
                Roles::new().role(Role::new("many").processes(257)),
                "257 processes are too many: 256 at the most",
            ),
        ];
        for (roles, why) in bad {
            let error = Plan::of(roles).map(|_| ()).unwrap_err().to_string();
            assert_eq!(error, format!("the roles of the program: {why}"));
        }
    }
}
