//! Which settings of the process mean something to which command: the others are not in its help, and refused.

use super::Cli;
use crate::exit::Failure;
use anyhow::Result;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, CommandFactory};

const RELAYS: [&str; 2] = ["listen", "connect"];
const RELAYS_AND_RUN: [&str; 3] = ["listen", "connect", "run"];
const WITH_A_SOCKET: [&str; 7] = ["listen", "connect", "run", "replicate", "status", "kill", "upgrade"];
const WITH_METRICS: [&str; 4] = ["listen", "connect", "run", "replicate"];

/// Settings that not all commands have, and the commands that have them. A file is read by all that may find settings there.
const ONLY_FOR: [(&str, &[&str]); 5] = [
    ("config", &RELAYS_AND_RUN),
    ("admin_socket", &WITH_A_SOCKET),
    ("metrics", &WITH_METRICS),
    ("drain_timeout", &RELAYS),
    ("hand_over_timeout", &["listen"]),
];

/// The command line, with what applies in the help of each command.
pub fn command() -> Command {
    let cli = Cli::command();
    let names: Vec<String> = cli.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let mut whole = cli.clone();
    for name in names {
        let others = ONLY_FOR.iter().filter(|(_, commands)| !commands.contains(&name.as_str()));
        let hidden =
            others.filter_map(|(id, _)| cli.get_arguments().find(|argument| argument.get_id() == id));
        let hidden: Vec<_> = hidden.map(|argument| argument.clone().hide(true)).collect();
        whole = whole.mut_subcommand(name, |command| command.args(hidden));
    }
    whole
}

/// The command line as completions offer it: each command with what applies to it and nothing else, as a shell also offers
/// what is hidden in the help.
pub fn for_completions() -> Command {
    let cli = Cli::command();
    let shared = cli.get_arguments().filter(|argument| argument.is_global_set());
    let shared: Vec<clap::Arg> = shared.map(|argument| argument.clone().global(false)).collect();
    let names: Vec<String> = cli.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let mut whole = cli;
    for argument in &shared {
        whole = whole.mut_arg(argument.get_id(), |argument| argument.global(false));
    }
    for name in names {
        let of_it = shared.iter().filter(|argument| applies(argument.get_id().as_str(), &name)).cloned();
        let of_it: Vec<clap::Arg> = of_it.collect();
        whole = whole.mut_subcommand(name, |command| {
            // What is asked of a node takes the same.
            command.args(of_it.clone()).mut_subcommands(|nested| nested.args(of_it.clone()))
        });
    }
    whole
}

fn applies(id: &str, command: &str) -> bool {
    ONLY_FOR.iter().find(|(only, _)| *only == id).is_none_or(|(_, commands)| commands.contains(&command))
}

