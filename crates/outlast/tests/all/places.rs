//! Where instances are found: wherever their user's surroundings have put them, and whatever other users do in /tmp.
//! In a mount namespace with a /tmp and a /run of its own.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a failed expectation is the message of a test"
)]

use std::process::Command;

const SCRIPT: &str = r#"
set -eu
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=755 tmpfs /run
unset XDG_RUNTIME_DIR RUNTIME_DIRECTORY
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
as() { uid=$1; shift; setpriv --reuid "$uid" --regid "$uid" --clear-groups "$@"; }
# Another user was first, with a folder that looks right, and with one that everybody may look into.
mkdir -m 700 /tmp/outlast-54321; chown 54322 /tmp/outlast-54321
mkdir -m 777 /tmp/outlast-54323
# A service manager has made folders for its services.
mkdir -m 755 /run/web; chown 54321 /run/web
mkdir -p /run/user; mkdir -m 700 /run/user/54321; chown 54321 /run/user/54321
start() { # user, log, variables
    user=$1; log=$2; shift 2
    setpriv --reuid "$user" --regid "$user" --clear-groups env "$@" "$OUTLAST" --log info listen 127.0.0.1:0 --to 127.0.0.1:9 2>"/tmp/$log.log" &
    echo "$log $!"
    until grep -q 'listening on' "/tmp/$log.log"; do sleep 0.05; done
}
start 54321 login XDG_RUNTIME_DIR=/run/user/54321
start 54321 service RUNTIME_DIRECTORY=/run/web
rmdir /run/user/54321 2>/dev/null || true
mv /run/user/54321 /run/user/moved
start 54321 squatted A=b
mv /run/user/moved /run/user/54321
start 54323 open A=b
start 0 root A=b
find /run/user/54321/outlast /run/web/outlast /run/outlast /tmp/outlast-54321.* /tmp/outlast-54323.* -name '*.sock'
echo "squatter has $(ls -A /tmp/outlast-54321 /tmp/outlast-54323 | grep -c sock)"
grep -h 'instead' /tmp/squatted.log /tmp/open.log
echo "--- status of 54321"; as 54321 "$OUTLAST" status
echo "--- status of 54321 in a login"; as 54321 env XDG_RUNTIME_DIR=/run/user/54321 "$OUTLAST" status
echo "--- status of root"; "$OUTLAST" status
echo "--- end"
exit 0
"#;

/// A service is restarted twice; the first time its manager removes its folder in between, the second time it does not.
const RESTARTED: &str = r#"
set -eu
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=755 tmpfs /run
unset XDG_RUNTIME_DIR
export RUNTIME_DIRECTORY=/run/service
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
listen() {
    mkdir -p "$RUNTIME_DIRECTORY"
    "$OUTLAST" --log info --drain-timeout 0s listen 127.0.0.1:7100 --to 127.0.0.1:7101 2>/tmp/log & service=$!
    until grep -q 'listening on' /tmp/log; do sleep 0.05; done
}
socat TCP-LISTEN:7101,fork,reuseaddr EXEC:cat &
listen
"$OUTLAST" --admin-socket none connect 127.0.0.1:7102 --via 127.0.0.1:7100 &
until ss -Hltn 'sport = 7102' | grep -q .; do sleep 0.05; done
socat TCP:127.0.0.1:7102 SYSTEM:'echo one; read heard; echo $heard >>/tmp/heard; until [ -e /tmp/two ]; do sleep 0.05; done
    echo two; read heard; echo $heard >>/tmp/heard; until [ -e /tmp/three ]; do sleep 0.05; done
    echo three; read heard; echo $heard >>/tmp/heard' &
restarted() { # what is said then, and what becomes of the folder meanwhile
    until [ "$(tail -n 1 /tmp/heard 2>/dev/null)" = "$1" ]; do sleep 0.05; done
    kill -TERM "$service"; wait "$service" || true
    $2
    listen
    until grep 'going on with' /tmp/log; do sleep 0.05; done
    : >"/tmp/$3"
    until [ "$(tail -n 1 /tmp/heard)" = "$3" ]; do sleep 0.05; done
}
removed() { rm -rf "$RUNTIME_DIRECTORY"; }
restarted one removed two
restarted two true three
exit 0
"#;

#[test]
fn a_service_goes_on_with_its_sessions_whatever_becomes_of_its_folder() {
    let Some(said) = in_a_world_of_its_own(RESTARTED) else { return };
    assert_eq!(said.matches("going on with").count(), 2, "{said}");
}

