//! Servers at UNIX sockets, whose clients reach them by a file: it is there after a crash, whatever the server does with it.

use crate::common::{
    PATIENCE, Server, eventually, folder, free_port, is_installed, kill, wait_until_held,
    wait_until_held_unix,
};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

/// Makes its socket as it is told, and tells each client its process, by HTTP.
const PROGRAM: &str = r#"
import os, socket, sys, threading
mode, folder = sys.argv[1], sys.argv[2]
os.chdir(folder)
s = socket.socket(socket.AF_UNIX)
def gone(name):
    try: os.unlink(name)
    except FileNotFoundError: pass
if mode == "relative": gone("s"); s.bind("s"); s.listen(50)
elif mode == "relative chmod": gone("s"); s.bind("s"); os.chmod("s", 0o600); s.listen(50); os.chmod("s", 0o666)
elif mode == "absolute chmod": gone(folder + "/s"); s.bind(folder + "/s"); os.chmod(folder + "/s", 0o666); s.listen(50)
elif mode == "chdir": gone("s"); s.bind("s"); s.listen(50); os.chdir("/")
elif mode == "in use":
    try: s.bind("s")
    except OSError: gone("s"); s.bind("s")
    s.listen(50)
elif mode == "link": gone("t"); s.bind("t"); s.listen(50); gone("s"); os.link("t", "s")
elif mode == "renamed": s.bind(folder + "/t"); s.listen(50); os.rename("t", "s")
elif mode == "renamed first": s.bind(folder + "/t"); os.rename("t", "s"); s.listen(50)
elif mode == "again":
    # As HAProxy's master does: the same process makes it once more.
    s.bind(folder + "/t"); os.rename("t", "s"); s.listen(50)
    if "AGAIN" not in os.environ: os.environ["AGAIN"] = "1"; os.execv(sys.executable, [sys.executable] + sys.argv)
def serve(c):
    while c.recv(4096):
        c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n%08d" % os.getpid())
while True:
    threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
"#;

fn ask(client: &mut UnixStream) -> Option<u32> {
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").ok()?;
    let (mut bytes, mut room) = (Vec::new(), [0; 256]);
    let is_complete = |bytes: &[u8]| {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        end.is_some_and(|end| bytes.len() == end + 4 + 8)
    };
    while !is_complete(&bytes) {
        match client.read(&mut room) {
            Ok(0) | Err(_) => return None,
            Ok(count) => bytes.extend_from_slice(&room[..count]),
        }
    }
    String::from_utf8(bytes).ok()?.rsplit("\r\n").next()?.parse().ok()
}

fn asked(path: &Path) -> Option<u32> {
    ask(&mut UnixStream::connect(path).ok()?)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().into_string().unwrap()).filter(|name| name != "p").collect();
    names.sort();
    names
}

/// Crashes it two times. Whether an idle client that came before is `kept`.
fn is_reached_after_crashes(mode: &str, kept: bool) {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let folder = folder(&mode.replace(' ', "-"));
    let (file, path) = (folder.join("p"), folder.join("s"));
    std::fs::write(&file, PROGRAM).unwrap();
    let mut command = Command::new("/usr/bin/python3");
    command.arg(file).arg(mode).arg(&folder);
    let server = Server::start(&command, true);
    let mut last = eventually("it is not reached", || asked(&path));
    for crash in 0..2 {
        let mut idle = UnixStream::connect(&path).unwrap();
        assert_eq!(ask(&mut idle), Some(last), "{mode}: {crash}");
        if kept {
            wait_until_held_unix(&server);
        }
        kill(last, libc::SIGKILL);
        let next = eventually("it is not reached after a crash", || asked(&path).filter(|pid| *pid != last));
        if kept {
            assert_eq!(ask(&mut idle), Some(next), "{mode}: {crash}");
        }
        last = next;
    }
    // Those that this test has made: none was made since.
    server.says("Crashed", 2);
    assert_eq!(server.stop(), 128 + libc::SIGTERM);
    let left: &[&str] = if mode == "link" { &["s", "t"] } else { &["s"] };
    assert_eq!(names(&folder), left, "{mode}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_relative_path_is_reached_after_a_crash() {
    is_reached_after_crashes("relative", true);
    is_reached_after_crashes("chdir", true);
    is_reached_after_crashes("in use", true);
}

#[test]
fn a_file_whose_mode_is_changed_is_reached_after_a_crash() {
    is_reached_after_crashes("relative chmod", true);
    is_reached_after_crashes("absolute chmod", true);
}

#[test]
fn a_file_that_gets_another_name_is_reached_after_a_crash() {
    is_reached_after_crashes("link", false);
    is_reached_after_crashes("renamed", false);
    is_reached_after_crashes("renamed first", false);
    is_reached_after_crashes("again", false);
}

/// The same path means another file in each folder.
#[test]
fn a_path_of_another_folder_is_another_socket() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let folder = folder("folders");
    let file = folder.join("p");
    let text = "import os, socket, sys\n\
        def listen(where):\n    os.makedirs(where, exist_ok=True); os.chdir(where)\n    \
        try: os.unlink('s')\n    except FileNotFoundError: pass\n    \
        s = socket.socket(socket.AF_UNIX); s.bind('s'); s.listen(5); return s\n\
        f = sys.argv[1]; order = ['a', 'b']\n\
        if os.path.exists(f + '/a'): order.reverse()\n\
        all = {n: listen(f + '/' + n) for n in order}\n\
        import select\n\
        while True:\n    \
        for s in select.select(list(all.values()), [], [])[0]:\n        \
        c = s.accept()[0]; c.sendall([n for n in all if all[n] is s][0].encode() + b'%d' % os.getpid()); c.close()\n";
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new("/usr/bin/python3");
    command.arg(file).arg(&folder);
    let server = Server::start(&command, true);
    let said = |name: &str| {
        let mut text = String::new();
        UnixStream::connect(folder.join(name).join("s")).ok()?.read_to_string(&mut text).ok()?;
        Some(text).filter(|text| text.len() > 1)
    };
    let main = eventually("it does not serve", || said("b").filter(|_| said("a").is_some()));
    kill(server.main(), libc::SIGKILL);
    eventually("it does not serve again", || said("b").filter(|next| *next != main));
    for name in ["a", "b"] {
        assert!(eventually("it does not answer", || said(name)).starts_with(name), "{name}");
    }
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}

/// It executes itself, and its process makes a file of the same name again that it renames.
#[test]
fn haproxy_with_a_socket_of_its_master_runs() {
    if !is_installed("/usr/sbin/haproxy") {
        return;
    }
    let (folder, port) = (folder("master"), free_port());
    let socket = folder.join("m.sock");
    let server = Server::start(&crate::servers::haproxy_master(&folder, port, &socket), true);
    let show = || {
        let mut client = UnixStream::connect(&socket).ok()?;
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(b"show proc\n").ok()?;
        client.shutdown(std::net::Shutdown::Write).ok()?;
        let mut text = String::new();
        client.read_to_string(&mut text).ok()?;
        text.contains("worker").then_some(())
    };
    let mut client = crate::common::Client::connect(port);
    assert!(client.get("/"));
    wait_until_held(&server, [&client]);
    eventually("its master does not answer", show);
    let main = server.main();
    kill(main, libc::SIGKILL);
    eventually("it is not started again", || (server.main() != main).then_some(()));
    eventually("its next master does not answer", show);
    assert!(client.get("/"));
    server.says("Crashed", 1);
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}
