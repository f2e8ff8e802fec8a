//! Two hosts, a real sshd and a real nginx, and commands as a user would type them.

#![allow(dead_code, reason = "every test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message")]

use outlast_lab::{Host, Lab, LabCommand, Link, Process};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The program: the one that `OUTLAST_BINARY` names, else one that is built here, so that it is not an old one.
pub fn outlast() -> PathBuf {
    static BUILT: std::sync::Once = std::sync::Once::new();
    if let Some(binary) = std::env::var_os("OUTLAST_BINARY") {
        return binary.into();
    }
    BUILT.call_once(|| build(&["-p", "outlast"]));
    Path::new(env!("CARGO_BIN_EXE_outlast-demo")).with_file_name("outlast")
}

/// The servers that the demonstration crashes, and what they are linked with.
pub fn build_servers() {
    static BUILT: std::sync::Once = std::sync::Once::new();
    BUILT.call_once(build_all_servers);
}

fn build_all_servers() {
    build(&["-p", "outlast-c"]);
    build(&["-p", "outlast-restart", "--example", "tally", "--example", "trouble"]);
    build(&["-p", "outlast-kv", "-p", "outlast-kv-plain"]);
}

/// Whoever runs all tests has built all, and says so.
fn build(what: &[&str]) {
    if std::env::var_os("OUTLAST_BUILT").is_some() {
        return;
    }
    let own = Path::new(env!("CARGO_BIN_EXE_outlast-demo"));
    let target = own.parent().unwrap().parent().unwrap();
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--locked"]).args(what).arg("--target-dir").arg(target);
    if own.parent().unwrap().ends_with("release") {
        command.arg("--release");
    }
    assert!(command.status().unwrap().success(), "cannot build {what:?}");
}

/// Waits for something to become true, for 20 seconds at most.
pub fn wait_until(done: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Where the examples run.
pub struct Field {
    pub client: Host,
    pub server: Host,
    pub link: Link,
    // Those in front go first.
    programs: Vec<Process>,
    folder: tempfile::TempDir,
    _lab: Lab,
}

impl Field {
    /// With sshd at port 22 of `server`, and nginx at port 80.
    pub fn build(name: &str) -> Self {
        let lab = Lab::new(name).unwrap();
        let (client, server) = (lab.host("client").unwrap(), lab.host("server").unwrap());
        let link = lab.connect(&client, &server).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut field = Self { client, server, link, programs: Vec::new(), folder, _lab: lab };
        field.programs_in_path();
        field.certificate();
        field.sshd();
        field.nginx();
        field
    }

    /// A file in the working folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A line for the shell, on a host, in the working folder.
    pub fn shell(&self, host: &Host, line: &str) -> LabCommand {
        let mut command = host.command("/bin/sh");
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        command.args(["-c", line]).current_dir(self.folder.path());
        command.env("PATH", path).env("XDG_RUNTIME_DIR", self.path("run")).env_remove("OUTLAST_LOG");
        command
    }

    /// A line for the shell on this machine itself, where `outlast lab` makes a network of its own. Its sshd is one with
    /// the keys of this test.
    pub fn on_this_machine(&self, line: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        let sshd = self.path("bin/sshd").display().to_string();
        command.arg("-c").arg(line.replace("/usr/sbin/sshd", &sshd)).current_dir(self.folder.path());
        command.env("PATH", path).env("XDG_RUNTIME_DIR", self.path("run")).env_remove("OUTLAST_LOG");
        command.stdin(Stdio::null());
        command
    }

    fn script(&self, name: &str, text: &str) {
        let file = self.path("bin").join(name);
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// `outlast` as it was built; `ssh` as it is, but with the keys of this test, as in one's own configuration.
    fn programs_in_path(&self) {
        std::fs::create_dir(self.path("bin")).unwrap();
        self.script("outlast", &format!("#!/bin/sh\nexec '{}' \"$@\"\n", outlast().display()));
        let config = self.path("ssh_config");
        self.script("ssh", &format!("#!/bin/sh\nexec /usr/bin/ssh -T -F '{}' \"$@\"\n", config.display()));
    }

    fn certificate(&self) {
        let made = rcgen::generate_simple_self_signed(["server.example".to_owned()]).unwrap();
        std::fs::write(self.path("server.pem"), made.cert.pem()).unwrap();
        std::fs::write(self.path("server.key"), made.signing_key.serialize_pem()).unwrap();
        std::fs::set_permissions(self.path("server.key"), std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn sshd(&mut self) {
        for key in ["host_key", "user_key"] {
            let mut command = Command::new("ssh-keygen");
            command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(self.path(key)).stdin(Stdio::null());
            assert!(command.status().unwrap().success());
        }
        let at = self.folder.path().display();
        let host_key = std::fs::read_to_string(self.path("host_key.pub")).unwrap();
        std::fs::write(self.path("known_hosts"), format!("readme {host_key}")).unwrap();
        let config = format!(
            "IdentityFile {at}/user_key\nIdentitiesOnly yes\nUserKnownHostsFile {at}/known_hosts\n\
             GlobalKnownHostsFile none\nHostKeyAlias readme\nStrictHostKeyChecking yes\nBatchMode yes\n"
        );
        std::fs::write(self.path("ssh_config"), config).unwrap();
        let config = format!(
            "HostKey {at}/host_key\nPidFile none\nAuthorizedKeysFile {at}/user_key.pub\nStrictModes no\nUsePAM no\n\
             PasswordAuthentication no\nPermitRootLogin prohibit-password\nPrintMotd no\nPrintLastLog no\n"
        );
        std::fs::write(self.path("sshd_config"), config).unwrap();
        // It needs a folder in /run, which nobody else needs to see.
        self.script(
            "sshd",
            &format!(
                "#!/bin/sh\nexec unshare --mount --propagation private sh -c 'mount -t tmpfs tmpfs /run && \
                 mkdir -m 755 /run/sshd && exec /usr/sbin/sshd -e -f {at}/sshd_config \"$@\"' sh \"$@\"\n"
            ),
        );
        let mut command = self.server.command(self.path("bin/sshd"));
        command.arg("-D");
        self.serve(command, 22);
    }

    fn nginx(&mut self) {
        let folder = self.path("web");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("index.html"), "it works\n").unwrap();
        let config = "daemon off; master_process off; pid nginx.pid; error_log error.log;\nevents {}\n\
                      http { access_log off; client_body_temp_path body; proxy_temp_path proxy;\n\
                      fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;\n\
                      server { listen 80; root .; } }\n";
        std::fs::write(folder.join("nginx.conf"), config).unwrap();
        let mut command = self.server.command("/usr/sbin/nginx");
        command.arg("-p").arg(&folder).arg("-c").arg(folder.join("nginx.conf"));
        command.arg("-e").arg(folder.join("error.log"));
        self.serve(command, 80);
    }

    fn serve(&mut self, mut command: LabCommand, port: u16) {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.programs.push(command.spawn().unwrap());
        assert!(self.server.wait_for_listener(Some(port), Duration::from_secs(20)).unwrap());
    }
}
