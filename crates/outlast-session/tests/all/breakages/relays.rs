//! Paths through programs that terminate TCP: `auto` notices and acknowledges in band; the relay is killed and
//! started again, again and again.

use super::{Between, PORT, Program, Scene};
use outlast_lab::{Fault, Host, LabCommand, Process, Service, Target};
use outlast_stream::SplitMix64;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

const RELAY_PORT: u16 = 7001;

/// Runs the three sessions through whatever `start` starts on `host`, and kills it a few times.
fn run(
    name: &str,
    scene: &Scene,
    host: &Host,
    start: impl Fn() -> outlast_lab::Result<Process> + Send + Sync + 'static,
) {
    let mut server =
        Program::start(&scene.server, "tasks-server", &scene.server.socket_addr(PORT).to_string(), "auto");
    server.wait_for("READY", name);
    let relay = Service::start(start).unwrap();
    assert!(host.wait_for_listener(Some(RELAY_PORT), Duration::from_secs(10)).unwrap(), "{name} listens");
    let address = host.socket_addr(RELAY_PORT).to_string();
    let mut client = Program::start(&scene.client, "tasks-client", &address, "auto");
    client.wait_for("READY", name);
    let mut random = SplitMix64::new(7);
    for _ in 0..6 {
        std::thread::sleep(Duration::from_millis(60 + random.below(120)));
        relay.kill();
        std::thread::sleep(Duration::from_millis(random.below(150)));
        relay.restart().unwrap();
        assert!(host.wait_for_listener(Some(RELAY_PORT), Duration::from_secs(10)).unwrap(), "{name}");
    }
    // The last links are made before the sessions end.
    std::thread::sleep(Duration::from_millis(300));
    client.stop();
    let said = client.wait_for("DONE", name);
    server.stop();
    server.wait_for("DONE", name);
    let reports: Vec<&String> = said.iter().filter(|line| line.contains("REPORT ")).collect();
    println!("{name}: {reports:?}");
    assert_eq!(reports.len(), 3, "{name}: {said:?}");
    assert!(reports.iter().any(|line| !line.contains("outages=0")), "{name} was in the way");
    // One that had just lost its link when it was to end has no mode.
    let modes = |of: &str| reports.iter().filter(|line| line.contains(of)).count();
    let in_band = modes("mode=inband");
    assert!(in_band > 0 && in_band + modes("mode=none") == 3, "{name} looked direct: {reports:?}");
}

fn quiet(command: &mut LabCommand) -> &mut LabCommand {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
}

fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("outlast-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    path
}

fn socat(host: &Host, server: &Host) -> outlast_lab::Result<Process> {
    let mut command = host.command("socat");
    command
        .arg(format!("TCP-LISTEN:{RELAY_PORT},fork,reuseaddr"))
        .arg(format!("TCP:{}", server.socket_addr(PORT)));
    host.spawn(quiet(&mut command))
}

#[test]
fn auto_survives_socat_in_the_middle() {
    outlast_lab::require!();
    let scene = Scene::new(Between::Router);
    let host = scene.server.clone();
    run("socat", &scene, &scene.server, move || socat(&host, &host));
}

/// The path behind the relay is gone for a while; the client's kernel, whose peer is the relay, sees nothing of it.
#[test]
fn a_hole_behind_socat_is_noticed() {
    outlast_lab::require!();
    let scene = Scene::new(Between::Router);
    let name = "hole behind socat";
    let address = scene.server.socket_addr(PORT).to_string();
    let mut server = Program::start(&scene.server, "threads-server", &address, "auto");
    server.wait_for("READY", name);
    let relay = socat(&scene.middle, &scene.server).unwrap();
    assert!(scene.middle.wait_for_listener(Some(RELAY_PORT), Duration::from_secs(10)).unwrap());
    let address = scene.middle.socket_addr(RELAY_PORT).to_string();
    let mut client = Program::start(&scene.client, "threads-client", &address, "auto");
    client.wait_for("READY", name);
    // An opening that is made once more is no outage.
    client.wait_for("WELCOMED", name);
    std::thread::sleep(Duration::from_millis(200));
    let hole = Fault::Drop(None).inject(&Target::new(&scene.far)).unwrap();
    // Three times as long as the programs allow their peers to be silent.
    std::thread::sleep(Duration::from_millis(2400));
    hole.heal().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    client.stop();
    let said = client.wait_for("DONE", name);
    server.stop();
    server.wait_for("DONE", name);
    relay.kill();
    let reports: Vec<&String> = said.iter().filter(|line| line.contains("REPORT ")).collect();
    println!("{name}: {reports:?}");
    assert_eq!(reports.len(), 3, "{said:?}");
    assert!(reports.iter().all(|line| !line.contains("outages=0")), "not noticed: {reports:?}");
}

fn nginx(host: &Host, folder: &Path) -> outlast_lab::Result<Process> {
    let mut command = host.command("nginx");
    command.arg("-p").arg(folder).arg("-c").arg(folder.join("nginx.conf")).args(["-g", "daemon off;"]);
    host.spawn(quiet(&mut command))
}

