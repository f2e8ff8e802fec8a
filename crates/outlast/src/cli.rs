//! The command line. Settings have no defaults here: those of the libraries hold, and a configuration file
//! can tell what was given from what was not.

mod applies;
mod run;

pub use applies::{command, for_completions, refuse_what_does_not};
use clap::{Args, Parser, Subcommand, ValueEnum};
use outlast_session::relay::Route;
use outlast_session::relay::access::{Cidr, DestinationRule};
use outlast_session::relay::dial::Service;
use outlast_session::{AckMode, Scoped};
pub use run::{KeepConnections, KeepLogArgs, Preload, RunArgs, UpgradeArgs, When};
use std::net::{AddrParseError, IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use tracing_subscriber::filter::LevelFilter;

/// Keep TCP connections alive when the network drops or the server process crashes: clients see a short pause, not a disconnect.
#[derive(Debug, Parser)]
#[command(name = "outlast", version, after_help = crate::exit::HELP, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    pub process: ProcessArgs,
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What the program can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Accept sessions and connect each to a service
    Listen(Box<ListenArgs>),
    /// Carry local connections, or standard input and output, over sessions
    Connect(Box<ConnectArgs>),
    /// List the sessions of all instances on this machine, their outages and unacknowledged bytes, and sessions that wait for the next listener
    Status(StatusArgs),
    /// End a session at once
    Kill(KillArgs),
    /// Check a configuration file
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Run programs in a private network whose links break on schedule
    Lab(Box<outlast_lab::cli::LabArgs>),
    /// Write the manual pages into a folder
    Man(ManArgs),
    /// Supervise a program: restart it when it crashes, and keep its connections where possible
    Run(Box<RunArgs>),
    /// Replace a supervised program's binary without dropping connections
    Upgrade(UpgradeArgs),
    /// Hold the file descriptors of services, in any language, and give them back after a crash
    Hold(HoldArgs),
    /// Print the completions for a shell
    Completions(CompletionsArgs),
    /// Hold the sessions of a stopped listener for the next one; started by `listen`
    #[command(hide = true)]
    KeepDetached(KeepArgs),
    /// Give up the sessions of a process that dies; started by `connect`
    #[command(hide = true)]
    WatchRelay(WatchArgs),
    /// Run the `[[listen]]` and `[[connect]]` sections of a file that has others, too; started by `--config`
    #[command(hide = true)]
    Relays,
    /// Write standard input into a file that is rotated; started by `run`
    #[command(hide = true)]
    KeepLog(KeepLogArgs),
}

