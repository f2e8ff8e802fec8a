//! liboutlast as C programs use it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{PATIENCE, compile, folder, library, run, signal};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const HEADER: &str = include_str!("../../include/outlast.h");

struct Lines {
    child: Child,
    address: SocketAddr,
}

impl Lines {
    fn start(name: &str) -> Self {
        // Each test has its own.
        let program = compile("lines.c", &["-std=c11", &format!("-DTEST_{name}")]);
        let mut child = Command::new(program).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("listening on ").unwrap().parse().unwrap();
        Self { child, address }
    }

    fn client(&self) -> Client {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client(BufReader::new(stream))
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        signal(self.child.id(), "TERM");
        let _ = self.child.wait();
    }
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn say(&mut self, line: &str) {
        self.0.get_mut().write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.hear()
    }
}

#[test]
fn errors_are_told() {
    let program = compile("errors.c", &["-std=c11"]);
    for state in [None, Some("state")] {
        let output = Command::new(&program).args(state).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "all is told\n", "{output:?}");
        assert!(output.status.success());
    }
}

#[test]
fn a_server_with_threads_goes_on_where_it_crashed() {
    let server = Lines::start("goes_on");
    let (mut client, mut other) = (server.client(), server.client());
    assert_eq!(client.ask("hello"), "hello");
    assert_eq!(client.ask("predecessor"), "");
    assert_eq!(other.ask("note well"), "note well");
    // The same request is dealt with once more, and goes well.
    assert_eq!(client.ask("crash 1"), "crash 1");
    assert_eq!(client.ask("generation"), "2");
    assert_eq!(client.ask("predecessor"), "been killed by SIGSEGV");
    assert_eq!(other.ask("recall"), "well");
    assert_eq!(client.ask("recall"), "");
    // Half an answer was sent: the other half follows.
    let expected: String =
        (0..3_000_000u32).map(|n| char::from(b'a' + u8::try_from(n % 26).unwrap())).collect();
    assert!(client.ask("half of 3000000 2") == expected);
    assert_eq!(client.ask("generation"), "3");
    // Several requests at once, one of which crashes.
    client.say("a\nb\ncrash 3\nc");
    assert_eq!([(); 4].map(|()| client.hear()), ["a", "b", "crash 3", "c"]);
    assert_eq!(other.ask("generation"), "4");
}

#[test]
fn a_thread_that_hangs_is_killed_and_succeeded() {
    let server = Lines::start("hangs");
    let (mut client, mut other) = (server.client(), server.client());
    assert_eq!(client.ask("hang 1"), "hang 1");
    assert_eq!(
        (other.ask("generation"), other.ask("predecessor")),
        ("2".into(), "been killed by SIGKILL".into())
    );
}

#[test]
fn a_change_of_the_state_counts_once_whatever_it_crashes() {
    let server = Lines::start("state");
    let (mut client, mut other) = (server.client(), server.client());
    assert_eq!(
        (client.ask("add a"), client.ask("add a"), other.ask("add b")),
        ("1".into(), "2".into(), "1".into())
    );
    // It is changed back, and then changed for good.
    assert_eq!(client.ask("add a 1"), "3");
    assert_eq!(
        (client.ask("generation"), other.ask("add a"), client.ask("add b")),
        ("2".into(), "4".into(), "2".into())
    );
}

#[test]
fn who_crashes_three_generations_is_refused() {
    let server = Lines::start("refused");
    let (mut poison, mut other) = (server.client(), server.client());
    assert_eq!(other.ask("hello"), "hello");
    assert_eq!(poison.ask("crash 1000"), "refused");
    assert_eq!(poison.0.read(&mut [0]).unwrap(), 0);
    assert_eq!(other.ask("generation"), "4");
}

#[test]
fn the_header_is_what_the_library_has_in_c_and_in_cpp() {
    let nm = Command::new("nm").args(["-D", "--defined-only"]).arg(library().join("liboutlast.so")).output();
    let symbols = String::from_utf8(nm.unwrap().stdout).unwrap();
    let exported: BTreeSet<&str> = symbols.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    let is_declaration =
        |line: &&str| line.ends_with(';') && line.contains('(') && !line.starts_with([' ', '/']);
    let declared = HEADER.lines().filter(is_declaration).map(|line| {
        let name = line.split('(').next().unwrap();
        name.rsplit([' ', '*']).next().unwrap()
    });
    let declared: BTreeSet<&str> = declared.collect();
    assert_eq!(declared, exported);
    assert!(declared.len() > 15);
    for (language, standard) in [("c", "-std=c99"), ("c", "-std=c11"), ("c++", "-std=c++11")] {
        let source = folder("header").join("header.h");
        std::fs::write(&source, HEADER).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-fsyntax-only", "-Wall", "-Wextra", "-pedantic", "-Werror", "-x", language, standard]);
        run(cc.arg(source));
    }
}

#[test]
fn it_is_installed_so_that_pkg_config_finds_it() {
    let prefix = folder("installed");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut make = Command::new("make");
    make.arg("-C").arg(root).arg("install").arg(format!("PREFIX={}", prefix.display()));
    run(make.arg(format!("BUILT={}", library().display())));
    let mut version = Command::new("pkg-config");
    version.args(["--modversion", "outlast"]).env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    let told = String::from_utf8(version.output().unwrap().stdout).unwrap();
    assert_eq!(told.trim_end(), env!("CARGO_PKG_VERSION"));
    for linking in ["--shared", "--static"] {
        let mut shell = Command::new("sh");
        let flags = "$(pkg-config --cflags --libs $LINKING outlast)";
        // The archive instead of the library: as the linker does it where there is no other.
        let archive = "[ $LINKING = --shared ] || rm -f $PREFIX/lib/liboutlast.so";
        let compile = format!("{archive}; cc -Wall -Werror -o $PREFIX/program $SOURCE {flags}");
        // By the version of its interface, so that a later one that is different is not taken for it.
        let named =
            "[ $LINKING = --static ] || readelf -d $PREFIX/program | grep -q 'NEEDED.*liboutlast\\.so\\.0'";
        shell.arg("-ec").arg(format!("{compile}; {named}; LD_LIBRARY_PATH=$PREFIX/lib $PREFIX/program"));
        shell.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).env("PREFIX", &prefix);
        shell.env("LINKING", linking).env("SOURCE", root.join("tests/errors.c"));
        let output = shell.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "all is told\n", "{linking}: {output:?}");
    }
}
