//! From settings to plans: everything is checked and every file read before anything is started.

use crate::cli::SessionArgs;
use crate::cmd::connect::ConnectArgs;
use crate::cmd::listen::ListenArgs;
use crate::exit::Failure;
use crate::watcher::{TlsFiles, Watch};
use crate::{keys, self_loop};
use anyhow::Result;
use outlast_session::relay::access::{AccessList, DestinationPolicy};
use outlast_session::relay::dial::{Service, plain, unix_path};
use outlast_session::relay::{Credentials, Routes};
use outlast_session::{Config, Outages, Patience, PeerFilter, Scoped, Security};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What `outlast listen` will do.
#[derive(Debug)]
pub struct ListenPlan {
    pub address: SocketAddr,
    pub target: Target,
    pub config: Arc<Config>,
    /// What all sessions of the process may hold, if the user has said it.
    pub memory_bytes: Option<usize>,
}

/// What is behind a session.
#[derive(Clone, Debug)]
pub enum Target {
    Fixed(Service),
    Any(Arc<DestinationPolicy>),
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Fixed(service) => service.fmt(f),
            Target::Any(_) => f.write_str("any destination"),
        }
    }
}

/// What `outlast connect` will do.
#[derive(Debug)]
pub struct ConnectPlan {
    pub fronts: Vec<FrontPlan>,
    pub routes: Routes,
    pub config: Arc<Config>,
    pub credentials: Option<Credentials>,
    /// Whether the user said how long to try: then the first connection of --stdio is tried so long as well.
    pub patience_given: bool,
    pub sessions_max: usize,
    /// The files behind the TLS settings.
    pub tls_files: Option<TlsFiles>,
    /// Has sessions noted that are to be given up if this process is killed.
    pub watch: Option<Watch>,
    /// What all sessions of the process may hold, if the user has said it.
    pub memory_bytes: Option<usize>,
}

/// One way for local programs to come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrontPlan {
    Tcp(SocketAddr),
    Unix(PathBuf),
    Socks5(SocketAddr),
    HttpConnect(SocketAddr),
    Transparent(SocketAddr),
    Stdio,
}

impl FrontPlan {
    /// Where it listens, if that is a port.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            FrontPlan::Tcp(address)
            | FrontPlan::Socks5(address)
            | FrontPlan::HttpConnect(address)
            | FrontPlan::Transparent(address) => Some(*address),
            FrontPlan::Unix(_) | FrontPlan::Stdio => None,
        }
    }

    /// Whether the destination is named by the local program.
    fn is_dynamic(&self) -> bool {
        matches!(self, FrontPlan::Socks5(_) | FrontPlan::HttpConnect(_) | FrontPlan::Transparent(_))
    }
}

/// What protects sessions with these settings, as it is told at the start.
pub fn security(config: &Config) -> &'static str {
    match &config.security {
        Security::Open => "security open (no proof of who connects, no encryption)",
        Security::Psk(_) => "security psk (a shared key proves who connects, no encryption)",
        Security::Tls(_) => "security tls",
    }
}

