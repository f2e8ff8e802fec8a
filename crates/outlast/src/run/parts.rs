//! What the parts of a configuration say to the service manager: it hears their parent alone (`NotifyAccess=main`), which says it
//! for all of them.

use super::manager::Manager;
use super::notify::{Folder, MESSAGE_BYTES_MAX, Said, cannot_listen, may_speak, understood};
use outlast_restart::credentials::receive;
use rustix::net::sockopt;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

/// What it means.
const WITHOUT: &str = "the service manager does not hear whether it is ready, or alive";

/// Where the parts say how they are, as long as this lives.
#[derive(Debug)]
pub struct Parts {
    folder: Folder,
    count: usize,
    all: Arc<Mutex<All>>,
    manager: Manager,
}

impl Parts {
    /// For so many, if a service manager wants to hear of them. None also where that cannot be, which is said.
    pub fn new(count: usize) -> Option<Self> {
        let manager = Manager::of_this_process();
        if !manager.listens() {
            return None;
        }
        match Folder::fresh() {
            Ok(folder) => Some(Self { folder, count, all: Arc::new(Mutex::new(All::new(count))), manager }),
            Err(error) => {
                // As much as it can be said.
                manager.ready();
                tracing::error!(
                    "{:#}: {WITHOUT}",
                    cannot_listen("what the sections say of themselves", &error)
                );
                None
            }
        }
    }

    /// Has a part say how it is to this process. The thread that hears it gets no signals if this one does not.
    pub fn hear(&self, place: usize, command: &mut Command) {
        let path = self.path(place);
        let listen = || -> io::Result<()> {
            let socket = UnixDatagram::bind(&path)?;
            sockopt::set_socket_passcred(&socket, true)?;
            let (all, manager) = (Arc::clone(&self.all), self.manager);
            let thread = std::thread::Builder::new().name("notify".into());
            thread.spawn(move || hear(&socket, place, &all, manager)).map(drop)
        };
        if let Err(error) = listen() {
            tracing::error!("{:#}: {WITHOUT}", cannot_listen("what a section says of itself", &error));
            // It is not waited for.
            self.ended(place);
        }
        command.env("NOTIFY_SOCKET", path).env_remove("WATCHDOG_PID");
        if self.manager.alive_interval().is_none() {
            command.env_remove("WATCHDOG_USEC");
        }
        // It keeps descriptors for the process that it has started.
        command.env_remove("FDSTORE");
    }

    fn path(&self, place: usize) -> PathBuf {
        self.folder.path().join(place.to_string())
    }

    /// A part has ended.
    pub fn ended(&self, place: usize) {
        tell(&self.all, self.manager, |all| all.ended(place));
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        for place in 0..self.count {
            std::fs::remove_file(self.path(place)).ok();
        }
    }
}

/// Until this process ends.
fn hear(socket: &UnixDatagram, place: usize, all: &Mutex<All>, manager: Manager) {
    let mut message = [0; MESSAGE_BYTES_MAX];
    loop {
        match receive(socket.as_fd(), &mut message) {
            Ok((length, sender)) if sender.is_some_and(may_speak) => {
                for said in understood(message.get(..length).unwrap_or_default()) {
                    tell(all, manager, |all| all.said(place, said));
                }
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return tracing::error!("a part of this process is not heard any more: {error}"),
        }
    }
}

fn tell(all: &Mutex<All>, manager: Manager, change: impl FnOnce(&mut All) -> Vec<Said>) {
    // Held while it is said: what one part says comes in its order.
    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
    for said in change(&mut all) {
        match said {
            Said::Ready => manager.ready(),
            Said::Stopping => manager.stopping(),
            Said::Alive => manager.alive(),
            Said::Status(text) => manager.status(&text),
            Said::StopsWithin(time) => manager.stops_within(time),
        }
    }
}

/// What was said by whom.
#[derive(Debug)]
struct All {
    parts: Vec<Part>,
    is_ready: bool,
    stops: bool,
}

#[derive(Clone, Debug, Default)]
struct Part {
    is_ready: bool,
    stops: bool,
    /// Since the service manager has last heard that all are.
    is_alive: bool,
    has_ended: bool,
    status: String,
}

impl All {
    fn new(count: usize) -> Self {
        Self { parts: vec![Part::default(); count], is_ready: false, stops: false }
    }

    /// What the service manager is told when a part says this.
    fn said(&mut self, place: usize, said: Said) -> Vec<Said> {
        let Some(part) = self.parts.get_mut(place) else { return Vec::new() };
        match said {
            Said::Ready => part.is_ready = true,
            Said::Stopping => part.stops = true,
            Said::Alive => part.is_alive = true,
            Said::Status(text) => {
                part.status = text;
                return vec![Said::Status(self.status())];
            }
            Said::StopsWithin(time) => return vec![Said::StopsWithin(time)],
        }
        self.of_all()
    }

    /// The others go on.
    fn ended(&mut self, place: usize) -> Vec<Said> {
        let Some(part) = self.parts.get_mut(place) else { return Vec::new() };
        part.has_ended = true;
        self.of_all()
    }

    fn of_all(&mut self) -> Vec<Said> {
        let mut told = Vec::new();
        let all = |is: fn(&Part) -> bool| self.parts.iter().all(|part| part.has_ended || is(part));
        let (is_ready, stops, is_alive) =
            (all(|part| part.is_ready), all(|part| part.stops), all(|part| part.is_alive));
        if self.parts.iter().all(|part| part.has_ended) {
            return told;
        }
        if is_ready && !std::mem::replace(&mut self.is_ready, true) {
            told.push(Said::Ready);
        }
        if stops && !std::mem::replace(&mut self.stops, true) {
            told.push(Said::Stopping);
        }
        if is_alive {
            self.parts.iter_mut().for_each(|part| part.is_alive = false);
            told.push(Said::Alive);
        }
        told
    }

    fn status(&self) -> String {
        let all = self.parts.iter().filter(|part| !part.status.is_empty() && !part.has_ended);
        all.map(|part| part.status.as_str()).collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_service_manager_hears_of_all_parts_what_is_so_of_each() {
        let mut all = All::new(2);
        assert_eq!(all.said(0, Said::Ready), []);
        assert_eq!(all.said(1, Said::Status("b".into())), [Said::Status("b".into())]);
        assert_eq!(all.said(0, Said::Status("a".into())), [Said::Status("a; b".into())]);
        assert_eq!(all.said(1, Said::Ready), [Said::Ready]);
        assert_eq!(all.said(1, Said::Ready), []);
        for _ in 0..2 {
            assert_eq!(all.said(0, Said::Alive), []);
            assert_eq!(all.said(0, Said::Alive), []);
            assert_eq!(all.said(1, Said::Alive), [Said::Alive]);
        }
        let within = Said::StopsWithin(Duration::from_secs(7200));
        assert_eq!(all.said(0, within.clone()), [within]);
        assert_eq!(all.said(0, Said::Stopping), []);
        assert_eq!(all.said(1, Said::Stopping), [Said::Stopping]);
        assert_eq!(all.said(2, Said::Ready), []);
    }

    #[test]
    fn who_has_ended_is_not_waited_for() {
        let mut all = All::new(3);
        assert_eq!(all.said(0, Said::Ready), []);
        assert_eq!(all.said(1, Said::Alive), []);
        assert_eq!(all.ended(2), []);
        assert_eq!(all.said(1, Said::Ready), [Said::Ready]);
        assert_eq!(all.ended(0), [Said::Alive]);
        assert_eq!(all.ended(1), []);
    }
}
