//! The servers: how they are started, and what they are asked.

use super::script;
use std::path::Path;
use std::process::Command;

/// How a client speaks with it.
pub enum Talk {
    /// HTTP/1.1, a request after the other.
    Http,
    /// What it says begins so.
    Bytes { say: &'static [u8], hear: &'static [u8] },
}

/// One of them.
pub struct Row {
    pub name: &'static str,
    pub program: &'static str,
    pub make: fn(&Path, u16) -> Command,
    pub talk: Talk,
    pub has_workers: bool,
    pub keeps_idle: bool,
}

const fn http(
    name: &'static str,
    program: &'static str,
    workers: bool,
    make: fn(&Path, u16) -> Command,
) -> Row {
    Row { name, program, make, talk: Talk::Http, has_workers: workers, keeps_idle: true }
}

const fn bytes(
    name: &'static str,
    program: &'static str,
    make: fn(&Path, u16) -> Command,
    say: &'static [u8],
    hear: &'static [u8],
) -> Row {
    Row { name, program, make, talk: Talk::Bytes { say, hear }, has_workers: false, keeps_idle: false }
}

/// Neighbours take long or short, so that each third does.
pub const ROWS: [Row; 15] = [
    http("nginx", "/usr/sbin/nginx", true, nginx),
    http("apache-event", "/usr/sbin/apache2", true, |folder, port| apache(folder, port, "event")),
    http("haproxy", "/usr/sbin/haproxy", false, |folder, port| haproxy(folder, port, false)),
    http("haproxy-workers", "/usr/sbin/haproxy", true, |folder, port| haproxy(folder, port, true)),
    http("apache-prefork", "/usr/sbin/apache2", true, |folder, port| apache(folder, port, "prefork")),
    http("lighttpd", "/usr/sbin/lighttpd", true, lighttpd),
    http("node", "node", false, node),
    http("node-cluster", "node", true, node_cluster),
    http("gunicorn", "/usr/bin/gunicorn", true, gunicorn),
    http("uvicorn", "/usr/bin/uvicorn", true, uvicorn),
    http("python", "/usr/bin/python3", false, python),
    bytes("redis", "/usr/bin/redis-server", redis, b"PING\r\n", b"+PONG\r\n"),
    bytes("memcached", "/usr/bin/memcached", memcached, b"version\r\n", b"VERSION"),
    bytes("sshd", "/usr/sbin/sshd", sshd, b"", b"SSH-2.0"),
    bytes("mariadb", "/usr/sbin/mariadbd", mariadb, b"", b""),
];

/// With two workers, in the foreground.
pub fn nginx(folder: &Path, port: u16) -> Command {
    let path = folder.display();
    let config = format!(
        "daemon off; worker_processes 2; pid {path}/pid; error_log {path}/log;
        events {{ worker_connections 256; }}
        http {{
            access_log off; client_body_temp_path {path}/body; proxy_temp_path {path}/proxy;
            fastcgi_temp_path {path}/fastcgi; uwsgi_temp_path {path}/uwsgi; scgi_temp_path {path}/scgi;
            server {{ listen 127.0.0.1:{port}; return 200 'hello'; }}
        }}"
    );
    let file = folder.join("nginx.conf");
    std::fs::write(&file, config).unwrap();
    let mut command = Command::new("/usr/sbin/nginx");
    command.arg("-e").arg(folder.join("log")).arg("-c").arg(file);
    command
}

fn apache(folder: &Path, port: u16, processing: &str) -> Command {
    let (path, modules) = (folder.display(), "/usr/lib/apache2/modules");
    let limits = match processing {
        "event" => {
            "ServerLimit 2\nStartServers 2\nThreadsPerChild 25\nMaxRequestWorkers 50\nMaxSpareThreads 50"
        }
        _ => "StartServers 30\nMinSpareServers 1\nMaxSpareServers 60\nMaxRequestWorkers 60",
    };
    let config = format!(
        "ServerRoot {path}\nServerName a\nPidFile {path}/pid\nDefaultRuntimeDir {path}\nMutex posixsem\n\
         ErrorLog {path}/log\nListen 127.0.0.1:{port}\nLoadModule mpm {modules}/mod_mpm_{processing}.so\n\
         LoadModule authz_core_module {modules}/mod_authz_core.so\nLoadModule dir_module {modules}/mod_dir.so\n\
         DocumentRoot {path}/www\nUser nobody\nGroup nogroup\nKeepAliveTimeout 60\n{limits}\n"
    );
    let config = config.replace("LoadModule mpm ", &format!("LoadModule mpm_{processing}_module "));
    std::fs::create_dir_all(folder.join("www")).unwrap();
    std::fs::write(folder.join("www/index.html"), "hello\n").unwrap();
    std::fs::write(folder.join("httpd.conf"), config).unwrap();
    let mut command = Command::new("/usr/sbin/apache2");
    command.args(["-D", "FOREGROUND", "-f"]).arg(folder.join("httpd.conf"));
    command
}