/// Checks the settings of `outlast listen`.
pub fn listen(args: &ListenArgs) -> Result<ListenPlan> {
    let text = args.address.as_deref().ok_or_else(|| {
        Failure::usage("no address to listen on: give one, such as 0.0.0.0:7000 (in a file: address)")
    })?;
    let address = socket_address(text)?;
    let mut config = base_config(&args.session)?;
    if let Some(keep) = args.keep {
        config.keep = keep;
    }
    if let Some(sessions_max) = args.max_sessions_per_address {
        config.sessions_per_peer_max = sessions_max;
    }
    if let (Some(certificate), Some(key)) = (&args.tls_cert, &args.tls_key) {
        without_psk(&args.session, "--tls-cert")?;
        let client_authorities = args.tls_client_ca.as_deref();
        config.security =
            Security::Tls(keys::server_tls(&keys::ServerTls { certificate, key, client_authorities })?);
        config.client_certificates = Some(client_authorities.is_some());
    }
    config.check()?;
    if !args.allow_to.is_empty() && !args.to_any {
        return Err(Failure::usage(
            "--allow-to is for --to-any: sessions to one service cannot go elsewhere",
        ));
    }
    if !args.deny_to.is_empty() && !args.to_any {
        return Err(Failure::usage("--deny-to is for --to-any: sessions to one service cannot go elsewhere"));
    }
    let target = match (&args.to, args.to_any) {
        (Some(service), _) => {
            self_loop::refuse_service(address, service)?;
            Target::Fixed(service.clone())
        }
        (None, true) => {
            let guarded = matches!(config.security, Security::Psk(_))
                || args.tls_client_ca.is_some()
                || !args.allow_to.is_empty()
                || !args.allow.is_empty()
                || address.ip().is_loopback();
            if !guarded {
                return Err(Failure::usage(format!(
                    "--to-any on {address} would let anybody use this machine as a proxy: add --psk-file, \
                     --tls-client-ca, --allow or --allow-to (--allow-to any for everything)"
                )));
            }
            let policy = DestinationPolicy { rules: args.allow_to.clone(), deny: args.deny_to.clone() };
            Target::Any(Arc::new(policy))
        }
        (None, false) => {
            return Err(Failure::usage("no service to connect sessions to: give --to host:port or --to-any"));
        }
    };
    let access = AccessList { allow: args.allow.clone(), deny: args.deny.clone() };
    config.peer_filter = Some(PeerFilter::new(move |address| access.allows(address)));
    Ok(ListenPlan { address, target, config: Arc::new(config), memory_bytes: memory(&args.session)? })
}

/// Checks the settings of `outlast connect`.
pub fn connect(args: &ConnectArgs) -> Result<ConnectPlan> {
    let fronts = fronts(args)?;
    let routes = Routes::new(args.via.clone());
    if args.via.is_empty() {
        return Err(Failure::usage("no server: give --via host:port, the address of `outlast listen`"));
    }
    if routes.defaults() > 1 {
        return Err(Failure::usage(
            "more than one --via without a pattern: give alternatives as --via server:7000,server2:7000",
        ));
    }
    if routes.default().is_none() && fronts.iter().any(|front| !front.is_dynamic()) {
        return Err(Failure::usage(
            "every --via has a pattern, but only --socks5, --http-connect and --transparent know destinations: \
             add a --via without a pattern",
        ));
    }
    if routes.defaults() < args.via.len() && !fronts.iter().any(FrontPlan::is_dynamic) {
        return Err(Failure::usage(
            "a --via with a pattern needs --socks5, --http-connect or --transparent: nothing else knows destinations",
        ));
    }
    self_loop::refuse(&fronts, &routes)?;
    let mut config = base_config(&args.session)?;
    if let Some(patience) = args.patience {
        config.patience = patience;
        if let (Patience::For(limit), None) = (patience, args.session.detect) {
            // Or a silent link would be held on to for longer than anybody waits for another.
            config.detect_timeout = config.detect_timeout.min(limit.max(DETECT_TIMEOUT_MIN));
        }
    }
    // As with a server that is not there: standard streams have one try unless they are given time.
    config.retry_busy = args.patience.is_some() || !fronts.contains(&FrontPlan::Stdio);
    config.local_address = args.bind_from.map(own_address).transpose()?;
    let mut tls_files = None;
    if args.tls {
        without_psk(&args.session, "--tls")?;
        let certificate = args.tls_cert.as_deref().zip(args.tls_key.as_deref());
        let files = keys::ClientTls {
            authorities: args.tls_ca.as_deref(),
            name: args.tls_name.as_deref(),
            certificate,
        };
        config.security = Security::Tls(keys::client_tls(&files)?);
        tls_files = Some(TlsFiles::of(&files));
    }
    config.outages = Some(Outages::default());
    config.check()?;
    let credentials = args.proxy_auth_file.as_deref().map(keys::credentials).transpose()?;
    if credentials.is_some()
        && !fronts.iter().any(|front| matches!(front, FrontPlan::Socks5(_) | FrontPlan::HttpConnect(_)))
    {
        return Err(Failure::usage("--proxy-auth-file is for --socks5 and --http-connect"));
    }
    Ok(ConnectPlan {
        fronts,
        routes,
        credentials,
        patience_given: args.patience.is_some(),
        sessions_max: config.sessions_max,
        tls_files,
        watch: None,
        memory_bytes: memory(&args.session)?,
        config: Arc::new(config),
    })
}

