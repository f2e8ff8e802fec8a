//! The transfers: who moves the data, over which way, and what breaks meanwhile.

use crate::breaks::{self, Break, Who};
use crate::program::{Running, Service};
use crate::servers::{self, Ssh};
use crate::stage::{Stage, wait_for_port};
use anyhow::{Context, Result};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a transfer is made with.
pub struct Means<'a> {
    pub stage: &'a Stage,
    pub ssh: &'a Ssh,
    pub outlast: &'a Path,
    /// The file that is moved, and where new files go.
    pub archive: &'a Path,
    pub folder: &'a Path,
}

/// One transfer that has begun.
pub struct Transfer {
    pub name: &'static str,
    /// The program that moves the data; the transfer ends with it.
    pub mover: Running,
    /// Where the data arrives.
    pub received: PathBuf,
    /// Everything that can be stopped or killed.
    pub programs: Vec<(Who, Arc<Service>)>,
    pub breaks: Vec<Break>,
    /// Whose standard error tells about links.
    pub tells: Option<std::process::ChildStderr>,
    pub client_admin: PathBuf,
    pub server_admin: PathBuf,
}

/// The transfers there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    CurlDownload,
    ScpUpload,
    SshThroughRelays,
}

impl Plan {
    /// All of them.
    pub const ALL: [Plan; 3] = [Plan::CurlDownload, Plan::ScpUpload, Plan::SshThroughRelays];

    /// What will be done, as one would type it.
    pub fn headline(self, stage: &Stage) -> String {
        let (server, home) = (stage.server.name(), stage.home.name());
        let (any, listen) = (stage.any_address(), stage.ports.listen);
        match self {
            Plan::CurlDownload => {
                let (local, socat) = (stage.ports.local, stage.ports.socat);
                let (through, relay, via) = match stage.net {
                    Some(_) => ("", String::new(), format!("{server}:{listen}")),
                    None => (
                        " through socat",
                        format!("\n  home    socat TCP-LISTEN:{socat},fork TCP:{server}:{listen}"),
                        format!("{home}:{socat}"),
                    ),
                };
                format!(
                    "curl downloads from nginx{through}\n  server  outlast listen {any}:{listen} --to 127.0.0.1:{}{relay}\n  client  outlast connect 127.0.0.1:{local} --via {via}\n  client  curl http://127.0.0.1:{local}/archive.tar",
                    stage.ports.web
                )
            }
            Plan::ScpUpload => format!(
                "scp uploads to sshd\n  server  outlast listen {any}:{listen} --to 127.0.0.1:{}\n  client  scp -o ProxyCommand='outlast connect --stdio --via {server}:{listen}' archive.tar server:",
                stage.ports.ssh
            ),
            Plan::SshThroughRelays => {
                let (local, socat, nginx) = (stage.ports.local, stage.ports.socat, stage.ports.nginx);
                format!(
                    "ssh uploads through two relays that end TCP, socat and nginx\n  home    socat TCP-LISTEN:{socat},fork TCP:{home}:{nginx}; nginx: stream to {server}:{listen}\n  client  outlast connect 127.0.0.1:{local} --via {home}:{socat}\n  client  ssh -p {local} localhost 'cat > archive.tar' < archive.tar"
                )
            }
        }
    }

    /// Begins it.
    pub fn begin(self, means: &Means<'_>) -> Result<Transfer> {
        match self {
            Plan::CurlDownload => curl_download(means),
            Plan::ScpUpload => scp_upload(means),
            Plan::SshThroughRelays => ssh_through_relays(means),
        }
    }
}

/// For both ends: breaks are noticed after a second, so that a demo need not last hours.
const DETECT: [&str; 2] = ["--detect", "1s"];
const TELL: [&str; 4] = ["--log", "info", "--log-format", "json"];

