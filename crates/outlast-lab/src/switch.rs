//! A switch: a bridge in a namespace of its own.

use std::sync::Arc;

use crate::error::{Context, Result};
use crate::host::Host;
use crate::segment::Segment;

/// A switch that joins any number of hosts into one network. Attach them with [`crate::Lab::attach`].
#[derive(Clone)]
pub struct Switch {
    host: Host,
    bridge: u32,
    segment: Arc<Segment>,
}

impl std::fmt::Debug for Switch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Switch({})", self.host.namespace())
    }
}

impl Switch {
    pub(crate) fn create(host: Host, segment: Arc<Segment>) -> Result<Self> {
        const NAME: &str = "bridge";
        let made = host.routing().add_bridge(NAME);
        made.context(|| format!("cannot create the bridge of switch {}", host.name()))?;
        let bridge = host.routing().device_index(NAME).context(|| "cannot find the bridge".to_owned())?;
        host.routing().set_up(bridge, true).context(|| "cannot switch the bridge on".to_owned())?;
        Ok(Self { host, bridge, segment })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.host.name()
    }

    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    pub(crate) fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    pub(crate) fn plug(&self, port: u32) -> Result<()> {
        let plugged = self.host.routing().set_master(port, self.bridge);
        plugged.context(|| format!("cannot plug a cable into switch {}", self.name()))
    }
}
