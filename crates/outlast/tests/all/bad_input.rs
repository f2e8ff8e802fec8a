//! Everything that can be wrong: one clear line, the documented exit code, nothing half-started.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{command, folder, output};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Output, Stdio};

/// One line that begins with the program's name and contains `part`, and the code.
pub fn assert_complaint(output: &Output, code: i32, part: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert_eq!(said.lines().count(), 1, "more than one line: {said}");
    assert!(said.starts_with("outlast: ") && said.contains(part), "no {part:?} in: {said}");
    assert!(output.stdout.is_empty(), "{output:?}");
}

pub fn write(folder: &Path, name: &str, content: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, content).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_key_that_others_can_read_or_guess_is_refused() {
    let folder = folder();
    let listen = |file: &str| {
        output(folder.path(), &["listen", "127.0.0.1:0", "--to", "127.0.0.1:1", "--psk-file", file])
    };
    let open = write(folder.path(), "open", "8e1fb6d03c52a7794410dfa9ee3c65b2\n");
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert_complaint(&listen(&open), 2, "every user of this machine can read it: chmod 600");
    for weak in ["correct horse battery staple rains", "0123456789abcdef0123456789abcdef"] {
        let weak = write(folder.path(), "weak", weak);
        assert_complaint(&listen(&weak), 2, "key is not random, so that others can guess it");
    }
}

#[test]
fn wrong_command_lines_end_with_2() {
    let folder = folder();
    let short = write(folder.path(), "short", "0011\n");
    let folder_as_key = folder.path().to_str().unwrap();
    let listen = ["listen", "127.0.0.1:0", "--to", "127.0.0.1:1"];
    let connect = ["connect", "127.0.0.1:0", "--via", "127.0.0.1:1"];
    let cases: Vec<(Vec<&str>, &str)> = vec![
        (vec![], "nothing to do"),
        (vec!["lisen"], "'listen'"),
        (vec!["connect", "--patiance", "1s"], "'--patience'"),
        (vec!["listen", "127.0.0.1:0"], "--to"),
        (vec!["listen", "--to", "127.0.0.1:1"], "no address to listen on"),
        (vec!["listen", "999.0.0.1:0", "--to", "127.0.0.1:1"], "999.0.0.1"),
        (vec!["listen", "127.0.0.1:99999", "--to", "127.0.0.1:1"], "port"),
        (vec!["listen", "127.0.0.1:0", "--to", "127.0.0.1"], "no port"),
        (vec!["listen", "0.0.0.0:0", "--to-any"], "--psk-file"),
        (vec!["connect", "127.0.0.1:0"], "--via"),
        (vec!["connect", "127.0.0.1:0", "--via", "http://a:1"], "give host:port"),
        (vec!["connect", "127.0.0.1:0", "--stdio", "--via", "127.0.0.1:1"], "--stdio"),
        ([&listen[..], &["--psk-file", "/nowhere/key"]].concat(), "/nowhere/key: no such file"),
        ([&listen[..], &["--psk-file", &short]].concat(), "key"),
        ([&listen[..], &["--psk-file", folder_as_key]].concat(), "no regular file"),
        (
            [&listen[..], &["--tls-cert", &short, "--tls-key", &short]].concat(),
            "there is no certificate in it",
        ),
        ([&listen[..], &["--tls-cert", &short]].concat(), "--tls-key"),
        ([&listen[..], &["--allow", "10.0.0.0/77"]].concat(), "no network"),
        ([&listen[..], &["--keep", "soon"]].concat(), "give a number with a unit"),
        ([&listen[..], &["--keep", "-5s"]].concat(), "for '--keep <TIME>': \"-5s\" is less than no time"),
        (
            [&connect[..], &["--patience", "-1m"]].concat(),
            "is less than no time: give a number without a sign",
        ),
        ([&connect[..], &["--ack", "kernel", "--tls"]].concat(), "cannot work with tls"),
        ([&connect[..], &["--ack", "magic"]].concat(), "use auto, kernel, window, udp or inband"),
        ([&connect[..], &["--tls-name", "x"]].concat(), "--tls"),
        ([&connect[..], &["--retain", "1K"]].concat(), "retain"),
        ([&connect[..], &["--patience", "0s"]].concat(), "more than none"),
        ([&connect[..], &["--log", "=="]].concat(), "--log"),
        ([&connect[..], &["--log", "bogus="]].concat(), "\"bogus=\" is neither a level"),
        ([&connect[..], &["--log", "inof"]].concat(), "\"inof\" is neither a level"),
        (vec!["status", "--log", "warn,bogus="], "\"bogus=\" is neither a level"),
        (vec!["--config", "/nowhere.toml"], "/nowhere.toml: no such file"),
    ];
    for (arguments, part) in cases {
        assert_complaint(&output(folder.path(), &arguments), 2, part);
    }
}