/// A flag that is given to a command that has no use for it is a mistake.
pub fn refuse_what_does_not(matches: &ArgMatches) -> Result<()> {
    let Some((name, given)) = matches.subcommand() else { return Ok(()) };
    // What this program starts by itself gets what it got; and any file may say where the socket is.
    if ["relays", "keep-detached", "keep-log"].contains(&name) {
        return Ok(());
    }
    let is_given = |id: &str| {
        given.try_contains_id(id).is_ok() && given.value_source(id) == Some(ValueSource::CommandLine)
    };
    let wrong =
        ONLY_FOR.iter().find(|(id, commands)| *id != "config" && !commands.contains(&name) && is_given(id));
    match wrong {
        None => Ok(()),
        Some((id, commands)) => {
            let (flag, commands) = (id.replace('_', "-"), commands.join(", "));
            Err(Failure::usage(format!("--{flag} means nothing to {name}: it is for {commands}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_of_a_command_has_what_applies() {
        for (name, has, lacks) in [
            ("listen", &["--metrics", "--drain-timeout", "--config", "--admin-socket"][..], &[][..]),
            (
                "run",
                &["--config", "--log", "--admin-socket", "--metrics"],
                &["--drain-timeout", "--hand-over"],
            ),
            ("status", &["--admin-socket", "--quiet"], &["--config", "--metrics", "--drain-timeout"]),
            ("upgrade", &["--admin-socket", "--log-format"], &["--config", "--metrics", "--hand-over"]),
            ("hold", &["--log"], &["--config", "--admin-socket", "--metrics", "--drain-timeout"]),
        ] {
            let mut whole = command();
            whole.build();
            let help = whole.find_subcommand_mut(name).unwrap().render_help().to_string();
            for flag in has {
                assert!(help.contains(flag), "{name} lacks {flag}:\n{help}");
            }
            for flag in lacks {
                assert!(!help.contains(flag), "{name} has {flag}:\n{help}");
            }
            let wide = help.lines().find(|line| line.chars().count() > 100);
            assert_eq!(wide, None, "{name}");
        }
    }

    /// What bash offers behind a command.
    fn offered(script: &str, command: &str) -> Vec<String> {
        let mut case = "";
        for line in script.lines().map(str::trim) {
            if let Some(options) = line.strip_prefix("opts=\"") {
                let name = case.trim_end_matches(')');
                let is_nested = ["help", "replicate__"].iter().any(|outer| name.contains(outer));
                if name.ends_with(&format!("__{command}")) && !is_nested {
                    let options = options.trim_end_matches('"').split_whitespace();
                    return options.map(str::to_owned).collect();
                }
            } else if line.ends_with(')') {
                case = line;
            }
        }
        panic!("nothing about {command} in\n{script}");
    }

    #[test]
    fn a_shell_offers_what_is_not_refused() {
        for_completions().debug_assert();
        let mut script = Vec::new();
        clap_complete::generate(clap_complete::Shell::Bash, &mut for_completions(), "outlast", &mut script);
        let script = String::from_utf8(script).unwrap();
        for (name, arguments) in [("listen", "a:1 --to b:2"), ("run", ""), ("status", ""), ("kill", "ab")] {
            let offered = offered(&script, name);
            for (id, _) in ONLY_FOR.iter().filter(|(id, _)| *id != "config") {
                let flag = format!("--{}", id.replace('_', "-"));
                let value = if *id == "metrics" { "127.0.0.1:1" } else { "1s" };
                let line = format!("outlast {name} {flag} {value} {arguments}");
                let line = if name == "run" { line + " -- true" } else { line };
                let matches = command().get_matches_from(line.split_whitespace());
                let taken = refuse_what_does_not(&matches).is_ok();
                assert_eq!(offered.contains(&flag), taken, "{name} {flag}: {offered:?}");
            }
            assert!(offered.contains(&"--log".to_owned()), "{name}: {offered:?}");
        }
    }

    #[test]
    fn what_does_not_apply_is_refused() {
        let told = |line: &str| refuse_what_does_not(&command().get_matches_from(line.split(' ')));
        for (line, part) in [
            (
                "outlast run --drain-timeout 1s -- true",
                "--drain-timeout means nothing to run: it is for listen",
            ),
            ("outlast --hand-over-timeout 1s run -- true", "--hand-over-timeout means nothing to run"),
            ("outlast hold /x --admin-socket /y", "--admin-socket means nothing to hold"),
            ("outlast status --metrics 127.0.0.1:1", "--metrics means nothing to status"),
            (
                "outlast connect a:1 --via b:2 --hand-over-timeout 1s",
                "--hand-over-timeout means nothing to connect: it is for listen",
            ),
        ] {
            let said = told(line).unwrap_err().to_string();
            assert!(said.contains(part), "{line}: {said}");
        }
        for line in [
            "outlast listen a:1 --to b:2 --drain-timeout 1s",
            "outlast --config /x status",
            "outlast run -- true --drain-timeout 1s",
            "outlast run --metrics 127.0.0.1:1 -- true",
            "outlast --log info hold /x",
        ] {
            assert!(told(line).is_ok(), "{line}");
        }
    }
}
