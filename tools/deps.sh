#!/bin/bash
# Installs the real programs that the tests and the demo use, from Debian, where they are missing. Starts nothing:
# while it installs, a policy keeps the packages from starting their services, and is taken away again.
set -eu

# What must be there, the package that brings it, and what it is for.
needed() {
    cat <<'LIST'
/usr/sbin/sshd openssh-server a real SSH server behind links that break
ssh openssh-client ssh and scp, the programs that move data in demo and tests
/usr/sbin/nginx nginx a real web server: crashed, and behind links
/usr/lib/nginx/modules/ngx_stream_module.so libnginx-mod-stream nginx as a relay that ends TCP
curl curl downloads that have to arrive whole
rsync rsync transfers through links that break
socat socat a relay that ends TCP and is killed
/usr/sbin/haproxy haproxy a server and relay to crash and to compare with
/usr/sbin/iptables-legacy iptables NAT and lost packets in the private network
/usr/sbin/ip iproute2 builds the private network
cc gcc builds the example server in C
/usr/bin/redis-server redis-server a server to crash
/usr/sbin/apache2 apache2-bin a real web server: crashed
/usr/sbin/lighttpd lighttpd a real web server: crashed
/usr/bin/memcached memcached a server to crash
/usr/bin/gunicorn gunicorn a server with workers to crash
/usr/bin/uvicorn uvicorn a server with workers to crash
/usr/sbin/mariadbd mariadb-server-core a database to crash
node nodejs a server with workers to crash
python3 python3 servers and clients in Python
c++ g++ checks that the C header works in C++
make make builds the example server in C
pkg-config pkgconf finds the C library as its users do
openssl openssl makes the certificate of the guide
kill procps sends signals
ps procps lists processes
LIST
}

missing=()
reasons=()
while read -r file package purpose; do
    case $file in
        /*) [ -e "$file" ] && continue ;;
        *) command -v "$file" >/dev/null && continue ;;
    esac
    [[ " ${missing[*]-} " == *" $package "* ]] && continue
    missing+=("$package")
    reasons+=("$(printf '  %-20s %s' "$package" "$purpose")")
done < <(needed)

if [ ${#missing[@]} -eq 0 ]; then
    exit 0
fi
echo "The demo and the tests use real programs. These are missing here:"
printf '%s\n' "${reasons[@]}"
if ! command -v apt-get >/dev/null; then
    echo "this system has no apt-get: install them yourself (the names are Debian's)" >&2
    exit 1
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "run this as root, once: apt-get install --no-install-recommends ${missing[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
fi

echo "Installing them with ${as_root[*]-}${as_root:+ }apt-get, without recommended packages. No service is started."
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    echo "Until that is done, $policy keeps services from starting."
    # The file may be gone already when several of these run at once.
    trap '"${as_root[@]}" rm -f $policy' EXIT
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee $policy >/dev/null
    "${as_root[@]}" chmod 755 $policy
fi

# An old list of packages may name files that the mirror no longer has: then with a new list.
install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}")
"${install[@]}" >/dev/null 2>&1 || { "${as_root[@]}" apt-get update -qq && "${install[@]}" >/dev/null; }
echo "installed"
