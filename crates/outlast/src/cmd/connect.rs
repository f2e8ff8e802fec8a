//! `outlast connect`.

use crate::admin::AdminSocket;
use crate::cli::{ConnectArgs, ProcessArgs};
use crate::exit::Code;
use crate::narrate::Narrator;
use crate::plan::{self, FrontPlan};
use crate::service::{self, Plans};
use crate::stdio;
use anyhow::{Context, Result};
use std::num::NonZero;
use std::path::Path;
use tokio::runtime::{Builder, Runtime};

/// Carries local programs' streams until a signal ends it; or standard input and output until they end.
pub fn run(args: &ConnectArgs, process: &ProcessArgs, narrator: &Narrator) -> Result<Code> {
    let plan = plan::connect(args)?;
    if !plan.fronts.contains(&FrontPlan::Stdio) {
        let plans = Plans { listen: Vec::new(), connect: vec![plan] };
        return runtime()?.block_on(service::run(plans, process, narrator));
    }
    // One stream needs one thread.
    let runtime = Builder::new_current_thread().enable_all().build().context("cannot start the runtime")?;
    runtime.block_on(async {
        let admin = match process.admin_socket.as_deref() {
            Some(path) if path == Path::new("none") => None,
            Some(path) => Some(AdminSocket::bind(Some(path))?),
            None => AdminSocket::bind(None).ok(),
        };
        stdio::run(plan, admin, narrator).await
    })
}

/// The runtime for many streams: a thread per processor. With one processor that is this thread: a second one would
/// only have work handed over to it.
pub fn runtime() -> Result<Runtime> {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let mut builder =
        if processors == 1 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    builder.enable_all().build().context("cannot start the runtime")
}
