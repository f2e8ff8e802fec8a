//! The transfers: who moves the data, over which way, and what breaks meanwhile.

use crate::breaks::{self, Break, Who};
use crate::program::{Running, Service};
use crate::screen::{command_line, quoted};
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
    pub fn headline(self, means: &Means<'_>) -> String {
        let stage = means.stage;
        let (title, mut lines) = match self {
            Plan::CurlDownload => {
                let through = if stage.net.is_none() { " through socat" } else { "" };
                (format!("curl downloads from nginx{through}"), vec![means.listen_shown(stage.ports.web)])
            }
            Plan::ScpUpload => ("scp uploads to sshd".to_owned(), vec![means.listen_shown(stage.ports.ssh)]),
            Plan::SshThroughRelays => (
                "ssh uploads through two relays that end TCP, socat and nginx".to_owned(),
                vec![means.listen_shown(stage.ports.ssh)],
            ),
        };
        match self {
            Plan::CurlDownload => {
                if stage.net.is_none() {
                    lines.push(means.socat_shown(&means.via()));
                }
                let via = if stage.net.is_none() { means.via_socat() } else { means.via() };
                lines.push(means.shown("client", "outlast", &means.connect_words(&via)));
                let words =
                    means.curl_words(&means.local(), &means.folder.join(DOWNLOADED)).unwrap_or_default();
                lines.push(means.shown("client", "curl", &words));
            }
            Plan::ScpUpload => lines.push(means.shown("client", "scp", &means.scp_words())),
            Plan::SshThroughRelays => {
                let nginx = stage.ports.nginx;
                lines.push(format!("  home    nginx: stream from 127.0.0.1:{nginx} to {}", means.via()));
                lines.push(means.socat_shown(&format!("127.0.0.1:{nginx}")));
                lines.push(means.shown("client", "outlast", &means.connect_words(&means.via_socat())));
                let ssh = means.shown("client", "ssh", &means.ssh_words());
                lines
                    .push(format!("{ssh} < {}", means.without_folders(&means.archive.display().to_string())));
            }
        }
        format!("{title}\n{}", lines.join("\n"))
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

/// What arrives, in the folder of this run.
const DOWNLOADED: &str = "downloaded.tar";
const UPLOADED: &str = "uploaded.tar";
const PIPED: &str = "piped.tar";

impl Means<'_> {
    /// A command with the flags that it really has. Its folder is named once, above all of them.
    pub fn shown(&self, host: &str, program: &str, words: &[String]) -> String {
        let all = std::iter::once(program).chain(words.iter().map(String::as_str));
        command_line(host, &all.map(|word| self.without_folders(word)).collect::<Vec<_>>())
    }

    fn without_folders(&self, text: &str) -> String {
        let outside = self.folder.parent().unwrap_or(self.folder);
        text.replace(&format!("{}/", self.folder.display()), "")
            .replace(&format!("{}/", outside.display()), "../")
            .replace(&self.outlast.display().to_string(), "outlast")
    }

    fn listen_shown(&self, to: u16) -> String {
        self.shown("server", "outlast", &self.listen_words(to))
    }

    fn socat_shown(&self, target: &str) -> String {
        self.shown("home", "socat", &servers::socat_words(&self.stage.home, self.stage.ports.socat, target))
    }

    fn admin(&self, end: &str) -> PathBuf {
        self.folder.join(format!("{end}.sock"))
    }

    /// Where local programs connect to.
    fn local(&self) -> String {
        format!("127.0.0.1:{}", self.stage.ports.local)
    }

    fn listen_words(&self, to: u16) -> Vec<String> {
        let address = format!("{}:{}", self.stage.any_address(), self.stage.ports.listen);
        let mut words = vec!["listen".to_owned(), address, "--to".to_owned(), format!("127.0.0.1:{to}")];
        words.extend(DETECT.map(str::to_owned));
        words.extend(["--quiet".to_owned(), "--admin-socket".to_owned()]);
        words.push(self.admin("server").display().to_string());
        words
    }

    /// `from`: the local port, or `--stdio`.
    fn connect_words_from(&self, from: &str, via: &str) -> Vec<String> {
        let mut words: Vec<String> = ["connect", from, "--via", via].map(str::to_owned).into();
        words.extend(DETECT.into_iter().chain(TELL).map(str::to_owned));
        words.extend(["--admin-socket".to_owned(), self.admin("client").display().to_string()]);
        words
    }

    fn connect_words(&self, via: &str) -> Vec<String> {
        self.connect_words_from(&self.local(), via)
    }

    /// Downloads the archive from `server`.
    pub fn curl_words(&self, server: &str, received: &Path) -> Result<Vec<String>> {
        let name = self.archive.file_name().context("the archive has no name")?.display();
        let flags = ["--silent", "--show-error", "--fail", "--output"].map(str::to_owned);
        let mut words = Vec::from(flags);
        words.extend([received.display().to_string(), format!("http://{server}/{name}")]);
        Ok(words)
    }

    fn scp_words(&self) -> Vec<String> {
        let proxy = std::iter::once(self.outlast.display().to_string())
            .chain(self.connect_words_from("--stdio", &self.via()));
        let mut words = vec!["-q".to_owned(), "-B".to_owned()];
        words.extend(self.ssh.options());
        words.extend(["-o".to_owned(), format!("ProxyCommand={}", shell_words(proxy))]);
        if let Some(rate) = self.stage.rate_without_wire() {
            words.extend(["-l".to_owned(), (rate * 8 / 1024).to_string()]);
        }
        words.push(self.archive.display().to_string());
        words.push(format!("server:{}", self.folder.join(UPLOADED).display()));
        words
    }

    fn ssh_words(&self) -> Vec<String> {
        let received = shell_words([self.folder.join(PIPED).display().to_string()]);
        let mut words = Vec::from(self.ssh.options());
        words.extend(["-p".to_owned(), self.stage.ports.local.to_string(), "localhost".to_owned()]);
        words.push(format!("cat > {received}"));
        words
    }

    /// Starts `outlast listen` in front of a service.
    fn listen(&self, to: u16) -> Result<(PathBuf, Arc<Service>)> {
        let (host, outlast, words) =
            (self.stage.server.clone(), self.outlast.to_owned(), self.listen_words(to));
        let service = Service::start(move || {
            host.start(&outlast, |command| {
                command.args(&words).stdin(Stdio::null()).stdout(Stdio::null());
            })
        })?;
        wait_for_port(&self.stage.server, self.stage.ports.listen)?;
        Ok((self.admin("server"), Arc::new(service)))
    }

    /// Starts `outlast connect` at the local port.
    fn connect(&self, via: &str) -> Result<(PathBuf, Arc<Service>)> {
        let (host, outlast, words) =
            (self.stage.client.clone(), self.outlast.to_owned(), self.connect_words(via));
        let service = Service::start(move || {
            host.start(&outlast, |command| {
                command.args(&words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
            })
        })?;
        wait_for_port(&self.stage.client, self.stage.ports.local)?;
        Ok((self.admin("client"), Arc::new(service)))
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
    let received = means.folder.join(DOWNLOADED);
    let (server_admin, server) = means.listen(means.stage.ports.web)?;
    // Without a network to break there is a relay to kill.
    let socat = if means.stage.net.is_none() { Some(means.socat(means.via())?) } else { None };
    let via = if socat.is_some() { means.via_socat() } else { means.via() };
    let (client_admin, client) = means.connect(&via)?;
    let tells = client.running().take_stderr();
    let words = means.curl_words(&means.local(), &received)?;
    let mover = means.stage.client.start("curl", |command| {
        command.args(words).stdin(Stdio::null()).stdout(Stdio::null());
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
    let received = means.folder.join(UPLOADED);
    let (server_admin, server) = means.listen(means.stage.ports.ssh)?;
    let client_admin = means.admin("client");
    let words = means.scp_words();
    let set_up = move |command: &mut Command| {
        command.args(&words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    };
    // The client is scp with all that it starts; it is stopped as a whole and never started again.
    let client = Arc::new(Service::once(means.stage.client.start("scp", set_up)?));
    let mover = client.running();
    let tells = mover.take_stderr();
    let programs = vec![(Who::Client, client), (Who::Server, server)];
    let breaks = means.breaks(false);
    Ok(Transfer { name: "scp up", mover, received, programs, breaks, tells, client_admin, server_admin })
}

fn ssh_through_relays(means: &Means<'_>) -> Result<Transfer> {
    let stage = means.stage;
    let received = means.folder.join(PIPED);
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
        command.args(means.ssh_words());
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
    words.into_iter().map(|word| quoted(&word).replace('%', "%%")).collect::<Vec<_>>().join(" ")
}
