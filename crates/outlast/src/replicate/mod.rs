//! A node of a group of replicas: from its settings to its end.

mod clock;
mod group_file;
mod instance;
mod recover;
mod server;
mod tell;

use crate::admin::{self, AdminSocket};
use crate::cli::ProcessArgs;
use crate::cmd::replicate::NodeArgs;
use crate::descriptors::raise_limit;
use crate::exit::{Code, Failure};
use crate::files::unreadable;
use crate::metrics;
use crate::narrate::Narrator;
use crate::signals::{Request, Signals};
use anyhow::{Context, Result};
use clock::{Clock, LIBRARY};
use instance::Instance;
use outlast_netlink::{Protocol, Socket, device};
use outlast_replica::copy::{Copying, How};
use outlast_replica::node::group::Group;
use outlast_replica::node::{Ended, Error, Node, Portal, Settings, is_up};
use outlast_replica::sql::Account;
use outlast_session::relay::dial::plain;
use server::Server;
use std::ffi::OsStr;
use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tell::Teller;
use tokio::task::JoinSet;

/// Where nodes remember that they were in a group.
const MEMORY_FOLDER: &str = "/var/lib/outlast";
/// The copies that need no command.
const READY_MADE: &str = "redis";
const PASSWORD_BYTES_MAX: u64 = 64 << 10;
/// The address of the server is waited for so long.
const FREE_WITHIN: Duration = Duration::from_secs(10);
/// A node that cannot begin again tries it again so much later.
const START_AGAIN: Duration = Duration::from_secs(1);
/// Changes are told of so late at the most.
const LOOK: Duration = Duration::from_millis(50);

/// Runs a node until a signal ends it, or it cannot go on.
pub fn run(args: &NodeArgs, process: &ProcessArgs, narrator: &Narrator) -> Result<Code> {
    raise_limit();
    let plan = plan(args)?;
    // A single thread: what has to be quick does not wait for another one, and the portal has its own.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the runtime")?;
    let ended = runtime.block_on(attend(args, process, narrator, plan));
    // A copy of the data may be under way, in a thread that waits for others.
    runtime.shutdown_background();
    ended
}

/// What the node is to do, and where its server is.
fn plan(args: &NodeArgs) -> Result<Plan> {
    let (Some(file), Some(name)) = (&args.group, &args.node) else {
        let how = "give --group FILE and --node NAME, or a command: status, switchover, join, evict, recover, why, drain";
        return Err(Failure::usage(format!("what is to be replicated? {how}")));
    };
    let group = group_file::read(file)?;
    let listed = group.node(name).cloned();
    let names = || group.nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join(", ");
    let listed = listed.ok_or_else(|| {
        Failure::usage(format!("{} has no node {name:?}: it lists {} (--node)", file.display(), names()))
    })?;
    let has_server = args.server.is_some() || !args.program.is_empty();
    let mut clock = None;
    let portal = match (args.witness, listed.is_witness, has_server) {
        (_, true, true) => {
            return Err(Failure::usage(format!("node {name} is a witness, and has no server: leave it out")));
        }
        (true, false, _) => {
            return Err(Failure::usage(format!(
                "node {name} is no witness in {}: write `witness = true` there, at all nodes",
                file.display()
            )));
        }
        (_, false, false) => {
            return Err(Failure::usage(format!(
                "node {name} needs a server: give --server ADDRESS of one that runs, or its command line behind --"
            )));
        }
        (_, true, false) => None,
        (false, false, true) => {
            let server = args.server.unwrap_or((Ipv4Addr::LOCALHOST, group.portal.port()).into());
            if server.ip() == group.portal.ip() {
                return Err(Failure::usage(format!(
                    "{server} has the address of the portal, which moves: a server has one of its own"
                )));
            }
            let device = match &args.device {
                Some(device) => device.clone(),
                None => device_of(listed.address, name)?,
            };
            let password = args.server_password_file.as_deref().map(read_password).transpose()?;
            let account = group.protocol.is_database().then(|| Account {
                user: args.server_user.clone(),
                password: password.clone(),
                protocol: group.protocol,
            });
            let copying = copying(args, &group, server, password)?;
            clock = Clock::new(&group, name, &args.program, args.clock_library.as_deref())?;
            let clock_page = clock.as_ref().map(|clock| clock.page.clone());
            Some(Portal { device, server, copying, account, clock_page })
        }
    };
    let folder = args.state_folder.clone().unwrap_or_else(|| PathBuf::from(MEMORY_FOLDER));
    let memory = folder.join("replicas").join(&group.name).join(format!("{name}.json"));
    let server = portal.as_ref().map(|portal| portal.server);
    let (is_new_group, joins) = (args.new_group, args.join);
    if joins && portal.as_ref().is_some_and(|portal| portal.copying.is_none()) {
        return Err(Failure::usage(
            "--join needs to know how the data of a server are copied: give --snapshot and --restore (ready-made where the group file says \
             protocol = \"redis\")",
        ));
    }
    let memory = Some(memory);
    let settings =
        Settings { group, name: name.clone(), portal, memory, is_new_group, joins, recovering: None };
    Ok(Plan { settings, server, clock })
}

