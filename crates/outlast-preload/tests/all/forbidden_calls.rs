//! Sandboxes that forbid a system call: a server that was not changed outlives its crashes without it, or it is said at once
//! that it does not.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::forbid;

use crate::common::{Client, Server, folder, free_port, python, settle};
use forbid::{Call, cannot, forbid, without};
use std::fs::File;

const CALLS: [Call; 10] = [
    without("memfd_create", libc::SYS_memfd_create),
    without("kcmp", libc::SYS_kcmp),
    without("get_robust_list", libc::SYS_get_robust_list),
    cannot("rt_sigtimedwait", libc::SYS_rt_sigtimedwait, "does not outlive a crash"),
    without("waitid", libc::SYS_waitid),
    without("prctl", libc::SYS_prctl),
    without("close_range", libc::SYS_close_range),
    without("readlink", libc::SYS_readlink),
    without("execveat", libc::SYS_execveat),
    without("madvise", libc::SYS_madvise),
];

fn outlives(call: Call, error: i32, said: &std::path::Path) {
    let port = free_port();
    let mut command = python("lines.py", &["poll", &port.to_string()]);
    command.stderr(File::create(said).unwrap());
    forbid(&mut command, call, error);
    let server = Server::start(command);
    let listens = |port| std::net::TcpStream::connect(("127.0.0.1", port)).ok();
    crate::common::eventually(&format!("nobody listens without {}", call.name), || listens(port));
    let mut clients: Vec<Client> = (0..4).map(|_| Client::of(port)).collect();
    if let Some(part) = call.says {
        assert_eq!(clients[0].ask("a"), "A");
        let said = std::fs::read_to_string(said).unwrap();
        assert!(said.contains(part) && said.lines().count() == 1, "{}: {said}", call.name);
        return;
    }
    for crash in 0..4 {
        clients.iter_mut().for_each(|client| assert_eq!(client.ask("a"), "A", "{} {crash}", call.name));
        settle();
        server.crash(libc::SIGKILL);
    }
    clients.iter_mut().for_each(|client| assert_eq!(client.ask("b"), "B", "{}", call.name));
}

#[test]
fn none_is_needed_or_its_want_is_told() {
    let folder = folder("forbidden");
    std::thread::scope(|scope| {
        for call in CALLS {
            let said = folder.join(call.name);
            scope.spawn(move || [libc::EPERM, libc::ENOSYS].map(|error| outlives(call, error, &said)));
        }
    });
    std::fs::remove_dir_all(folder).unwrap();
}
