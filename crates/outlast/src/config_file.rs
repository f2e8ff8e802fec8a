//! The configuration file: every key is a flag, by the same name.
//!
//! A section is turned into the arguments it stands for and read by the same parser as the command line. So
//! there is one list of settings, one set of checks and one set of messages; only the line number is added.

mod merge;

use crate::cli::{Cli, Command, ConnectArgs, ListenArgs, ProcessArgs, RunArgs};
use crate::exit::Failure;
use crate::files::{FILE_BYTES_MAX, unreadable, unusable};
use crate::usage;
use anyhow::Result;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use merge::{joined, merged};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Flags of the process that make no sense in a file.
const NOT_IN_A_FILE: [&str; 3] = ["config", "help", "version"];

/// Flags of the process that mean nothing to a program that is run.
const NOT_FOR_RUN: [&str; 4] = ["config", "metrics", "drain-timeout", "hand-over-timeout"];

/// A file that has been read, but not yet understood.
#[derive(Debug, Default)]
pub struct ConfigFile {
    path: PathBuf,
    process: Vec<Entry>,
    listen: Vec<Section>,
    connect: Vec<Section>,
    run: Vec<Section>,
}

/// One `[[listen]]`, `[[connect]]` or `[[run]]`.
#[derive(Debug)]
struct Section {
    line: usize,
    entries: Vec<Entry>,
}

/// One key with the values it gives to its flag.
#[derive(Debug)]
struct Entry {
    key: String,
    line: usize,
    values: Values,
}

#[derive(Debug)]
enum Values {
    Flag(bool),
    Texts(Vec<String>),
}

/// Everything that a file, together with the command line, asks for.
#[derive(Debug)]
pub enum Job {
    Listen(Box<ListenArgs>),
    Connect(Box<ConnectArgs>),
    Run(Box<RunArgs>),
}