/// What is to run.
struct Plan {
    settings: Settings,
    /// Where the server takes connections.
    server: Option<SocketAddr>,
    /// From where it has the time of day, if not from its machine.
    clock: Option<Clock>,
}

/// How the data of this node's server are copied, and how it gets those of another one, if that is known.
fn copying(
    args: &NodeArgs,
    group: &Group,
    server: SocketAddr,
    password: Option<String>,
) -> Result<Option<Copying>> {
    let ready_made = (group.protocol == outlast_replica::Protocol::Redis).then_some(READY_MADE);
    let how = |given: &Option<String>| match given.as_deref().or(ready_made) {
        Some(READY_MADE) => Some(How::Redis),
        command => command.map(|command| How::Command(command.to_owned())),
    };
    let (snapshot, restore) = (how(&args.snapshot), how(&args.restore));
    match snapshot.zip(restore) {
        Some((snapshot, restore)) => Ok(Some(Copying { server, snapshot, restore, password })),
        None if args.snapshot.is_some() || args.restore.is_some() => Err(Failure::usage(
            "a copy of the data needs both --snapshot and --restore: any node may be the one that gives it, or gets it",
        )),
        None => Ok(None),
    }
}

/// Makes the account of the nodes.
const MYSQL_ACCOUNT: &str = "CREATE USER outlast@localhost IDENTIFIED BY '...'; GRANT SELECT ON mysql.* TO outlast@localhost; GRANT \
     PROCESS, CONNECTION ADMIN ON *.* TO outlast@localhost";
const POSTGRES_ACCOUNT: &str = "CREATE ROLE outlast SUPERUSER LOGIN PASSWORD '...'";

/// The first line.
fn read_password(path: &Path) -> Result<String> {
    let mut text = String::new();
    let read =
        std::fs::File::open(path).and_then(|file| file.take(PASSWORD_BYTES_MAX).read_to_string(&mut text));
    read.map_err(|error| unreadable("password", path, &error))?;
    match text.lines().next() {
        Some(password) if !password.is_empty() => Ok(password.to_owned()),
        _ => Err(Failure::usage(format!(
            "{} has no password in its first line (--server-password-file)",
            path.display()
        ))),
    }
}

/// The device with the node's own address.
fn device_of(address: SocketAddr, name: &str) -> Result<String> {
    let found =
        Socket::open(Protocol::Route).and_then(|mut socket| device::with_address(&mut socket, address.ip()));
    found.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrNotAvailable => Failure::system(format!(
            "this machine has no address {}, which node {name} has in the group file: is it another node's machine?",
            address.ip()
        )),
        _ => Failure::system(format!("cannot look for the device of {}: {}", address.ip(), plain(&error))),
    })
}

/// How it came to its end.
enum End {
    Signal(Request),
    Drain,
    Node(Ended),
    Server(std::io::Result<ExitStatus>),
}

