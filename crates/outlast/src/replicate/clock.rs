//! How a server is started that has the time of day from the order.

use crate::exit::Failure;
use crate::run::preload;
use anyhow::Result;
use outlast_replica::ServerClock;
use outlast_replica::node::group::Group;
use outlast_replica::portal::clock::ClockPage;
use outlast_session::relay::dial::plain;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The library's file.
pub const LIBRARY: &str = "liboutlast_clock.so";
/// In which the library finds the page.
const VARIABLE: &str = "OUTLAST_CLOCK";

/// The page with the time, and the library that reads it.
#[derive(Clone, Debug)]
pub struct Clock {
    pub page: ClockPage,
    library: PathBuf,
}

impl Clock {
    /// For the server of node `name`, where the group says so. `given` is the library, if not the one beside this program.
    pub fn new(
        group: &Group,
        name: &str,
        program: &[OsString],
        given: Option<&Path>,
    ) -> Result<Option<Self>> {
        if group.clock == ServerClock::Machine {
            return Ok(None);
        }
        let refused = |why: &str| {
            Failure::usage(format!(
                "the group file says clock = \"order\", which node {name} cannot have: {why}"
            ))
        };
        let Some(program) = program.first() else {
            return Err(refused("it has to start its server by itself, so give its command line behind --"));
        };
        let library = match given {
            Some(given) => std::path::absolute(given).ok().filter(|library| library.is_file()),
            None => preload::beside(LIBRARY),
        };
        let library = library.ok_or_else(|| match given {
            Some(given) => refused(&format!("there is no library {} (--clock-library)", given.display())),
            None => refused(&format!(
                "there is no {LIBRARY} beside outlast or in ../lib/outlast (--clock-library)"
            )),
        })?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        if let Some(why) = preload::obstacle_to_any(&library, program, &path) {
            return Err(refused(&format!("{LIBRARY} cannot be loaded into its server: {why}")));
        }
        let page = ClockPage::new().map_err(|error| {
            Failure::system(format!("cannot make a clock for the server: {}", plain(&error)))
        })?;
        Ok(Some(Self { page, library }))
    }

    /// What the server's environment has for it.
    pub fn variables(&self) -> [(&OsStr, OsString); 2] {
        let (name, value) = preload::variable(&self.library, std::env::var_os(preload::VARIABLE));
        [(name.as_ref(), value), (VARIABLE.as_ref(), self.page.descriptor().to_string().into())]
    }
}
