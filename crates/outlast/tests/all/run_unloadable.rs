//! Programs that end where a library is loaded into them that does not fit: they run below `outlast run` as without it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

use crate::common::{command, folder};
use crate::run_preload::library;
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
}
