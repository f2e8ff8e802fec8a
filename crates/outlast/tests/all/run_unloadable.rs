//! Programs into which no library can be loaded: they run below `outlast run` as without it, and are named.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

use crate::common::{Outlast, command, folder};
use crate::run_preload::library;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Says whether the variable is there by which the library is loaded, and another one.
const SOURCE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    const char *preload = getenv("LD_PRELOAD"), *other = getenv("OTHER");
    printf("begun, preload %s, other %s\n", preload ? preload : "none", other ? other : "none");
    return 7;
}
"#;

/// The program, built. None: the compiler is not there, which is said.
fn built(folder: &Path, compiler: &str, flags: &[&str]) -> Option<PathBuf> {
    let (source, program) = (folder.join("program.c"), folder.join("program"));
    std::fs::write(&source, SOURCE).unwrap();
    let mut command = Command::new(compiler);
    match command.args(flags).arg("-o").arg(&program).arg(&source).output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Some(program)
        }
        Err(_) => {
            assert!(std::env::var_os("OUTLAST_REQUIRE_LAB").is_none(), "{compiler} is not installed");
            eprintln!("SKIPPED: {compiler} is not installed; tools/deps.sh installs it");
            None
        }
    }
}

/// What a program does, with what is preloaded by default.
fn run(folder: &Path, program: &[&str]) -> (Option<i32>, String, String) {
    let library = library();
    let run = ["run", "--restart", "never", "--preload-library", library.to_str().unwrap(), "--"];
    let mut command = command(folder, &[&run[..], program].concat());
    let Output { status, stdout, stderr } =
        command.env("OTHER", "here").stdin(Stdio::null()).output().unwrap();
    let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    (status.code(), stdout, stderr)
}

/// However a parent executes it into which the library is loaded.
fn is_executed_by_parents(folder: &Path, program: &Path) {
    let path = program.to_str().unwrap();
    let script = folder.join("script");
    std::fs::write(&script, format!("#!{path}\n")).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let list = format!("p = '{path}'; a = ['program']; e = dict(os.environ)");
    let python = |how: &str| format!("import os, subprocess, ctypes, sys; {list}; sys.exit({how})");
    let wait = "os.waitstatus_to_exitcode(os.waitpid(PID, 0)[1])";
    let c = "c = ctypes.CDLL(None); l = (ctypes.c_char_p * 2)(b'program', None)";
    let parents = [
        vec!["sh", "-c", "\"$0\"; exit $?", path],
        vec!["sh", "-c", "PATH=\"${0%/*}:$PATH\"; program; exit $?", path],
        vec!["env", path],
        vec!["sh", "-c", "\"$0\"; exit $?", script.to_str().unwrap()],
    ]
    .map(|words| words.into_iter().map(str::to_owned).collect::<Vec<_>>());
    let calls = [
        python("subprocess.call([p])"),
        python("subprocess.call([p], close_fds=False)"),
        python("subprocess.call(p, shell=True)"),
        python("os.execv(p, a)"),
        python("os.execve(p, a, e)"),
        python(&wait.replace("PID", "os.posix_spawn(p, a, e)")),
        python(&wait.replace("PID", "os.posix_spawnp(p, a, e)")),
        format!("import ctypes; {c}; c.execvp(b'{path}', l)"),
        format!("import ctypes; {c}; c.execvpe(b'{path}', l, ctypes.c_void_p.in_dll(c, 'environ'))"),
    ];
    let calls = calls.map(|call| vec!["/usr/bin/python3".to_owned(), "-c".into(), call]);
    for parent in parents.iter().chain(&calls) {
        let words: Vec<&str> = parent.iter().map(String::as_str).collect();
        let (code, said, errors) = run(folder, &words);
        let what = format!("{parent:?}\n{errors}");
        assert_eq!((code, said.as_str()), (Some(7), "begun, preload none, other here\n"), "{what}");
    }
}

#[test]
fn a_program_with_address_sanitizer_runs_and_is_named() {
    let folder = folder();
    let Some(program) = built(folder.path(), "gcc", &["-fsanitize=address"]) else { return };
    let path = program.to_str().unwrap();
    let (code, said, errors) = run(folder.path(), &[path]);
    assert_eq!((code, said.as_str()), (Some(7), "begun, preload none, other here\n"), "{errors}");
    let warned =
        errors.contains("WARN program") && errors.contains("is linked with AddressSanitizer (libasan.so");
    assert!(warned, "{errors}");
    is_executed_by_parents(folder.path(), &program);
}

#[test]
fn a_program_with_another_c_library_runs_below_one_with_the_usual() {
    let folder = folder();
    let Some(program) = built(folder.path(), "musl-gcc", &[]) else { return };
    let (code, said, errors) = run(folder.path(), &[program.to_str().unwrap()]);
    assert_eq!((code, said.as_str()), (Some(7), "begun, preload none, other here\n"), "{errors}");
    assert!(errors.contains("uses another C library than the GNU one"), "{errors}");
    is_executed_by_parents(folder.path(), &program);
}