#[test]
fn wrong_files_end_with_2_and_name_the_line() {
    let folder = folder();
    for (text, part) in [
        ("[[listen]]\naddress = '127.0.0.1:0'\ntoo = 'a:1'\n", ":3: unknown key \"too\""),
        ("[[listen]\n", ":1: "),
        ("[[connect]]\naddress = '127.0.0.1:0'\nvia = 'a:1'\nack = 'magic'\n", ":4: "),
        ("", "nothing to do"),
        (
            "[[listen]]\naddress = '127.0.0.1:0'\n",
            ":1: no service to connect sessions to: give to host:port or to-any",
        ),
        (
            "\n[[lisen]]\naddress = '127.0.0.1:0'\n",
            ":2: there is no section [[lisen]]; did you mean [[listen]]?",
        ),
        (
            "metrics = []\n[[listen]]\naddress = '127.0.0.1:0'\nto = '127.0.0.1:1'\n",
            ":1: \"metrics\" is an empty list",
        ),
        (
            "[[listen]]\naddress = '127.0.0.1:0'\nto = '127.0.0.1:1'\nallow = []\n",
            ":4: \"allow\" is an empty list",
        ),
        (
            "[[listen]]\naddress = '127.0.0.1:0'\nto = '127.0.0.1:1'\npsk-file = false\n",
            ":4: \"psk-file\" has a value",
        ),
        (
            "[[listen]]\naddress = '127.0.0.1:9'\nto = 'a:1'\n[[connect]]\naddress = '127.0.0.1:9'\nvia = 'a:1'\n",
            "two sections listen on 127.0.0.1:9",
        ),
    ] {
        let file = write(folder.path(), "outlast.toml", text);
        let checked = output(folder.path(), &["config", "check", &file]);
        assert_complaint(&checked, 2, part);
        assert_eq!(String::from_utf8_lossy(&checked.stderr).matches("outlast.toml").count(), 1, "{text}");
        assert_complaint(&output(folder.path(), &["--config", &file]), 2, part);
    }
}

#[test]
fn a_check_tells_everything_that_is_wrong_in_the_order_of_the_file() {
    let folder = folder();
    let text = "lgo = 'info'\n[[listen]]\naddress = '127.0.0.1:0'\n[[connect]]\nadress = 'a:1'\npatience = 'long'\n\
                [[run]]\nprogram = '/no/such/program'\nlimit = 'nofile=20000000000'\n";
    let file = write(folder.path(), "outlast.toml", text);
    let checked = output(folder.path(), &["config", "check", &file]);
    let said = String::from_utf8_lossy(&checked.stderr).into_owned();
    let lines: Vec<&str> = said.lines().collect();
    let expected = [
        ":1: unknown key \"lgo\"; did you mean \"log\"?",
        ":2: no service",
        ":5: unknown key \"adress\"; did you mean \"address\"?",
        ":6: invalid value 'long' for 'patience ",
        ":8: program: ",
        ":9: limit: ",
    ];
    assert_eq!(checked.status.code(), Some(2), "{said}");
    assert_eq!(lines.len(), expected.len(), "{said}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(&format!("outlast: {file}{expected}")), "{expected}: {said}");
    }
    // More files than the kernel ever lets one process open: said before it is tried.
    let text = "[[run]]\nprogram = 'true'\nlimit = 'nofile=20000000000'\n";
    let file = write(folder.path(), "outlast.toml", text);
    assert_complaint(&output(folder.path(), &["config", "check", &file]), 7, ":3: limit: nofile=20000000000");
}

