//! Sandboxes that forbid a system call: in the program alone, or in its supervisor, too. The program runs as without them;
//! its idle connections are kept over a crash, or, where that is not possible, its listening socket, or that it is not is said.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Client, Server, eventually, folder, free_port, is_installed, kill, wait_until_held};
use crate::connections::program;
use crate::forbid::{Call, forbid, without};
use std::process::Command;
use std::sync::Mutex;

/// At a time: each starts an interpreter three times.
const SIDE_BY_SIDE: usize = 6;

/// What is kept of a server over its crash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kept {
    Idle,
    /// Who is idle has to connect again.
    Listener,
    /// That one is closed, too, until the next process listens.
    Nothing,
}

/// Each of which sandboxes forbid, or old kernels do not have.
const CALLS: [(Call, Kept); 12] = [
    (without("pidfd_getfd", libc::SYS_pidfd_getfd), Kept::Listener),
    (without("pidfd_open", libc::SYS_pidfd_open), Kept::Listener),
    (without("pidfd_send_signal", libc::SYS_pidfd_send_signal), Kept::Idle),
    (without("memfd_create", libc::SYS_memfd_create), Kept::Idle),
    (without("kcmp", libc::SYS_kcmp), Kept::Idle),
    (without("waitid", libc::SYS_waitid), Kept::Idle),
    (without("close_range", libc::SYS_close_range), Kept::Idle),
    (without("readlink", libc::SYS_readlink), Kept::Idle),
    (without("prlimit64", libc::SYS_prlimit64), Kept::Idle),
    (without("eventfd2", libc::SYS_eventfd2), Kept::Nothing),
    (without("gettid", libc::SYS_gettid), Kept::Idle),
    (without("sendmsg", libc::SYS_sendmsg), Kept::Nothing),
];

fn outlives(call: Call, kept: Kept, error: i32) {
    let (port, folder) = (free_port(), folder(&format!("forbidden-{}-{error}", call.name)));
    let told = format!("{} ({error})", call.name);
    let plain: Command = program(&folder, port);
    let server = Server::start_with(&plain, true, |started| forbid(started, call, error));
    eventually(&format!("nobody listens without {told}"), || Client::try_connect(port).ok());
    let mut clients: Vec<Client> = (0..3).map(|_| Client::connect(port)).collect();
    for crash in 0..2 {
        for client in &mut clients {
            assert!(client.get("/"), "{told}: crash {crash}");
        }
        if kept != Kept::Nothing {
            eventually(&format!("not ready without {told}"), || {
                (server.said("Ready").len() > crash).then_some(())
            });
        }
        match kept {
            Kept::Idle => wait_until_held(&server, &clients),
            _ => std::thread::sleep(std::time::Duration::from_millis(200)),
        }
        let main = server.main();
        kill(main, libc::SIGKILL);
        eventually(&told, || (server.main() != main).then_some(()));
        if kept != Kept::Idle {
            for client in &mut clients {
                assert!(!client.get("/"), "{told}: it is kept");
                *client = match kept {
                    // At once: it is never refused.
                    Kept::Listener => Client::try_connect(port).unwrap(),
                    _ => Client::connect(port),
                };
            }
        }
    }
    drop(server);
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn none_is_needed_to_run_as_without_us() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let all = CALLS.iter().flat_map(|call| [libc::EPERM, libc::ENOSYS].map(|error| (*call, error)));
    let (waiting, failed) = (Mutex::new(all), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..SIDE_BY_SIDE {
            scope.spawn(|| {
                loop {
                    let Some(((call, kept), error)) = waiting.lock().unwrap().next() else { return };
                    if std::panic::catch_unwind(|| outlives(call, kept, error)).is_err() {
                        failed.lock().unwrap().push(format!("{} ({error})", call.name));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{failed:?}");
}
