//! With a server of Redis, and with commands.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use super::{Copying, How};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

struct Redis {
    child: Child,
    address: SocketAddr,
    folder: std::path::PathBuf,
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn is_redis(mut stream: TcpStream) -> std::io::Result<bool> {
    stream.write_all(b"ECHO 1\r\n")?;
    let mut first = [0];
    stream.read_exact(&mut first)?;
    Ok(first != *b"E")
}

impl Redis {
    fn start(arguments: &[&str]) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let folder = std::env::temp_dir().join(format!("outlast-copy-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir"])
            .arg(&folder)
            .args(arguments)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let redis = Self { child, address: SocketAddr::from(([127, 0, 0, 1], port)), folder };
        let begun = Instant::now();
        // A connection alone proves nothing: from a port like this it may be one to itself.
        while !TcpStream::connect(redis.address).is_ok_and(|stream| is_redis(stream).unwrap_or(false)) {
            assert!(begun.elapsed() < Duration::from_secs(20), "redis-server does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        redis
    }

    fn say(&self, words: &str) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        write!(stream, "{words}\r\nquit\r\n").unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        said.strip_suffix("+OK\r\n").unwrap_or(&said).to_owned()
    }

    fn copying(&self, password: Option<&str>) -> Copying {
        let password = password.map(str::to_owned);
        Copying { server: self.address, snapshot: How::Redis, restore: How::Redis, password }
    }
}

struct Breaks;

impl Read for Breaks {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::BrokenPipe.into())
    }
}

#[test]
fn redis_gets_the_data_of_another_one_as_of_one_moment() {
    let (from, to) =
        (Redis::start(&["--save", ""]), Redis::start(&["--appendonly", "yes", "--requirepass", "secret"]));
    for number in 0..2_000 {
        from.say(&format!("set key{number} {}", "x".repeat(200)));
    }
    from.say("set a before");
    to.say("auth secret\r\nset own data");
    let prepared = from.copying(None).prepare().unwrap();
    from.say("set a then");
    let mut data = prepared.capture().unwrap();
    from.say("set a later");
    let copying = to.copying(Some("secret"));
    copying.restore(&mut data).unwrap();
    assert_eq!(
        to.say("auth secret\r\nget a\r\ndbsize\r\nget own\r\nset b 1"),
        "+OK\r\n$4\r\nthen\r\n:2001\r\n$-1\r\n+OK\r\n"
    );
    assert_eq!(from.say("get a"), "$5\r\nlater\r\n");
    // A part of the data is none.
    let data = from.copying(None).prepare().unwrap().capture().unwrap();
    let failed = copying.restore(&mut data.take(1_000).chain(Breaks)).unwrap_err();
    assert_eq!(failed.kind(), std::io::ErrorKind::BrokenPipe);
    assert!(to.say("auth secret\r\ninfo replication").contains("role:master"));
    let refused = to.copying(Some("wrong")).prepare().map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains("Redis refuses AUTH: WRONGPASS"), "{refused}");
}

#[test]
fn a_command_copies_and_another_one_restores() {
    let file = std::env::temp_dir().join(format!("outlast-restored-{}", std::process::id()));
    let copying = |snapshot: &str, restore: &str| Copying {
        server: SocketAddr::from(([127, 0, 0, 1], 6379)),
        snapshot: How::Command(snapshot.to_owned()),
        restore: How::Command(restore.to_owned()),
        password: None,
    };
    let takes = format!("cat > {}", file.display());
    let good = copying("echo of $OUTLAST_SERVER; sleep 0.1; echo end", &takes);
    good.restore(&mut good.prepare().unwrap().capture().unwrap()).unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "of 127.0.0.1:6379\nend\n");
    for (snapshot, restore, why) in [
        ("echo half; exit 3", takes.as_str(), "\"echo half; exit 3\" has failed"),
        ("echo all", "cat >/dev/null; exit 4", "exit 4\" has failed (exit status: 4)"),
        ("head -c 9999999 /dev/zero", "exit 0", "has not read all of the data"),
    ] {
        let bad = copying(snapshot, restore);
        let error = bad.prepare().unwrap().capture().and_then(|mut data| bad.restore(&mut data)).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
    std::fs::remove_file(&file).unwrap();
}
