//! Connections that the firewall diverts, in a network namespace of their own.
// A failed expectation is the message.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::print_stdout
)]

use std::process::Command;

const SCRIPT: &str = r#"
set -eu
folder=$(mktemp -d)
export XDG_RUNTIME_DIR=$folder
trap 'kill $(jobs -p); rm -rf "$folder"' EXIT
ip link set lo up
ip address add 198.51.100.1/32 dev lo
"$OUTLAST" --quiet listen 127.0.0.1:7000 --to-any &
"$OUTLAST" --log info connect --transparent 127.0.0.1:9000 --via 127.0.0.1:7000 2>"$folder/log" &
connect=$!
socat TCP-LISTEN:8080,bind=198.51.100.1,fork,reuseaddr EXEC:'echo by tproxy' &
socat TCP-LISTEN:8081,bind=198.51.100.1,fork,reuseaddr EXEC:'echo by redirect' &
socat -U TCP-LISTEN:8082,bind=198.51.100.1,reuseaddr SYSTEM:'head -c 2000000 /dev/zero; sleep 50' </dev/null >/dev/null 2>&1 &
for port in 7000 9000 8080 8081 8082; do
    until ss -Hltn "sport = $port" | grep -q .; do sleep 0.05; done
done
# Only the programs of this user are diverted: the relays themselves must get through.
program='setpriv --reuid 65534 --clear-groups socat -u'
diverted='-p tcp -d 198.51.100.1 -m owner --uid-owner 65534'
iptables-legacy -t nat -A OUTPUT $diverted --dport 8081 -j REDIRECT --to-ports 9000
ip rule add fwmark 1 lookup 100
ip route add local 0.0.0.0/0 dev lo table 100
iptables-legacy -t mangle -A OUTPUT $diverted -m multiport --dports 8080,8082 -j MARK --set-mark 1
iptables-legacy -t mangle -A PREROUTING -p tcp -m multiport --dports 8080,8082 -m mark --mark 1 \
    -j TPROXY --on-port 9000 --on-ip 127.0.0.1 --tproxy-mark 1
$program TCP:198.51.100.1:8080 -
$program TCP:198.51.100.1:8081 -
echo "sessions: $(grep -c connected "$folder/log")"
# A download that is cut by the death of the relay does not look whole.
touch "$folder/taken"
reader='import socket, sys
stream = socket.create_connection(("198.51.100.1", 8082))
while piece := stream.recv(65536):
    sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()'
${program% socat -u} /usr/bin/python3 -c "$reader" >"$folder/taken" 2>/dev/null &
download=$!
until [ "$(stat -c %s "$folder/taken")" -gt 1000000 ]; do sleep 0.05; done
kill -KILL $connect
if wait $download; then echo "download: whole"; else echo "download: failed"; fi
"#;

#[test]
fn tproxy_and_redirect_lead_to_the_original_destination() {
    let works = |command: &[&str]| {
        Command::new(command[0]).args(&command[1..]).output().is_ok_and(|output| output.status.success())
    };
    for need in [
        &["unshare", "--net", "true"][..],
        &["iptables-legacy", "--version"],
        &["socat", "-V"],
        &["setpriv", "--version"],
        &["/usr/bin/python3", "--version"],
    ] {
        if !works(need) {
            eprintln!(
                "skipped: {} does not work here (root and the tools of the lab are needed)",
                need.join(" ")
            );
            return;
        }
    }
    let output = Command::new("timeout")
        .args(["60", "unshare", "--net", "bash", "-c", SCRIPT])
        .env("OUTLAST", env!("CARGO_BIN_EXE_outlast"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        said,
        "by tproxy\nby redirect\nsessions: 2\ndownload: failed\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