#[test]
fn auto_survives_nginx_in_the_middle() {
    outlast_lab::require!();
    let scene = Scene::new(Between::Router);
    let folder = folder("nginx");
    let module = "/usr/lib/nginx/modules/ngx_stream_module.so";
    let load = if Path::new(module).exists() { format!("load_module {module};\n") } else { String::new() };
    let conf = format!(
        "{load}pid {0}/pid;\nerror_log {0}/error.log;\nuser root;\nworker_processes 1;\nevents {{}}\n\
         stream {{ server {{ listen {RELAY_PORT} reuseport; proxy_pass {1}; proxy_half_close on; }} }}\n",
        folder.display(),
        scene.server.socket_addr(PORT)
    );
    std::fs::write(folder.join("nginx.conf"), conf).unwrap();
    let (host, conf) = (scene.server.clone(), folder.clone());
    run("nginx", &scene, &scene.server, move || nginx(&host, &conf));
    std::fs::remove_dir_all(folder).unwrap();
}

/// sshd with keys of its own, for one user with one key.
struct Ssh {
    folder: PathBuf,
    _daemon: Process,
}

impl Ssh {
    const PORT: u16 = 7022;
    /// As root sshd locks its unprivileged part up in /run/sshd, which need not be there. A program of a host has
    /// mounts of its own: nobody else sees this /run.
    const OWN_RUN_FOLDER: &str =
        r#"[ "$(id -u)" != 0 ] || { mount -t tmpfs tmpfs /run && mkdir -m 755 /run/sshd; } && exec "$@""#;

    fn start(server: &Host) -> Self {
        let folder = folder("ssh");
        for key in ["host_key", "user_key"] {
            let made = std::process::Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-C", "outlast-test", "-f"])
                .arg(folder.join(key))
                .stdin(Stdio::null())
                .status();
            assert!(made.unwrap().success(), "ssh-keygen makes no key");
        }
        let host_key = std::fs::read_to_string(folder.join("host_key.pub")).unwrap();
        std::fs::write(folder.join("known_hosts"), format!("outlast-test {host_key}")).unwrap();
        let conf = format!(
            "Port {}\nListenAddress {}\nHostKey {at}/host_key\nAuthorizedKeysFile {at}/user_key.pub\nPidFile none\n\
             StrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
             PermitRootLogin prohibit-password\nAllowTcpForwarding local\nUseDNS no\n",
            Self::PORT,
            server.address(),
            at = folder.display()
        );
        std::fs::write(folder.join("sshd_config"), conf).unwrap();
        let mut command = server.command("sh");
        command
            .args(["-c", Self::OWN_RUN_FOLDER, "sh", "/usr/sbin/sshd", "-D", "-E"])
            .arg(folder.join("log"))
            .arg("-f")
            .arg(folder.join("sshd_config"));
        let daemon = server.spawn(quiet(&mut command)).unwrap();
        let listens = server.wait_for_listener(Some(Self::PORT), Duration::from_secs(10)).unwrap();
        assert!(listens, "sshd: {}", std::fs::read_to_string(folder.join("log")).unwrap_or_default());
        Self { folder, _daemon: daemon }
    }

    /// `ssh -L` on the client.
    fn tunnel(folder: &Path, client: &Host, server: &Host) -> outlast_lab::Result<Process> {
        let user = std::process::Command::new("id").arg("-un").output().unwrap().stdout;
        let mut command = client.command("ssh");
        command.args(["-N", "-T", "-F", "none"]);
        for option in [
            format!("IdentityFile={}/user_key", folder.display()),
            format!("UserKnownHostsFile={}/known_hosts", folder.display()),
            format!("User={}", String::from_utf8(user).unwrap().trim()),
            format!("Port={}", Self::PORT),
            "HostKeyAlias=outlast-test".into(),
            "GlobalKnownHostsFile=none".into(),
            "StrictHostKeyChecking=yes".into(),
            "IdentitiesOnly=yes".into(),
            "BatchMode=yes".into(),
            "ExitOnForwardFailure=yes".into(),
        ] {
            command.arg("-o").arg(option);
        }
        let forward = format!("{}:{}", client.socket_addr(RELAY_PORT), server.socket_addr(PORT));
        command.arg("-L").arg(forward).arg(server.address().to_string());
        client.spawn(quiet(&mut command))
    }
}

impl Drop for Ssh {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Here both ends of the tunnel terminate TCP, and its far end outlives the near one for a moment.
#[test]
fn auto_survives_an_ssh_tunnel() {
    outlast_lab::require!();
    let scene = Scene::new(Between::Router);
    let ssh = Ssh::start(&scene.server);
    let (folder, client, server) = (ssh.folder.clone(), scene.client.clone(), scene.server.clone());
    run("ssh -L", &scene, &scene.client, move || Ssh::tunnel(&folder, &client, &server));
}
