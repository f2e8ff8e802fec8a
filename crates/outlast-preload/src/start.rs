//! What happens before the program begins.

use crate::hooks;
use crate::keeper;
use crate::settings;
use crate::sys;
use std::ffi::{c_char, c_int};

type Constructor = extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char);

/// The dynamic linker calls it when everything is loaded that the program needs, and before its own constructors.
#[used]
#[unsafe(link_section = ".init_array")]
static START: Constructor = start;

extern "C" fn start(_count: c_int, _arguments: *mut *mut c_char, environment: *mut *mut c_char) {
    let Some(mark) = settings::mark() else { return };
    let _errno = sys::Errno::keep();
    settings::find_board();
    if let Err(error) = begin(mark, environment) {
        sys::say(&format!("the program runs, and does not outlive a crash: {error}"));
    }
}

fn begin(mark: settings::Mark, environment: *mut *mut c_char) -> std::io::Result<()> {
    sys::on_fork(hooks::forking, hooks::forked)?;
    if outlast_restart::parts::thread_count()? != 1 {
        return Err(std::io::Error::other("it has several threads before it begins"));
    }
    keeper::begin(mark, environment)
}
