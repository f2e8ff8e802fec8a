//! What a section and the command line amount to together.

use super::{Entry, Values};
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches};
use std::ffi::{OsStr, OsString};

/// The arguments of the file that the command line does not give, and those that it gives. The key of a positional one is
/// its name.
pub(super) fn merged(entries: &[Entry], given: &ArgMatches, command: &clap::Command) -> Vec<OsString> {
    let is_positional = |key: &str| command.get_positionals().any(|argument| argument.get_id() == key);
    let id_of = |key: &str| {
        command
            .get_arguments()
            .find(|argument| {
                argument.get_long() == Some(key) || (argument.is_positional() && argument.get_id() == key)
            })
            .map(|argument| argument.get_id().clone())
    };
    let is_given = |key: &str| id_of(key).is_some_and(|id| was_given(given, id.as_str()));
    let mut arguments = Vec::new();
    let mut positional = Vec::new();
    for entry in entries.iter().filter(|entry| !is_given(&entry.key)) {
        match &entry.values {
            Values::Flag(false) => {}
            Values::Flag(true) => arguments.push(format!("--{}", entry.key).into()),
            Values::Texts(texts) if is_positional(&entry.key) => {
                positional.extend(texts.iter().map(OsString::from));
            }
            Values::Texts(texts) => {
                arguments.extend(texts.iter().map(|text| OsString::from(format!("--{}={text}", entry.key))));
            }
        }
    }
    for argument in command.get_arguments().filter(|argument| was_given(given, argument.get_id().as_str())) {
        match (argument.get_long(), argument.get_action()) {
            (Some(long), ArgAction::SetTrue) => arguments.push(format!("--{long}").into()),
            (Some(long), _) => {
                for value in given.get_raw(argument.get_id().as_str()).into_iter().flatten() {
                    arguments.push(joined(&format!("--{long}="), value));
                }
            }
            (None, _) => {
                let values = given.get_raw(argument.get_id().as_str()).into_iter().flatten();
                positional.extend(values.map(OsStr::to_owned));
            }
        }
    }
    if command.get_name() == "run" && !positional.is_empty() {
        // What follows is the program's, whatever it looks like.
        arguments.push("--".into());
    }
    arguments.extend(positional);
    arguments
}

/// A flag with its value.
pub(super) fn joined(flag: &str, value: &OsStr) -> OsString {
    let mut argument = OsString::from(flag);
    argument.push(value);
    argument
}

/// Whether the command line or the environment gave a value. Empty matches know no argument.
pub(super) fn was_given(given: &ArgMatches, id: &str) -> bool {
    given.try_contains_id(id).is_ok()
        && matches!(given.value_source(id), Some(ValueSource::CommandLine | ValueSource::EnvVariable))
}
