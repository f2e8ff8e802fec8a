//! The configuration file: every key is a flag, by the same name.
//!
//! A section is turned into the arguments it stands for and read by the same parser as the command line. So
//! there is one list of settings, one set of checks and one set of messages; only the line number is added.

mod faults;
mod merge;
mod names;

use crate::cli::{Cli, Command, ProcessArgs};
use crate::cmd::connect::ConnectArgs;
use crate::cmd::listen::ListenArgs;
use crate::cmd::run::RunArgs;
use crate::exit::Failure;
use crate::files::{FILE_BYTES_MAX, unreadable, unusable};
use crate::usage;
use anyhow::Result;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
pub use faults::Made;
use faults::entry_meant;
use merge::{joined, merged, was_given};
use names::{keys_of, similar, without_dashes};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Said where one address for metrics is given, and several programs have some.
pub const SEVERAL_PROGRAMS: &str = "metrics are for [[listen]] and [[connect]], or for a single [[run]]: with several, give each \
                                    program an `outlast run --metrics ADDRESS` of its own";

/// Flags of the process that make no sense in a file.
const NOT_IN_A_FILE: [&str; 3] = ["config", "help", "version"];

/// What a file has sections for.
const SECTIONS: [&str; 3] = ["listen", "connect", "run"];

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
#[derive(Clone, Debug)]
struct Section {
    line: usize,
    entries: Vec<Entry>,
}

/// One key with the values it gives to its flag.
#[derive(Clone, Debug)]
struct Entry {
    key: String,
    line: usize,
    values: Values,
}

#[derive(Clone, Debug)]
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

/// A shorter value may be anywhere in a message by chance, unless it is quoted there.
const VALUE_BYTES_MIN: usize = 3;

/// What is wrong, and with which key if it is known.
struct Fault {
    error: anyhow::Error,
    key: Option<String>,
    /// The message as it is said of flags.
    said: String,
}

impl ConfigFile {
    /// Reads a file.
    pub fn load(path: &Path) -> Result<Self> {
        let (file, faults) = Self::load_all(path)?;
        faults.into_iter().next().map_or(Ok(file), Err)
    }

