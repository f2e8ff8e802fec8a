//! A program that is looked for in the folders of PATH is the one that the C library finds.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{Server, compiled, eventually, folder, is_installed};
use std::process::Command;

/// Says that it has run: it would end where the library is loaded into it.
const EXECUTED: &str = r#"
#include <stdio.h>
int main(int count, char **arguments) { return fclose(fopen(arguments[1], "w")); }
"#;

#[test]
fn a_folder_of_the_programs_name_is_passed_over() {
    if !is_installed("musl-gcc") {
        return;
    }
    let folder = folder("searched-folders");
    let [first, second] = ["first", "second"].map(|name| folder.join(name));
    std::fs::create_dir_all(first.join("executed")).unwrap();
    std::fs::create_dir_all(&second).unwrap();
    compiled("musl-gcc", &second, "executed", EXECUTED);
    let ran = folder.join("ran");
    let mut command = Command::new("/usr/bin/env");
    command.arg("executed").arg(&ran).env("PATH", std::env::join_paths([first, second]).unwrap());
    let _server = Server::start(&command, true);
    eventually("it does not run", || ran.exists().then_some(()));
    std::fs::remove_dir_all(folder).unwrap();
}
