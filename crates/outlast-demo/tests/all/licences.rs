//! Every dependency is under a licence that `deny.toml` allows.

#![allow(clippy::unwrap_used, reason = "a failed expectation is the message")]

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Whether an SPDX expression can be met by the allowed licences alone. Of `A OR B` one is enough, of `A AND B` both
/// are needed; AND binds tighter. Old manifests write `/` for OR.
fn met(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let expression = expression.replace('/', " OR ");
    let spaced = expression.replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    let met = any_of(&mut rest, allowed);
    met && rest.is_empty()
}

fn any_of(words: &mut &[&str], allowed: &BTreeSet<String>) -> bool {
    let mut met = all_of(words, allowed);
    while let ["OR", rest @ ..] = *words {
        *words = rest;
        met |= all_of(words, allowed);
    }
    met
}

fn all_of(words: &mut &[&str], allowed: &BTreeSet<String>) -> bool {
    let mut met = one(words, allowed);
    while let ["AND", rest @ ..] = *words {
        *words = rest;
        met &= one(words, allowed);
    }
    met
}

fn one(words: &mut &[&str], allowed: &BTreeSet<String>) -> bool {
    match *words {
        ["(", rest @ ..] => {
            *words = rest;
            let met = any_of(words, allowed);
            let [")", rest @ ..] = *words else { return false };
            *words = rest;
            met
        }
        [licence, "WITH", exception, rest @ ..] => {
            *words = rest;
            allowed.contains(&format!("{licence} WITH {exception}")) || allowed.contains(*licence)
        }
        [licence, rest @ ..] => {
            *words = rest;
            allowed.contains(*licence)
        }
        [] => false,
    }
}

fn allowed() -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join("deny.toml")).unwrap();
    let file: toml::Table = text.parse().unwrap();
    let list = file["licenses"]["allow"].as_array().unwrap();
    list.iter().map(|licence| licence.as_str().unwrap().to_owned()).collect()
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

#[test]
fn every_dependency_has_an_allowed_licence() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let metadata = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let metadata: Value = serde_json::from_slice(&metadata.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 50, "these are not all packages");
    let allowed = allowed();
    let wrong: Vec<String> = packages
        .iter()
        .filter(|package| !package["license"].as_str().is_some_and(|licence| met(licence, &allowed)))
        .map(|package| format!("{} {}: {}", package["name"], package["version"], package["license"]))
        .collect();
    assert!(wrong.is_empty(), "not allowed by deny.toml:\n{}", wrong.join("\n"));
}

#[test]
fn expressions_are_read_as_spdx_means_them() {
    let allowed: BTreeSet<String> = ["MIT", "ISC"].map(str::to_owned).into();
    for yes in
        ["MIT", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "(MIT OR GPL-3.0) AND ISC", "GPL-3.0 OR MIT AND ISC"]
    {
        assert!(met(yes, &allowed), "{yes}");
    }
    for no in
        ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT", "MIT) OR (", "GPL-3.0 AND MIT OR BSD-2-Clause", "MIT ISC"]
    {
        assert!(!met(no, &allowed), "{no}");
    }
}
