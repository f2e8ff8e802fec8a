//! Programs that keep themselves alive, as their supervisor sees them: status, succession and upgrades. The program is this
//! test itself, which plays a server.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::supervised;

use crate::common::{Outlast, folder, output, restarts::ends, restarts::is_running};
use outlast_restart::Death;
use outlast_restart::board::{Backend, Board, Cause, UpgradeEnd, WhyNot};
use outlast_restart::supervisor::upgrade_signal;
use serde_json::Value;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use supervised::{lines, pid, status, until};

/// Which server this test is to play.
const ROLE: &str = "OUTLAST_TEST_ROLE";

fn command(role: &str) -> Vec<String> {
    let this = std::env::current_exe().unwrap().to_str().unwrap().to_owned();
    ["run", "--name", "server", "--preload", "never", "--environment", &format!("{ROLE}={role}"), "--", &this]
        .into_iter()
        .chain(["--exact", "run_upgrade::plays_a_server", "--nocapture"])
        .map(str::to_owned)
        .collect()
}

fn start(runtime: &Path, role: &str) -> Outlast {
    let arguments = command(role);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Outlast::start(runtime, &arguments)
}

fn play(role: &str) -> ! {
    let board = Board::of_supervisor().unwrap();
    let own = std::process::id();
    let forever = || -> ! {
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    };
    let another = |role: &str| {
        let this = std::env::current_exe().unwrap();
        let mut command = Command::new(this);
        command.args(["--exact", "run_upgrade::plays_a_server", "--nocapture"]).env(ROLE, role);
        command.spawn().unwrap().id()
    };
    match role {
        // Dies, and leaves somebody to go on.
        "succeeded" => {
            board.set_backend(Backend::Exec);
            board.set_main_pid(another("sleeper"));
            board.note_begin(own, Duration::ZERO);
            std::process::abort();
        }
        // Serves in a process below this one.
        "zygote" => {
            board.set_backend(Backend::Library);
            board.note_begin(another("sleeper"), Duration::ZERO);
            forever()
        }
        // Becomes whatever is asked for, but not a file called `bad`; of one called `slow` it says nothing, as if that
        // took long. Says that it is alive, if that is wanted, but not meanwhile.
        "upgradable" => {
            // SAFETY: ignoring a signal runs no code.
            unsafe { libc::signal(upgrade_signal(), libc::SIG_IGN) };
            board.set_backend(Backend::Library);
            let serving = another("sleeper");
            let mut number = board.note_begin(serving, Duration::ZERO);
            loop {
                if let Some(wish) = board.upgrade_wanted() {
                    let good = !wish.program.ends_with("bad");
                    let over = board.upgrade_is_over(wish.number);
                    if let Some(why) = over {
                        board.note_upgrade(wish.number, UpgradeEnd::undone(why));
                    } else if !good {
                        let death = Some(Death::Exited(3));
                        board.note_upgrade(wish.number, UpgradeEnd::undone(WhyNot::Ended { death }));
                    } else if !wish.program.ends_with("slow") {
                        board.note_end(number, None, Cause::Upgrade);
                        number = board.note_begin(serving, Duration::from_micros(250));
                        board.note_upgrade(wish.number, UpgradeEnd::Done);
                    }
                } else if let Ok(path) = std::env::var("NOTIFY_SOCKET") {
                    let socket = UnixDatagram::unbound().unwrap();
                    socket.send_to(b"READY=1\nWATCHDOG=1", path).ok();
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        // As the root of several processes does, which start again only all together.
        "roles" => {
            board.set_backend(Backend::Roles);
            board.note_begin(own, Duration::ZERO);
            forever()
        }
        _ => forever(),
    }
}

/// Not a test unless another one starts it so: then it never returns.
#[test]
fn plays_a_server() {
    if let Ok(role) = std::env::var(ROLE) {
        play(&role);
    }
}

#[test]
fn whoever_lives_on_is_the_main_process_and_its_end_is_the_end() {
    let folder = folder();
    let mut outlast = start(folder.path(), "succeeded");
    outlast.wait_for("its successor goes on");
    let now = until(folder.path(), "succeeded", |now| now["generations"][0]["cause"] == "crash");
    let successor = pid(&now, "main_pid");
    assert_eq!(
        (now["backend"].as_str(), now["generations"][0]["how"].as_str()),
        (Some("exec"), Some("SIGABRT"))
    );
    assert!(is_running(successor) && now["starts"].as_array().unwrap().len() == 1, "{now:#}");
    let page = output(folder.path(), &["status"]);
    let page = String::from_utf8_lossy(&page.stdout);
    for part in ["keeps server running", "generation 1 (exec)", "SIGABRT", "crash", &successor.to_string()] {
        assert!(page.contains(part), "no {part} in\n{page}");
    }
    outlast.signal("TERM");
    assert_eq!(outlast.ended().code(), Some(143));
    ends(successor);
}

#[test]
fn a_generation_without_its_zygote_goes_on_and_is_started_again_at_its_end() {
    let folder = folder();
    let mut outlast = start(folder.path(), "zygote");
    let first = until(folder.path(), "serving", |now| now["generation"] == 1 && now["main_pid"] != 0);
    let serving = pid(&first["generations"][0], "pid");
    let killed = Command::new("kill").args(["-KILL", &first["main_pid"].to_string()]).status().unwrap();
    assert!(killed.success());
    outlast.wait_for("its successor goes on");
    let killed = Command::new("kill").args(["-KILL", &serving.to_string()]).status().unwrap();
    assert!(killed.success());
    outlast.wait_for("killed by SIGKILL: it is started again");
    ends(serving);
    let second = until(folder.path(), "started again", |now| now["generation"] == 2);
    assert_eq!(second["generations"][0]["cause"], "killed");
    assert_eq!(second["starts"][0]["how"], "SIGKILL");
    outlast.signal("TERM");
    outlast.ended();
    ends(pid(&second["generations"][1], "pid"));
}

#[test]
fn a_server_that_can_is_upgraded_by_itself() {
    let folder = folder();
    let program = |name: &str| {
        let path = folder.path().join(name);
        std::fs::copy("/bin/true", &path).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (good, bad, slow) = (program("good"), program("bad"), program("slow"));
    let mut outlast = start(folder.path(), "upgradable");
    let before = until(folder.path(), "ready", |now| now["generation"] == 1 && now["main_pid"] != 0);
    let upgrade = |arguments: &[&str]| output(folder.path(), &[&["upgrade"], arguments].concat());
    let done = upgrade(&["server", "--program", &good]);
    let told = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && told.contains("generation 2") && told.contains("pause 250"), "{told}");
    let done = upgrade(&[&before["main_pid"].to_string(), "--program", &bad]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(8));
    for part in ["before it served (exit 3)", "the old one keeps serving, with all connections"] {
        assert!(said.contains(part), "no {part} in {said}");
    }
    let now = status(folder.path());
    assert_eq!((now["serves_program"].as_str(), &now["upgrade"]), (Some(good.as_str()), &Value::Null));
    assert!(upgrade(&[]).status.success());
    assert_eq!(status(folder.path())["serves_program"], good);
    let page = output(folder.path(), &["status"]);
    let page = String::from_utf8_lossy(&page.stdout);
    assert!(page.contains(&format!("since an upgrade, what serves is {good}")), "{page}");
    let late = upgrade(&["--program", &slow, "--timeout", "300ms"]);
    let said = String::from_utf8_lossy(&late.stderr);
    assert_eq!((late.status.code(), said.contains("did not serve within 300 ms")), (Some(8), true), "{said}");
    let after = status(folder.path());
    assert_eq!((&after["generation"], &after["main_pid"]), (&Value::from(3), &before["main_pid"]));
    for (arguments, part) in [
        (&["nobody"][..], "supervises anything called \"nobody\""),
        (&["--program", "/no/such"], "there is no program /no/such"),
        (&["--program", "/etc/passwd"], "cannot be executed"),
        (&["--program", "/tmp"], "is no program"),
        (&["--program", &format!("/tmp/{}", "x".repeat(5000))], "(5005 bytes)"),
        (&["--timeout", "0s"], "more time than none"),
    ] {
        let refused = upgrade(arguments);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!((refused.status.code(), said.contains(part)), (Some(2), true), "{said}");
    }
    outlast.signal("TERM");
    outlast.ended();
    let nobody = upgrade(&[]);
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("no `outlast run` here supervises a program"));
}

#[test]
fn an_upgrade_under_way_is_shown_and_withdrawn_by_an_interrupt() {
    let folder = folder();
    let slow = folder.path().join("slow");
    std::fs::copy("/bin/true", &slow).unwrap();
    let slow = slow.to_str().unwrap();
    let mut outlast = start(folder.path(), "upgradable");
    until(folder.path(), "ready", |now| now["generation"] == 1 && now["main_pid"] != 0);
    for signal in ["INT", "TERM"] {
        let arguments = ["upgrade", "server", "--program", slow, "--timeout", "1000s"];
        let mut command = crate::common::command(folder.path(), &arguments);
        command.stderr(std::process::Stdio::piped());
        let mut upgrading = Outlast::from(command);
        let now = until(folder.path(), "under way", |now| now["upgrade"] != Value::Null);
        assert_eq!(
            (&now["upgrade"]["program"], &now["upgrade"]["timeout_ms"]),
            (&slow.into(), &1_000_000.into())
        );
        assert!(now["upgrade"]["began_ms"].as_u64().unwrap() > 0);
        let page = output(folder.path(), &["status"]);
        let page = String::from_utf8_lossy(&page.stdout);
        assert!(page.contains(&format!("upgrade under way: to {slow}, since 2")), "{page}");
        let second = output(folder.path(), &["upgrade"]);
        let said = String::from_utf8_lossy(&second.stderr);
        assert_eq!(
            (second.status.code(), said.contains("another upgrade is under way, to")),
            (Some(2), true)
        );
        upgrading.signal(signal);
        assert_eq!(upgrading.ended().code(), Some(130));
        let said = upgrading.said();
        assert!(said.contains("not upgraded: interrupted; the old one keeps serving"), "{said}");
        outlast.wait_for("server is not upgraded, and the old one keeps serving: the upgrade was withdrawn");
        let now = status(folder.path());
        assert_eq!((&now["upgrade"], &now["serves_program"]), (&Value::Null, &Value::Null));
    }
    assert!(output(folder.path(), &["upgrade"]).status.success());
    // Its end is that of what is under way.
    let mut command =
        crate::common::command(folder.path(), &["upgrade", "--program", slow, "--timeout", "1000s"]);
    command.stderr(std::process::Stdio::piped());
    let mut upgrading = Outlast::from(command);
    until(folder.path(), "under way", |now| now["upgrade"] != Value::Null);
    outlast.signal("TERM");
    outlast.ended();
    assert_eq!(upgrading.ended().code(), Some(7));
    let said = upgrading.said();
    assert!(said.contains("has ended meanwhile"), "{said}");
}

/// Nobody can withdraw it any more, so it is.
#[test]
fn an_upgrade_is_withdrawn_when_whoever_asked_for_it_is_killed() {
    let folder = folder();
    let slow = folder.path().join("slow");
    std::fs::copy("/bin/true", &slow).unwrap();
    let mut outlast = start(folder.path(), "upgradable");
    let before = until(folder.path(), "ready", |now| now["generation"] == 1 && now["main_pid"] != 0);
    let arguments = ["upgrade", "--program", slow.to_str().unwrap(), "--timeout", "1000s"];
    let mut upgrading = crate::common::command(folder.path(), &arguments).spawn().unwrap();
    until(folder.path(), "under way", |now| now["upgrade"] != Value::Null);
    upgrading.kill().unwrap();
    upgrading.wait().unwrap();
    until(folder.path(), "withdrawn", |now| now["upgrade"] == Value::Null);
    outlast.wait_for(&format!("process {}, which wants server to be upgraded, has ended", upgrading.id()));
    outlast.wait_for("server is not upgraded, and the old one keeps serving: the upgrade was withdrawn");
    // One that was decided before stays.
    assert!(output(folder.path(), &["upgrade"]).status.success());
    assert_eq!(status(folder.path())["main_pid"], before["main_pid"]);
    assert_eq!(outlast.said_so_far().matches("has ended: that is withdrawn").count(), 1);
    // Killed, it would leave the server's child behind.
    outlast.signal("TERM");
    outlast.ended();
}

#[test]
fn a_server_that_becomes_another_binary_does_not_hang() {
    let folder = folder();
    let slow = folder.path().join("slow");
    std::fs::copy("/bin/true", &slow).unwrap();
    let mut arguments = command("upgradable");
    arguments.splice(1..1, ["--notify", "--watchdog", "500ms"].map(str::to_owned));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut outlast = Outlast::start(folder.path(), &arguments);
    let before = until(folder.path(), "ready", |now| now["ready"] == true);
    let late =
        output(folder.path(), &["upgrade", "--program", slow.to_str().unwrap(), "--timeout", "1500ms"]);
    let said = String::from_utf8_lossy(&late.stderr);
    assert_eq!((late.status.code(), said.contains("did not serve within 1.5 s")), (Some(8), true), "{said}");
    assert_eq!(status(folder.path())["main_pid"], before["main_pid"]);
    outlast.signal("TERM");
    outlast.ended();
    let said = outlast.said();
    assert!(!said.contains("hangs"), "{said}");
}

/// It would die of being asked.
#[test]
fn a_generation_without_its_zygote_is_not_upgraded_but_by_force() {
    let folder = folder();
    let mut outlast = start(folder.path(), "zygote");
    let first = until(folder.path(), "serving", |now| now["generation"] == 1 && now["main_pid"] != 0);
    let serving = pid(&first["generations"][0], "pid");
    assert!(Command::new("kill").args(["-KILL", &first["main_pid"].to_string()]).status().unwrap().success());
    assert_eq!(first["without_zygote"], false);
    let page = || String::from_utf8(output(folder.path(), &["status"]).stdout).unwrap();
    let line = outlast.wait_for("its successor goes on");
    assert!(line.contains(&format!("(process {serving})")), "{line}");
    // Before anybody asks for an upgrade.
    until(folder.path(), "alone", |now| now["without_zygote"] == true);
    assert!(page().contains("(the zygote) was killed") && page().contains("needs --force"), "{}", page());
    let refused = output(folder.path(), &["upgrade"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!((refused.status.code(), said.contains("--force stops it")), (Some(2), true), "{said}");
    assert!(is_running(serving));
    outlast.signal("TERM");
    outlast.ended();
}

#[test]
fn a_program_with_roles_is_upgraded_by_force_only() {
    let folder = folder();
    let mut outlast = start(folder.path(), "roles");
    let before = until(folder.path(), "ready", |now| now["generation"] == 1 && now["backend"] == "roles");
    let refused = output(folder.path(), &["upgrade"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!((refused.status.code(), said.contains("--force stops it")), (Some(2), true), "{said}");
    assert_eq!(pid(&status(folder.path()), "main_pid"), pid(&before, "main_pid"));
    assert!(output(folder.path(), &["upgrade", "--force"]).status.success());
    assert_ne!(pid(&status(folder.path()), "main_pid"), pid(&before, "main_pid"));
    outlast.signal("TERM");
    outlast.ended();
}

#[test]
fn a_plain_program_is_upgraded_by_force_and_comes_back_if_the_new_one_does_not() {
    let folder = folder();
    let script = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let old = script(
        "old",
        "#!/bin/sh\necho old serves >&2\nprintf READY=1 | socat -u - UNIX-SENDTO:$NOTIFY_SOCKET\nexec sleep 600\n",
    );
    let new = script(
        "new",
        "#!/bin/sh\necho new serves >&2\nprintf READY=1 | socat -u - UNIX-SENDTO:$NOTIFY_SOCKET\nexec sleep 600\n",
    );
    let broken = script("broken", "#!/bin/sh\necho broken tries >&2\nexit 1\n");
    let content = script("content", "#!/bin/sh\nexit 0\n");
    let unusable = script("unusable", "\x7fELF, but not really");
    let mut outlast = Outlast::start(folder.path(), &["run", "--notify", "--", &old]);
    outlast.wait_for("is ready");
    let upgrade = |program: &str, force: &[&str]| {
        let done = output(folder.path(), &[&["upgrade", "old", "--program", program], force].concat());
        (done.status.code(), String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned())
    };
    let (code, said) = upgrade(&new, &[]);
    assert_eq!((code, said.contains("--force stops it")), (Some(2), true), "{said}");
    let (code, said) = upgrade(&new, &["--force"]);
    assert_eq!((code, said.contains("was stopped and started")), (Some(0), true), "{said}");
    outlast.wait_for("new serves");
    let never = script("never", "#!/bin/sh\ntrap '' TERM\nsleep 600 & wait; wait\n");
    for (program, part) in [
        (&broken, "before it served (exit 1)"),
        // What no system executes is left to a shell.
        (&unusable, "before it served"),
        (&content, "before it served (exit 0)"),
        (&never, "did not serve within 2.0 s"),
    ] {
        let (code, said) = upgrade(program, &["--force", "--timeout", "2s"]);
        assert_eq!((code, said.contains(part)), (Some(8), true), "{said}");
        assert!(said.contains("was stopped and is started again: its connections are closed"), "{said}");
        outlast.wait_for("new serves");
        // One upgrade has an end before the next one begins.
        until(folder.path(), "ready", |now| now["ready"] == true);
    }
    // It stays the new one when it crashes.
    let now = until(folder.path(), "ready", |now| now["ready"] == true);
    assert!(Command::new("kill").args(["-KILL", &now["main_pid"].to_string()]).status().unwrap().success());
    outlast.wait_for("new serves");
    outlast.signal("TERM");
    assert_eq!(outlast.ended().code(), Some(143));
}

/// It has no connections that could be closed.
#[test]
fn a_program_that_waits_to_be_started_again_is_started_as_the_new_one_at_once() {
    let folder = folder();
    let run = ["run", "--name", "crasher", "--backoff-min", "1000s", "--backoff-max", "1000s", "--", "false"];
    let mut outlast = Outlast::start(folder.path(), &run);
    outlast.wait_for("it is started again in");
    until(folder.path(), "waiting", |now| now["main_pid"] == 0);
    let sleeper = folder.path().join("sleeper");
    std::fs::write(&sleeper, "#!/bin/sh\nexec sleep 600\n").unwrap();
    std::fs::set_permissions(&sleeper, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let done = output(folder.path(), &["upgrade", "--program", sleeper.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    assert_eq!((done.status.code(), said.contains("did not run, is started")), (Some(0), true), "{said}");
    outlast.signal("TERM");
    outlast.ended();
}

/// Nobody says whether it serves: only whether it runs.
#[test]
fn a_program_that_says_nothing_comes_back_if_the_new_one_ends_at_once() {
    let folder = folder();
    let run = ["run", "--name", "silent", "--restart", "never", "--", "sleep", "600"];
    let mut outlast = Outlast::start(folder.path(), &run);
    until(folder.path(), "running", |now| now["ready"] == true);
    for (program, code) in [("/bin/true", 8), ("/bin/false", 8), ("/bin/sleep", 0)] {
        let done = output(folder.path(), &["upgrade", "silent", "--force", "--program", program]);
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(code), "{program}: {said}");
        let now = until(folder.path(), "running again", |now| now["ready"] == true && now["main_pid"] != 0);
        let serves = if code == 0 { Value::from(program) } else { Value::Null };
        assert_eq!(now["serves_program"], serves);
    }
    outlast.signal("TERM");
    assert_eq!(outlast.ended().code(), Some(143));
}

/// The one that is named has to be the one that has died.
#[test]
fn a_binary_that_does_not_begin_is_named_and_not_the_one_that_goes_on() {
    let Some(lines) = lines() else { return };
    let folder = folder();
    let run = ["run", "--preload", "never", "--", &lines, "127.0.0.1:0"];
    let mut command = crate::common::command(folder.path(), &run);
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
    let mut outlast = Outlast::from(command);
    until(folder.path(), "serving", |now| now["generation"] == 1 && now["main_pid"] != 0);
    for (generation, program) in [(2, "/bin/false"), (3, "/bin/true")] {
        let upgraded = output(folder.path(), &["upgrade", "lines", "--program", program]);
        assert_eq!(upgraded.status.code(), Some(8), "{program}");
        let said = String::from_utf8_lossy(&upgraded.stderr);
        let parts =
            ["the new binary has ended before it served (exit ", "keeps serving, with all connections"];
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
        let line = outlast.wait_for("the new binary of lines has exited with code");
        let now = until(folder.path(), "rolled back", |now| now["generation"] == generation);
        // Whose process that is cannot be mistaken.
        let old = format!("the old one keeps serving (process {})", pid(&now, "main_pid"));
        assert!(line.contains(&old), "{line}");
        assert!(is_running(pid(&now, "main_pid")), "{now:#}");
    }
    outlast.signal("TERM");
    outlast.ended();
    let said = outlast.said();
    assert!(!said.contains("successor") && !said.contains("started again"), "{said}");
}
