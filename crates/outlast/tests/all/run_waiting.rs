//! `outlast run` with servers that were not changed and take their time to end: clients wait for the next one, and none is
//! refused.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Outlast, eventually, folder};
use crate::run_preload::{Client, Comes, PROGRAM, free_port, library};
use std::path::Path;

fn run<'a>(library: &'a str, port: &'a str, files: [&'a str; 2]) -> [&'a str; 14] {
    let [program, folder] = files;
    [
        "run",
        "--name",
        "web",
        "--preload",
        "always",
        "--preload-library",
        library,
        "--stop-timeout",
        "1000s",
        "--",
        "/usr/bin/python3",
        program,
        port,
        folder,
    ]
}

/// Killed before, it would leave files that keep the next one from starting (dovecot).
#[test]
fn a_server_without_its_supervisor_has_all_of_its_time_to_end_while_clients_wait() {
    let (folder, port, library) = (folder(), free_port(), library());
    let file = folder.path().join("program.py");
    // More than others get.
    let ends = "import signal, time; signal.alarm(120)\n\
        def put(name):\n with open(sys.argv[2] + '/' + name, 'w') as file: file.write(str(os.getpid()))\n\
        def told(*_): put('told'); time.sleep(6); put('ended'); os._exit(0)\n\
        signal.signal(signal.SIGTERM, told)\nhttp.server.Threading";
    std::fs::write(&file, PROGRAM.replacen("http.server.Threading", ends, 1)).unwrap();
    let port_text = port.to_string();
    let files = [file.to_str().unwrap(), folder.path().to_str().unwrap()];
    let library = library.to_str().unwrap();
    let mut first = Outlast::start(folder.path(), &run(library, &port_text, files));
    first.wait_for("is ready");
    let old = Client::connect(port).get();
    first.signal("KILL");
    first.ended();
    let comes = Comes::begin(port);
    let mut next = Outlast::start(folder.path(), &run(library, &port_text, files));
    next.wait_for("web of before still ran without its supervisor");
    let noted = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    assert_eq!(noted("ended"), old, "it was killed");
    let old = Client::connect(port).get();
    assert_eq!(comes.refused(), 0, "some were refused");
    next.signal("KILL");
    next.ended();
    // Who is in a hurry does not wait for that.
    let mut hurried = Outlast::start(folder.path(), &run(library, &port_text, files));
    eventually("it is not told to end", || (noted("told") == old).then_some(()));
    hurried.signal("TERM");
    hurried.ended();
    assert_ne!(noted("ended"), old, "it was waited for");
}
