//! Connecting to where a session leads: a fixed target, or a destination that the client named.

use super::access::{DestinationPolicy, Verdict};
use super::lookups::look_up;
use super::preamble::Status;
use super::{DIAL_TIMEOUT, Destination, Host, Local, TcpLocal};
use crate::Scoped;
use crate::sys::begin_connect;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};
use tokio::net::UnixStream;

/// Longest path of a UNIX socket: the kernel's limit without the final zero.
const UNIX_PATH_BYTES_MAX: usize = 107;

/// A local service: `host:port` or `unix:/path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Service {
    /// By TCP. Names are resolved for every session.
    Tcp(Destination),
    /// By TCP, at an address that means something on one network only.
    Scoped(Scoped),
    /// By a UNIX stream socket.
    Unix(PathBuf),
}

impl FromStr for Service {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return unix_path(path).map(Service::Unix);
        }
        if let Some(scoped) = Scoped::parse(text).filter(|scoped| scoped.port() != 0) {
            return Ok(Service::Scoped(scoped));
        }
        text.parse().map(Service::Tcp).map_err(|error| format!("unusable address {text:?}: {error}"))
    }
}

/// The path of `unix:/path`.
///
/// # Errors
/// When no socket can have this path.
pub fn unix_path(path: &str) -> Result<PathBuf, String> {
    if path.is_empty() {
        return Err("unusable address \"unix:\": no path: give unix:/path".into());
    }
    if path.len() > UNIX_PATH_BYTES_MAX || path.contains('\0') {
        return Err(format!(
            "unusable address \"unix:{path}\": a socket path has at most {UNIX_PATH_BYTES_MAX} bytes"
        ));
    }
    Ok(path.into())
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Service::Tcp(destination) => destination.fmt(f),
            Service::Scoped(scoped) => scoped.fmt(f),
            Service::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Why there is no connection, in a form that is for the client, too.
#[derive(Debug)]
pub struct DialError {
    /// For programs.
    pub status: Status,
    /// For people.
    pub reason: String,
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// Connects to a fixed service.
///
/// # Errors
/// When no address of it takes the connection.
pub async fn dial(service: &Service) -> Result<Local, DialError> {
    match service {
        Service::Tcp(destination) => {
            let addresses = resolve(destination, None).await?;
            first_of(destination, addresses).await.map(Local::Tcp)
        }
        Service::Scoped(scoped) => match scoped.resolve() {
            Ok(address) => first_of(scoped, vec![address]).await.map(Local::Tcp),
            Err(error) => Err(failed(&scoped.to_string(), &error)),
        },
        Service::Unix(path) => match within(connect_unix(path)).await {
            Ok(stream) => Ok(stream.into()),
            Err(error) => Err(failed(&format!("unix:{}", path.display()), &error)),
        },
    }
}

/// Connects to a destination that the client at this address named, if the policy allows the address it resolves to.
///
/// # Errors
/// When it is not allowed, or no allowed address of it takes the connection.
pub async fn dial_any(
    destination: &Destination,
    client: IpAddr,
    policy: &DestinationPolicy,
) -> Result<Local, DialError> {
    let mut addresses = resolve(destination, Some(client)).await?;
    // RP 11: what was judged is what is connected to: the name is not resolved a second time.
    let mut why_not = Verdict::NotListed;
    addresses.retain(|address| match policy.judge(*address) {
        Verdict::Allowed => true,
        verdict => {
            why_not = verdict;
            false
        }
    });
    if addresses.is_empty() {
        return Err(not_allowed(destination, why_not));
    }
    first_of(destination, addresses).await.map(Local::Tcp)
}

fn not_allowed(destination: &Destination, verdict: Verdict) -> DialError {
    let reason = match verdict {
        Verdict::NotNamed(reserved) => {
            let is = if matches!(destination.host(), Host::Ip(_)) { "is" } else { "leads to" };
            format!("{destination} {is} {reserved}, which this server reaches only if --allow-to names it")
        }
        Verdict::Denied => format!("{destination} is denied by this server's --deny-to"),
        Verdict::NotListed | Verdict::Allowed => {
            format!("{destination} is not among the destinations of this server")
        }
    };
    DialError { status: Status::NotAllowed, reason }
}

/// For a client, if one has named the destination.
async fn resolve(destination: &Destination, client: Option<IpAddr>) -> Result<Vec<SocketAddr>, DialError> {
    let name = match destination.host() {
        Host::Ip(ip) => return Ok(vec![SocketAddr::new(*ip, destination.port())]),
        Host::Name(name) => name.as_str(),
    };
    let port = destination.port();
    let found = match client {
        Some(client) => within(look_up(client, name, port)).await,
        None => within(crate::tokio::lookup::look_up((name.to_owned(), port))).await,
    };
    match found {
        Ok(addresses) if !addresses.is_empty() => Ok(addresses),
        Ok(_) => Err(unknown(name, "it has no address")),
        Err(error) => Err(unknown(name, &error.to_string())),
    }
}

fn unknown(name: &str, why: &str) -> DialError {
    let why = why.strip_prefix("failed to lookup address information: ").unwrap_or(why);
    DialError {
        status: Status::UnknownHost,
        reason: format!("cannot resolve {name}: {}", why.to_lowercase()),
    }
}

/// Between two looks at whether a UNIX socket takes one more.
const FULL_LOOK_MIN: Duration = Duration::from_millis(2);
const FULL_LOOK_MAX: Duration = Duration::from_millis(50);
/// Addresses of one name are tried as long as this; each for [`DIAL_TIMEOUT`] at the most.
const ALL_TIMEOUT: Duration = Duration::from_secs(20);

async fn first_of(
    destination: &impl fmt::Display,
    addresses: Vec<SocketAddr>,
) -> Result<TcpLocal, DialError> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    let begun = Instant::now();
    for address in addresses {
        // Whoever chooses a name chooses how many addresses it has.
        if begun.elapsed() >= ALL_TIMEOUT {
            break;
        }
        match within(connect(address)).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(failed(&destination.to_string(), &last))
}

/// Where its queue is full, that is said at once, unlike with TCP: a program that blocks waits for room.
async fn connect_unix(path: &std::path::Path) -> io::Result<UnixStream> {
    let mut pause = FULL_LOOK_MIN;
    loop {
        match UnixStream::connect(path).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(FULL_LOOK_MAX);
            }
            other => return other,
        }
    }
}

