//! Programs in Python, JavaScript and other languages, and what serves them.

use super::{config, script};
use crate::servers::row::Row;
use std::path::Path;
use std::process::Command;

pub const ROWS: &[Row] = &[
    Row::http("node", "node", node),
    Row::http("node-cluster", "node", node_cluster).workers("node"),
    Row::http("gunicorn", "gunicorn", gunicorn).workers("gunicorn"),
    Row::http("uvicorn", "uvicorn", uvicorn).workers("").without_killed(),
    Row::http("python", PYTHON, python),
    Row::http("waitress", "waitress-serve", waitress),
    Row::http("tornado", "/usr/lib/python3/dist-packages/tornado", tornado),
    Row::http("aiohttp", "/usr/lib/python3/dist-packages/aiohttp", aiohttp),
    Row::http("twisted", "twistd3", twisted).optional(),
    Row::http("uwsgi", "uwsgi", uwsgi).workers("uwsgi").optional(),
    Row::http("puma", "puma", puma).workers("puma").optional(),
    Row::http("thin", "thin", thin).optional(),
    Row::http("webrick", "/usr/share/rubygems-integration/all/gems/webrick-1.8.1", webrick).optional(),
    Row::http("starman", "starman", starman).workers("starman").optional(),
    Row::asked("php-fpm", "php-fpm8.2", php_fpm, FASTCGI, b"pong").workers("php-fpm").optional(),
];

/// Not one that somebody has in their home.
const PYTHON: &str = "/usr/bin/python3";
const WSGI: &str =
    "def app(e, start):\n    start('200 OK', [('Content-Length', '5')])\n    return [b'hello']\n";
/// A request whose connection stays.
const FASTCGI: &[u8] =
    b"\x01\x01\0\x01\0\x08\0\0\0\x01\x01\0\0\0\0\0\x01\x04\0\x01\0\x3b\0\0\x0e\x03REQUEST_METHODGET\
    \x0b\x05SCRIPT_NAME/ping\x0f\x05SCRIPT_FILENAME/ping\x01\x04\0\x01\0\0\0\0\x01\x05\0\x01\0\0\0\0";

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
    std::fs::write(folder.join("app.py"), WSGI).unwrap();
    let mut command = Command::new("gunicorn");
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
    let mut command = Command::new("uvicorn");
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
    script(PYTHON, folder, &text)
}

fn waitress(folder: &Path, port: u16) -> Command {
    std::fs::write(folder.join("app.py"), WSGI).unwrap();
    let mut command = Command::new("waitress-serve");
    command.arg(format!("--listen=127.0.0.1:{port}")).arg("app:app").env("PYTHONPATH", folder);
    command
}

fn tornado(folder: &Path, port: u16) -> Command {
    let text = format!(
        "import asyncio, tornado.web\nclass M(tornado.web.RequestHandler):\n    def get(s): s.write('hello')\n\
         async def main():\n    tornado.web.Application([('/', M)]).listen({port}, '127.0.0.1')\n    \
         await asyncio.Event().wait()\nasyncio.run(main())\n"
    );
    script(PYTHON, folder, &text)
}

fn aiohttp(folder: &Path, port: u16) -> Command {
    let text = format!(
        "from aiohttp import web\nasync def hello(q): return web.Response(text='hello')\na = web.Application()\n\
         a.add_routes([web.get('/', hello)])\nweb.run_app(a, host='127.0.0.1', port={port}, print=None)\n"
    );
    script(PYTHON, folder, &text)
}

fn twisted(folder: &Path, port: u16) -> Command {
    let text = format!(
        "from twisted.web import server, resource\nfrom twisted.internet import reactor\n\
         class R(resource.Resource):\n    isLeaf = True\n    def render_GET(self, q): return b'hello'\n\
         reactor.listenTCP({port}, server.Site(R(), timeout=60), interface='127.0.0.1')\nreactor.run()\n"
    );
    script(PYTHON, folder, &text)
}

fn uwsgi(folder: &Path, port: u16) -> Command {
    std::fs::write(folder.join("app.py"), WSGI).unwrap();
    let mut command = Command::new("uwsgi");
    command.args(["--plugin", "python3", "--master", "--workers", "2", "--die-on-term", "--callable", "app"]);
    // By default idle connections are closed after 4 s, which a busy machine may take.
    command.args(["--socket-timeout", "60", "--threads", "15"]);
    command.args(["--http11-socket", &format!("127.0.0.1:{port}"), "--wsgi-file"]);
    command.arg(folder.join("app.py"));
    command
}

const RACK: &str = "run proc { |e| [200, {'Content-Length' => '5'}, ['hello']] }\n";

fn puma(folder: &Path, port: u16) -> Command {
    let mut command = Command::new("puma");
    command.args(["-w", "2", "-t", "1:8", "-b", &format!("tcp://127.0.0.1:{port}")]);
    std::fs::write(folder.join("config.ru"), RACK).unwrap();
    command.arg(folder.join("config.ru"));
    command
}

fn thin(folder: &Path, port: u16) -> Command {
    let mut command = Command::new("thin");
    std::fs::write(folder.join("config.ru"), RACK).unwrap();
    command
        .args(["-a", "127.0.0.1", "-p", &port.to_string(), "-t", "60", "-R"])
        .arg(folder.join("config.ru"));
    command.arg("start");
    command
}

fn webrick(folder: &Path, port: u16) -> Command {
    let text = format!(
        "require 'webrick'\ns = WEBrick::HTTPServer.new(Port: {port}, BindAddress: '127.0.0.1', AccessLog: [], \
         Logger: WEBrick::Log.new(nil, 0), RequestTimeout: 60)\ns.mount_proc('/') {{ |q, r| r.body = 'hello' }}\n\
         trap('TERM') {{ s.shutdown }}\ns.start\n"
    );
    script("ruby", folder, &text)
}

fn starman(folder: &Path, port: u16) -> Command {
    let mut command = Command::new("starman");
    command.args(["--listen", &format!("127.0.0.1:{port}"), "--workers", "25", "--keepalive-timeout", "60"]);
    command.arg(config(folder, "sub { [200, ['Content-Length', 5], ['hello']] }\n"));
    command
}

fn php_fpm(folder: &Path, port: u16) -> Command {
    let text = format!(
        "[global]\nerror_log = {}/log\ndaemonize = no\n[www]\nuser = nobody\ngroup = nogroup\n\
         listen = 127.0.0.1:{port}\npm = static\npm.max_children = 25\nping.path = /ping\n",
        folder.display()
    );
    let mut command = Command::new("php-fpm8.2");
    command.arg("-F").arg("-y").arg(config(folder, &text));
    command
}