/// Settings of the process. At the top of a configuration file.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Options of the process")]
pub struct ProcessArgs {
    /// Configuration file (TOML): alone, everything in it is run; with listen, connect or run, flags override it
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// What to log: error, warn, info, debug, trace, or a filter such as outlast_session=debug [default: warn]
    #[arg(long, global = true, value_name = "FILTER", env = "OUTLAST_LOG", hide_env_values = true, value_parser = log_filter)]
    pub log: Option<String>,
    /// How to log [default: text]
    #[arg(long, global = true, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Say nothing but errors
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Socket for status and kill; `none` for none [default: one per process in $XDG_RUNTIME_DIR/outlast; of a system service, in its RuntimeDirectory; else in /run/outlast (root) or /tmp/outlast-UID]
    #[arg(long, global = true, value_name = "PATH")]
    pub admin_socket: Option<PathBuf>,
    /// Serve Prometheus metrics at this address, under /metrics
    #[arg(long, global = true, value_name = "ADDRESS", value_parser = own_address)]
    pub metrics: Option<SocketAddr>,
    /// After SIGTERM (at `listen`, Ctrl-C too; not with --stdio, which ends when what it has taken is delivered, within 7s), wait this long for sessions to end by themselves; a second signal ends the wait [default: 0s at `listen`, which hands its sessions to the next one; 30s where no other process can take them over]
    #[arg(long, global = true, value_name = "TIME", value_parser = duration, allow_hyphen_values = true)]
    pub drain_timeout: Option<Duration>,
    /// How long the sessions of `listen` then wait for the next one at the same address; 0s: they are ended [default: 5m]
    #[arg(long, global = true, value_name = "TIME", value_parser = duration, allow_hyphen_values = true)]
    pub hand_over_timeout: Option<Duration>,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Settings of a session that both ends have.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Options of sessions")]
pub struct SessionArgs {
    /// How delivery is acknowledged: auto, kernel, window, udp or inband; without a key or TLS, inband is the one to take where relays on the path are not trusted [default: auto]
    #[arg(long, value_name = "MODE")]
    pub ack: Option<AckMode>,
    /// File with a key that both sides hold. It proves who opens and resumes; the content is neither encrypted nor protected from changes (--tls does both)
    #[arg(long, value_name = "FILE")]
    pub psk_file: Option<PathBuf>,
    /// Declare a link lost after this much silence [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = duration, allow_hyphen_values = true)]
    pub detect: Option<Duration>,
    /// Most bytes kept per direction until they are acknowledged [default: 4160K, or what the path takes (net.ipv4.tcp_wmem)]
    #[arg(long, value_name = "BYTES", value_parser = byte_count)]
    pub retain: Option<usize>,
    /// Most bytes that all sessions of this process hold in memory, and those without a link in the kernel [default: a quarter of
    /// the memory, 1G at most]
    #[arg(long, value_name = "BYTES", value_parser = byte_count)]
    pub memory: Option<usize>,
    /// Most sessions at a time; more are refused, or wait [default: 65536]
    #[arg(long, value_name = "NUMBER", value_parser = positive)]
    pub max_sessions: Option<usize>,
}

/// `outlast listen`, or a `[[listen]]` section.
#[derive(Debug, Default, Args)]
#[command(after_help = LISTEN_EXAMPLES)]
pub struct ListenArgs {
    /// Where to listen for sessions, as host:port
    #[arg(value_name = "ADDRESS")]
    pub address: Option<String>,
    /// Service behind every session: host:port or unix:/path
    #[arg(long, value_name = "SERVICE", conflicts_with = "to_any")]
    pub to: Option<Service>,
    /// Connect to where the client says (its --socks5, --http-connect or --transparent)
    #[arg(long)]
    pub to_any: bool,
    /// With --to-any, only there: NETWORK[:PORT[-PORT]]; may be repeated. `any` stands for all networks but loopback, link-local and cloud metadata addresses, which have to be named
    #[arg(long, value_name = "RULE", requires = "to_any")]
    pub allow_to: Vec<DestinationRule>,
    /// With --to-any, never there, whatever --allow-to says; may be repeated
    #[arg(long, value_name = "RULE", requires = "to_any")]
    pub deny_to: Vec<DestinationRule>,
    /// Only clients from this network; may be repeated
    #[arg(long, value_name = "NETWORK")]
    pub allow: Vec<Cidr>,
    /// No clients from this network, their connections are reset; may be repeated
    #[arg(long, value_name = "NETWORK")]
    pub deny: Vec<Cidr>,
    /// How long a session without a link is kept: the longest outage that it survives, and the longest time for which a client machine that vanished leaves locks in a database [default: 24h]
    #[arg(long, value_name = "TIME", value_parser = duration, allow_hyphen_values = true)]
    pub keep: Option<Duration>,
    /// Most sessions of one client address (IPv6: of one network of 64 bits); raise it where many come through one gateway [default: 1000]
    #[arg(long, value_name = "NUMBER", value_parser = positive)]
    pub max_sessions_per_address: Option<usize>,
    #[command(flatten)]
    pub session: SessionArgs,
    /// Certificates (PEM) to present; sessions then need TLS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key (PEM) of the certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Only clients with a certificate by one of these authorities (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
}

const LISTEN_EXAMPLES: &str = "\
Examples:
  outlast listen 0.0.0.0:7000 --to 127.0.0.1:22
  outlast listen '[::]:7000' --to unix:/run/postgresql/.s.PGSQL.5432 --keep 10m --psk-file key --allow 10.0.0.0/8
  outlast listen 0.0.0.0:7000 --to-any --allow-to 10.0.0.0/8:443 --psk-file key

If outlast is killed, the service sees a reset, never a clean end of the stream. UNIX sockets have no reset: a service
behind one that has not answered yet, or answered with more than 4 KiB at once, sees an early end of the stream.";

/// `outlast connect`, or a `[[connect]]` section.
#[derive(Debug, Default, Args)]
#[command(after_help = CONNECT_EXAMPLES)]
pub struct ConnectArgs {
    /// Where local programs connect to: host:port or unix:/path
    #[arg(value_name = "ADDRESS", conflicts_with = "stdio")]
    pub address: Option<String>,
    /// Server[,SERVER...] as host:port; PATTERN=SERVER for some destinations only; may be repeated
    #[arg(long, value_name = "SERVER")]
    pub via: Vec<Route>,
    /// Carry standard input and output instead of local connections
    #[arg(long, conflicts_with_all = ["socks5", "http_connect", "transparent"])]
    pub stdio: bool,
    /// Be a SOCKS5 proxy at this address; the server needs --to-any
    #[arg(long, value_name = "ADDRESS")]
    pub socks5: Option<String>,
    /// Be an HTTP CONNECT proxy at this address; the server needs --to-any
    #[arg(long, value_name = "ADDRESS")]
    pub http_connect: Option<String>,
    /// Take connections diverted by TPROXY or REDIRECT rules; the server needs --to-any
    #[arg(long, value_name = "ADDRESS")]
    pub transparent: Option<String>,
    /// File with user:password that programs have to give to the SOCKS5 or HTTP proxy
    #[arg(long, value_name = "FILE")]
    pub proxy_auth_file: Option<PathBuf>,
    /// How long a pause may last before the session ends: forever, or a time such as 30s. It counts from the last byte that passed, but a loss that is noticed late is tried to be mended for a second; --detect is no longer than this unless given [default: forever; but --stdio ends where its first connection cannot be made, and tries for 10s where the server breaks it off]
    #[arg(long, value_name = "TIME", value_parser = patience, allow_hyphen_values = true)]
    pub patience: Option<outlast_session::Patience>,
    /// Local address to connect from
    #[arg(long, value_name = "IP")]
    pub bind_from: Option<IpAddr>,
    #[command(flatten)]
    pub session: SessionArgs,
    /// Encrypt, and expect the server's certificate
    #[arg(long)]
    pub tls: bool,
    /// Authorities (PEM) to trust instead of those of the system
    #[arg(long, value_name = "FILE", requires = "tls")]
    pub tls_ca: Option<PathBuf>,
    /// Name to expect in the server's certificate, if not that of --via
    #[arg(long, value_name = "NAME", requires = "tls")]
    pub tls_name: Option<String>,
    /// Certificates (PEM) to present
    #[arg(long, value_name = "FILE", requires_all = ["tls", "tls_key"])]
    pub tls_cert: Option<PathBuf>,
    /// Private key (PEM) of the certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
}

const CONNECT_EXAMPLES: &str = "\
Examples:
  outlast connect 127.0.0.1:2222 --via server:7000     then: ssh -p 2222 localhost
  ssh -o ProxyCommand='outlast connect --stdio --via server:7000' server
  outlast connect --socks5 127.0.0.1:1080 --via server:7000 --via '*.example.org:443=gateway:7000'
  outlast connect unix:/tmp/db.sock --via a.example:7000,b.example:7000 --psk-file key

The first connection of --stdio is not retried unless --patience is given; local listeners keep trying.

If outlast is killed, local programs see a reset, never a clean end of the stream. UNIX sockets have no reset: a program
at one that has not sent anything yet, or sent more than 4 KiB at once, sees an early end of the stream.";

/// `outlast hold`.
#[derive(Debug, Args)]
#[command(after_help = HOLD_EXAMPLES)]
pub struct HoldArgs {
    /// UNIX socket to create, where services connect
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Close the descriptors of a service that has not come back for this long
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration, allow_hyphen_values = true)]
    pub keep: Duration,
    /// Most descriptors, of all services together [default: 65536, or as many as this process may open]
    #[arg(long, value_name = "NUMBER", value_parser = positive)]
    pub descriptors: Option<usize>,
    /// Most bytes of names and state, of all services together
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = byte_count)]
    pub memory: usize,
    /// Most services that are connected at a time
    #[arg(long, value_name = "NUMBER", default_value_t = 256, value_parser = positive)]
    pub clients: usize,
    /// Also accept services of this user, besides root and the user of this process; may be repeated
    #[arg(long, value_name = "UID")]
    pub allow_uid: Vec<u32>,
}

