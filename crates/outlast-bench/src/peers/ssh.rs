//! `ssh -L`: a server with keys of its own on a port of its own, that knows one user with one key.

use super::{Garbage, Plan, Relay, find_program};
use crate::ground::End;
use crate::launch::Launch;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where sshd locks itself up; it insists that the folder exists.
const JAIL: &str = "/run/sshd";

pub fn tunnel(plan: &Plan) -> Result<Relay> {
    let (server, client) = (find_program("sshd")?, find_program("ssh")?);
    let host_key = make_key(plan, "far/host_key")?;
    let user_key = make_key(plan, "near/user_key")?;
    let public = std::fs::read_to_string(user_key.with_extension("pub")).context("cannot read a key")?;
    let authorized = plan.write("far/authorized_keys", &public)?;
    let config = format!(
        "ListenAddress {}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nUsePAM no\nStrictModes no\n\
         PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n\
         AllowTcpForwarding yes\nUseDNS no\n",
        plan.far,
        host_key.display(),
        authorized.display()
    );
    let config = plan.write("far/sshd_config", &config)?;
    let garbage = make_jail();
    let forward = format!("{}:{}", plan.near, plan.server);
    let (port, user) = (plan.far.port().to_string(), user_name());
    let far =
        Launch::new(plan.ground, End::Server, server).arguments([Path::new("-D"), Path::new("-f"), &config]);
    let far = far.start()?;
    super::thread::sleep(std::time::Duration::from_millis(200));
    let near = Launch::new(plan.ground, End::Client, client)
        .arguments([
            "-N",
            "-T",
            "-F",
            "none",
            "-o",
            "StrictHostKeyChecking=no",
            "-o",
            "UserKnownHostsFile=/dev/null",
        ])
        .arguments([
            "-o",
            "ExitOnForwardFailure=yes",
            "-o",
            "BatchMode=yes",
            "-o",
            "IdentitiesOnly=yes",
            "-i",
        ])
        .arguments([&user_key])
        .arguments(["-L", &forward, "-p", &port, "-l", &user, &plan.far.ip().to_string()])
        .start()?;
    Ok(Relay { name: "ssh", address: plan.near, programs: vec![near, far], _garbage: garbage })
}

fn make_key(plan: &Plan, name: &str) -> Result<PathBuf> {
    let path = plan.folder.join(name);
    let status = Command::new(find_program("ssh-keygen")?)
        .args(["-q", "-t", "ed25519", "-N", "", "-C", "outlast-bench", "-f"])
        .arg(&path)
        .stdin(Stdio::null())
        .status()
        .context("cannot run ssh-keygen")?;
    ensure!(status.success(), "ssh-keygen failed: {status}");
    Ok(path)
}

/// The folder, if it was not there: it goes again with the relay.
fn make_jail() -> Option<Garbage> {
    std::fs::create_dir(JAIL).ok().map(|()| Garbage(JAIL.into()))
}

fn user_name() -> String {
    std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_else(|_| "root".to_owned())
}
