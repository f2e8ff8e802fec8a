//! The real servers: nginx, sshd, socat, each with a configuration and keys of its own in the demo's folder.

use crate::program::{Host, Running};
use crate::stage::{Stage, wait_for_port};
use anyhow::{Context, Result, ensure};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// nginx, giving out the files in `root`.
pub fn web(stage: &Stage, folder: &Path, root: &Path) -> Result<Running> {
    let (port, root) = (stage.ports.web, root.display());
    // In small parts: a megabyte, and a rest to make up for it, would look like a pause.
    let limit = stage.rate_without_wire().map(|rate| format!("limit_rate {rate}; sendfile_max_chunk 64k;"));
    let limit = limit.unwrap_or_default();
    let block = format!(
        "http {{ access_log off; sendfile on; {TEMPORARY} server {{ listen {}:{port}; root '{root}'; {limit} }} }}",
        // Also for the transfer that goes past Outlast.
        stage.any_address(),
    );
    let running = nginx(&stage.server, &folder.join("web"), "", &block)?;
    wait_for_port(&stage.server, port)?;
    Ok(running)
}

/// nginx between the client and `target`, as a relay of TCP streams.
pub fn stream_relay(host: &Host, folder: &Path, port: u16, target: &str) -> Result<Running> {
    const MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";
    let load = if Path::new(MODULE).exists() { format!("load_module {MODULE};") } else { String::new() };
    let block =
        format!("stream {{ server {{ listen 127.0.0.1:{port}; proxy_pass {target}; proxy_timeout 1d; }} }}");
    nginx(host, &folder.join("stream"), &load, &block)
}

const TEMPORARY: &str = "client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; \
                         uwsgi_temp_path uwsgi; scgi_temp_path scgi;";

fn nginx(host: &Host, folder: &Path, load: &str, block: &str) -> Result<Running> {
    std::fs::create_dir_all(folder)?;
    let config = format!(
        "{load}\ndaemon off; master_process off; pid nginx.pid; error_log error.log warn;\n\
         events {{ worker_connections 256; }}\n{block}\n"
    );
    let file = folder.join("nginx.conf");
    std::fs::write(&file, config)?;
    host.start(find("nginx")?, |command| {
        command.arg("-p").arg(folder).arg("-c").arg(&file).arg("-e").arg(folder.join("error.log"));
        quiet(command);
    })
}

/// socat between the client and `target`.
pub fn socat(host: &Host, port: u16, target: &str) -> Result<Running> {
    host.start(find("socat")?, |command| {
        command.args(socat_words(host, port, target));
        quiet(command);
    })
}

/// The arguments of that.
pub fn socat_words(host: &Host, port: u16, target: &str) -> [String; 2] {
    let bind = if matches!(host, Host::Here) { ",bind=127.0.0.1" } else { "" };
    [format!("TCP-LISTEN:{port},fork,reuseaddr{bind}"), format!("TCP:{target}")]
}

/// Keys for logging in, made for this run.
#[derive(Clone, Debug)]
pub struct Ssh {
    folder: PathBuf,
    user: String,
}

impl Ssh {
    /// Starts sshd on the server.
    pub fn start(stage: &Stage, folder: &Path) -> Result<(Self, Running)> {
        let folder = folder.join("ssh");
        std::fs::create_dir_all(&folder)?;
        for key in ["host_key", "user_key"] {
            let file = folder.join(key);
            let arguments = ["-q", "-t", "ed25519", "-N", "", "-C", "outlast-demo", "-f"];
            let made = Command::new("ssh-keygen").args(arguments).arg(&file).stdin(Stdio::null()).status();
            ensure!(made.context("cannot start ssh-keygen")?.success(), "ssh-keygen makes no key");
        }
        std::fs::copy(folder.join("user_key.pub"), folder.join("authorized_keys"))?;
        let host_key = std::fs::read_to_string(folder.join("host_key.pub"))?;
        std::fs::write(folder.join("known_hosts"), format!("outlast-demo {host_key}"))?;
        let at = folder.display();
        let user = String::from_utf8(Command::new("id").arg("-un").output()?.stdout)?;
        let config = format!(
            "IdentityFile \"{at}/user_key\"\nIdentitiesOnly yes\nUserKnownHostsFile \"{at}/known_hosts\"\n\
             GlobalKnownHostsFile none\nHostKeyAlias outlast-demo\nStrictHostKeyChecking yes\nBatchMode yes\n\
             User {}\n",
            user.trim()
        );
        std::fs::write(folder.join("config"), config)?;
        let config = format!(
            "Port {}\nListenAddress {}\nHostKey \"{at}/host_key\"\nPidFile none\n\
             AuthorizedKeysFile \"{at}/authorized_keys\"\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n\
             KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nSubsystem sftp internal-sftp\n\
             PrintMotd no\nPrintLastLog no\n",
            stage.ports.ssh,
            stage.any_address(),
        );
        let file = folder.join("sshd_config");
        std::fs::write(&file, config)?;
        let sshd = find("sshd")?;
        let private = own_run_folder();
        let program = if private { PathBuf::from("unshare") } else { sshd.clone() };
        let running = stage.server.start(program, |command| {
            if private {
                command
                    .args(["--mount", "--propagation", "private", "sh", "-c", OWN_RUN_FOLDER, "sh"])
                    .arg(&sshd);
            }
            command.args(["-D", "-E"]).arg(folder.join("log")).arg("-f").arg(&file);
            quiet(command);
        })?;
        wait_for_port(&stage.server, stage.ports.ssh)?;
        Ok((Self { folder, user: user.trim().to_owned() }, running))
    }

    /// Logs in without Outlast. An account without a shell, say, cannot.
    pub fn check(&self, stage: &Stage) -> Result<()> {
        let tried = stage.server.start("ssh", |command| {
            command.args(self.options()).args(["-p", &stage.ports.ssh.to_string(), "127.0.0.1", "true"]);
            quiet(command);
        })?;
        let status = loop {
            if let Some(status) = tried.ended()? {
                break status;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        ensure!(status.success(), "{} cannot log in by ssh (an account without a shell?)", self.user);
        Ok(())
    }

    /// Has ssh and scp use these keys and no others.
    pub fn options(&self) -> [String; 2] {
        ["-F".to_owned(), format!("{}/config", self.folder.display())]
    }
}

/// As root sshd locks its unprivileged part up in /run/sshd. Debian makes that when the service starts, which is not
/// started here: it gets a /run that nobody else sees and that goes with it.
const OWN_RUN_FOLDER: &str = r#"mount -t tmpfs tmpfs /run && mkdir -m 755 /run/sshd && exec "$@""#;

/// Whether that is needed and allowed.
fn own_run_folder() -> bool {
    let root = std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0);
    let try_it = || {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", OWN_RUN_FOLDER, "sh", "true"]);
        quiet(&mut command);
        command.status().is_ok_and(|status| status.success())
    };
    root && try_it()
}

/// Finds a server, which may not be in a user's search path.
pub fn find(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(PathBuf::from);
    let mut folders = std::env::split_paths(&path).chain(system);
    let found = folders.find_map(|folder| Some(folder.join(program)).filter(|file| file.is_file()));
    found.with_context(|| format!("{program} is not installed: `make deps` installs it"))
}

fn quiet(command: &mut Command) {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
}