/// More than this user may have: the start would fail.
#[test]
fn a_check_tells_of_a_limit_that_could_not_be_set() {
    let folder = folder();
    let text = "[[run]]\nprogram = 'true'\nlimit = 'nofile=100000'\n";
    let file = write(folder.path(), "outlast.toml", text);
    // Root may raise the hard limit, unless it has lost the capability for that.
    let is_root = rustix::process::geteuid().is_root();
    let without = "setpriv --bounding-set -sys_resource --inh-caps -sys_resource";
    let script = format!("ulimit -n 4096; exec {} \"$@\"", if is_root { without } else { "" });
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_outlast"), "config", "check", &file]);
    limited.env("XDG_RUNTIME_DIR", folder.path()).env_remove("OUTLAST_LOG").stdin(Stdio::null());
    assert_complaint(&limited.output().unwrap(), 7, ":3: limit: nofile=100000 is more than 4096");
}

/// One mistake hides no other.
#[test]
fn a_check_tells_what_is_wrong_beside_something_that_is() {
    let folder = folder();
    let top = "log = 'loud'\nmetrics = '127.0.0.1:99999'\nunknown = 3\n";
    let ok = "[[listen]]\naddress = '127.0.0.1:2255'\nto = '127.0.0.1:1'\n";
    let cases: [(String, &[&str]); 7] = [
        (
            format!("{top}{ok}"),
            &[
                ":1: invalid value 'loud' ",
                ":2: invalid value '127.0.0.1:99999' ",
                ":3: unknown key \"unknown\"",
            ],
        ),
        (
            format!("{ok}keep = '5'\n{ok}"),
            &[":4: invalid value '5' ", ":6: two sections listen on 127.0.0.1:2255"],
        ),
        (
            "[[connect]]\naddress = 'nonsense'\nvia = ['127.0.0.1:1']\ntls-ca = '/nonexistent'\n".into(),
            &[
                ":1: the following required arguments were not provided: tls",
                ":2: unusable address \"nonsense\"",
            ],
        ),
        (
            "[[listen]]\nkeep = '5'\naddress = '127.0.0.1:0'\npsk-file = '/nonexistent'\n".into(),
            &[
                ":1: no service to connect sessions to",
                ":2: invalid value '5' ",
                ":4: unusable key file /nonexistent",
            ],
        ),
        (
            "[[listen]]\nto = '127.0.0.1:1'\naddress = 5\n".into(),
            &[":3: unusable address \"5\": no port"],
        ),
        (
            format!("{ok}allow = ['10.0.0.0/8', '300.0.0.0/8', '10.0.0.0/33']\n"),
            &[":4: invalid value '300.0.0.0/8' ", ":4: invalid value '10.0.0.0/33' "],
        ),
        (
            "[[run]]\nprogram = '/nowhere/program'\nlimit = 'nofile=20000000000'\nintensity = 'much'\n\
             [[run]]\nprogram = 'nowhere/server'\nworking-directory = '/nowhere/folder'\nlimit = 'nofile=20000000000'\n"
                .into(),
            &[
                ":2: program: ",
                ":3: limit: ",
                ":4: invalid value 'much' ",
                ":7: there is no folder ",
                ":8: limit: ",
            ],
        ),
    ];
    for (text, expected) in cases {
        let file = write(folder.path(), "outlast.toml", &text);
        let checked = output(folder.path(), &["config", "check", &file]);
        let said = String::from_utf8_lossy(&checked.stderr).into_owned();
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), expected.len(), "{text}: {said}");
        for (line, expected) in lines.iter().zip(expected) {
            assert!(line.starts_with(&format!("outlast: {file}{expected}")), "{expected}: {said}");
        }
    }
}

