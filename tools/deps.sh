#!/bin/bash
# Installs the real programs that the tests and the demo use, from Debian, where they are missing. Starts nothing:
# while it installs, a policy keeps the packages from starting their services, and is taken away again. With --soak also
# what only the long runs use: each as far as it does not take another package's place.
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
musl-gcc musl-tools builds a program with another C library than the usual
/usr/bin/redis-server redis-server a server to crash
/usr/sbin/apache2 apache2-bin a real web server: crashed
/usr/sbin/lighttpd lighttpd a real web server: crashed
/usr/bin/memcached memcached a server to crash
/usr/bin/gunicorn gunicorn a server with workers to crash
/usr/bin/uvicorn uvicorn a server with workers to crash
/usr/sbin/mariadbd mariadb-server-core a database to crash
/usr/bin/mariadb mariadb-client-core the client of a database
/usr/bin/mariadb-dump mariadb-client copies of a database
/usr/lib/postgresql/15/bin/postgres postgresql-15 a database to crash
node nodejs a server with workers to crash
/usr/bin/busybox busybox a small web server to crash
/usr/bin/webfsd webfs a small web server to crash
/usr/bin/tinyproxy tinyproxy-bin a proxy to crash
/usr/bin/stunnel4 stunnel4 a server with TLS to crash
/usr/bin/waitress-serve python3-waitress a server in Python to crash
/usr/lib/python3/dist-packages/tornado python3-tornado a server in Python to crash
/usr/lib/python3/dist-packages/aiohttp python3-aiohttp a server in Python to crash
/usr/bin/beanstalkd beanstalkd a queue to crash
/usr/sbin/mosquitto mosquitto a message broker to crash
/usr/sbin/dropbear dropbear-bin a small SSH server to crash
/usr/sbin/dnsmasq dnsmasq-base a name server to crash
/usr/sbin/ngircd ngircd a chat server to crash
python3 python3 servers and clients in Python
/usr/lib/python3.11/test/test_ftplib.py libpython3.11-testsuite CPython's own tests of ftplib and asyncore, with urgent data
c++ g++ checks that the C header works in C++
make make builds the example server in C
pkg-config pkgconf finds the C library as its users do
go golang-go builds the judge of what clients were told, and a static server to crash
openssl openssl makes the certificate of the guide
kill procps sends signals
ps procps lists processes
LIST
}

# Bigger, or in the place of another package of the same kind: for `make soak`.
needed_for_long_runs() {
    cat <<'LIST'
/usr/lib/apache2/modules/mod_wsgi.so libapache2-mod-wsgi-py3 a web server with workers that ask others to crash
/usr/bin/h2o h2o a web server to crash
/usr/sbin/mini_httpd mini-httpd a small web server to crash
/usr/sbin/varnishd varnish a cache to crash
/usr/sbin/squid squid a proxy to crash
/usr/sbin/privoxy privoxy a proxy to crash
/usr/sbin/hitch hitch a server with TLS to crash
/usr/bin/twistd3 python3-twisted a server in Python to crash
/usr/bin/uwsgi uwsgi-core a server with workers to crash
/usr/lib/uwsgi/plugins/python311_plugin.so uwsgi-plugin-python3 a server with workers to crash
/usr/bin/puma puma a server in Ruby to crash
/usr/bin/thin thin a server in Ruby to crash
/usr/share/rubygems-integration/all/gems/webrick-1.8.1 ruby-webrick a server in Ruby to crash
/usr/bin/starman starman a server in Perl to crash
/usr/sbin/php-fpm8.2 php8.2-fpm a server for PHP to crash
/usr/bin/caddy caddy a server in Go to crash
/usr/sbin/nats-server nats-server a message broker in Go to crash
javac openjdk-17-jdk-headless a server in Java to crash
/usr/bin/escript erlang-base a server in Erlang to crash
/usr/sbin/pgbouncer pgbouncer a database's proxy to crash
/usr/sbin/slapd slapd a directory server to crash
/usr/sbin/gearmand gearman-job-server a queue to crash
/usr/sbin/unbound unbound a name server to crash
/usr/sbin/named bind9 a name server to crash
/usr/sbin/vsftpd vsftpd a file server to crash
/usr/sbin/pure-ftpd pure-ftpd a file server with a listening socket in each session to crash
/usr/sbin/exim4 exim4-daemon-light a mail server to crash
/usr/sbin/dovecot dovecot-imapd a mail server to crash
LIST
}

case ${1-} in
    '') list=needed ;;
    --soak)
        "$0"
        list=needed_for_long_runs
        ;;
    *)
        echo "usage: tools/deps.sh [--soak]" >&2
        exit 2
        ;;
esac

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
done < <($list)

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
install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends)
if [ $list = needed ]; then
    "${install[@]}" "${missing[@]}" >/dev/null 2>&1 ||
        { "${as_root[@]}" apt-get update -qq && "${install[@]}" "${missing[@]}" >/dev/null; }
else
    "${as_root[@]}" apt-get update -qq
    # One at a time, and none in the place of another one: the tests skip what is not there.
    for package in "${missing[@]}"; do
        "${install[@]}" --no-remove "$package" >/dev/null 2>&1 || echo "not installed: $package" >&2
    done
fi
echo "installed"