fn haproxy(folder: &Path, port: u16, workers: bool) -> Command {
    let config = format!(
        "global\n  nbthread 2\ndefaults\n  mode http\n  timeout client 60s\n  timeout server 60s\n  timeout connect 5s\n\
         frontend all\n  bind 127.0.0.1:{port}\n  http-request return status 200 content-type text/plain string hello\n"
    );
    std::fs::write(folder.join("config"), config).unwrap();
    let mut command = Command::new("/usr/sbin/haproxy");
    command.args(if workers { &["-W", "-db"][..] } else { &["-db"] }).arg("-f").arg(folder.join("config"));
    command
}

fn lighttpd(folder: &Path, port: u16) -> Command {
    std::fs::create_dir_all(folder.join("www")).unwrap();
    std::fs::write(folder.join("www/index.html"), "hello\n").unwrap();
    let config = format!(
        "server.document-root=\"{}/www\"\nserver.port={port}\nserver.bind=\"127.0.0.1\"\n\
         index-file.names=(\"index.html\")\nserver.max-worker=2\nserver.max-keep-alive-idle=60\n",
        folder.display()
    );
    std::fs::write(folder.join("config"), config).unwrap();
    let mut command = Command::new("/usr/sbin/lighttpd");
    command.arg("-D").arg("-f").arg(folder.join("config"));
    command
}

fn node(folder: &Path, port: u16) -> Command {
    let text = format!(
        "const s=require('http').createServer((q,r)=>r.end('hello')); s.keepAliveTimeout=60000; s.listen({port},'127.0.0.1');"
    );
    script("node", folder, &text)
}

fn node_cluster(folder: &Path, port: u16) -> Command {
    let text = format!(
        "const c=require('cluster');
        if(c.isMaster){{c.fork();c.fork();c.on('exit',()=>c.fork());process.on('SIGTERM',()=>process.exit(0));}}
        else{{const s=require('http').createServer((q,r)=>r.end('hello')); s.keepAliveTimeout=60000; s.listen({port},'127.0.0.1');}}"
    );
    script("node", folder, &text)
}

fn gunicorn(folder: &Path, port: u16) -> Command {
    let text = "def app(e, start):\n    start('200 OK', [('Content-Length', '5')])\n    return [b'hello']\n";
    std::fs::write(folder.join("app.py"), text).unwrap();
    let mut command = Command::new("/usr/bin/gunicorn");
    command
        .args(["-w", "2", "-k", "gthread", "--threads", "30", "--keep-alive", "60", "--chdir"])
        .arg(folder);
    command.arg("-b").arg(format!("127.0.0.1:{port}")).arg("app:app");
    command
}

fn uvicorn(folder: &Path, port: u16) -> Command {
    let text = "async def app(scope, receive, send):\n    if scope['type'] != 'http': return\n    \
        await send({'type': 'http.response.start', 'status': 200, 'headers': [(b'content-length', b'5')]})\n    \
        await send({'type': 'http.response.body', 'body': b'hello'})\n";
    std::fs::write(folder.join("app.py"), text).unwrap();
    let mut command = Command::new("/usr/bin/uvicorn");
    command.args(["--workers", "2", "--timeout-keep-alive", "60", "--host", "127.0.0.1", "--port"]);
    command.arg(port.to_string()).arg("--app-dir").arg(folder).arg("app:app");
    command
}

fn python(folder: &Path, port: u16) -> Command {
    let text = format!(
        "import http.server as h\nclass H(h.BaseHTTPRequestHandler):\n    protocol_version = 'HTTP/1.1'\n    \
         def do_GET(s):\n        s.send_response(200); s.send_header('Content-Length', '5'); s.end_headers(); \
         s.wfile.write(b'hello')\n    def log_message(*a): pass\nh.ThreadingHTTPServer(('127.0.0.1', {port}), H).serve_forever()\n"
    );
    script("/usr/bin/python3", folder, &text)
}

fn redis(folder: &Path, port: u16) -> Command {
    let mut command = Command::new("/usr/bin/redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"]).arg(folder);
    command
}

fn memcached(_: &Path, port: u16) -> Command {
    let mut command = Command::new("/usr/bin/memcached");
    command.args(["-u", "nobody", "-l", "127.0.0.1", "-U", "0", "-p", &port.to_string()]);
    command
}

fn sshd(folder: &Path, port: u16) -> Command {
    let key = folder.join("key");
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key).status();
    assert!(made.unwrap().success());
    // Without it, it does not begin.
    let _ = std::fs::create_dir_all("/run/sshd");
    let mut command = Command::new("/usr/sbin/sshd");
    command.args(["-D", "-e", "-f", "/dev/null", "-o", "ListenAddress=127.0.0.1", "-o", "MaxStartups=1000"]);
    command.args(["-o", "PerSourceMaxStartups=none", "-p", &port.to_string(), "-h"]).arg(key);
    command.args(["-o", "PidFile=none"]);
    command
}

fn mariadb(folder: &Path, port: u16) -> Command {
    let data = folder.join("data");
    std::fs::create_dir_all(&data).unwrap();
    let mut command = Command::new("/usr/sbin/mariadbd");
    command
        .args(["--no-defaults", "--user=root", "--skip-grant-tables", "--bind-address=127.0.0.1"])
        .arg(format!("--port={port}"));
    command.arg(format!("--datadir={}", data.display()));
    command.arg(format!("--socket={}", folder.join("socket").display()));
    command
}
