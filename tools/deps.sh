#!/bin/bash
# Installs the real programs that the tests and the demo use, from Debian, where they are missing. Starts nothing:
# while it installs, a policy keeps the packages from starting their services, and is taken away again.
set -eu

# What must be there, and the package that brings it.
needed() {
    cat <<'LIST'
/usr/sbin/sshd openssh-server
ssh openssh-client
/usr/sbin/nginx nginx
/usr/lib/nginx/modules/ngx_stream_module.so libnginx-mod-stream
curl curl
rsync rsync
socat socat
/usr/sbin/haproxy haproxy
/usr/sbin/iptables-legacy iptables
/usr/sbin/ip iproute2
cc gcc
/usr/bin/redis-server redis-server
/usr/sbin/apache2 apache2-bin
/usr/sbin/lighttpd lighttpd
/usr/bin/memcached memcached
/usr/bin/gunicorn gunicorn
/usr/bin/uvicorn uvicorn
/usr/sbin/mariadbd mariadb-server-core
node nodejs
python3 python3
c++ g++
make make
pkg-config pkgconf
kill procps
ps procps
python3 python3
LIST
}

missing=()
while read -r file package; do
    case $file in
        /*) [ -e "$file" ] || missing+=("$package") ;;
        *) command -v "$file" >/dev/null || missing+=("$package") ;;
    esac
done < <(needed)

if [ ${#missing[@]} -eq 0 ]; then
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "missing: ${missing[*]}; this system has no apt-get: install them yourself (Debian's names)" >&2
    exit 1
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "missing: ${missing[*]}; run this as root once: apt-get install ${missing[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
fi

echo "installing from Debian: ${missing[*]}"
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    echo "with $policy in place meanwhile, so that no service starts"
    # The file may be gone already when several of these run at once.
    trap '"${as_root[@]}" rm -f $policy' EXIT
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee $policy >/dev/null
    "${as_root[@]}" chmod 755 $policy
fi

# An old list of packages may name files that the mirror no longer has: then with a new list.
install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}")
"${install[@]}" >/dev/null 2>&1 || { "${as_root[@]}" apt-get update -qq && "${install[@]}" >/dev/null; }
echo "installed"