impl Means<'_> {
    /// Starts `outlast listen` in front of a service.
    fn listen(&self, to: u16) -> Result<(PathBuf, Arc<Service>)> {
        let admin = self.folder.join("server.sock");
        let (host, outlast, socket) = (self.stage.server.clone(), self.outlast.to_owned(), admin.clone());
        let address = format!("{}:{}", self.stage.any_address(), self.stage.ports.listen);
        let service = Service::start(move || {
            host.start(&outlast, |command| {
                command.args(["listen", &address, "--to", &format!("127.0.0.1:{to}")]).args(DETECT);
                command.arg("--quiet").arg("--admin-socket").arg(&socket);
                command.stdin(Stdio::null()).stdout(Stdio::null());
            })
        })?;
        wait_for_port(&self.stage.server, self.stage.ports.listen)?;
        Ok((admin, Arc::new(service)))
    }

    /// Starts `outlast connect` at the local port.
    fn connect(&self, via: &str) -> Result<(PathBuf, Arc<Service>)> {
        let admin = self.folder.join("client.sock");
        let (host, outlast, socket) = (self.stage.client.clone(), self.outlast.to_owned(), admin.clone());
        let (local, via) = (format!("127.0.0.1:{}", self.stage.ports.local), via.to_owned());
        let service = Service::start(move || {
            host.start(&outlast, |command| {
                command.args(["connect", &local, "--via", &via]).args(DETECT).args(TELL);
                command.arg("--admin-socket").arg(&socket);
                command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
            })
        })?;
        wait_for_port(&self.stage.client, self.stage.ports.local)?;
        Ok((admin, Arc::new(service)))
    }

    /// Starts socat on the way to `target`.
    fn socat(&self, target: String) -> Result<Arc<Service>> {
        let (home, port) = (self.stage.home.clone(), self.stage.ports.socat);
        let service = Service::start(move || servers::socat(&home, port, &target))?;
        wait_for_port(&self.stage.home, port)?;
        Ok(Arc::new(service))
    }

    /// How clients reach socat.
    fn via_socat(&self) -> String {
        format!("{}:{}", self.stage.home.name(), self.stage.ports.socat)
    }

    fn via(&self) -> String {
        format!("{}:{}", self.stage.server.name(), self.stage.ports.listen)
    }

    /// Every second break: two transfers share them. Without a lab there are few, and both get all.
    fn breaks(&self, first: bool) -> Vec<Break> {
        let network = self.stage.net.is_some().then(|| breaks::of_the_network(self.stage.ports));
        let all: Vec<Break> = network.into_iter().flatten().chain(breaks::of_the_ends()).collect();
        if self.stage.net.is_none() {
            return all;
        }
        all.into_iter().enumerate().filter(|(at, _)| (at % 2 == 0) == first).map(|(_, one)| one).collect()
    }
}

fn curl_download(means: &Means<'_>) -> Result<Transfer> {
    let received = means.folder.join("downloaded.tar");
    let (server_admin, server) = means.listen(means.stage.ports.web)?;
    // Without a network to break there is a relay to kill.
    let socat = if means.stage.net.is_none() { Some(means.socat(means.via())?) } else { None };
    let via = if socat.is_some() { means.via_socat() } else { means.via() };
    let (client_admin, client) = means.connect(&via)?;
    let tells = client.running().take_stderr();
    let name = means.archive.file_name().context("the archive has no name")?.display();
    let url = format!("http://127.0.0.1:{}/{name}", means.stage.ports.local);
    let mover = means.stage.client.start("curl", |command| {
        command.args(["--silent", "--show-error", "--fail", "--output"]).arg(&received).arg(url);
        command.stdin(Stdio::null()).stdout(Stdio::null());
    })?;
    let mut programs = vec![(Who::Client, client), (Who::Server, server)];
    let mut breaks = means.breaks(true);
    if let Some(socat) = socat {
        programs.push((Who::Socat, socat));
        breaks.extend(breaks::of_socat());
    }
    Ok(Transfer { name: "curl down", mover, received, programs, breaks, tells, client_admin, server_admin })
}

