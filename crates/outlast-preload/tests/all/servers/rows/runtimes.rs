//! Programs of machine code that the library cannot be loaded into, or that does not call the C library, and other
//! machines.

use super::{config, made, script};
use crate::servers::row::Row;
use std::path::Path;
use std::process::Command;

pub const ROWS: &[Row] = &[
    Row::once("static", "cc", linked_statically)
        .warned("is linked statically", "static: no library can be loaded"),
    Row::http("go-static", "go", go)
        .warned("is linked statically", "static: no library can be loaded")
        .optional(),
    Row::http("caddy", "caddy", caddy).warned(UNTOLD, GO).optional(),
    Row::asked("nats", "nats-server", nats, b"PING\r\n", b"PONG\r\n")
        .first(b"", b"INFO ")
        .warned(UNTOLD, GO)
        .optional(),
    Row::http("java", "javac", java).optional(),
    Row::http("erlang", "escript", erlang).optional(),
];

const UNTOLD: &str = "listens";
const GO: &str = "Go: it does not call the C library";

/// A server in C.
fn linked_statically(folder: &Path, port: u16) -> Command {
    let text = r#"
#include <arpa/inet.h>
#include <stdlib.h>
#include <unistd.h>
int main(int count, char **words) {
    static const char answer[] = "HTTP/1.0 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(words[1])), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&at, sizeof at) || listen(listener, 100)) return 1;
    for (;;) {
        char request[4096];
        int client = accept(listener, 0, 0);
        if (read(client, request, sizeof request) > 0) (void)!write(client, answer, sizeof answer - 1);
        close(client);
    }
}
"#;
    let (source, program) = (folder.join("server.c"), folder.join("server"));
    std::fs::write(&source, text).unwrap();
    made(Command::new("cc").args(["-O1", "-static", "-o"]).arg(&program).arg(&source));
    let mut command = Command::new(program);
    command.arg(port.to_string());
    command
}

fn go(folder: &Path, port: u16) -> Command {
    let text = "package main\nimport (\"net/http\"; \"os\")\nfunc main() {\n\
        http.HandleFunc(\"/\", func(w http.ResponseWriter, r *http.Request) { w.Write([]byte(\"hello\")) })\n\
        panic(http.ListenAndServe(\"127.0.0.1:\"+os.Args[1], nil))\n}\n";
    let (source, program) = (folder.join("server.go"), folder.join("server"));
    std::fs::write(&source, text).unwrap();
    made(Command::new("go").args(["build", "-o"]).arg(&program).arg(&source).env("CGO_ENABLED", "0"));
    let mut command = Command::new(program);
    command.arg(port.to_string());
    command
}

fn caddy(folder: &Path, port: u16) -> Command {
    let text =
        format!("{{\n admin off\n auto_https off\n}}\nhttp://127.0.0.1:{port} {{\n respond \"hello\"\n}}\n");
    let mut command = Command::new("caddy");
    command
        .args(["run", "--adapter", "caddyfile", "--config"])
        .arg(config(folder, &text))
        .env("HOME", folder);
    command
}

fn nats(_: &Path, port: u16) -> Command {
    let mut command = Command::new("nats-server");
    command.args(["-a", "127.0.0.1", "-p", &port.to_string()]);
    command
}

fn java(folder: &Path, port: u16) -> Command {
    let text = "import com.sun.net.httpserver.*;\npublic class S { public static void main(String[] a) throws Exception {\n\
        HttpServer s = HttpServer.create(new java.net.InetSocketAddress(\"127.0.0.1\", Integer.parseInt(a[0])), 100);\n\
        s.createContext(\"/\", e -> { e.sendResponseHeaders(200, 5); e.getResponseBody().write(\"hello\".getBytes()); \
        e.close(); });\ns.start(); } }\n";
    std::fs::write(folder.join("S.java"), text).unwrap();
    made(Command::new("javac").arg("-d").arg(folder).arg(folder.join("S.java")));
    let mut command = Command::new("java");
    command
        .args(["-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp"])
        .arg(folder)
        .arg("S")
        .arg(port.to_string());
    command
}

fn erlang(folder: &Path, port: u16) -> Command {
    let text = "#!/usr/bin/escript\nmain([Port]) ->\n    {ok, L} = gen_tcp:listen(list_to_integer(Port), [binary, \
        {active, false}, {ip, {127,0,0,1}}, {reuseaddr, true}, {packet, http_bin}, {backlog, 128}]), loop(L).\n\
        loop(L) -> {ok, S} = gen_tcp:accept(L), P = spawn(fun() -> receive go -> serve(S) end end),\n    \
        gen_tcp:controlling_process(S, P), P ! go, loop(L).\n\
        serve(S) -> case gen_tcp:recv(S, 0) of\n    {ok, http_eoh} -> gen_tcp:send(S, <<\"HTTP/1.1 200 OK\\r\\n\
        Content-Length: 5\\r\\n\\r\\nhello\">>), serve(S);\n    {ok, _} -> serve(S); _ -> ok end.\n";
    let mut command = script("escript", folder, text);
    command.arg(port.to_string());
    command
}