    /// Reads as much of a file as can be read, and everything that is wrong with it so far.
    pub fn load_all(path: &Path) -> Result<(Self, Vec<anyhow::Error>)> {
        let what = "configuration";
        let failed = |error: std::io::Error| unreadable(what, path, &error);
        let length = std::fs::metadata(path).map_err(failed)?.len();
        if length > FILE_BYTES_MAX {
            return Err(unusable(what, path, &format!("it has {length} bytes, more than {FILE_BYTES_MAX}")));
        }
        let text = std::fs::read_to_string(path).map_err(failed)?;
        Self::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<(Self, Vec<anyhow::Error>)> {
        let at = |offset: usize| line_of(text, offset);
        let table = DeTable::parse(text).map_err(|error| {
            let line = error.span().map_or(1, |span| at(span.start));
            let key = error.span().and_then(|span| text.get(span)).unwrap_or_default();
            match error.message() {
                "duplicate key" => fault(path, line, &format!("the key {key:?} is given twice")),
                message => fault(path, line, message),
            }
        })?;
        let mut file = Self { path: path.to_owned(), ..Self::default() };
        let mut faults = Vec::new();
        for (key, value) in table.get_ref() {
            let line = at(key.span().start);
            let sections = match key.get_ref().as_ref() {
                "listen" => &mut file.listen,
                "connect" => &mut file.connect,
                "run" => &mut file.run,
                name => {
                    let known = if is_section(value) {
                        Err(fault(path, line, &unknown_section(name)))
                    } else {
                        entry(path, name, line, value)
                    };
                    match known {
                        Ok(entry) => file.process.push(entry),
                        Err(error) => faults.push(error),
                    }
                    continue;
                }
            };
            let DeValue::Array(tables) = value.get_ref() else {
                faults.push(fault(path, line, &format!("write [[{0}]] instead of [{0}]", key.get_ref())));
                continue;
            };
            for table in tables {
                sections.extend(section(path, text, table, &mut faults));
            }
        }
        Ok((file, faults))
    }

    /// Reads the settings of the process, with the flags in `given` taking precedence.
    pub fn process(&self, given: &ArgMatches) -> Result<ProcessArgs> {
        self.read_process(&self.process, given).map_err(|fault| fault.error)
    }

    fn read_process(&self, entries: &[Entry], given: &ArgMatches) -> Result<ProcessArgs, Fault> {
        let keys = keys_of(&Cli::command());
        if let Some(Entry { key, line, .. }) = entries.iter().find(|entry| !keys.contains(&entry.key)) {
            let said = unknown_key(key, &keys);
            return Err(Fault { error: fault(&self.path, *line, &said), key: Some(key.clone()), said });
        }
        for Entry { key, line, values } in entries {
            if let Some(said) = wrong_value(&Cli::command(), key, values) {
                return Err(Fault { error: fault(&self.path, *line, &said), key: Some(key.clone()), said });
            }
        }
        let arguments = merged(entries, given, &Cli::command());
        Ok(self.read(None, entries, arguments)?.process)
    }

    /// All the sections.
    #[cfg(test)]
    fn jobs(&self) -> Result<Vec<(Place, Job)>> {
        let (jobs, faults) = self.plan_all(Ok);
        let jobs = jobs.into_iter().map(|made| (made.place, made.plan)).collect();
        faults.into_iter().next().map_or(Ok(jobs), Err)
    }

    /// Whether there is anything to do.
    pub fn has_sections(&self) -> bool {
        !(self.listen.is_empty() && self.connect.is_empty() && self.run.is_empty())
    }

    /// Reads the settings of a process that only runs a program. The metrics are those of the relays, where there are any: both
    /// may run, and there is one address.
    pub fn process_of_run(&self, given: &ArgMatches) -> Result<ProcessArgs> {
        let mut process = self.process(given)?;
        if !(self.listen.is_empty() && self.connect.is_empty() || was_given(given, "metrics")) {
            process.metrics = None;
        }
        Ok(process)
    }

    /// Metrics of several programs and nothing else: there is one address, and each program has a process of its own.
    pub fn metrics_of_several_programs(&self) -> Option<anyhow::Error> {
        let entry = self.process.iter().find(|entry| entry.key == "metrics")?;
        let several = self.listen.is_empty() && self.connect.is_empty() && self.run.len() > 1;
        several.then(|| fault(&self.path, entry.line, SEVERAL_PROGRAMS))
    }

    /// What is wrong with the file and with no section in particular.
    pub fn as_a_whole(&self, why: &str) -> anyhow::Error {
        Failure::usage(format!("{}: {why}", self.path.display()))
    }

    fn section_at(&self, place: Place) -> Option<&Section> {
        let sections = match place.name {
            "listen" => &self.listen,
            "connect" => &self.connect,
            _ => &self.run,
        };
        sections.iter().find(|section| section.line == place.line)
    }

    /// What is wrong with a section, at the line of the key or value that is said to be, or else of the section. What names
    /// the file already has its place.
    pub fn at(&self, place: Place, error: &anyhow::Error) -> anyhow::Error {
        let said = crate::exit::one_line(error);
        let name = self.path.display().to_string();
        let line = self
            .section_at(place)
            .and_then(|section| entry_meant(&section.entries, &said))
            .map_or(place.line, |entry| entry.line);
        let said = without_dashes(&said, &keys_of(&subcommand(place.name)));
        let said = if said.starts_with(&name) { said } else { format!("{name}:{line}: {said}") };
        Failure::new(crate::exit::code_of(error), said).into()
    }

    /// Where the file has this key of a [[run]], for a message.
    pub fn place_of_run(&self, place: Place, key: &str) -> String {
        let section = self.section_at(place);
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
            [] => {
                let empty = Section { line: 1, entries: Vec::new() };
                self.job(command, &empty, given).map_err(|fault| fault.error)
            }
            [section] => self.job(command, section, given).map_err(|fault| fault.error),
            [_, second, ..] => Err(fault(
                &self.path,
                second.line,
                &format!("there is more than one [[{command}]]: run them with --config alone"),
            )),
        }
    }

    fn job(&self, name: &str, section: &Section, given: &ArgMatches) -> Result<Job, Fault> {
        let command = subcommand(name);
        let of_process = keys_of(&Cli::command());
        let keys = keys_of(&command);
        for Entry { key, line, values } in &section.entries {
            let why = if of_process.contains(key) {
                format!("{key:?} belongs at the top of the file, before the first section")
            } else if !keys.contains(key) {
                match similar(key, of_process.iter().map(String::as_str)) {
                    Some(meant) if similar(key, keys.iter().map(String::as_str)).is_none() => format!(
                        "unknown key {key:?}; did you mean {meant:?}, which belongs at the top of the file?"
                    ),
                    _ => unknown_key(key, &keys),
                }
            } else if let Some(why) = wrong_value(&command, key, values) {
                why
            } else {
                continue;
            };
            return Err(Fault { error: fault(&self.path, *line, &why), key: Some(key.clone()), said: why });
        }
        let arguments = merged(&section.entries, given, &command);
        let cli = self.read(Some((name, section.line)), &section.entries, arguments)?;
        match cli.command {
            Some(Command::Listen(listen)) => Ok(Job::Listen(listen)),
            Some(Command::Connect(connect)) => Ok(Job::Connect(connect)),
            Some(Command::Run(run)) => Ok(Job::Run(run)),
            _ => {
                let said = format!("no command named {name}");
                Err(Fault { error: anyhow::anyhow!("{said}"), key: None, said })
            }
        }
    }

