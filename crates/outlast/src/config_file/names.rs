//! Names in a configuration file: which ones there are, and which one was meant.

use clap::Command;

/// Changes of a name that may be a slip: a letter too many, missing, another one, or two that are exchanged.
const SLIPS_MAX: usize = 2;

/// The keys that a command has in a file.
pub(super) fn keys_of(command: &Command) -> Vec<String> {
    let names = command.get_arguments().filter(|argument| !argument.is_hide_set()).filter_map(|argument| {
        argument.get_long().or_else(|| argument.is_positional().then(|| argument.get_id().as_str()))
    });
    names.filter(|name| !["help", "version"].contains(name)).map(str::to_owned).collect()
}

/// The name that was probably meant. Dashes before it are those of a flag.
pub(super) fn similar<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = &name.trim_start_matches('-').to_lowercase();
    let close = names.into_iter().filter_map(|known| Some((slips(name, known)?, known)));
    close.min().map(|(_, known)| known)
}

/// How many slips lie between two names, if they are few for the length.
fn slips(one: &str, other: &str) -> Option<usize> {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let slips_max = SLIPS_MAX.min(one.len().min(other.len()) / 2);
    if one.len().abs_diff(other.len()) > slips_max {
        return None;
    }
    // Rows of the distances between beginnings: two rows back for letters that are exchanged.
    let (mut before, mut last): (Vec<usize>, Vec<usize>) = (Vec::new(), (0..=other.len()).collect());
    for (row, letter) in one.iter().enumerate() {
        let mut next = vec![row + 1];
        for (column, theirs) in other.iter().enumerate() {
            let at = |row: &[usize], column: usize| row.get(column).copied().unwrap_or(usize::MAX / 2);
            let replaced = at(&last, column) + usize::from(letter != theirs);
            let mut least = replaced.min(at(&last, column + 1) + 1).min(at(&next, column) + 1);
            let exchanged = row > 0
                && column > 0
                && one.get(row - 1) == Some(theirs)
                && other.get(column - 1) == Some(letter);
            if exchanged {
                least = least.min(at(&before, column - 1) + 1);
            }
            next.push(least);
        }
        before = std::mem::replace(&mut last, next);
    }
    last.last().copied().filter(|slips| *slips <= slips_max)
}

/// A message about flags as it is said of keys: without the dashes.
pub(super) fn without_dashes(message: &str, keys: &[String]) -> String {
    let mut said = String::new();
    let mut rest = message;
    while let Some((before, after)) = rest.split_once("--") {
        said.push_str(before);
        let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(after.len());
        let name = after.get(..end).unwrap_or_default();
        if !keys.iter().any(|key| key == name) {
            said.push_str("--");
        }
        rest = after;
    }
    said + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_that_was_meant_is_found_and_no_other() {
        let names = ["listen", "connect", "run", "patience", "hang-timeout", "to"];
        for (name, expected) in [
            ("lisen", Some("listen")),
            ("litsen", Some("listen")),
            ("conect", Some("connect")),
            ("patiance", Some("patience")),
            ("hang_timeout", Some("hang-timeout")),
            ("rnu", Some("run")),
            ("bogus", None),
            ("ot", Some("to")),
            ("--to", Some("to")),
            ("--patience", Some("patience")),
            ("PATIENCE", Some("patience")),
            ("x", None),
        ] {
            assert_eq!(similar(name, names), expected, "{name}");
        }
    }

    #[test]
    fn keys_have_no_dashes() {
        let keys = ["psk-file".to_owned(), "to".to_owned()];
        let said = without_dashes("add --psk-file or --to host -- or `--other`, '--to <X>'", &keys);
        assert_eq!(said, "add psk-file or to host -- or `--other`, 'to <X>'");
    }
}
