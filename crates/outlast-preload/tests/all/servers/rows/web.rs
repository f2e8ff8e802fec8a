//! Web servers and proxies.

use super::{certificate, config, www};
use crate::servers::row::Row;
use std::path::Path;
use std::process::Command;

pub const ROWS: &[Row] = &[
    Row::http("nginx", "nginx", nginx).workers("nginx"),
    Row::tls("nginx-tls", "nginx", nginx_tls).workers("nginx"),
    Row::http("apache-event", "apache2", |folder, port| apache(folder, port, "event")).workers("apache2"),
    Row::http("apache-prefork", "apache2", |folder, port| apache(folder, port, "prefork")).workers("apache2"),
    Row::http("apache-wsgi", WSGI, apache_wsgi).workers("apache2").optional(),
    Row::http("haproxy", "haproxy", |folder, port| haproxy(folder, port, false)),
    Row::http("haproxy-workers", "haproxy", |folder, port| haproxy(folder, port, true)).workers("haproxy"),
    Row::http("lighttpd", "lighttpd", lighttpd).workers("lighttpd"),
    Row::once("busybox", "busybox", busybox),
    Row::http("webfs", "webfsd", webfs),
    Row::once("tinyproxy", "tinyproxy", tinyproxy).at("http://tinyproxy.stats/"),
    Row::http("h2o", "h2o", h2o).optional(),
    Row::once("mini-httpd", "mini_httpd", mini_httpd).optional(),
    Row::http("varnish", "varnishd", varnish).workers("cache").optional(),
    Row::http("squid", "squid", squid).at("http://a/squid-internal-static/icons/SN.png").optional(),
    Row::http("privoxy", "privoxy", privoxy).at("http://config.privoxy.org/").optional(),
    Row::tls("hitch", "hitch", hitch).workers("hitch").optional(),
    Row::tls("stunnel", "stunnel4", stunnel),
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
        // Always as many: one that is gone is replaced, and no others come.
        _ => "StartServers 30\nMinSpareServers 30\nMaxSpareServers 60\nMaxRequestWorkers 30",
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

const WSGI: &str = "/usr/lib/apache2/modules/mod_wsgi.so";

/// Its workers ask two processes beside them for each answer.
fn apache_wsgi(folder: &Path, port: u16) -> Command {
    use std::io::Write;
    let (command, path) = (apache(folder, port, "event"), folder.display());
    let text = "def application(environ, start):\n    start('200 OK', [('Content-Length', '6')]); return [b'hello\\n']\n";
    std::fs::write(folder.join("app.wsgi"), text).unwrap();
    let mut config = std::fs::OpenOptions::new().append(true).open(folder.join("httpd.conf")).unwrap();
    write!(
        config,
        "LoadModule wsgi_module {WSGI}\nWSGISocketPrefix {path}/wsgi\nWSGIProcessGroup a\n\
         WSGIDaemonProcess a processes=2 threads=5 user=nobody group=nogroup\nWSGIScriptAlias / {path}/app.wsgi\n"
    )
    .unwrap();
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

/// With a master, whose command line is at this socket.
pub fn haproxy_master(folder: &Path, port: u16, socket: &Path) -> Command {
    let mut command = haproxy(folder, port, true);
    command.arg("-S").arg(socket);
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

fn nginx_tls(folder: &Path, port: u16) -> Command {
    let command = nginx(folder, port);
    let (file, both) = (folder.join("nginx.conf"), certificate(folder).display().to_string());
    let plain = std::fs::read_to_string(&file).unwrap();
    let tls = plain.replace(
        &format!("127.0.0.1:{port};"),
        &format!("127.0.0.1:{port} ssl; ssl_certificate {both}; ssl_certificate_key {both};"),
    );
    std::fs::write(file, tls).unwrap();
    command
}

fn busybox(folder: &Path, port: u16) -> Command {
    let mut command = Command::new("busybox");
    command.args(["httpd", "-f", "-p", &format!("127.0.0.1:{port}"), "-h"]).arg(www(folder));
    command
}

fn webfs(folder: &Path, port: u16) -> Command {
    let mut command = Command::new("webfsd");
    command
        .args(["-F", "-i", "127.0.0.1", "-p", &port.to_string(), "-f", "index.html", "-r"])
        .arg(www(folder));
    command
}

fn tinyproxy(folder: &Path, port: u16) -> Command {
    std::fs::write(folder.join("stats"), "hello\n").unwrap();
    let text =
        format!("Port {port}\nListen 127.0.0.1\nTimeout 60\nStatFile \"{}/stats\"\n", folder.display());
    let mut command = Command::new("tinyproxy");
    command.args(["-d", "-c"]).arg(config(folder, &text));
    command
}

fn h2o(folder: &Path, port: u16) -> Command {
    let text = format!(
        "user: root\nlisten:\n  host: 127.0.0.1\n  port: {port}\nnum-threads: 2\n\
         hosts:\n  default:\n    paths:\n      /:\n        file.dir: {}\n",
        www(folder).display()
    );
    let mut command = Command::new("h2o");
    command.arg("-c").arg(config(folder, &text));
    command
}

fn mini_httpd(folder: &Path, port: u16) -> Command {
    let mut command = Command::new("mini_httpd");
    command.args(["-D", "-h", "127.0.0.1", "-u", "root", "-p", &port.to_string(), "-d"]).arg(www(folder));
    command
}

/// Without a server behind it: it says so itself.
fn varnish(folder: &Path, port: u16) -> Command {
    let mut command = Command::new("varnishd");
    command.args([
        "-F",
        "-a",
        &format!("127.0.0.1:{port}"),
        "-b",
        "127.0.0.1:1",
        "-s",
        "malloc,1m",
        "-T",
        "none",
    ]);
    command.args(["-p", "timeout_idle=60", "-n"]).arg(folder.join("varnish"));
    command
}

fn squid(folder: &Path, port: u16) -> Command {
    let path = folder.display();
    let text = format!(
        "http_port 127.0.0.1:{port}\nhttp_access allow all\ncache deny all\naccess_log none\nnetdb_filename none\n\
         pinger_enable off\nshutdown_lifetime 0 seconds\npid_filename {path}/pid\ncache_log {path}/log\n\
         coredump_dir {path}\nvisible_hostname a\n"
    );
    let mut command = Command::new("squid");
    command.args(["-N", "-n", &format!("test{port}"), "-f"]).arg(config(folder, &text));
    command
}

fn privoxy(folder: &Path, port: u16) -> Command {
    let text = format!("listen-address 127.0.0.1:{port}\nconfdir /etc/privoxy\nkeep-alive-timeout 60\n");
    let mut command = Command::new("privoxy");
    command.arg("--no-daemon").arg(config(folder, &text));
    command
}

fn hitch(folder: &Path, port: u16) -> Command {
    let text = format!(
        "frontend = \"[127.0.0.1]:{port}\"\nbackend = \"[127.0.0.1]:1\"\npem-file = \"{}\"\nworkers = 2\nuser = \"nobody\"\n",
        certificate(folder).display()
    );
    let mut command = Command::new("hitch");
    command.arg("--config").arg(config(folder, &text));
    command
}

fn stunnel(folder: &Path, port: u16) -> Command {
    let text = format!(
        "foreground = yes\npid =\n[a]\naccept = 127.0.0.1:{port}\nconnect = 127.0.0.1:1\ncert = {}\n",
        certificate(folder).display()
    );
    let mut command = Command::new("stunnel4");
    command.arg(config(folder, &text));
    command
}