/// Whatever is wrong with a value: the line is the value's, not that of its section.
#[test]
fn every_wrong_value_is_told_at_its_line() {
    let folder = folder();
    let listen = "[[listen]]\naddress = '127.0.0.1:0'\nto = '127.0.0.1:1'\n";
    let any = "[[listen]]\naddress = '127.0.0.1:0'\nto-any = true\n";
    let connect = "[[connect]]\naddress = '127.0.0.1:0'\nvia = ['127.0.0.1:1']\n";
    let run = "[[run]]\nname = 'a'\nprogram = ['true']\n";
    let alone = "[[listen]]\nto = '127.0.0.1:1'\npsk-file = '/nowhere/first'\n";
    for (section, wrong) in [
        (listen, "memory = '5'"),
        (listen, "psk-file = '/nowhere/key'"),
        (listen, "tls-cert = '/nowhere/cert'\ntls-key = '/nowhere/key'"),
        (listen, "deny-to = '10.0.0.0/8'"),
        (listen, "keep = '-5s'"),
        (listen, "detect = '1ms'"),
        (listen, "retain = '1K'"),
        (any, "allow-to = 'nonsense:port'"),
        (alone, "address = 'nowhere'"),
        (connect, "proxy-auth-file = '/nowhere/auth'"),
        (connect, "bind-from = '192.0.2.77'"),
        (connect, "tls = true\ntls-ca = '/nowhere/ca'"),
        (connect, "tls = true\ntls-name = 'a b'"),
        (run, "working-directory = '/nowhere/folder'"),
        (run, "preload-library = '/nowhere/library'\npreload = 'always'"),
        (run, "backoff-max = '1ms'\nbackoff-min = '2s'"),
        (run, "limit = 'nofiles=1'"),
    ] {
        let file = write(folder.path(), "outlast.toml", &format!("{section}{wrong}\n"));
        let checked = output(folder.path(), &["config", "check", &file]);
        let said = String::from_utf8_lossy(&checked.stderr);
        // The second of two keys where the first is a switch.
        let lines = if wrong.starts_with("tls = ") { [5, 5] } else { [4, 4] };
        let named = lines.iter().any(|line| said.contains(&format!("outlast.toml:{line}: ")));
        assert!(named, "{wrong}: {said}");
    }
}

#[test]
fn what_the_system_refuses_ends_with_7_and_nothing_stays() {
    let folder = folder();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    assert_complaint(
        &output(folder.path(), &["listen", &taken, "--to", "127.0.0.1:1"]),
        7,
        "address already in use; another program listens there",
    );
    assert_complaint(
        &output(folder.path(), &["listen", "192.0.2.77:0", "--to", "127.0.0.1:1"]),
        7,
        "no interface",
    );
    assert_complaint(
        &output(folder.path(), &["connect", "127.0.0.1:0", "--via", &taken, "--bind-from", "192.0.2.77"]),
        7,
        "cannot connect from 192.0.2.77 (--bind-from): cannot assign requested address",
    );
    // The first front is up when the second one fails: it must go again.
    let first = folder.path().join("first.sock");
    let text = format!(
        "[[connect]]\naddress = 'unix:{}'\nvia = ['127.0.0.1:1']\n[[connect]]\naddress = '{taken}'\nvia = ['127.0.0.1:1']\n",
        first.display()
    );
    let file = write(folder.path(), "outlast.toml", &text);
    assert_complaint(&output(folder.path(), &["--config", &file]), 7, &taken);
    assert!(!first.exists());
    // Both could be bound, and the second one could not listen: that is found before anything is begun.
    let port = outlast_lab::free_port().unwrap();
    let section = |host: &str| format!("[[listen]]\naddress = '{host}:{port}'\nto = '127.0.0.1:1'\n");
    let file = write(folder.path(), "outlast.toml", &(section("0.0.0.0") + &section("localhost")));
    let complaint =
        format!(":5: two sections listen on 127.0.0.1:{port} and 0.0.0.0:{port}, which is all addresses");
    assert_complaint(&output(folder.path(), &["--config", &file]), 2, &complaint);
    let nowhere = folder.path().join("no/such/folder/admin");
    let arguments =
        ["listen", "127.0.0.1:0", "--to", "127.0.0.1:1", "--admin-socket", nowhere.to_str().unwrap()];
    assert_complaint(&output(folder.path(), &arguments), 7, "admin socket");
}