/// These work with the library, which stays there for them and for their children, with what else the user has there.
#[test]
fn other_programs_get_the_library_from_their_parents() {
    let folder = folder();
    for flags in
        [&["-fsanitize=thread"][..], &["-fsanitize=undefined"], &["-fsanitize=leak"], &[], &["-static"]]
    {
        let Some(program) = built(folder.path(), "gcc", flags) else { return };
        for words in
            [vec!["sh", "-c", "\"$0\"; exit $?", program.to_str().unwrap()], vec![program.to_str().unwrap()]]
        {
            let (code, said, errors) = run(folder.path(), &words);
            assert_eq!(code, Some(7), "{flags:?} {errors}");
            let is_alone = words.len() == 1 && flags == ["-static"];
            assert_eq!(said.contains("liboutlast_preload.so, other here"), !is_alone, "{flags:?} {said}");
        }
    }
}

/// `outlast`, the library, and a program, in a folder that another user can reach: where they were built may be none.
fn for_all_users(folder: &Path, program: &str) -> [PathBuf; 3] {
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    let library = library();
    let all = [
        (Path::new(env!("CARGO_BIN_EXE_outlast")), "outlast"),
        (&library, "library.so"),
        (program.as_ref(), "program"),
    ];
    all.map(|(from, name)| {
        let to = folder.join(name);
        std::fs::copy(from, &to).unwrap();
        to
    })
}

fn give(program: &Path, capabilities: [u32; 5]) {
    let bytes: Vec<u8> = capabilities.iter().flat_map(|word| word.to_le_bytes()).collect();
    rustix::fs::setxattr(program, "security.capability", &bytes, rustix::fs::XattrFlags::empty()).unwrap();
}

/// What is started is a script, into which the library could be loaded.
#[test]
fn a_program_that_gets_rights_behind_a_script_is_named_with_the_reason() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can give rights to a file");
        return;
    }
    for way in ["capabilities", "setuid"] {
        let folder = folder();
        let [outlast, library, program] = for_all_users(folder.path(), "/bin/sleep");
        match way {
            "capabilities" => give(&program, [0x0200_0001, 1 << 10, 0, 0, 0]),
            _ => std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap(),
        }
        let script = folder.path().join("script");
        std::fs::write(&script, format!("#!/bin/sh\nexec {} 600\n", program.display())).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = Command::new(outlast);
        command.args(["run", "--stop-timeout", "1s", "--preload-library"]).arg(library).arg("--").arg(script);
        command.uid(65534).gid(65534).env("XDG_RUNTIME_DIR", folder.path().join("runtime"));
        command.env_remove("OUTLAST_LOG").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut outlast = Outlast::from(command);
        let line = outlast.wait_for("was executed with rights that `outlast run` does not have");
        assert!(line.contains("(program)") && line.contains("if it has some"), "{line}");
        outlast.signal("TERM");
        outlast.ended();
    }
}

/// The system loads nothing into a program with capabilities of its file, unless root executes it.
#[test]
fn a_program_with_file_capabilities_is_named_with_the_reason() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can give capabilities to a file");
        return;
    }
    let folder = folder();
    let [outlast, library, program] = for_all_users(folder.path(), "/bin/true");
    // Without capabilities, by root, and with some that are permitted, in effect, or may be inherited only.
    let cases = [
        (65534, None, false),
        (0, Some([0x0200_0001_u32, 1 << 10, 0, 0, 0]), false),
        (65534, Some([0x0200_0000, 0, 1 << 10, 0, 0]), false),
        (65534, Some([0x0200_0001, 1 << 10, 0, 0, 0]), true),
        (65534, Some([0x0200_0000, 1 << 10, 0, 0, 0]), true),
        (65534, Some([0x0200_0000, 0, 0, 1, 0]), true),
    ];
    for (user, capabilities, is_named) in cases {
        if let Some(words) = capabilities {
            give(&program, words);
        }
        let mut command = Command::new(&outlast);
        command
            .args(["run", "--restart", "never", "--preload-library"])
            .arg(&library)
            .arg("--")
            .arg(&program);
        command.uid(user).gid(user).env("XDG_RUNTIME_DIR", folder.path().join(format!("of-{user}")));
        let output = command.env_remove("OUTLAST_LOG").stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{said}");
        let why = "program runs with rights that its caller does not have (file capabilities";
        assert_eq!(said.contains(why), is_named, "{user} {capabilities:x?}: {said}");
    }
}

/// Whoever has taken the program without its library expects connections to be kept.
#[test]
fn a_program_without_its_library_beside_it_says_what_is_not_kept() {
    let folder = folder();
    let alone = folder.path().join("alone");
    std::fs::create_dir(&alone).unwrap();
    let copy = alone.join("outlast");
    std::fs::copy(env!("CARGO_BIN_EXE_outlast"), &copy).unwrap();
    let mut command = Command::new(&copy);
    command.args(["run", "--restart", "never", "--", "true"]).env("XDG_RUNTIME_DIR", folder.path());
    command.env_remove("OUTLAST_LOG").env_remove("OUTLAST_PRELOAD_LIBRARY").stdin(Stdio::null());
    let Output { status, stderr, .. } = command.output().unwrap();
    let said = String::from_utf8_lossy(&stderr);
    assert_eq!(status.code(), Some(0), "{said}");
    let warnings: Vec<&str> = said.lines().filter(|line| line.contains("WARN")).collect();
    assert!(
        matches!(warnings[..], [line] if line.contains("true is started again")
            && line.contains("there is no liboutlast_preload.so beside outlast")),
        "{said}"
    );
}
