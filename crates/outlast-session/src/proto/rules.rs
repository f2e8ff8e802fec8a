//! Every rule that the code says it keeps is a rule of `PROTOCOL.md`.

extern crate std;

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use std::fs;
use std::path::{Path, PathBuf};

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The numbers behind the word in every citation: `3.4`, or `4` for a whole section.
fn cited(text: &str) -> Vec<String> {
    let number = |rest: &str| -> String {
        let number: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
        number.trim_end_matches('.').to_string()
    };
    text.split("PROTOCOL ").skip(1).map(number).filter(|number| !number.is_empty()).collect()
}

#[test]
fn every_cited_rule_is_in_the_document() {
    let document = include_str!("../../../../PROTOCOL.md");
    let rules: Vec<&str> = document.lines().filter_map(|line| line.split(' ').next()).collect();
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    let mut citations = 0;
    for file in files {
        for number in cited(&fs::read_to_string(&file).unwrap()) {
            let section = std::format!("\n## {number}. ");
            let known = rules.contains(&number.as_str()) || document.contains(&section);
            assert!(known, "{} cites rule {number}, which is not in PROTOCOL.md", file.display());
            citations += 1;
        }
    }
    assert!(citations > 15, "only {citations} citations were found");
}