fn fronts(args: &ConnectArgs) -> Result<Vec<FrontPlan>> {
    let mut fronts = Vec::new();
    if args.stdio {
        fronts.push(FrontPlan::Stdio);
    }
    match args.address.as_deref().map(|text| (text, text.strip_prefix("unix:"))) {
        Some((_, Some(path))) => fronts.push(FrontPlan::Unix(unix_path(path).map_err(Failure::usage)?)),
        Some((text, None)) => fronts.push(FrontPlan::Tcp(socket_address(text)?)),
        None => {}
    }
    let dynamic = [
        (&args.socks5, FrontPlan::Socks5 as fn(SocketAddr) -> FrontPlan),
        (&args.http_connect, FrontPlan::HttpConnect),
        (&args.transparent, FrontPlan::Transparent),
    ];
    for (text, front) in dynamic {
        if let Some(text) = text {
            fronts.push(front(socket_address(text)?));
        }
    }
    if fronts.is_empty() {
        return Err(Failure::usage(
            "nothing to carry: give a local address such as 127.0.0.1:2222, or --stdio, --socks5, --http-connect \
             or --transparent",
        ));
    }
    Ok(fronts)
}

/// Binding to it finds out whether this host has it.
fn own_address(ip: IpAddr) -> Result<SocketAddr> {
    let address = SocketAddr::new(ip, 0);
    UdpSocket::bind(address).map(|_| address).map_err(|error| {
        Failure::system(format!("cannot connect from {ip} (--bind-from): {}", plain(&error)))
    })
}

/// Less would not even do for a handful of sessions.
const MEMORY_BYTES_MIN: usize = 16 << 20;

fn memory(args: &SessionArgs) -> Result<Option<usize>> {
    match args.memory {
        Some(bytes) if bytes < MEMORY_BYTES_MIN => Err(Failure::usage(format!(
            "--memory is {bytes} bytes: sessions need at least {MEMORY_BYTES_MIN} (16M)"
        ))),
        other => Ok(other),
    }
}

/// As short as impatient clients make `--detect`.
const DETECT_TIMEOUT_MIN: Duration = Duration::from_secs(1);

fn base_config(args: &SessionArgs) -> Result<Config> {
    // What a program sends as urgent is urgent at the other end.
    let mut config = Config { urgent: true, ..Config::default() };
    if let Some(ack) = args.ack {
        config.ack = ack;
    }
    if let Some(detect) = args.detect {
        config.detect_timeout = detect;
    }
    config.retain_follows_path = args.retain.is_none();
    if let Some(retain) = args.retain {
        config.retain_bytes_max = retain;
    }
    if let Some(sessions_max) = args.max_sessions {
        config.sessions_max = sessions_max;
    }
    if let Some(path) = &args.psk_file {
        config.security = Security::Psk(keys::psk(path)?);
    }
    Ok(config)
}

fn without_psk(args: &SessionArgs, flag: &str) -> Result<()> {
    match args.psk_file {
        Some(_) => Err(Failure::usage(format!(
            "--psk-file and {flag} cannot be combined: with TLS, certificates prove who the peers are"
        ))),
        None => Ok(()),
    }
}