async fn attend(args: &NodeArgs, process: &ProcessArgs, narrator: &Narrator, plan: Plan) -> Result<Code> {
    let Plan { settings, server: server_address, clock } = plan;
    // Ours before anybody is told that this runs.
    let mut signals = Signals::new()?;
    let socket = admin::socket(process, "`outlast replicate status` will not work")?;
    let scrapes = match process.metrics {
        Some(address) => Some(metrics::bind(address).await?),
        None => None,
    };
    let (group, name) = (settings.group.clone(), settings.name.clone());
    if let (Some(address), [program, ..]) = (server_address, args.program.as_slice()) {
        tokio::select! {
            free = wait_until_free(address, program, clock.is_some()) => free?,
            request = signals.next() => return Ok(code_of(request)),
        }
    }
    let node =
        Node::start(settings.clone()).await.map_err(|error| cannot_start(&group, server_address, error))?;
    let mut server = Server::start(&args.program, clock.as_ref())?;
    let instance = Arc::new(Instance::new(node, &group, server_address));
    let mut tasks = JoinSet::new();
    tasks.spawn(serve(socket, instance.clone()));
    if let Some(scrapes) = scrapes {
        tasks.spawn(metrics::serve(scrapes, instance.clone()));
    }
    let mut teller = Teller::new(narrator, &group, &name, settings.joins);
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let end = loop {
        let node = instance.node();
        tokio::select! {
            _ = looks.tick() => teller.look(&node.status()),
            request = signals.next() => break End::Signal(request),
            () = instance.is_to_drain() => break End::Drain,
            ended = node.ended() => {
                let left = format!("node {name} gives up what is left of the group {}, which", group.name);
                let (recovery, why) = match ended {
                    Ended::Recovers(recovery) => {
                        let why = format!("{left} is founded again with the data of {}", recovery.from);
                        (Some(recovery), why)
                    }
                    Ended::Superseded => (None, format!("{left} was founded again without it")),
                    Ended::RecoveryFailed => {
                        let why = format!(
                            "node {name} waits as before `outlast replicate recover`: not all nodes of that plan came and were ready in time, so the group {} was not founded again",
                            group.name
                        );
                        (None, why)
                    }
                    ended => break End::Node(ended),
                };
                narrator.announce(&why);
                instance.set_beginning(true);
                node.give_up().await;
                let recovering = Some(node.recovering(recovery));
                let again = Settings { recovering, ..settings.clone() };
                let started = tokio::select! {
                    node = start_again(&again, |error| cannot_start(&group, server_address, error)) => node,
                    request = signals.next() => break End::Signal(request),
                    status = ended_server(&mut server) => break End::Server(status),
                };
                teller = Teller::new(narrator, &group, &name, settings.joins);
                instance.replace(started);
                instance.set_beginning(false);
            }
            status = ended_server(&mut server) => break End::Server(status),
        }
    };
    let code = match &end {
        End::Signal(request) => Ok(code_of(*request)),
        End::Drain => Ok(Code::Ok),
        End::Node(ended) => Err(has_ended(ended, &group, server_address)),
        End::Server(status) => Err(server_ended(&group, &name, server.as_ref(), status)),
    };
    narrator.say(&format!("node {name} leaves the group {}", group.name));
    tasks.shutdown().await;
    let ending = async {
        // One that has given up has nothing to leave.
        if !instance.is_beginning() {
            instance.node().stop(matches!(end, End::Server(_))).await;
        }
        if let Some(server) = &mut server {
            server.stop().await;
        }
    };
    // Asked again: the server is killed, and the others will take this node for dead. Where it ends by itself, the first signal is none of that.
    let again = async {
        if !matches!(end, End::Signal(_)) {
            signals.next().await;
        }
        signals.next().await;
    };
    tokio::select! {
        () = ending => {}
        () = again => {}
    }
    code
}

fn code_of(request: Request) -> Code {
    match request {
        Request::Now(code) => code,
        Request::Drain => Code::Ok,
    }
}

/// Starts a node in the place of one that has given up. Its server has the data, in memory alone perhaps: it is not ended because something is in the way.
async fn start_again(settings: &Settings, explain: impl Fn(Error) -> anyhow::Error) -> Node {
    let mut said = String::new();
    loop {
        match Node::start(settings.clone()).await {
            Ok(node) => return node,
            Err(error) => {
                let why = explain(error).to_string();
                if why != said {
                    tracing::warn!(why, "the node cannot begin again, and keeps trying; its server runs on");
                    said = why;
                }
                tokio::time::sleep(START_AGAIN).await;
            }
        }
    }
}

