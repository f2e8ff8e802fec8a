//! Whether this machine can run a lab, and what is missing if not.

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// What this machine lacks to run a lab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable {
    /// Everything that is missing, each with what to do about it.
    pub missing: Vec<String>,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this machine cannot run a lab: {}", self.missing.join("; "))
    }
}

impl std::error::Error for Unavailable {}

/// The capabilities that a lab needs, by their bits in `/proc/self/status`.
const CAPABILITIES: [(&str, u32); 2] = [("CAP_NET_ADMIN", 12), ("CAP_SYS_ADMIN", 21)];

pub(crate) fn available() -> Result<(), Unavailable> {
    static ANSWER: OnceLock<Result<(), Unavailable>> = OnceLock::new();
    ANSWER.get_or_init(examine).clone()
}

fn examine() -> Result<(), Unavailable> {
    let mut missing = Vec::new();
    let effective = effective_capabilities();
    let lacking: Vec<_> =
        CAPABILITIES.iter().filter(|(_, bit)| effective >> bit & 1 == 0).map(|(n, _)| *n).collect();
    if !lacking.is_empty() {
        missing.push(format!("no {} (run as root)", lacking.join(" and ")));
    } else if let Some(why) = namespace_refused() {
        missing.push(format!(
            "the kernel refuses a network namespace: {why} (is this a container? run it privileged)"
        ));
    }
    if let Err(error) = File::options().read(true).write(true).open("/dev/net/tun") {
        missing.push(format!(
            "/dev/net/tun: {error} (it needs CONFIG_TUN; in a container pass --device /dev/net/tun)"
        ));
    }
    if !Path::new("/etc/hosts").exists() {
        missing.push("no /etc/hosts to mount host names over (create an empty one)".to_owned());
    }
    for name in [IPTABLES, IP6TABLES] {
        if find_program(name).is_none() {
            missing.push(format!("no `{name}` (install the package iptables)"));
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(Unavailable { missing }) }
}

fn effective_capabilities() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}

fn namespace_refused() -> Option<std::io::Error> {
    std::thread::spawn(crate::sys::new_network_namespace).join().ok()?.err()
}

pub(crate) const IPTABLES: &str = "iptables-legacy";
pub(crate) const IP6TABLES: &str = "ip6tables-legacy";

/// Where a program is; also looks where administrators' programs are when `PATH` does not.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs =
        std::env::split_paths(&path).chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from));
    dirs.map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// Whether `test` must be skipped because this machine cannot run a lab. Says so loudly on standard error.
/// With `OUTLAST_REQUIRE_LAB=1` in the environment (for CI) it fails instead, so that skipping goes not unnoticed.
///
/// # Panics
/// When the lab is required and unavailable.
#[must_use]
#[allow(clippy::panic, reason = "it stands in tests, where a panic is a failure")]
pub fn skip_unless_available(test: &str) -> bool {
    let Err(why) = available() else { return false };
    if std::env::var_os("OUTLAST_REQUIRE_LAB").is_some_and(|value| value == "1") {
        panic!("{test} needs a lab (OUTLAST_REQUIRE_LAB=1): {why}");
    }
    // Not `eprintln!`, which test harnesses hide.
    let _ = std::io::stderr().write_all(format!("SKIPPED: {test}: {why}\n").as_bytes());
    true
}

/// The name of the test that runs on this thread, which the harness names after it; failing that, where it stands.
#[doc(hidden)]
#[must_use]
pub fn test_name(module: &str, line: u32) -> String {
    match std::thread::current().name() {
        Some(name) if name != "main" => format!("{module}::{name}"),
        _ => format!("{module}, line {line}"),
    }
}

/// What a skipped test returns: success.
pub trait Skipped {
    /// The value.
    fn skipped() -> Self;
}

impl Skipped for () {
    fn skipped() -> Self {}
}

impl<E> Skipped for Result<(), E> {
    fn skipped() -> Self {
        Ok(())
    }
}

/// Ends the test it stands in, loudly, when this machine cannot run a lab; see [`crate::skip_unless_available`].
/// The test may return nothing or a `Result<(), _>`.
///
/// ```
/// # fn main() -> Result<(), outlast_lab::Error> {
/// outlast_lab::require!();
/// let lab = outlast_lab::Lab::new("example")?;
/// # drop(lab); Ok(()) }
/// ```
#[macro_export]
macro_rules! require {
    () => {
        $crate::require!(&$crate::test_name(module_path!(), line!()))
    };
    ($test:expr) => {
        if $crate::skip_unless_available($test) {
            return $crate::Skipped::skipped();
        }
    };
}
