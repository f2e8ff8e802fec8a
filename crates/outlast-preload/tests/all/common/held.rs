//! What a supervisor has copies of, which it takes a moment after the program has answered: longer on a busy machine.

use super::{Client, Server, eventually, family};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

/// What a line of /proc/net/tcp says of a connection.
struct Line {
    own: u16,
    peer: u16,
    unread_bytes: u64,
    /// 0: no process has accepted it.
    inode: String,
}

fn text(process: u32, table: &str) -> String {
    std::fs::read_to_string(format!("/proc/{process}/net/{table}")).unwrap_or_default()
}

/// Those in the network of a process.
fn connections(process: u32) -> Vec<Line> {
    let port = |address: &str| u16::from_str_radix(address.rsplit(':').next()?, 16).ok();
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        Some(Line {
            own: port(words.get(1)?)?,
            peer: port(words.get(2)?)?,
            unread_bytes: u64::from_str_radix(words.get(4)?.rsplit(':').next()?, 16).ok()?,
            inode: (*words.get(9)?).to_owned(),
        })
    };
    let tables = ["tcp", "tcp6"].map(|table| text(process, table));
    tables.iter().flat_map(|table| table.lines()).filter_map(line).collect()
}

/// What a process has open.
fn open(process: u32) -> HashSet<PathBuf> {
    let entries = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    entries.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect()
}

/// Whether a supervisor has copies of all these connections with a server, which are told by the ports of its clients.
pub fn holds(supervisor: u32, server: u16, clients: &[u16]) -> bool {
    let held = open(supervisor);
    let is_held = |line: &&Line| {
        line.own == server
            && clients.contains(&line.peer)
            && held.contains(Path::new(&format!("socket:[{}]", line.inode)))
    };
    connections(supervisor).iter().filter(is_held).count() == clients.len()
}

/// Whether a supervisor has a copy of a socket that listens at this port.
pub fn holds_listener(supervisor: u32, port: u16) -> bool {
    let held = open(supervisor);
    connections(supervisor).iter().any(|line| {
        line.own == port && line.peer == 0 && held.contains(Path::new(&format!("socket:[{}]", line.inode)))
    })
}

/// Waits until the supervisor has copies of all these connections.
pub fn wait_until_held<'a>(server: &Server, clients: impl IntoIterator<Item = &'a Client>) {
    let mut by_server: BTreeMap<u16, Vec<u16>> = BTreeMap::new();
    for Client(stream, _) in clients {
        let (own, peer) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
        by_server.entry(peer.port()).or_default().push(own.port());
    }
    for (port, clients) in by_server {
        eventually("there are no copies of idle connections", || {
            holds(server.pid(), port, &clients).then_some(())
        });
    }
    // Of connections that an earlier process had there are copies already. The last answer arrives a moment before it is noted that it
    // was complete: who is killed in between has a connection with an answer in progress.
    eventually("the server does not come to rest", || {
        let below = family(server.main());
        below.into_iter().chain([server.main()]).all(is_at_rest).then_some(())
    });
}

/// Whether all threads of a process wait for something.
fn is_at_rest(process: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok()).all(|stat| {
        // The name may have anything in it. The state is behind it.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('R'))
    })
}

/// Waits until the supervisor has a copy of the only connection that the main process has with a client at a UNIX socket.
pub fn wait_until_held_unix(server: &Server) {
    const CONNECTED: &str = "03";
    let inode = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // With a path: the client's end has none.
        let is_there = words.get(5) == Some(&CONNECTED) && words.len() > 7;
        is_there.then(|| PathBuf::from(format!("socket:[{}]", words[6])))
    };
    eventually("there is no copy of an idle connection", || {
        let (has, held, text) = (open(server.main()), open(server.pid()), text(server.pid(), "unix"));
        let its: Vec<PathBuf> = text.lines().filter_map(inode).filter(|inode| has.contains(inode)).collect();
        (its.len() == 1 && held.contains(&its[0])).then_some(())
    });
}

/// Waits until the program has read all that this client has sent.
pub fn wait_until_read(client: &Client) {
    let (own, peer) = (client.0.local_addr().unwrap().port(), client.0.peer_addr().unwrap().port());
    eventually("a request is not read", || {
        let lines = connections(std::process::id());
        let is_read =
            |line: &Line| line.own == peer && line.peer == own && line.inode != "0" && line.unread_bytes == 0;
        lines.iter().any(is_read).then_some(())
    });
}