impl ConfigFile {
    /// Reads a file.
    pub fn load(path: &Path) -> Result<Self> {
        let what = "configuration";
        let failed = |error: std::io::Error| unreadable(what, path, &error);
        let length = std::fs::metadata(path).map_err(failed)?.len();
        if length > FILE_BYTES_MAX {
            return Err(unusable(what, path, &format!("it has {length} bytes, more than {FILE_BYTES_MAX}")));
        }
        let text = std::fs::read_to_string(path).map_err(failed)?;
        Self::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Self> {
        let at = |offset: usize| line_of(text, offset);
        let table = DeTable::parse(text).map_err(|error| {
            let line = error.span().map_or(1, |span| at(span.start));
            fault(path, line, error.message())
        })?;
        let mut file = Self { path: path.to_owned(), ..Self::default() };
        for (key, value) in table.get_ref() {
            let line = at(key.span().start);
            let sections = match key.get_ref().as_ref() {
                "listen" => &mut file.listen,
                "connect" => &mut file.connect,
                "run" => &mut file.run,
                name => {
                    file.process.push(entry(path, name, line, value)?);
                    continue;
                }
            };
            let DeValue::Array(tables) = value.get_ref() else {
                return Err(fault(path, line, &format!("write [[{0}]] instead of [{0}]", key.get_ref())));
            };
            for table in tables {
                sections.push(section(path, text, table)?);
            }
        }
        Ok(file)
    }

    /// Reads the settings of the process, with the flags in `given` taking precedence.
    pub fn process(&self, given: &ArgMatches) -> Result<ProcessArgs> {
        let arguments = merged(&self.process, given, &Cli::command());
        let cli = self.read(None, &self.process, arguments)?;
        Ok(cli.process)
    }

    /// All the sections.
    pub fn jobs(&self) -> Result<Vec<Job>> {
        if self.listen.is_empty() && self.connect.is_empty() && self.run.is_empty() {
            let why = "there is nothing to do: add a [[listen]], [[connect]] or [[run]] section";
            return Err(Failure::usage(format!("{}: {why}", self.path.display())));
        }
        let nothing = ArgMatches::default();
        let listen = self.listen.iter().map(|section| self.job("listen", section, &nothing));
        let connect = self.connect.iter().map(|section| self.job("connect", section, &nothing));
        let run = self.run.iter().map(|section| self.job("run", section, &nothing));
        listen.chain(connect).chain(run).collect()
    }

    /// Where the file has this key of a [[run]], for a message; the section counts from 0, as among the [jobs](Self::jobs).
    pub fn place_of_run(&self, number: usize, key: &str) -> String {
        let section = self.run.get(number);
        let entry = section.and_then(|section| section.entries.iter().find(|entry| entry.key == key));
        let line = entry.map(|entry| entry.line).or(section.map(|section| section.line)).unwrap_or(1);
        format!("{}:{line}: {key}", self.path.display())
    }

    /// The command lines that stand for the file in processes of their own: one for all relays, if there are some, and one
    /// for each program that is run. What `given` has of the settings of the process takes precedence.
    pub fn command_lines(&self, given: &ArgMatches) -> Vec<Vec<OsString>> {
        let cli = Cli::command();
        let of_process = |entries: &[Entry], without: &[&str]| -> Vec<OsString> {
            let is_wanted = |argument: &OsString| {
                let argument = argument.to_string_lossy();
                !without.iter().any(|flag| argument.starts_with(&format!("--{flag}=")))
            };
            merged(entries, given, &cli).into_iter().filter(is_wanted).collect()
        };
        let mut lines = Vec::new();
        if !self.listen.is_empty() || !self.connect.is_empty() {
            let mut line = of_process(&[], &["config"]);
            line.extend([joined("--config=", self.path.as_os_str()), "relays".into()]);
            lines.push(line);
        }
        for section in &self.run {
            let mut line = of_process(&self.process, &NOT_FOR_RUN);
            line.push("run".into());
            line.extend(merged(&section.entries, &ArgMatches::default(), &subcommand("run")));
            lines.push(line);
        }
        lines
    }

    /// The one section for a command, with the flags in `given` taking precedence.
    pub fn job_for(&self, command: &str, given: &ArgMatches) -> Result<Job> {
        let sections = match command {
            "listen" => &self.listen,
            "connect" => &self.connect,
            _ => &self.run,
        };
        match sections.as_slice() {
            [] => self.job(command, &Section { line: 1, entries: Vec::new() }, given),
            [section] => self.job(command, section, given),
            [_, second, ..] => Err(fault(
                &self.path,
                second.line,
                &format!("there is more than one [[{command}]]: run them with --config alone"),
            )),
        }
    }

    fn job(&self, name: &str, section: &Section, given: &ArgMatches) -> Result<Job> {
        let process = Cli::command();
        for entry in &section.entries {
            if process.get_arguments().any(|argument| argument.get_long() == Some(&entry.key)) {
                let why = format!("{:?} belongs at the top of the file, before the first section", entry.key);
                return Err(fault(&self.path, entry.line, &why));
            }
        }
        let command = subcommand(name);
        for entry in &section.entries {
            let is_known = |argument: &clap::Arg| {
                argument.get_long() == Some(&entry.key)
                    || argument.is_positional() && argument.get_id().as_str() == entry.key
            };
            // A program takes everything that it is given.
            if name == "run" && !command.get_arguments().any(is_known) {
                return Err(fault(&self.path, entry.line, &format!("unknown key {:?}", entry.key)));
            }
        }
        let arguments = merged(&section.entries, given, &command);
        let cli = self.read(Some((name, section.line)), &section.entries, arguments)?;
        match cli.command {
            Some(Command::Listen(listen)) => Ok(Job::Listen(listen)),
            Some(Command::Connect(connect)) => Ok(Job::Connect(connect)),
            Some(Command::Run(run)) => Ok(Job::Run(run)),
            _ => Err(anyhow::anyhow!("no command named {name}")),
        }
    }

    /// Reads arguments; what is wrong with them is reported at the line of the key.
    fn read(
        &self,
        section: Option<(&str, usize)>,
        entries: &[Entry],
        arguments: Vec<OsString>,
    ) -> Result<Cli> {
        let name = section.map(|(name, _)| OsString::from(name));
        let all = [OsString::from("outlast")].into_iter().chain(name).chain(arguments);
        let matches =
            Cli::command().subcommand_required(false).arg_required_else_help(false).try_get_matches_from(all);
        let error = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
            Ok(cli) => return Ok(cli),
            Err(error) => error,
        };
        let flag = usage::flag_of(&error);
        let entry = entries.iter().find(|entry| Some(&entry.key) == flag.as_ref());
        let line = entry.map(|entry| entry.line).or(section.map(|(_, line)| line));
        let mut message = usage::one_line(&error);
        if let (Some(entry), clap::error::ErrorKind::UnknownArgument) = (entry, error.kind()) {
            message = unknown_key(&entry.key, &message);
        }
        match line {
            Some(line) => Err(fault(&self.path, line, &message)),
            None => Err(Failure::usage(message)),
        }
    }
}