/// As tokio's, but a target on this machine, which is connected to when the call returns, is waited for neither with
/// the reactor nor with a timer.
async fn connect(address: SocketAddr) -> io::Result<TcpLocal> {
    let kind = socket2::Type::STREAM.nonblocking();
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), kind, None)?;
    let connected = begin_connect(&socket, address)?;
    let stream = TcpLocal::new(socket.into())?;
    if !connected {
        stream.connected().await?;
    }
    stream.refuse_itself()?;
    Ok(stream)
}

async fn within<T>(future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(DIAL_TIMEOUT, future).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn failed(what: &str, error: &io::Error) -> DialError {
    let status = match error.kind() {
        io::ErrorKind::ConnectionRefused => Status::Refused,
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => Status::Unreachable,
        io::ErrorKind::TimedOut => Status::TimedOut,
        _ => Status::Failed,
    };
    DialError { status, reason: format!("cannot connect to {what}: {}", plain(error)) }
}

/// The error in words, without the number: "connection refused".
#[must_use]
pub fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    let mut chars = text.chars();
    // Only the first letter: the rest may hold names.
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[test]
    fn services_are_addresses_or_paths() {
        for text in ["127.0.0.1:22", "db.example:5432", "[fe80::1%eth0]:22", "unix:/run/x.sock"] {
            assert_eq!(text.parse::<Service>().unwrap().to_string(), text);
        }
        for text in ["", "unix:", "22", "unix:/".to_owned().as_str(), &format!("unix:/{}", "x".repeat(120))] {
            let parsed = text.parse::<Service>();
            assert_eq!(parsed.is_ok(), text == "unix:/", "{text}");
        }
    }

    #[tokio::test]
    async fn a_refused_connection_says_so() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = dial(&free.to_string().parse().unwrap()).await.unwrap_err();
        assert_eq!(error.status, Status::Refused);
        assert_eq!(error.to_string(), format!("cannot connect to {free}: connection refused"));
    }

    #[tokio::test]
    async fn the_policy_judges_what_a_name_resolves_to() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let destination = format!("localhost:{}", listener.local_addr().unwrap().port()).parse().unwrap();
        let rules = |rules: &[&str]| rules.iter().map(|rule| rule.parse().unwrap()).collect();
        let denied = DestinationPolicy { rules: rules(&["any"]), deny: Vec::new() };
        let error = dial_any(&destination, CLIENT, &denied).await.unwrap_err();
        assert_eq!(error.status, Status::NotAllowed);
        assert!(error.to_string().contains("leads to a loopback address"), "{error}");
        let allowed = DestinationPolicy { rules: rules(&["127.0.0.0/8", "::1"]), deny: Vec::new() };
        assert!(dial_any(&destination, CLIENT, &allowed).await.is_ok());
    }
}