/// Another user has more sockets than instances, each of which says more than is good for whoever reads it.
const FLOODED: &str = r#"
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=755 tmpfs /run
unset XDG_RUNTIME_DIR RUNTIME_DIRECTORY
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
"$OUTLAST" --log info listen 127.0.0.1:0 --to 127.0.0.1:9 2>/tmp/log &
until grep -q 'listening on' /tmp/log; do sleep 0.05; done
cat >/tmp/flood.py <<'END'
import os, socket, threading
os.mkdir("/tmp/outlast-54321", 0o700)
flood = b"[" + b"0," * (8 << 20) + b"0]"
def serve(s):
    while True:
        c = s.accept()[0]
        try:
            c.recv(1000); c.sendall(flood); c.close()
        except OSError: pass
for n in range(70):
    s = socket.socket(socket.AF_UNIX); s.bind("/tmp/outlast-54321/%d-x.sock" % (n + 1)); s.listen(10)
    threading.Thread(target=serve, args=(s,)).start()
open("/tmp/outlast-54321/ready", "w").close()
END
setpriv --reuid 54321 --regid 54321 --clear-groups python3 /tmp/flood.py &
until [ -e /tmp/outlast-54321/ready ]; do sleep 0.05; done
ulimit -v 1500000
"$OUTLAST" status 2>&1
echo "exited with $?"
exit 0
"#;

#[test]
fn no_user_floods_the_status_that_root_asks_for() {
    let Some(said) = in_a_world_of_its_own(FLOODED) else { return };
    assert!(said.contains("user 54321 has 70 instances: 64 of them are asked"), "{said}");
    assert_eq!(said.matches("says more than 131072 bytes").count(), 64, "{said}");
    assert!(said.contains("process ") && said.contains("127.0.0.1:9"), "{said}");
    assert!(said.contains("exited with 0"), "{said}");
}

/// The program is where every user may execute it, and nothing is mounted over it, wherever it was built.
const BEGIN: &str = r#"
set -eu
ip link set lo up
mount -t tmpfs -o mode=755 tmpfs /mnt
cp "$OUTLAST" /mnt/outlast
OUTLAST=/mnt/outlast
"#;

/// What a script says in namespaces of its own. None where there can be none.
fn in_a_world_of_its_own(script: &str) -> Option<String> {
    let isolated = ["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"];
    let works = |program: &str, arguments: &[&str]| {
        Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
    };
    if !works("unshare", &[&isolated[..], &["mount -t tmpfs tmpfs /tmp"]].concat())
        || !works("setpriv", &["--version"])
    {
        assert!(std::env::var_os("OUTLAST_REQUIRE_LAB").is_none(), "root is needed");
        eprintln!("SKIPPED: root is needed for users and mounts");
        return None;
    }
    let output = Command::new("timeout")
        .args(["--signal=KILL", "60", "unshare"])
        .args(isolated)
        .arg(format!("{BEGIN}{script}"))
        .env("OUTLAST", env!("CARGO_BIN_EXE_outlast"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let all = format!("{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{all}");
    Some(said)
}

#[test]
fn instances_are_found_wherever_they_are_and_nobody_takes_their_place() {
    let Some(said) = in_a_world_of_its_own(SCRIPT) else { return };
    let all = &said;
    let pid = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {all}")).to_owned()
    };
    let [login, service, squatted, open, root] = ["login", "service", "squatted", "open", "root"].map(pid);
    for socket in [
        format!("/run/user/54321/outlast/{login}-"),
        format!("/run/web/outlast/{service}-"),
        format!("/run/outlast/{root}-"),
    ] {
        assert!(said.contains(&socket), "no {socket} in {all}");
    }
    assert!(said.contains("squatter has 0"), "{all}");
    for (folder, process) in [("/tmp/outlast-54321", &squatted), ("/tmp/outlast-54323", &open)] {
        let found = said
            .lines()
            .any(|line| line.starts_with(&format!("{folder}.")) && line.contains(&format!("/{process}-")));
        assert!(found, "{all}");
        let where_it_is = format!("cannot use {folder} for the admin socket");
        assert!(said.contains(&where_it_is) && said.contains(&format!("it is in {folder}.")), "{all}");
    }
    let part = |from: &str| said.split(from).nth(1).unwrap().split("---").next().unwrap().to_owned();
    for of_user in [part("status of 54321\n"), part("in a login\n")] {
        for process in [&login, &service, &squatted] {
            assert!(of_user.contains(&format!("process {process}, ")), "no {process} in {of_user}\n{all}");
        }
        assert!(!of_user.contains(&format!("process {root}, ")), "{of_user}");
    }
    let of_root = part("status of root\n");
    for (user, process) in [("54321", &squatted), ("54321", &login), ("54321", &service), ("54323", &open)] {
        assert!(of_root.contains(&format!("user {user}: process {process}, ")), "{of_root}\n{all}");
    }
    assert!(of_root.contains(&format!("process {root}, ")), "{of_root}");
}