    /// Reads arguments; what is wrong with them is reported at the line of the key.
    fn read(
        &self,
        section: Option<(&str, usize)>,
        entries: &[Entry],
        arguments: Vec<OsString>,
    ) -> Result<Cli, Fault> {
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
        let message = usage::one_line(&error);
        let error = match line {
            Some(line) => {
                let mut keys = keys_of(&Cli::command());
                keys.extend(section.into_iter().flat_map(|(name, _)| keys_of(&subcommand(name))));
                fault(&self.path, line, &without_dashes(&message, &keys))
            }
            None => Failure::usage(message.clone()),
        };
        Err(Fault { error, key: entry.map(|entry| entry.key.clone()), said: message })
    }
}

/// A section's place in the file.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    name: &'static str,
    line: usize,
}

fn is_section(value: &Spanned<DeValue<'_>>) -> bool {
    match value.get_ref() {
        DeValue::Table(_) => true,
        DeValue::Array(values) => values.iter().any(|value| matches!(value.get_ref(), DeValue::Table(_))),
        _ => false,
    }
}

fn unknown_section(name: &str) -> String {
    match similar(name, SECTIONS) {
        Some(meant) => format!("there is no section [[{name}]]; did you mean [[{meant}]]?"),
        None => format!("there is no section [[{name}]], only [[listen]], [[connect]] and [[run]]"),
    }
}

fn unknown_key(key: &str, keys: &[String]) -> String {
    if let Some(meant) = similar(key, keys.iter().map(String::as_str)) {
        return format!("unknown key {key:?}; did you mean {meant:?}?");
    }
    let has = |name: &&str| keys_of(&subcommand(name)).iter().any(|known| known == key);
    match SECTIONS.iter().find(|name| has(name)) {
        Some(section) => format!("unknown key {key:?} here: it belongs in a section [[{section}]]"),
        None => format!("unknown key {key:?}"),
    }
}

/// Whether a flag takes no value.
fn is_switch(command: &clap::Command, key: &str) -> bool {
    let mut arguments = command.get_arguments().filter(|argument| argument.get_long() == Some(key));
    arguments.any(|argument| !argument.get_action().takes_values())
}

/// What is wrong with a key's value, whatever it says.
fn wrong_value(command: &clap::Command, key: &str, values: &Values) -> Option<String> {
    match values {
        Values::Texts(_) if is_switch(command, key) => {
            Some(format!("{key:?} is true or false, without quotes"))
        }
        Values::Flag(_) if !is_switch(command, key) => Some(format!(
            "{key:?} has a value, and is not true or false: leave it out where it is not wanted"
        )),
        // What is left out may mean that all is allowed.
        Values::Texts(texts) if texts.is_empty() => {
            Some(format!("{key:?} is an empty list: leave it out where it is not wanted"))
        }
        _ => None,
    }
}

/// The definition of a subcommand.
fn subcommand(name: &str) -> clap::Command {
    Cli::command().find_subcommand(name).cloned().unwrap_or_default()
}

fn section(
    path: &Path,
    text: &str,
    table: &Spanned<DeValue<'_>>,
    faults: &mut Vec<anyhow::Error>,
) -> Option<Section> {
    let line = line_of(text, table.span().start);
    let DeValue::Table(keys) = table.get_ref() else {
        faults.push(fault(path, line, "a section holds keys and values"));
        return None;
    };
    let mut entries = Vec::new();
    for (key, value) in keys {
        match entry(path, key.get_ref(), line_of(text, key.span().start), value) {
            Ok(entry) => entries.push(entry),
            Err(error) => faults.push(error),
        }
    }
    Some(Section { line, entries })
}

fn entry(path: &Path, key: &str, line: usize, value: &Spanned<DeValue<'_>>) -> Result<Entry> {
    if NOT_IN_A_FILE.contains(&key) {
        return Err(fault(path, line, &format!("unknown key {key:?}")));
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
mod tests;