const HOLD_EXAMPLES: &str = "\
Examples:
  outlast hold /run/user/1000/holder --keep 1m
  OUTLAST_HOLDER=/run/user/1000/holder outlast run -- python3 server.py

A service stores each connection here under a name, with up to 4 KiB of state (a client in Python is
one page: bindings/python/outlast_hold.py). When the service crashes, its connections stay open here,
and its next process gets all of them back.

  - A service releases each connection that is over. This process holds a duplicate descriptor, so
    the client sees no end of file until both copies are closed; shutdown() ends the connection at once.
  - Connections that were reset, or ended by both sides, are dropped. A connection that only the
    client has ended is kept: the client may be waiting for its answer.
  - A second process of the same service takes everything over, and the first one is notified.
  - When this process dies, services carry on and hand everything to the next one at this path.
    Connections are closed only when both are gone.";

/// `outlast status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Show only this instance: the name of the program it runs, or the PID of the instance or of that program [default: all]
    #[arg(value_name = "NAME|PID")]
    pub which: Option<String>,
    /// Print JSON: a list of instances, and of keeper processes that hold the sessions of a stopped listener
    #[arg(long)]
    pub json: bool,
    /// Refresh every second until interrupted
    #[arg(long)]
    pub watch: bool,
}

/// `outlast kill`.
#[derive(Debug, Args)]
pub struct KillArgs {
    /// Session name, or a unique prefix of it
    #[arg(value_name = "SESSION")]
    pub session: String,
}

