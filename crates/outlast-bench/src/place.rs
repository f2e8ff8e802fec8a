//! Cores: which there are, and staying on one.

use std::io;
use std::mem;

/// The cores this process may run on.
pub fn allowed() -> Vec<usize> {
    // SAFETY: an all-zero cpu_set_t is an empty set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: the set is ours and its size is given.
    if unsafe { libc::sched_getaffinity(0, mem::size_of_val(&set), &raw mut set) } != 0 {
        return vec![0];
    }
    let most = mem::size_of_val(&set) * 8;
    // SAFETY: every index is within the set.
    (0..most).filter(|core| unsafe { libc::CPU_ISSET(*core, &set) }).collect()
}

/// Keeps this thread, and those it starts from now on, on `cores`.
pub fn pin(cores: &[usize]) -> io::Result<()> {
    // SAFETY: an all-zero cpu_set_t is an empty set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    for &core in cores {
        // SAFETY: CPU_SET checks the index against the size of the set.
        unsafe { libc::CPU_SET(core, &mut set) };
    }
    // SAFETY: the set is ours and its size is given; no allocation, so this may run between fork and exec.
    match unsafe { libc::sched_setaffinity(0, mem::size_of_val(&set), &raw const set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives up preempting others when woken, for this thread and those it starts from now on.
///
/// With both ends of a bulk transfer on one core the scheduler otherwise settles, by chance and for a while,
/// either on switching at every small write or on switching when a buffer is full: a factor of 3 between two
/// runs of the same program.
pub fn run_in_batches() -> io::Result<()> {
    set_policy(libc::SCHED_BATCH)
}

/// The opposite of [`run_in_batches`]: what threads do by themselves.
pub fn run_as_usual() -> io::Result<()> {
    set_policy(libc::SCHED_OTHER)
}

fn set_policy(policy: i32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the structure is ours; 0 is this thread.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets this process have `count` descriptors, or as many as the system allows.
pub fn raise_descriptor_limit(count: u64) -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is ours.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let wanted = libc::rlimit { rlim_cur: limit.rlim_cur.max(count), rlim_max: limit.rlim_max.max(count) };
    // SAFETY: the structure is ours. Raising the hard limit is refused without privilege: try without.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const wanted) } == 0 {
        return Ok(wanted.rlim_cur);
    }
    let soft = libc::rlimit { rlim_cur: limit.rlim_max.min(count), rlim_max: limit.rlim_max };
    // SAFETY: as above.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const soft) } {
        0 => Ok(soft.rlim_cur),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_pinned_thread_has_one_core() {
        let cores = super::allowed();
        let first = *cores.first().unwrap();
        let seen = std::thread::spawn(move || {
            super::pin(&[first]).unwrap();
            super::allowed()
        });
        assert_eq!(seen.join().unwrap(), vec![first]);
        assert_eq!(super::allowed(), cores);
    }
}
