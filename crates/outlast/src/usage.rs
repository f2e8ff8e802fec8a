//! What clap says, on one line.

use crate::exit::{Code, Failure, clean};
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

/// Help and version go to standard output; everything else becomes a failure of one line.
pub fn explain(error: &Error) -> anyhow::Result<Code> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            error.print().ok();
            Ok(Code::Ok)
        }
        _ => Err(Failure::usage(one_line(error))),
    }
}

/// The message and the suggestions, without usage and colours.
pub fn one_line(error: &Error) -> String {
    let text = error.render().to_string();
    let mut message = String::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with("Usage:") || line.starts_with("For more information") {
            break;
        }
        let line = line.strip_prefix("error: ").unwrap_or(line);
        match line.strip_prefix("tip: ") {
            // Nobody who mistypes a flag means a value that begins with dashes.
            Some(tip) if tip.starts_with("to pass ") => {}
            Some(tip) => {
                message.push_str("; ");
                message.push_str(tip);
            }
            None => {
                if !message.is_empty() && !line.is_empty() {
                    message.push(' ');
                }
                message.push_str(line);
            }
        }
    }
    if matches!(error.kind(), ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand) {
        message = "nothing to do: give a command, or --config FILE; see --help".into();
    }
    clean(&message)
}

/// The long name of the flag that an error is about.
pub fn flag_of(error: &Error) -> Option<String> {
    let name = |text: &str| text.strip_prefix("--")?.split([' ', '=']).next().map(str::to_owned);
    match error.get(ContextKind::InvalidArg)? {
        ContextValue::String(text) => name(text),
        ContextValue::Strings(texts) => texts.iter().find_map(|text| name(text)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::Parser;

    fn explained(arguments: &[&str]) -> String {
        let error = Cli::try_parse_from([&["outlast"], arguments].concat()).unwrap_err();
        one_line(&error)
    }

    #[test]
    fn unknown_flags_get_a_suggestion_on_one_line() {
        let text = explained(&["connect", "a:1", "--patiance", "30s"]);
        assert!(
            text.contains("'--patiance'") && text.contains("'--patience'") && !text.contains('\n'),
            "{text}"
        );
        assert_eq!(explained(&["connect", "a:1", "--vai", "b:2"]), "unexpected argument '--vai' found");
        let text = explained(&["lisen"]);
        assert!(text.contains("'lisen'") && text.contains("'listen'"), "{text}");
    }

    #[test]
    fn wrong_values_are_named_with_their_flag() {
        let text = explained(&["listen", "a:1", "--keep", "long"]);
        assert!(text.contains("--keep") && text.contains("give a number with a unit"), "{text}");
        let text = explained(&["listen", "a:1", "--allow", "10.0.0.0/99"]);
        assert!(text.contains("--allow") && text.contains("no network"), "{text}");
    }
}
