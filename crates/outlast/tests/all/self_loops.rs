//! A `connect` whose server is itself, by each of the addresses of a machine: a network namespace of its own.

use crate::common::in_own_network;

const SCRIPT: &str = r#"
set -u
folder=$(mktemp -d)
export XDG_RUNTIME_DIR=$folder
trap 'rm -rf "$folder"' EXIT
ip link set lo up
ip link add one type veth peer name two
ip link set one up
ip link set two up
ip address add 10.1.0.1/24 dev one
ip address add 10.1.0.2/24 dev one
ip address add 10.2.0.1/24 dev two
ip address add 2001:db8::1/64 dev one nodad
ip address add 2001:db8::2/64 dev one nodad
ip address add fe80::aa/64 dev two nodad
# The kernel would rather send from the first one.
ip route change local 10.2.0.1 dev two table local src 10.1.0.1
ip -6 route add default dev one src 2001:db8::1

# Connects for half a second, and says whether it was refused as a loop.
try() {
    if timeout 0.5 "$OUTLAST" --quiet connect "$1" --via "$2" 2>&1 </dev/null | grep -q 'leads back to this process'; then
        echo "$2 refused"
    else
        echo "$2"
    fi
}

for own in 10.1.0.1 10.1.0.2 10.2.0.1 127.0.0.9; do try 0.0.0.0:9000 "$own:9000"; done
for own in 2001:db8::1 2001:db8::2 fe80::aa%two ::ffff:10.1.0.2; do try '[::]:9000' "[$own]:9000"; done
for other in 10.1.0.3 192.0.2.1; do try 0.0.0.0:9000 "$other:9000"; done
for other in 2001:db8::3 fe80::aa%one; do try '[::]:9000' "[$other]:9000"; done
# Every address can be bound to.
echo 1 >/proc/sys/net/ipv4/ip_nonlocal_bind
echo 1 >/proc/sys/net/ipv6/ip_nonlocal_bind
for address in 10.1.0.1 10.1.0.3; do try 0.0.0.0:9000 "$address:9000"; done
for address in 2001:db8::1 2001:db8::3; do try '[::]:9000' "[$address]:9000"; done
"#;

#[test]
fn a_connect_that_leads_to_itself_is_refused_whichever_of_its_addresses_that_is() {
    outlast_lab::require!("makes a network namespace");
    let output = in_own_network(SCRIPT);
    let said = String::from_utf8_lossy(&output.stdout);
    let expected = "\
10.1.0.1:9000 refused
10.1.0.2:9000 refused
10.2.0.1:9000 refused
127.0.0.9:9000 refused
[2001:db8::1]:9000 refused
[2001:db8::2]:9000 refused
[fe80::aa%two]:9000 refused
[::ffff:10.1.0.2]:9000 refused
10.1.0.3:9000
192.0.2.1:9000
[2001:db8::3]:9000
[fe80::aa%one]:9000
10.1.0.1:9000 refused
10.1.0.3:9000
[2001:db8::1]:9000 refused
[2001:db8::3]:9000
";
    assert_eq!(said, expected, "{}", String::from_utf8_lossy(&output.stderr));
}
