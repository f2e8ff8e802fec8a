//! What executes programs. Functions with any number of arguments (`execl`) cannot be stood before here; of what shells and
//! servers call they are few.

use super::hooks;
use crate::environment::{execute, execute_found};
use crate::sys::execute::{Texts, environment};
use libc::{c_char, c_int, c_void, pid_t};

hooks! {
    fn execve(file: *const c_char, arguments: Texts, variables: Texts) -> c_int, next =>
        execute(file, variables, |variables| next(file, arguments, variables));
    fn execvpe(file: *const c_char, arguments: Texts, variables: Texts) -> c_int, next =>
        execute_found(file, variables, |variables| next(file, arguments, variables));
    fn execv(file: *const c_char, arguments: Texts) -> c_int, next =>
        execute(file, environment(), |variables| {
            if variables == environment() {
                return next(file, arguments);
            }
            // SAFETY: with what the program gave, and an environment of the same form.
            unsafe { execve(file, arguments, variables) }
        });
    fn execvp(file: *const c_char, arguments: Texts) -> c_int, next =>
        execute_found(file, environment(), |variables| {
            if variables == environment() {
                return next(file, arguments);
            }
            // SAFETY: as above.
            unsafe { execvpe(file, arguments, variables) }
        });
    fn posix_spawn(
        pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: Texts,
        variables: Texts
    ) -> c_int, next =>
        execute(file, variables, |variables| next(pid, file, actions, attributes, arguments, variables));
    fn posix_spawnp(
        pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: Texts,
        variables: Texts
    ) -> c_int, next =>
        execute_found(file, variables, |variables| next(pid, file, actions, attributes, arguments, variables));
}
