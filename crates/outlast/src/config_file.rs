//! The configuration file: every key is a flag, by the same name.
//!
//! A section is turned into the arguments it stands for and read by the same parser as the command line. So
//! there is one list of settings, one set of checks and one set of messages; only the line number is added.

use crate::cli::{Cli, Command, ConnectArgs, ListenArgs, ProcessArgs};
use crate::exit::Failure;
use crate::files::{FILE_BYTES_MAX, unreadable, unusable};
use crate::usage;
use anyhow::Result;
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, CommandFactory, FromArgMatches};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The key for the positional address.
const ADDRESS: &str = "address";
/// Flags of the process that make no sense in a file.
const NOT_IN_A_FILE: [&str; 3] = ["config", "help", "version"];

/// A file that has been read, but not yet understood.
#[derive(Debug, Default)]
pub struct ConfigFile {
    path: PathBuf,
    process: Vec<Entry>,
    listen: Vec<Section>,
    connect: Vec<Section>,
}

/// One `[[listen]]` or `[[connect]]`.
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
        if self.listen.is_empty() && self.connect.is_empty() {
            let why = "there is nothing to do: add a [[listen]] or [[connect]] section";
            return Err(Failure::usage(format!("{}: {why}", self.path.display())));
        }
        let nothing = ArgMatches::default();
        let listen = self.listen.iter().map(|section| self.job("listen", section, &nothing));
        let connect = self.connect.iter().map(|section| self.job("connect", section, &nothing));
        listen.chain(connect).collect()
    }

    /// The one section for a command, with the flags in `given` taking precedence.
    pub fn job_for(&self, command: &str, given: &ArgMatches) -> Result<Job> {
        let sections = if command == "listen" { &self.listen } else { &self.connect };
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
        let arguments = merged(&section.entries, given, &command);
        let cli = self.read(Some((name, section.line)), &section.entries, arguments)?;
        match cli.command {
            Some(Command::Listen(listen)) => Ok(Job::Listen(listen)),
            Some(Command::Connect(connect)) => Ok(Job::Connect(connect)),
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

/// The arguments of the file that the command line does not give, and those that it gives.
fn merged(entries: &[Entry], given: &ArgMatches, command: &clap::Command) -> Vec<OsString> {
    let id_of = |key: &str| {
        command
            .get_arguments()
            .find(|argument| argument.get_long() == Some(key) || (key == ADDRESS && argument.is_positional()))
            .map(|argument| argument.get_id().clone())
    };
    let is_given = |key: &str| id_of(key).is_some_and(|id| was_given(given, id.as_str()));
    let mut arguments = Vec::new();
    for entry in entries.iter().filter(|entry| !is_given(&entry.key)) {
        match &entry.values {
            Values::Flag(false) => {}
            Values::Flag(true) => arguments.push(format!("--{}", entry.key).into()),
            Values::Texts(texts) if entry.key == ADDRESS => {
                arguments.extend(texts.iter().map(OsString::from))
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
                arguments.extend(values.map(OsStr::to_owned));
            }
        }
    }
    arguments
}

fn joined(flag: &str, value: &OsStr) -> OsString {
    let mut argument = OsString::from(flag);
    argument.push(value);
    argument
}

/// Whether the command line or the environment gave a value. Empty matches know no argument.
fn was_given(given: &ArgMatches, id: &str) -> bool {
    given.try_contains_id(id).is_ok()
        && matches!(given.value_source(id), Some(ValueSource::CommandLine | ValueSource::EnvVariable))
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
            "max_sessions" => "7",
            "ack" => "\"inband\"",
            "bind_from" => "\"127.0.0.1\"",
            "log" => "\"debug\"",
            "log_format" => "\"json\"",
            _ => "\"text\"",
        }
    }

    /// Flags that contradict each other are tried apart; those that need others are tried with them.
    fn companions(id: &str) -> &'static str {
        match id {
            "allow_to" => "to-any = true\n",
            "tls_client_ca" => "tls-cert = \"a\"\ntls-key = \"b\"\n",
            "tls_ca" | "tls_name" => "tls = true\n",
            _ => "",
        }
    }

    #[test]
    fn every_flag_of_listen_and_connect_is_a_key() {
        for name in ["listen", "connect"] {
            for argument in subcommand(name).get_arguments() {
                let id = argument.get_id().as_str();
                if matches!(id, "help" | "version") {
                    continue;
                }
                let key = argument.get_long().unwrap_or(ADDRESS);
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