fn scp_upload(means: &Means<'_>) -> Result<Transfer> {
    let received = means.folder.join("uploaded.tar");
    let (server_admin, server) = means.listen(means.stage.ports.ssh)?;
    let client_admin = means.folder.join("client.sock");
    let proxy = shell_words(
        [
            means.outlast.display().to_string(),
            "connect".into(),
            "--stdio".into(),
            "--via".into(),
            means.via(),
        ]
        .into_iter()
        .chain(DETECT.into_iter().chain(TELL).map(str::to_owned))
        .chain(["--admin-socket".to_owned(), client_admin.display().to_string()]),
    );
    let host = means.stage.client.clone();
    let (ssh, archive, to) = (means.ssh.clone(), means.archive.to_owned(), received.clone());
    let rate = means.stage.rate_without_wire();
    let set_up = move |command: &mut Command| {
        command.args(["-q", "-B"]).args(ssh.options()).args(["-o", &format!("ProxyCommand={proxy}")]);
        if let Some(rate) = rate {
            command.args(["-l", &(rate * 8 / 1024).to_string()]);
        }
        command.arg(archive).arg(format!("server:{}", to.display()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    };
    // The client is scp with all that it starts; it is stopped as a whole and never started again.
    let client = Arc::new(Service::once(host.start("scp", set_up)?));
    let mover = client.running();
    let tells = mover.take_stderr();
    let programs = vec![(Who::Client, client), (Who::Server, server)];
    let breaks = means.breaks(false);
    Ok(Transfer { name: "scp up", mover, received, programs, breaks, tells, client_admin, server_admin })
}

fn ssh_through_relays(means: &Means<'_>) -> Result<Transfer> {
    let stage = means.stage;
    let received = means.folder.join("piped.tar");
    let (server_admin, server) = means.listen(stage.ports.ssh)?;
    let nginx = {
        let (home, folder, port) = (stage.home.clone(), means.folder.to_owned(), stage.ports.nginx);
        let target = means.via();
        Service::start(move || servers::stream_relay(&home, &folder, port, &target))?
    };
    wait_for_port(&stage.home, stage.ports.nginx)?;
    let socat = means.socat(format!("127.0.0.1:{}", stage.ports.nginx))?;
    let (client_admin, client) = means.connect(&means.via_socat())?;
    let tells = client.running().take_stderr();
    let (archive, rate) = (std::fs::File::open(means.archive)?, means.stage.rate_without_wire());
    let mover = stage.client.start("ssh", |command| {
        command.args(means.ssh.options()).args(["-p", &stage.ports.local.to_string(), "localhost"]);
        command.arg(format!("cat > {}", shell_words([received.display().to_string()])));
        let stdin = if rate.is_some() {
            Stdio::piped()
        } else {
            archive.try_clone().map_or(Stdio::null(), Into::into)
        };
        command.stdin(stdin).stdout(Stdio::null());
    })?;
    if let (Some(rate), Some(stdin)) = (rate, mover.take_stdin()) {
        std::thread::spawn(move || feed(&archive, stdin, rate));
    }
    let programs = vec![
        (Who::Client, client),
        (Who::Server, server),
        (Who::Socat, socat),
        (Who::Nginx, Arc::new(nginx)),
    ];
    let breaks = breaks::of_relays();
    Ok(Transfer { name: "ssh up", mover, received, programs, breaks, tells, client_admin, server_admin })
}

/// ssh has no limit of its own. Ends with the program that is fed.
fn feed(archive: &std::fs::File, mut to: impl Write, rate: u64) {
    const STEPS_PER_SECOND: u64 = 50;
    let began = Instant::now();
    for step in 1.. {
        let mut part = Read::take(archive, rate / STEPS_PER_SECOND);
        if !matches!(std::io::copy(&mut part, &mut to), Ok(1..)) {
            return;
        }
        let due = Duration::from_millis(1000 / STEPS_PER_SECOND) * step;
        std::thread::sleep(due.saturating_sub(began.elapsed()));
    }
}

/// Words as a shell reads them, safe in ssh's options, too, where `%` is special.
fn shell_words(words: impl IntoIterator<Item = String>) -> String {
    let quote = |word: String| format!("'{}'", word.replace('\'', r"'\''").replace('%', "%%"));
    words.into_iter().map(quote).collect::<Vec<_>>().join(" ")
}
