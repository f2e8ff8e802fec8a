//! Packet filter rules of a host, through the `iptables-legacy` programs.

use crate::available::{IP6TABLES, IPTABLES, find_program};
use crate::error::{Error, Result};
use crate::host::Host;

/// Adds (`-I`, `-A`) or deletes (`-D`) the same rule for IPv4 and IPv6: `operation` and `chain`, then `rule`.
pub(crate) fn change(host: &Host, table: &str, operation: &str, chain: &str, rule: &[&str]) -> Result<()> {
    for program in [IPTABLES, IP6TABLES] {
        let path = find_program(program).unwrap_or_else(|| program.into());
        let mut command = host.command(&path);
        command.args(["-w", "-t", table, operation, chain]).args(rule);
        let output = command.output()?;
        if !output.status.success() {
            return Err(Error::Program {
                command: format!("{program} -t {table} {operation} {chain} {}", rule.join(" ")),
                status: output.status.to_string(),
                stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            });
        }
    }
    Ok(())
}
