//! Databases, caches and queues.

use super::{config, made};
use crate::servers::row::Row;
use std::path::Path;
use std::process::Command;

pub const ROWS: &[Row] = &[
    Row::asked("redis", "redis-server", redis, b"PING\r\n", b"+PONG\r\n"),
    Row::asked("memcached", "memcached", memcached, b"version\r\n", b"VERSION"),
    Row::asked("mariadb", "mariadbd", mariadb, b"", b"").first(b"", b"mysql_native_password"),
    Row::asked("beanstalkd", "beanstalkd", beanstalkd, b"list-tubes\r\n", b"- default\n"),
    Row::asked("mosquitto", "mosquitto", mosquitto, b"\xc0\0", b"\xd0\0").first(MQTT, b"\x20\x02"),
    Row::asked("postgresql", "/usr/lib/postgresql/15/bin/postgres", postgresql, SELECT, b"SELECT 1\0Z")
        .first(STARTUP, b"Z\0\0\0\x05I")
        .optional(),
    Row::asked("pgbouncer", "pgbouncer", pgbouncer, b"\0\0\0\x08\x04\xd2\x16\x2f", b"N").optional(),
    Row::asked("slapd", "slapd", slapd, b"0\x0c\x02\x01\x01\x60\x07\x02\x01\x03\x04\0\x80\0", b"0\x0c")
        .optional(),
    Row::asked("gearmand", "gearmand", gearmand, b"version\r\n", b"OK ").optional(),
];

/// A client connects that is called by its number.
const MQTT: &[u8] = b"\x10\x0c\0\x04MQTT\x04\x02\0\x3c\0\0";
const STARTUP: &[u8] = b"\0\0\0)\0\x03\0\0user\0postgres\0database\0postgres\0\0";
const SELECT: &[u8] = b"Q\0\0\0\x0dSELECT 1\0";

fn redis(folder: &Path, port: u16) -> Command {
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"]).arg(folder);
    command
}

fn memcached(_: &Path, port: u16) -> Command {
    let mut command = Command::new("memcached");
    command.args(["-u", "nobody", "-l", "127.0.0.1", "-U", "0", "-p", &port.to_string()]);
    command
}

fn mariadb(folder: &Path, port: u16) -> Command {
    let data = folder.join("data");
    std::fs::create_dir_all(&data).unwrap();
    let start = || {
        let mut command = Command::new("mariadbd");
        command.args(["--no-defaults", "--user=root", "--innodb-log-file-size=4M"]);
        command.arg(format!("--datadir={}", data.display()));
        command
    };
    // One that is killed soon after its first start does not start again, also without us.
    made(start().arg("--bootstrap").stdin(std::process::Stdio::null()));
    let mut command = start();
    command.args(["--skip-grant-tables", "--bind-address=127.0.0.1"]).arg(format!("--port={port}"));
    command.arg(format!("--socket={}", folder.join("socket").display()));
    command
}

fn beanstalkd(_: &Path, port: u16) -> Command {
    let mut command = Command::new("beanstalkd");
    command.args(["-l", "127.0.0.1", "-p", &port.to_string()]);
    command
}

fn mosquitto(folder: &Path, port: u16) -> Command {
    let text = format!("listener {port} 127.0.0.1\nallow_anonymous true\nuser root\n");
    let mut command = Command::new("mosquitto");
    command.arg("-c").arg(config(folder, &text));
    command
}

/// It does not run as root.
fn postgresql(folder: &Path, port: u16) -> Command {
    let (data, bin) = (folder.join("data"), Path::new("/usr/lib/postgresql/15/bin"));
    let as_postgres = |program: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(bin.join(program));
        command.arg("-D").arg(&data);
        command
    };
    std::fs::create_dir_all(&data).unwrap();
    made(Command::new("chown").arg("postgres:postgres").arg(&data));
    made(as_postgres("initdb").args(["-A", "trust", "-N", "--no-instructions", "-U", "postgres"]));
    let mut command = as_postgres("postgres");
    command.args(["-F", "-h", "127.0.0.1", "-p", &port.to_string(), "-k"]).arg(folder);
    command
}

fn pgbouncer(folder: &Path, port: u16) -> Command {
    let text = format!(
        "[databases]\n[pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port={port}\nauth_type=any\nunix_socket_dir=\n\
         user=nobody\n"
    );
    let mut command = Command::new("pgbouncer");
    command.arg(config(folder, &text));
    command
}

fn slapd(folder: &Path, port: u16) -> Command {
    let path = folder.display();
    let text = format!(
        "include /etc/ldap/schema/core.schema\npidfile {path}/pid\nmodulepath /usr/lib/ldap\nmoduleload back_mdb\n\
         database mdb\nsuffix dc=a\ndirectory {path}\n"
    );
    let mut command = Command::new("slapd");
    command.args(["-d", "0", "-h", &format!("ldap://127.0.0.1:{port}"), "-f"]).arg(config(folder, &text));
    command
}

fn gearmand(_: &Path, port: u16) -> Command {
    let mut command = Command::new("gearmand");
    command.args(["-L", "127.0.0.1", "-l", "stderr", "-p", &port.to_string()]);
    command
}
