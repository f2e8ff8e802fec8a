//! `outlast listen`.

use crate::cli::ProcessArgs;
use crate::cli::SessionArgs;
use crate::cli::values::{duration, positive};
use crate::exit::Code;
use crate::narrate::Narrator;
use crate::plan;
use crate::service::{self, Plans};
use anyhow::Result;
use clap::Args;
use outlast_session::relay::access::{Cidr, DestinationRule};
use outlast_session::relay::dial::Service;
use std::path::PathBuf;
use std::time::Duration;

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

/// Accepts sessions until a signal ends it.
pub fn run(args: &ListenArgs, process: &ProcessArgs, narrator: &Narrator) -> Result<Code> {
    let plans = Plans { listen: vec![plan::listen(args)?], connect: Vec::new() };
    super::connect::runtime()?.block_on(service::run(plans, process, narrator))
}