#[test]
fn faults_that_nothing_is_there_for_end_with_2() {
    outlast_lab::require!();
    let folder = folder();
    for (fault, part) in
        [("nat rebind at 1s", "needs a NAT: add --nat"), ("roam at 1s", "client: add --two-paths")]
    {
        let lab = ["lab", "--fault", fault, "--server", "sleep 9", "--server-wait", "0s", "--", "true"];
        let output = output(folder.path(), &lab);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(part), "{said}");
    }
}

/// A wrong name is a mistake of usage, whatever the flag; that a file may not be read is the system's.
#[test]
fn files_that_are_missing_end_with_2_and_those_that_may_not_be_read_with_7() {
    let folder = folder();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let closed = write(folder.path(), "closed", "8e1fb6d03c52a7794410dfa9ee3c65b2\n");
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o000)).unwrap();
    let missing = folder.path().join("missing").to_str().unwrap().to_owned();
    let below_a_file = format!("{closed}/file");
    let a_folder = folder.path().to_str().unwrap().to_owned();
    let listen = ["listen", "127.0.0.1:0", "--to", "127.0.0.1:1"];
    let connect = ["connect", "--socks5", "127.0.0.1:0", "--via", "127.0.0.1:1"];
    let certified = rcgen::generate_simple_self_signed(vec!["a.example".into()]).unwrap();
    let certificate = write(folder.path(), "certificate", &certified.cert.pem());
    let key = write(folder.path(), "key", &certified.signing_key.serialize_pem());
    std::fs::set_permissions(&certificate, std::fs::Permissions::from_mode(0o644)).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        std::os::unix::fs::chown(&key, Some(65534), Some(65534)).unwrap();
    }
    let run = |arguments: &[&str], file: &str| {
        let arguments: Vec<&str> =
            arguments.iter().map(|word| if *word == "FILE" { file } else { *word }).collect();
        let mut command = command(folder.path(), &arguments);
        if is_root {
            // Nothing is closed to root.
            std::os::unix::process::CommandExt::uid(&mut command, 65534);
        }
        command.arg("--quiet").output().unwrap()
    };
    for arguments in [
        [&listen[..], &["--psk-file", "FILE"]].concat(),
        [&listen[..], &["--tls-cert", "FILE", "--tls-key", &key]].concat(),
        [&listen[..], &["--tls-cert", &certificate, "--tls-key", "FILE"]].concat(),
        [&listen[..], &["--tls-cert", &certificate, "--tls-key", &key, "--tls-client-ca", "FILE"]].concat(),
        [&connect[..], &["--psk-file", "FILE"]].concat(),
        [&connect[..], &["--proxy-auth-file", "FILE"]].concat(),
        [&connect[..], &["--tls", "--tls-ca", "FILE"]].concat(),
        [&connect[..], &["--tls", "--tls-ca", &certificate, "--tls-cert", "FILE", "--tls-key", &key]]
            .concat(),
        [&connect[..], &["--tls", "--tls-ca", &certificate, "--tls-cert", &certificate, "--tls-key", "FILE"]]
            .concat(),
        vec!["--config", "FILE"],
        vec!["config", "check", "FILE"],
    ] {
        println!("{arguments:?}");
        for (file, code) in [(&missing, 2), (&below_a_file, 2), (&a_folder, 2), (&closed, 7)] {
            assert_complaint(&run(&arguments, file), code, &format!(" file {file}: "));
        }
    }
}