fn unknown_key(key: &str, message: &str) -> String {
    let similar =
        message.split("'--").skip(1).filter_map(|rest| rest.split('\'').next()).find(|name| *name != key);
    match similar {
        Some(similar) => format!("unknown key {key:?}; a similar key exists: {similar:?}"),
        None => format!("unknown key {key:?}"),
    }
}

/// The definition of a subcommand.
fn subcommand(name: &str) -> clap::Command {
    Cli::command().find_subcommand(name).cloned().unwrap_or_default()
}

fn section(path: &Path, text: &str, table: &Spanned<DeValue<'_>>) -> Result<Section> {
    let line = line_of(text, table.span().start);
    let DeValue::Table(keys) = table.get_ref() else {
        return Err(fault(path, line, "a section holds keys and values"));
    };
    let entries = keys
        .iter()
        .map(|(key, value)| entry(path, key.get_ref(), line_of(text, key.span().start), value))
        .collect::<Result<_>>()?;
    Ok(Section { line, entries })
}

fn entry(path: &Path, key: &str, line: usize, value: &Spanned<DeValue<'_>>) -> Result<Entry> {
    if NOT_IN_A_FILE.contains(&key) {
        return Err(fault(path, line, &unknown_key(key, "")));
    }
    let values = match value.get_ref() {
        DeValue::Boolean(flag) => Values::Flag(*flag),
        DeValue::Array(array) => {
            let texts = array.iter().map(|value| text_of(value.get_ref()));
            let texts = texts.collect::<Option<_>>();
            Values::Texts(texts.ok_or_else(|| fault(path, line, &format!("{key:?} is a list of texts")))?)
        }
        other => {
            let text = text_of(other);
            let text =
                text.ok_or_else(|| fault(path, line, &format!("{key:?} is a text, a number or a list")))?;
            Values::Texts(vec![text])
        }
    };
    Ok(Entry { key: key.to_owned(), line, values })
}

fn text_of(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.to_string()),
        _ => None,
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