/// `outlast keep-detached`.
#[derive(Debug, Args)]
pub struct KeepArgs {
    /// Where the sessions were served, and will be
    pub address: SocketAddr,
    /// How long
    #[arg(long, value_parser = duration, allow_hyphen_values = true)]
    pub time: Duration,
}

/// `outlast watch-relay`.
#[derive(Debug, Args)]
pub struct WatchArgs {
    /// The process
    pub relay: u32,
}

/// `outlast config`.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check a configuration file and everything it names, without starting anything
    Check {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// `outlast man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// The folder
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
}

/// `outlast completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

/// Checks what the parser of filters takes for something else than was meant: a level that is misspelt or missing.
fn log_filter(text: &str) -> Result<String, String> {
    let level = |text: &str| !text.is_empty() && text.parse::<LevelFilter>().is_ok();
    let target =
        |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "_:-".contains(c));
    for directive in text.split(',').map(str::trim).filter(|directive| !directive.is_empty()) {
        let known = match directive.split_once('=') {
            Some((of, at)) => target(of) && level(at),
            None => level(directive),
        };
        if !known {
            return Err(format!(
                "{directive:?} is neither a level (off, error, warn, info, debug, trace) nor one for a part, such as \
                 outlast_session=debug"
            ));
        }
    }
    Ok(text.to_owned())
}

/// An address without a name to resolve.
fn own_address(text: &str) -> Result<SocketAddr, String> {
    match Scoped::parse(text) {
        Some(scoped) => scoped.resolve().map_err(|error| error.to_string()),
        // Names would have to be looked up: an address is one of this machine.
        None => text.parse().map_err(|_: AddrParseError| {
            format!("{text:?} is no address with a port from 0 to 65535: give one such as 127.0.0.1:9100 or [::1]:9100")
        }),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    if text.starts_with('-') && text.chars().any(|character| character.is_ascii_digit()) {
        return Err(format!("{text:?} is less than no time: give a number without a sign, such as 30s"));
    }
    let wrong = || format!("{text:?} is no time: give a number with a unit, such as 500ms, 30s or 24h");
    humantime::parse_duration(text).map_err(|_| wrong())
}

fn patience(text: &str) -> Result<outlast_session::Patience, String> {
    match text {
        "forever" => Ok(outlast_session::Patience::Forever),
        _ => match duration(text) {
            Ok(Duration::ZERO) => {
                Err("the first connection takes some time, too: give it more than none".into())
            }
            Ok(time) => Ok(outlast_session::Patience::For(time)),
            Err(error) => Err(format!("{error}, or forever")),
        },
    }
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| format!("{text:?} is no number from 1"))
}

/// A number of bytes, with K, M or G if one likes.
pub fn byte_count(text: &str) -> Result<usize, String> {
    let wrong = || format!("{text:?} is no size: give bytes, or a number with K, M or G");
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = text.get(digits.len()..).unwrap_or_default();
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err(wrong()),
    };
    let number: usize = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn sizes_times_and_patience_are_read() {
        assert_eq!(byte_count("65536"), Ok(65536));
        assert_eq!(byte_count("4160K"), Ok(4160 << 10));
        assert_eq!(byte_count("4MiB"), Ok(4 << 20));
        assert!(byte_count("4X").is_err() && byte_count("").is_err() && byte_count("99999999999G").is_err());
        assert_eq!(duration("1m 30s"), Ok(Duration::from_secs(90)));
        assert_eq!(patience("forever"), Ok(outlast_session::Patience::Forever));
        assert!(patience("soon").unwrap_err().contains("forever"));
        assert!(patience("0s").unwrap_err().contains("more than none"));
    }

    #[test]
    fn filters_name_levels() {
        for text in ["info", "WARN", "off", "outlast_session=debug", "warn, outlast_session::relay=trace", ""]
        {
            assert_eq!(log_filter(text).as_deref(), Ok(text));
        }
        for text in
            ["bogus", "bogus=", "=debug", "==", "info,bogus=", "outlast=inof", "a b=info", "info=x=debug"]
        {
            assert!(log_filter(text).unwrap_err().contains("neither a level"), "{text}");
        }
    }

    #[test]
    fn defaults_in_the_help_are_those_of_the_library() {
        let config = outlast_session::Config::default();
        assert_eq!(config.retain_bytes_max, 4160 << 10);
        assert_eq!(config.detect_timeout, Duration::from_secs(10));
        assert_eq!(config.keep, Duration::from_secs(24 * 3600));
        assert_eq!(config.sessions_max, 65536);
        assert_eq!(config.patience, outlast_session::Patience::Forever);
    }
}
