//! Addresses that mean something on one network only, in a network namespace of their own.

use crate::common::in_own_network;

const SCRIPT: &str = r#"
set -eu
folder=$(mktemp -d)
export XDG_RUNTIME_DIR=$folder
trap 'kill $(jobs -p); rm -rf "$folder"' EXIT
ip link set lo up
ip link add here type veth peer name there
ip link set here up
ip link set there up
ip address add fe80::aa/64 dev here nodad
socat TCP6-LISTEN:8080,fork,reuseaddr EXEC:'echo hello' &
"$OUTLAST" --quiet listen '[fe80::aa%here]:7000' --to '[fe80::aa%here]:8080' --metrics '[fe80::aa%here]:9100' &
"$OUTLAST" --quiet connect '[fe80::aa%here]:9000' --via '[fe80::aa%here]:7000' &
for port in 8080 7000 9100 9000; do
    until ss -Hltn "sport = $port" | grep -q .; do sleep 0.05; done
done
"$OUTLAST" connect --stdio --via "[fe80::aa%here]:7000" </dev/null
"$OUTLAST" connect --stdio --via "[fe80::aa%$(cat /sys/class/net/here/ifindex)]:7000" </dev/null
/usr/bin/python3 -c '
import socket
print(socket.create_connection(("fe80::aa%here", 9000)).makefile().read(), end="")'
"$OUTLAST" connect --stdio --via '[fe80::aa%nowhere]:7000' </dev/null 2>&1 | grep -o 'no interface called "nowhere"'
"#;

#[test]
fn an_address_with_an_interface_is_taken_wherever_one_with_a_port_is() {
    outlast_lab::require!("makes a network namespace");
    let output = in_own_network(SCRIPT);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        said,
        "hello\nhello\nhello\nno interface called \"nowhere\"\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