fn fault(path: &Path, line: usize, message: &str) -> anyhow::Error {
    Failure::usage(format!("{}:{line}: {}", path.display(), crate::exit::clean(message)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ArgAction;

    fn parse(text: &str) -> Result<Vec<Job>> {
        ConfigFile::parse(Path::new("f.toml"), text)?.jobs()
    }

    fn complaint(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    /// A value that the flag takes.
    fn sample(id: &str) -> &'static str {
        match id {
            "to" | "via" | "socks5" | "http_connect" | "transparent" | "metrics" => "\"127.0.0.1:1\"",
            "address" => "\"unix:/tmp/x\"",
            "allow_to" | "allow" | "deny" => "[\"10.0.0.0/8\", \"192.0.2.1\"]",
            "keep" | "detect" | "patience" | "drain_timeout" | "hand_over_timeout" => "\"1h\"",
            "retain" => "\"1M\"",
            "memory" => "\"64M\"",
            "max_sessions" | "max_sessions_per_address" => "7",
            "ack" => "\"inband\"",
            "bind_from" => "\"127.0.0.1\"",
            "log" => "\"debug\"",
            "log_format" => "\"json\"",
            "program" => "[\"./server\", \"--port\", \"80\", \"--\", \"-x\"]",
            "restart" | "preload" => "\"never\"",
            "keep_connections" => "\"listeners\"",
            "success_codes" => "[0, 143, \"HUP\"]",
            "intensity" | "log_keep" | "nice" | "oom_score_adjust" => "7",
            "window" | "transient_after" | "backoff_min" | "backoff_max" | "hang_timeout"
            | "stop_timeout" | "start_timeout" | "watchdog" => "\"2s\"",
            "stop_signal" => "\"QUIT\"",
            "log_size" => "\"1M\"",
            "limit" => "[\"nofile=1000:2K\", \"core=0\"]",
            "environment" => "[\"A=b=c\", \"D=\"]",
            _ => "\"text\"",
        }
    }

    /// Flags that contradict each other are tried apart; those that need others are tried with them.
    fn companions(id: &str) -> &'static str {
        match id {
            "allow_to" => "to-any = true\n",
            "tls_client_ca" => "tls-cert = \"a\"\ntls-key = \"b\"\n",
            "tls_ca" | "tls_name" => "tls = true\n",
            "watchdog" => "notify = true\n",
            "log_size" | "log_keep" => "log-to = \"x\"\n",
            _ => "",
        }
    }

    #[test]
    fn every_flag_of_listen_connect_and_run_is_a_key() {
        for name in ["listen", "connect", "run"] {
            for argument in subcommand(name).get_arguments() {
                let id = argument.get_id().as_str();
                if matches!(id, "help" | "version") {
                    continue;
                }
                let key = argument.get_long().unwrap_or(id);
                let value = match argument.get_action() {
                    ArgAction::SetTrue => "true",
                    _ => sample(id),
                };
                let extra = match (name, id) {
                    (_, "tls_cert") => "tls-key = \"k\"\ntls = true\n",
                    (_, "tls_key") => "tls-cert = \"k\"\ntls = true\n",
                    _ => companions(id),
                };
                let extra =
                    if name == "listen" { extra.replace("tls = true\n", "") } else { extra.to_owned() };
                let text = format!("[[{name}]]\n{extra}{key} = {value}\n");
                let jobs = parse(&text).unwrap_or_else(|error| panic!("{text}{error}"));
                let told = format!("{:?}", jobs[0]);
                // A certificate without its key, or the other way round, is refused: no silence to compare with.
                if let Ok(silent) = parse(&format!("[[{name}]]\n{extra}")) {
                    assert_ne!(told, format!("{:?}", silent[0]), "{key} changes nothing");
                }
            }
        }
    }

    #[test]
    fn every_flag_of_the_process_is_a_key_at_the_top() {
        for argument in Cli::command().get_arguments() {
            let id = argument.get_id().as_str();
            if matches!(id, "help" | "version" | "config") {
                continue;
            }
            let key = argument.get_long().unwrap();
            let value = match argument.get_action() {
                ArgAction::SetTrue => "true",
                _ => sample(id),
            };
            let file = ConfigFile::parse(Path::new("f.toml"), &format!("{key} = {value}\n")).unwrap();
            let told = file.process(&ArgMatches::default()).unwrap_or_else(|error| panic!("{key}: {error}"));
            assert_ne!(format!("{told:?}"), format!("{:?}", ProcessArgs::default()), "{key} changes nothing");
        }
    }

    #[test]
    fn a_file_and_its_flags_mean_the_same() {
        let text =
            "[[connect]]\naddress = '127.0.0.1:5'\nvia = ['a:1', '*.b=c:2']\npatience = '30s'\ntls = true\n";
        let Job::Connect(from_file) = parse(text).unwrap().remove(0) else { panic!() };
        let flags = "outlast connect 127.0.0.1:5 --via a:1 --via *.b=c:2 --patience 30s --tls";
        let matches = Cli::command().try_get_matches_from(flags.split(' ')).unwrap();
        let Some(Command::Connect(from_flags)) = Cli::from_arg_matches(&matches).unwrap().command else {
            panic!()
        };
        assert_eq!(format!("{from_file:?}"), format!("{from_flags:?}"));
    }

    #[test]
    fn a_program_is_not_given_what_nobody_knows() {
        for key in ["bogus", "hang_timeout", "address"] {
            let said = complaint(&format!("[[run]]\nprogram = ['true']\n{key} = 'x'\n"));
            assert!(said.contains(&format!("unknown key {key:?}")), "{said}");
        }
    }

    #[test]
    fn a_program_and_its_arguments_are_a_list_and_its_command_line_means_the_same() {
        let text = "log = 'info'\nmetrics = '127.0.0.1:1'\n[[run]]\nprogram = ['sh', '-c', '--', 'x y']\n\
                    success-codes = [0, 143]\nnice = -3\nlimit = ['core=0', 'nofile=9']\n";
        let file = ConfigFile::parse(Path::new("f.toml"), text).unwrap();
        let Job::Run(from_file) = file.jobs().unwrap().remove(0) else { panic!() };
        assert_eq!(from_file.program, ["sh", "-c", "--", "x y"]);
        let line = file.command_lines(&ArgMatches::default()).remove(0);
        assert!(line.contains(&"--log=info".into()) && !line.contains(&"--metrics=127.0.0.1:1".into()));
        let matches =
            Cli::command().try_get_matches_from([OsString::from("outlast")].into_iter().chain(line));
        let Some(Command::Run(from_line)) = Cli::from_arg_matches(&matches.unwrap()).unwrap().command else {
            panic!()
        };
        assert_eq!(format!("{from_file:?}"), format!("{from_line:?}"));
        let given = "outlast run --nice 5 -- other --nice 6";
        let matches = Cli::command().try_get_matches_from(given.split(' ')).unwrap();
        let Job::Run(run) = file.job_for("run", matches.subcommand().unwrap().1).unwrap() else { panic!() };
        assert_eq!(
            (run.program, run.surroundings.nice),
            (vec!["other".into(), "--nice".into(), "6".into()], Some(5))
        );
    }

    #[test]
    fn flags_take_precedence_over_the_file() {
        let text =
            "log = 'info'\n[[listen]]\naddress = 'a:1'\nto = 'b:2'\nkeep = '1h'\nallow = ['10.0.0.0/8']\n";
        let file = ConfigFile::parse(Path::new("f.toml"), text).unwrap();
        let given = "outlast listen --keep 2h --allow 192.0.2.0/24 --log debug";
        let matches = Cli::command().try_get_matches_from(given.split(' ')).unwrap();
        let (name, matches_of) = matches.subcommand().unwrap();
        let Job::Listen(listen) = file.job_for(name, matches_of).unwrap() else { panic!() };
        assert_eq!(listen.address.as_deref(), Some("a:1"));
        assert_eq!(listen.keep, Some(std::time::Duration::from_secs(7200)));
        assert_eq!(
            format!("{:?}", listen.allow.iter().map(ToString::to_string).collect::<Vec<_>>()),
            "[\"192.0.2.0/24\"]"
        );
        assert_eq!(file.process(&matches).unwrap().log.as_deref(), Some("debug"));
    }

    #[test]
    fn mistakes_are_reported_with_their_line() {
        for (text, expected) in [
            ("[[listen]]\nadress = 'a:1'\n", "f.toml:2: unknown key \"adress\""),
            (
                "[[connect]]\n\npatiance = '1s'\n",
                "f.toml:3: unknown key \"patiance\"; a similar key exists: \"patience\"",
            ),
            ("[[listen]]\nkeep = 'long'\n", "f.toml:2: "),
            ("[[listen]]\nto = 5\n", "f.toml:2: "),
            ("[[listen]]\nlog = 'info'\n", "f.toml:2: \"log\" belongs at the top"),
            ("[listen]\nto = 'a:1'\n", "f.toml:1: write [[listen]] instead of [listen]"),
            ("[[listen]]\nto-any = 'yes'\n", "f.toml:2: "),
            ("[[listen]]\nto = { a = 1 }\n", "f.toml:2: \"to\" is a text, a number or a list"),
            ("[[listen]]\nconfig = 'x'\n", "f.toml:2: unknown key \"config\""),
            ("[[listen]]\nx = \n", "f.toml:2: "),
            ("[[listen]]\nto = 'a:1'\nto = 'b:1'\n", "f.toml:3: "),
            ("[[listen]]\nto = 'a:1'\nto-any = true\n", "f.toml:"),
        ] {
            let said = complaint(text);
            assert!(said.starts_with(expected) && !said.contains('\n'), "{text:?}: {said}");
        }
        assert!(complaint("log = 'info'\n").contains("nothing to do"));
    }
}
