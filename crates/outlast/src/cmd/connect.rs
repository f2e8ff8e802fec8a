//! `outlast connect`.

use crate::admin::AdminSocket;
use crate::cli::ProcessArgs;
use crate::cli::SessionArgs;
use crate::cli::values::patience;
use crate::exit::Code;
use crate::narrate::Narrator;
use crate::plan::{self, FrontPlan};
use crate::service::{self, Plans};
use crate::stdio;
use anyhow::{Context, Result};
use clap::Args;
use outlast_session::relay::Route;
use std::net::IpAddr;
use std::num::NonZero;
use std::path::Path;
use std::path::PathBuf;
use tokio::runtime::{Builder, Runtime};

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

/// Carries local programs' streams until a signal ends it; or standard input and output until they end.
pub fn run(args: &ConnectArgs, process: &ProcessArgs, narrator: &Narrator) -> Result<Code> {
    let plan = plan::connect(args)?;
    if !plan.fronts.contains(&FrontPlan::Stdio) {
        let plans = Plans { listen: Vec::new(), connect: vec![plan] };
        return runtime()?.block_on(service::run(plans, process, narrator));
    }
    // One stream needs one thread.
    let runtime = Builder::new_current_thread().enable_all().build().context("cannot start the runtime")?;
    runtime.block_on(async {
        let admin = match process.admin_socket.as_deref() {
            Some(path) if path == Path::new("none") => None,
            Some(path) => Some(AdminSocket::bind(Some(path))?),
            None => AdminSocket::bind(None).ok(),
        };
        stdio::run(plan, admin, narrator).await
    })
}

/// The runtime for many streams: a thread per processor. With one processor that is this thread: a second one would
/// only have work handed over to it.
pub fn runtime() -> Result<Runtime> {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let mut builder =
        if processors == 1 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    builder.enable_all().build().context("cannot start the runtime")
}
