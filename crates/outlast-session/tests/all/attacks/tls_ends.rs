//! A peer that ends TLS, and goes on to send.

use super::ALONE;
use super::raw::{Raw, fresh_id, hello};
use super::theft::{shake, tls_stream};
use crate::common::{certificates, quick, tls_of_both_ends, within};
use outlast_session::proto::{ClientStep, Credentials};
use outlast_session::{Config, blocking};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// TLS over a connection that is written to besides.
#[derive(Clone)]
struct Shared(Arc<Mutex<rustls::StreamOwned<rustls::ClientConnection, TcpStream>>>);

impl Read for Shared {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().read(buffer)
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.lock().unwrap().flush()
    }
}

/// How long the thread that serves all sessions has run, in clock ticks of 10 ms.
fn helper_ticks() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    let helper = stats.filter(|stat| stat.contains("(outlast-helper")).map(|stat| {
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    });
    helper.sum()
}

#[test]
fn what_comes_behind_the_end_of_tls_keeps_no_thread_busy() {
    let _shared = ALONE.read();
    within(|| {
        let security = tls_of_both_ends();
        let config = Arc::new(Config { security, ..quick() });
        let listener = blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap();
        let address = listener.local_addr();
        let server = std::thread::spawn(move || {
            let mut session = listener.accept().unwrap();
            session.write_all(&[1]).unwrap();
            drop(session);
            listener
        });
        let (stream, binding) = tls_stream(certificates().client(None), address);
        let mut beside = stream.sock.try_clone().unwrap();
        let shared = Shared(Arc::new(Mutex::new(stream)));
        let mut raw = Raw::over(shared.clone());
        let credentials = Credentials::Tls { binding, key: None };
        let (_, step) = shake(&mut raw, hello(fresh_id()), credentials, rand::random());
        assert!(matches!(step, ClientStep::Welcomed(_)), "{step:?}");
        let _listener = server.join().unwrap();
        {
            let mut tls = shared.0.lock().unwrap();
            tls.conn.send_close_notify();
            tls.flush().unwrap();
        }
        // More than is read at once.
        beside.write_all(&[7; 64 << 10]).unwrap();
        beside.shutdown(Shutdown::Write).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let before = helper_ticks();
        std::thread::sleep(Duration::from_secs(1));
        let ticks = helper_ticks() - before;
        assert!(ticks < 30, "the helper thread has run for {ticks}0 ms of a second");
    });
}