/// A local address. A name is resolved once, now.
pub fn socket_address(text: &str) -> Result<SocketAddr> {
    let unusable = |why: &str| Failure::usage(format!("unusable address {text:?}: {why}; give host:port"));
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if let Some(scoped) = Scoped::parse(text) {
        return scoped.resolve().map_err(|error| unusable(&error.to_string()));
    }
    let (host, port) = text.rsplit_once(':').ok_or_else(|| unusable("no port"))?;
    if host.contains('%') {
        return Err(unusable("an address with an interface is written [fe80::1%eth0]:port"));
    }
    if host.is_empty() {
        return Err(unusable("no host (0.0.0.0 or [::] for all addresses)"));
    }
    let port: u16 = port.parse().map_err(|_| unusable("the port is not a number from 0 to 65535"))?;
    if host.contains(':') {
        return Err(unusable("an IPv6 address goes in brackets"));
    }
    let found = (host, port).to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
    found.ok_or_else(|| unusable("the host cannot be resolved"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn plan(flags: &str) -> Result<String> {
        let cli = Cli::try_parse_from(["outlast"].into_iter().chain(flags.split(' ')))?;
        match cli.command {
            Some(Command::Listen(args)) => listen(&args).map(|plan| format!("{plan:?}")),
            Some(Command::Connect(args)) => connect(&args).map(|plan| format!("{plan:?}")),
            _ => unreachable!(),
        }
    }

    #[test]
    fn what_can_work_is_planned() {
        for flags in [
            "listen 127.0.0.1:0 --to 127.0.0.1:22",
            "listen localhost:7000 --to unix:/x",
            "listen 127.0.0.1:7000 --to-any",
            "listen 0.0.0.0:7000 --to-any --allow-to any",
            "connect 127.0.0.1:2222 --via server:7000,[::1]:7000",
            "connect unix:/tmp/x --via server:7000",
            "connect 127.0.0.1:0 --via [fe80::1%eth0]:7000",
            "listen [fe80::1%lo]:7000 --to [fe80::2%lo]:22",
            "connect --stdio --via server:7000 --bind-from 127.0.0.1",
            "connect --socks5 127.0.0.1:1080 --http-connect 127.0.0.1:3128 --via *.x=server:7000",
        ] {
            plan(flags).unwrap_or_else(|error| panic!("{flags}: {error}"));
        }
    }

    #[test]
    fn what_cannot_work_says_why_on_one_line() {
        for (flags, part) in [
            ("listen --to a:1", "no address to listen on"),
            ("listen 7000 --to a:1", "no port"),
            ("listen :7000 --to a:1", "no host"),
            ("listen ::1:7000 --to a:1", "brackets"),
            ("listen 127.0.0.1:0", "--to host:port or --to-any"),
            ("listen 0.0.0.0:7000 --to-any", "as a proxy"),
            ("listen 127.0.0.1:0 --to a:1 --retain 1K", "retain"),
            ("listen 127.0.0.1:0 --to a:1 --memory 1M", "at least 16777216"),
            ("listen 127.0.0.1:0 --to a:1 --psk-file /nowhere", "/nowhere: no such file"),
            ("listen fe80::1%lo:7000 --to a:1", "[fe80::1%eth0]:port"),
            ("listen [fe80::1%nothing0]:7000 --to a:1", "no interface called \"nothing0\""),
            ("listen 127.0.0.1:7000 --to 127.0.0.1:7000", "which itself listens on 127.0.0.1:7000"),
            ("listen [::]:7000 --to localhost:7000", "leads back to this process"),
            ("connect 127.0.0.1:1 --via 127.0.0.1:1", "leads back to this process"),
            ("connect 127.0.0.1:1 --via b:1,localhost:1", "leads back to this process"),
            ("connect --socks5 [::]:1 --via *.x=127.0.0.1:1", "which itself listens on [::]:1"),
            ("connect --via a:1", "nothing to carry"),
            ("connect 127.0.0.1:1", "no server"),
            ("connect 127.0.0.1:1 --via a:1 --via b:1", "more than one --via"),
            ("connect 127.0.0.1:1 --via x=b:1", "without a pattern"),
            ("connect 127.0.0.1:1 --via a:1 --via x=b:1", "nothing else knows destinations"),
            ("connect 127.0.0.1:1 --via a:1 --proxy-auth-file /x", "/x"),
            ("connect 127.0.0.1:1 --via a:1 --tls --ack kernel", "cannot work with tls"),
            ("connect 127.0.0.1:1 --via a:1 --tls --tls-name a/b", "neither a name nor an address"),
        ] {
            let said = plan(flags).unwrap_err().to_string();
            assert!(said.contains(part) && !said.contains('\n'), "{flags}: {said}");
        }
    }
}
