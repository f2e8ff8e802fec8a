//! Programs count on the numbers of their descriptors: what is opened next has the lowest free one.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{PYTHON, Server, eventually, folder, free_port, is_installed, python};

/// Listens with few descriptors allowed, as a daemon that has closed its standard input, and writes down what numbers follow.
const PROGRAM: &str = r#"
import os, resource, socket, sys
folder, port = sys.argv[1], int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
os.close(0)
s = socket.socket(); t = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("127.0.0.1", port)); s.listen(9)
numbers = [s.fileno(), t.fileno(), os.open("/dev/null", os.O_RDONLY)]
with open(folder + "/numbers.new", "w") as f: f.write(str(numbers))
os.rename(folder + "/numbers.new", folder + "/numbers")
s.accept()
"#;

#[test]
fn a_server_with_few_descriptors_has_the_same_numbers_as_without_us() {
    if !is_installed(PYTHON) {
        return;
    }
    let numbers = |supervised: bool| {
        let folder = folder(&format!("numbers-{supervised}"));
        let server = Server::start(&python(&folder, PROGRAM, &[free_port()]), supervised);
        let numbers =
            eventually("it does not listen", || std::fs::read_to_string(folder.join("numbers")).ok());
        server.stop();
        std::fs::remove_dir_all(folder).unwrap();
        numbers
    };
    assert_eq!(numbers(true), numbers(false));
}
