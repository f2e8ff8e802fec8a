//! Programs that `outlast run` keeps running, as `outlast status` shows them.

use crate::common::{PATIENCE, output};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

pub fn status(runtime: &Path) -> Value {
    let told = output(runtime, &["status", "--json"]);
    let told: Value = serde_json::from_slice(&told.stdout).unwrap();
    told.get(0).cloned().unwrap_or_default()
}

pub fn until(runtime: &Path, what: &str, mut holds: impl FnMut(&Value) -> bool) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = status(runtime);
        if holds(&now) {
            return now;
        }
        assert!(Instant::now() < deadline, "not {what}: {now:#}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn pid(status: &Value, name: &str) -> u32 {
    status[name].as_u64().and_then(|pid| u32::try_from(pid).ok()).unwrap()
}

/// A server that uses the library.
#[allow(clippy::print_stderr, reason = "a test that is skipped says so")]
pub fn lines() -> Option<String> {
    let this = std::env::current_exe().unwrap();
    let lines = this.parent().unwrap().parent().unwrap().join("examples/lines");
    if !lines.exists() {
        let why = "there is no server with the library: cargo build -p outlast-restart --examples";
        assert!(std::env::var_os("OUTLAST_REQUIRE_LAB").is_none(), "{why}");
        eprintln!("SKIPPED: {why}");
        return None;
    }
    Some(lines.to_str().unwrap().to_owned())
}
