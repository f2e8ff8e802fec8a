//! Relays that others have written, with settings that suit them: no logs, Nagle off, one process.

use super::{Plan, Relay, find_program};
use crate::ground::End;
use crate::launch::Launch;
use anyhow::Result;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;

pub fn haproxy(plan: &Plan) -> Result<Relay> {
    let program = find_program("haproxy")?;
    let config = |name: &str, from: SocketAddr, to: SocketAddr| {
        let text = format!(
            "global\n  nbthread 1\n  maxconn 4000\n  tune.bufsize 65536\n\
             defaults\n  mode tcp\n  option splice-auto\n  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\n\
             listen relay\n  bind {from}\n  server next {to}\n"
        );
        plan.write(name, &text)
    };
    let near = config("near/haproxy.cfg", plan.near, plan.far)?;
    let far = config("far/haproxy.cfg", plan.far, plan.server)?;
    let launch = |end, config: &Path| {
        Launch::new(plan.ground, end, &program).arguments([
            Path::new("-db"),
            Path::new("-q"),
            Path::new("-f"),
            config,
        ])
    };
    plan.pair("haproxy", launch(End::Client, &near), launch(End::Server, &far))
}

pub fn nginx(plan: &Plan) -> Result<Relay> {
    const MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";
    let program = find_program("nginx")?;
    let config = |end: &str, from: SocketAddr, to: SocketAddr| {
        let mut text = String::new();
        if Path::new(MODULE).exists() {
            let _ = writeln!(text, "load_module {MODULE};");
        }
        let _ = write!(
            text,
            "daemon off;\nmaster_process off;\nworker_processes 1;\npid nginx.pid;\nerror_log /dev/null crit;\n\
             events {{ worker_connections 4096; }}\n\
             stream {{\n  access_log off;\n  tcp_nodelay on;\n  proxy_buffer_size 64k;\n  \
             server {{ listen {from}; proxy_pass {to}; proxy_half_close on; }}\n}}\n"
        );
        plan.write(&format!("{end}/nginx.conf"), &text)
    };
    config("near", plan.near, plan.far)?;
    config("far", plan.far, plan.server)?;
    let launch = |at, end: &str| {
        let folder = plan.folder.join(end);
        let log = ["-e".as_ref(), "/dev/null".as_ref(), "-c".as_ref(), "nginx.conf".as_ref(), "-p".as_ref()];
        Launch::new(plan.ground, at, &program).arguments::<&std::ffi::OsStr>(log).arguments([folder])
    };
    plan.pair("nginx", launch(End::Client, "near"), launch(End::Server, "far"))
}

pub fn socat(plan: &Plan) -> Result<Relay> {
    let program = find_program("socat")?;
    let launch = |end, from: SocketAddr, to: SocketAddr| {
        let listen =
            format!("TCP-LISTEN:{},bind={},reuseaddr,fork,nodelay,backlog=512", from.port(), from.ip());
        Launch::new(plan.ground, end, &program).arguments([
            "-b".to_owned(),
            "65536".to_owned(),
            listen,
            format!("TCP:{to},nodelay"),
        ])
    };
    let near = launch(End::Client, plan.near, plan.far);
    plan.pair("socat", near, launch(End::Server, plan.far, plan.server))
}