/// A server that an earlier run has started may need a moment to end.
async fn wait_until_free(address: SocketAddr, program: &OsStr, has_clock: bool) -> Result<()> {
    let is_taken = async || tokio::task::spawn_blocking(move || is_up(address)).await.unwrap_or(false);
    let begun = Instant::now();
    while is_taken().await {
        if begun.elapsed() > FREE_WITHIN {
            return Err(Failure::system(format!(
                "cannot start {}: another server listens at {address} already; {}",
                program.display(),
                // It would have its machine's time, or one that stands still.
                if has_clock { "end that one" } else { "leave its command line out to replicate that one" }
            )));
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

async fn serve(socket: Option<AdminSocket>, instance: Arc<Instance>) {
    match socket {
        Some(socket) => socket.serve(instance).await,
        None => std::future::pending().await,
    }
}

/// When the server that was started here has ended.
async fn ended_server(server: &mut Option<Server>) -> std::io::Result<ExitStatus> {
    match server {
        Some(server) => server.ended().await,
        None => std::future::pending().await,
    }
}

fn cannot_start(group: &Group, server: Option<SocketAddr>, error: Error) -> anyhow::Error {
    match error {
        Error::Group(what) => Failure::usage(what),
        Error::System { what, error } => {
            let hint = match error.kind() {
                std::io::ErrorKind::AddrNotAvailable => "; is it another node's machine (--node)?",
                _ => "",
            };
            Failure::system(format!("{what}: {}{hint}", plain(&error)))
        }
        Error::Portal { portal, error } => {
            let hint = match (error.kind(), server) {
                (std::io::ErrorKind::PermissionDenied, _) => {
                    "; this needs root, or CAP_NET_ADMIN and CAP_NET_RAW"
                }
                (std::io::ErrorKind::AddrInUse, Some(server)) if server.port() == group.portal.port() => {
                    "; a server that listens at all addresses has that of the portal, too: have it listen at 127.0.0.1, or at \
                     another port (--server); or another `outlast replicate` has this portal"
                }
                (std::io::ErrorKind::AddrInUse, _) => "; does another `outlast replicate` have it?",
                _ => "",
            };
            Failure::system(format!("cannot listen at the portal {portal}: {}{hint}", plain(&error)))
        }
        Error::Consensus(error) => Failure::new(Code::Internal, error.to_string()).into(),
    }
}

fn has_ended(ended: &Ended, group: &Group, server: Option<SocketAddr>) -> anyhow::Error {
    let server = server.map(|server| server.to_string()).unwrap_or_default();
    let name = &group.name;
    let leaves = format!("this node leaves the group {name}, and the others go on");
    Failure::system(match ended {
        Ended::ServerLost => {
            format!("the server at {server} takes no connections any more, or was started anew: {leaves}")
        }
        Ended::ServerRestarted => format!(
            "the server at {server} was started again while the group {name} was founded again with its data: what it had in memory is gone, so the group does not begin. \
             Start this node again, and look at `outlast replicate recover` once more"
        ),
        Ended::ServerHangs => {
            format!("the server at {server} does not answer as the others do (see the log): {leaves}")
        }
        Ended::ClockIgnored => format!(
            "the server at {server} does not take the time from the order (clock = \"order\"), so this node does not take part: the server is \
             linked statically, or its user cannot read {LIBRARY}, or a program between it and this one has cleared its environment or \
             closed its descriptors. Mend that, or write clock = \"machine\" at all nodes"
        ),
        Ended::AccountRefused(why) => format!(
            "the server at {server} does not say what it keeps of its accounts ({why}), without which no client can log in. Create one for the nodes, \
             at every server alike: {}; and give its name and password (--server-user, --server-password-file)",
            if group.protocol == outlast_replica::Protocol::Postgres {
                POSTGRES_ACCOUNT
            } else {
                MYSQL_ACCOUNT
            }
        ),
        Ended::Portal(what) => format!("the portal {} cannot go on here: {what}", group.portal),
        Ended::Memory(what) => {
            format!("cannot note that this node is in the group {name} (--state-folder): {what}; {leaves}")
        }
        Ended::Recovers(_) | Ended::Superseded | Ended::RecoveryFailed => {
            format!("the group {name} is founded again")
        }
        Ended::Consensus => format!("the consensus of the group {name} has failed here: {leaves}"),
    })
}

fn server_ended(
    group: &Group,
    name: &str,
    server: Option<&Server>,
    status: &std::io::Result<ExitStatus>,
) -> anyhow::Error {
    let program = server.map_or("the server", |server| server.name.as_str());
    let how = match status {
        Ok(status) => status.to_string(),
        Err(error) => plain(error),
    };
    Failure::system(format!(
        "{program} has ended ({how}; it has to run in the foreground): node {name} leaves the group {}, and the others go on. If it could not listen: the portal has \
         port {} of {}, so have the server listen at 127.0.0.1, or at another port (--server)",
        group.name,
        group.portal.port(),
        group.portal.ip()
    ))
}
