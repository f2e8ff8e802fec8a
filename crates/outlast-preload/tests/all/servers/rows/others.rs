//! Mail, files, names, shells and chat.

use super::config;
use crate::servers::row::Row;
use std::path::Path;
use std::process::Command;

pub const ROWS: &[Row] = &[
    Row::asked("sshd", "/usr/sbin/sshd", sshd, b"", b"").first(b"", b"SSH-2.0").sessions(),
    Row::asked("dropbear", "dropbear", dropbear, b"", b"")
        .first(b"", b"SSH-2.0")
        .none_idle("five a client, before a login"),
    Row::asked("rsync", "rsync", rsync, b"", b"").first(b"", b"@RSYNCD: ").sessions(),
    Row::asked("dnsmasq", "dnsmasq", dnsmasq, DNS, b"\x01\x02\x03\x04")
        .none_idle("a process for each, twenty at most"),
    Row::asked("ngircd", "ngircd", ngircd, b"PING a\r\n", b" 451 "),
    Row::asked("unbound", "unbound", unbound, DNS, b"\x01\x02\x03\x04").optional(),
    Row::asked("bind9", "named", named, DNS, b"example").optional(),
    // Its sessions end with their master.
    Row::asked("vsftpd", "vsftpd", vsftpd, b"NOOP\r\n", b"530 ").first(b"", b"220 ").optional(),
    // Its sessions keep the listening socket open.
    Row::asked("pure-ftpd", "pure-ftpd", pure_ftpd, b"NOOP\r\n", b"200 ")
        .first(b"", b"220 ")
        .sessions()
        .optional(),
    Row::asked("exim", "exim4", exim, b"NOOP\r\n", b"250 OK").first(b"", b"220 ").sessions().optional(),
    Row::asked("dovecot", "dovecot", dovecot, b"a NOOP\r\n", b"a OK").first(b"", b"* OK").unsaid().optional(),
];

/// By TCP: which address has `a.example`?
const DNS: &[u8] = b"\0\x1b\0\x01\x01\0\0\x01\0\0\0\0\0\0\x01a\x07example\0\0\x01\0\x01";

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

fn dropbear(folder: &Path, port: u16) -> Command {
    let key = folder.join("key");
    super::made(Command::new("dropbearkey").args(["-t", "ed25519", "-f"]).arg(&key));
    let mut command = Command::new("dropbear");
    command.args(["-F", "-E", "-p", &format!("127.0.0.1:{port}"), "-r"]).arg(key);
    command
}

fn rsync(folder: &Path, port: u16) -> Command {
    let text = format!("use chroot = no\npid file = {}/pid\n", folder.display());
    let mut command = Command::new("rsync");
    command.args(["--daemon", "--no-detach", "--address=127.0.0.1", &format!("--port={port}")]);
    command.arg(format!("--config={}", config(folder, &text).display()));
    command
}

fn dnsmasq(folder: &Path, port: u16) -> Command {
    let mut command = Command::new("dnsmasq");
    command.args([
        "-k",
        "-C",
        "/dev/null",
        "-R",
        "-h",
        "-u",
        "root",
        "--bind-interfaces",
        "-p",
        &port.to_string(),
    ]);
    command.args(["--listen-address=127.0.0.1", "--address=/example/1.2.3.4", "-x"]).arg(folder.join("pid"));
    command
}

fn ngircd(folder: &Path, port: u16) -> Command {
    let text = format!(
        "[Global]\nName = a.b\nInfo = a\nListen = 127.0.0.1\nPorts = {port}\nServerUID = root\nServerGID = root\n\
         MotdPhrase = a\n[Limits]\nMaxConnectionsIP = 0\n[Options]\nPAM = no\nDNS = no\nIdent = no\n"
    );
    let mut command = Command::new("ngircd");
    command.args(["-n", "-f"]).arg(config(folder, &text));
    command
}

fn unbound(folder: &Path, port: u16) -> Command {
    let text = format!(
        "server:\n interface: 127.0.0.1\n port: {port}\n do-daemonize: no\n username: \"\"\n chroot: \"\"\n \
         directory: \"{}\"\n pidfile: \"\"\n use-syslog: no\n logfile: \"\"\n do-udp: no\n incoming-num-tcp: 200\n \
         module-config: \"iterator\"\n local-zone: \"example.\" static\n local-data: \"a.example. A 1.2.3.4\"\n",
        folder.display()
    );
    let mut command = Command::new("unbound");
    command.args(["-d", "-c"]).arg(config(folder, &text));
    command
}

fn named(folder: &Path, port: u16) -> Command {
    let path = folder.display();
    let text = format!(
        "options {{ directory \"{path}\"; listen-on port {port} {{ 127.0.0.1; }}; listen-on-v6 {{ none; }}; \
         pid-file none; recursion no; session-keyfile \"{path}/key\"; lock-file none; }};\ncontrols {{ }};\n"
    );
    let mut command = Command::new("named");
    command.args(["-f", "-n", "1", "-c"]).arg(config(folder, &text));
    command
}

fn vsftpd(folder: &Path, port: u16) -> Command {
    let path = folder.join("empty");
    std::fs::create_dir_all(&path).unwrap();
    let path = path.display();
    let text = format!(
        "listen=YES\nlisten_address=127.0.0.1\nlisten_port={port}\nbackground=NO\nanonymous_enable=YES\n\
         no_anon_password=YES\nanon_root={path}\nsecure_chroot_dir={path}\n"
    );
    let mut command = Command::new("vsftpd");
    command.arg(config(folder, &text));
    command
}

fn pure_ftpd(folder: &Path, port: u16) -> Command {
    let mut command = Command::new("pure-ftpd");
    command.args(["-S", &format!("127.0.0.1,{port}"), "-H", "-c", "100", "-C", "100", "-g"]);
    command.arg(folder.join("pid"));
    command
}

fn exim(folder: &Path, port: u16) -> Command {
    let path = folder.display();
    let text = format!(
        "exim_user = Debian-exim\nspool_directory = {path}/spool\nlog_file_path = {path}/%s.log\n\
         pid_file_path = {path}/pid\nlocal_interfaces = 127.0.0.1\nprimary_hostname = a\nsmtp_accept_max = 200\n\
         begin routers\nbegin transports\n"
    );
    let mut command = Command::new("exim4");
    command.args(["-bdf", "-oX", &port.to_string(), "-C"]).arg(config(folder, &text));
    command
}

fn dovecot(folder: &Path, port: u16) -> Command {
    let path = folder.display();
    let text = format!(
        "base_dir = {path}/run\nstate_dir = {path}/run\nlog_path = {path}/log\nprotocols = imap\nlisten = 127.0.0.1\n\
         ssl = no\ndefault_internal_user = nobody\ndefault_internal_group = nogroup\ndefault_login_user = nobody\n\
         mail_location = maildir:{path}/%u\nservice imap-login {{\n  inet_listener imap {{\n    port = {port}\n  }}\n  \
         inet_listener imaps {{\n    port = 0\n  }}\n}}\npassdb {{\n  driver = static\n  args = password=x\n}}\n\
         userdb {{\n  driver = static\n  args = uid=65534 gid=65534 home=/tmp\n}}\n"
    );
    let mut command = Command::new("dovecot");
    command.arg("-F").arg("-c").arg(config(folder, &text));
    command
}
