//! Where instances are found: wherever their user's surroundings have put them, and whatever other users do in /tmp.
//! In a mount namespace with a /tmp and a /run of its own.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

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

#[test]
fn instances_are_found_wherever_they_are_and_nobody_takes_their_place() {
    let isolated = ["--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c"];
    let works = |program: &str, arguments: &[&str]| {
        Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
    };
    if !works("unshare", &[&isolated[..], &["mount -t tmpfs tmpfs /tmp"]].concat())
        || !works("setpriv", &["--version"])
    {
        assert!(std::env::var_os("OUTLAST_REQUIRE_LAB").is_none(), "root is needed");
        eprintln!("SKIPPED: root is needed for users and mounts");
        return;
    }
    let output = Command::new("timeout")
        .args(["--signal=KILL", "60", "unshare"])
        .args(isolated)
        .arg(format!("ip link set lo up\n{SCRIPT}"))
        .env("OUTLAST", env!("CARGO_BIN_EXE_outlast"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let all = format!("{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{all}");
    let pid = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {all}")).to_owned()
    };
    let [login, service, squatted, open, root] = ["login", "service", "squatted", "open", "root"].map(pid);
    for socket in [
        format!("/run/user/54321/outlast/{login}.sock"),
        format!("/run/web/outlast/{service}.sock"),
        format!("/run/outlast/{root}.sock"),
    ] {
        assert!(said.contains(&socket), "no {socket} in {all}");
    }
    assert!(said.contains("squatter has 0"), "{all}");
    for (folder, process) in [("/tmp/outlast-54321", &squatted), ("/tmp/outlast-54323", &open)] {
        let found = said.lines().any(|line| {
            line.starts_with(&format!("{folder}.")) && line.ends_with(&format!("/{process}.sock"))
        });
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
