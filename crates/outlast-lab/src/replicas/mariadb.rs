//! MariaDB as the server on each machine: all begin with the same data and the same accounts.

use super::{Machine, SERVER_PORT};
use crate::error::Context;
use crate::{Error, Result};
use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// Every server has the same accounts: one of the nodes, and one of clients.
const ACCOUNTS: &str = "FLUSH PRIVILEGES;
CREATE USER outlast@localhost IDENTIFIED BY 'of nodes';
GRANT SELECT ON mysql.* TO outlast@localhost;
GRANT PROCESS, CONNECTION ADMIN ON *.* TO outlast@localhost;
CREATE USER app@'%' IDENTIFIED BY 'of clients';
CREATE DATABASE shop;
GRANT ALL ON shop.* TO app@'%';
";
const NODE_PASSWORD: &str = "of nodes\n";
/// How clients log in.
pub const CLIENT_FLAGS: [&str; 3] = ["--no-defaults", "--user=app", "--password=of clients"];
/// As the server's own installation makes it.
const FLAGS: [&str; 3] = ["--no-defaults", "--user=root", "--innodb-log-file-size=4M"];

/// The data of a server that nobody has used, with accounts, in each of these folders.
///
/// # Errors
/// MariaDB is not installed, or fails.
pub fn install<'a>(scratch: &Path, folders: impl Iterator<Item = &'a Path>) -> Result<()> {
    let data = scratch.join("new");
    let flag = format!("--datadir={}", data.display());
    let mut install = Command::new("mariadb-install-db");
    install.args(FLAGS).args([&flag, "--auth-root-authentication-method=normal", "--skip-test-db"]);
    let installed = install.stdin(Stdio::null()).output();
    let installed = installed.context(|| "cannot start mariadb-install-db".to_owned())?;
    has_worked("mariadb-install-db", installed.status, String::from_utf8_lossy(&installed.stderr))?;
    let mut bootstrap = Command::new("mariadbd");
    bootstrap.args(FLAGS).args([&flag, "--bootstrap"]);
    bootstrap.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut bootstrap = bootstrap.spawn().context(|| "cannot start mariadbd".to_owned())?;
    if let Some(mut input) = bootstrap.stdin.take() {
        input.write_all(ACCOUNTS.as_bytes()).context(|| "mariadbd reads nothing".to_owned())?;
    }
    let ended = bootstrap.wait().context(|| "mariadbd has no end".to_owned())?;
    has_worked("mariadbd --bootstrap", ended, "")?;
    for folder in folders {
        let copied = Command::new("cp").arg("-a").arg(&data).arg(data_of(folder)).status();
        has_worked("cp", copied.context(|| "cannot copy".to_owned())?, "")?;
        std::fs::write(password_in(folder), NODE_PASSWORD)
            .context(|| "cannot write a password".to_owned())?;
    }
    Ok(())
}

fn has_worked(command: &str, status: ExitStatus, said: impl Display) -> Result<()> {
    if status.success() {
        return Ok(());
    }
    Err(Error::Program { command: command.to_owned(), status: status.to_string(), stderr: said.to_string() })
}

fn data_of(folder: &Path) -> PathBuf {
    folder.join("data")
}

fn password_in(folder: &Path) -> PathBuf {
    folder.join("password")
}

/// With the password of the nodes' account.
#[must_use]
pub fn password_file(machine: &Machine) -> PathBuf {
    password_in(&machine.folder)
}

/// What runs on a machine.
#[must_use]
pub fn server(machine: &Machine) -> Vec<String> {
    // Nodes decide who waits, and for how long.
    let waits = ["--innodb-lock-wait-timeout=100000000".to_owned()];
    server_in(&machine.folder, "127.0.0.1").into_iter().chain(waits).collect()
}

/// A server with the data in this folder, which listens at this address.
#[must_use]
pub fn server_in(folder: &Path, address: &str) -> Vec<String> {
    let mut words = vec!["mariadbd".to_owned()];
    words.extend(FLAGS.map(str::to_owned));
    words.extend([
        format!("--bind-address={address}"),
        format!("--port={SERVER_PORT}"),
        format!("--datadir={}", data_of(folder).display()),
        format!("--socket={}/socket", folder.display()),
        // Servers that share one take each other's files away.
        format!("--tmpdir={}", folder.display()),
    ]);
    words
}
