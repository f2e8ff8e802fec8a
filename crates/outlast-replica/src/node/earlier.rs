//! What a node begins with: what an earlier run of it has noted, or the node knew in whose place it begins.

use super::meeting::Data;
use super::remembered::Remembered;
use super::settings::system;
use super::{Error, Settings};
use crate::portal::server_process::ServerRun;
use parking_lot::Mutex;
use std::sync::Arc;

pub(super) struct Earlier {
    pub(super) remembered: Arc<Mutex<Remembered>>,
    pub(super) data: Data,
    /// Of its server, as far as that is known.
    pub(super) run: Option<ServerRun>,
}

impl Earlier {
    pub(super) fn of(settings: &Settings) -> Result<Self, Error> {
        if let Some(recovering) = &settings.recovering {
            // It knows that already, also where it cannot be written.
            return Ok(Self {
                remembered: recovering.remembered.clone(),
                data: Data::of(&recovering.own),
                run: recovering.server_run.clone(),
            });
        }
        // A witness has no data that could be old.
        let path = settings.memory.as_deref().filter(|_| settings.portal.is_some());
        let what = || path.map(|path| path.display().to_string()).unwrap_or_default();
        let mut remembered =
            Remembered::read(path).map_err(|error| system(format!("cannot read {}", what()))(error))?;
        remembered.check().map_err(|error| system(format!("cannot write beside {}", what()))(error))?;
        if settings.is_new_group {
            remembered.forget();
        }
        let data = remembered.data();
        Ok(Self { remembered: Arc::new(Mutex::new(remembered)), data, run: None })
    }
}
