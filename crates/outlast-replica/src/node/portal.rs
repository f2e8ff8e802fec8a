//! The portal of a node, in a thread of its own.

use super::group::Group;
use super::{Ended, Error, Portal, system};
use crate::consensus::Consensus;
use crate::order::Limits;
use crate::portal::machine::{self, Handle, Machine};
use crate::portal::rules::{MARK, Rules};
use crate::portal::server_process::ServerRun;
use crate::view::NodeId;
use std::mem::ManuallyDrop;
use std::thread::JoinHandle;
use tokio::sync::watch;

/// Says so if the thread panics.
struct EndsThread(watch::Sender<Option<Ended>>);

impl Drop for EndsThread {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.send_replace(Some(Ended::Portal("its thread has panicked".to_owned())));
        }
    }
}

/// Its thread, which ends with the run of the server that it has worked with.
pub(super) type Thread = JoinHandle<Option<ServerRun>>;

/// Begins. `server_run`: with which it goes on, where that is known.
pub(super) fn run_machine(
    group: &Group,
    me: NodeId,
    (portal, server_run): (&Portal, Option<ServerRun>),
    consensus: &Consensus,
    ended: watch::Sender<Option<Ended>>,
) -> Result<(Handle, Thread), Error> {
    let at = group.portal;
    let settings = machine::Settings {
        me,
        lease: consensus.lease_check(),
        promise_ms: group.promise_ms,
        limits: Limits {
            lag_timeout_ms: Limits::default().lag_timeout_ms.max(group.promise_ms),
            lock_wait_timeout_ms: group.lock_wait_timeout_ms,
            ..Limits::default()
        },
        delivery: group.delivery,
        protocol: group.protocol,
        clock: group.clock,
        clock_page: portal.clock_page.clone(),
        answers: group.answers,
        portal: at,
        device: portal.device.clone(),
        mark: MARK,
        server: portal.server,
        server_run,
        account: portal.account.clone(),
        password: portal.copying.as_ref().and_then(|copying| copying.password.clone()),
    };
    // Before the rules are touched: they may be those of another process, which has the address.
    let listener = machine::listen(at).map_err(|error| Error::Portal { portal: at, error })?;
    let (rules, packets) = Rules::set(at).map_err(system(format!(
        "cannot hold packets of the portal {at} back (this needs root, or CAP_NET_ADMIN and CAP_NET_RAW, and the kernel's nf_tables and \
         nfnetlink_queue)"
    )))?;
    let made = Machine::new(settings, packets, listener);
    let (machine, handle) =
        made.map_err(system(format!("cannot open the portal {at} at device {}", portal.device)))?;
    let thread = std::thread::Builder::new().name("portal".to_owned()).spawn(move || {
        // Should this thread panic, the rules stay, and nothing of the portal passes.
        let rules = ManuallyDrop::new(rules);
        let ended = EndsThread(ended);
        let result = machine.run();
        // No client hears of it: all sockets are closed.
        drop(ManuallyDrop::into_inner(rules));
        match result {
            Ok(server_run) => Some(server_run),
            Err(error) => {
                ended.0.send_replace(Some(Ended::Portal(error.to_string())));
                None
            }
        }
    });
    Ok((handle, thread.map_err(system("cannot start a thread"))?))
}
