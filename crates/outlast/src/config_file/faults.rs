//! Everything that is wrong with a file, not only the first of it: what is wrong is told, left out, and the rest is read
//! again.

use super::names::{keys_of, similar};
use super::{
    ConfigFile, Entry, Fault, Job, Place, SECTIONS, Section, VALUE_BYTES_MIN, Values, fault, subcommand,
};
use crate::cli::ProcessArgs;
use crate::exit::{Failure, one_line};
use crate::handover::covers;
use crate::plan;
use anyhow::Result;
use clap::ArgMatches;
use std::cmp::Reverse;
use std::net::SocketAddr;

/// Keys of ports in sections.
const ADDRESSES: [&str; 4] = ["address", "socks5", "http-connect", "transparent"];
/// The key of a port for all sections.
const METRICS: &str = "metrics";

/// What was found to be wrong so far.
#[derive(Default)]
struct Found {
    faults: Vec<anyhow::Error>,
    /// Keys that were left out. What is said of them from then on follows from that.
    left_out: Vec<String>,
}

/// What was made of a section.
pub struct Made<P> {
    pub place: Place,
    pub plan: P,
    /// Without these keys, as they are wrong.
    pub left_out: Vec<String>,
}

impl Found {
    /// `about`: the key that the message is about, if that is known. What has no name on a command line is missing without one.
    fn note(&mut self, error: anyhow::Error, said: &str, about: Option<&String>, positional: &[String]) {
        let follows = |key: &String| {
            names_flag(said, key) || (about.is_none() && positional.contains(key) && said.contains(key))
        };
        if !self.left_out.iter().any(follows) {
            self.faults.push(error);
        }
    }
}

impl ConfigFile {
    /// The settings of the process, or everything that is wrong with them.
    pub fn process_or_all_faults(&self, given: &ArgMatches) -> Result<ProcessArgs, Vec<anyhow::Error>> {
        let mut left = self.process.clone();
        let mut found = Found::default();
        loop {
            let Fault { error, key, said } = match self.read_process(&left, given) {
                Ok(process) if found.faults.is_empty() => return Ok(process),
                Ok(_) => return Err(found.faults),
                Err(fault) => fault,
            };
            found.note(error, &said, key.as_ref(), &[]);
            match left.iter().position(|entry| Some(&entry.key) == key.as_ref()) {
                Some(at) => found.left_out.push(left.remove(at).key),
                None => return Err(found.faults),
            }
        }
    }

    /// Makes something of each section, and tells everything that is wrong with any.
    pub fn plan_all<P>(&self, plan: impl Fn(Job) -> Result<P>) -> (Vec<Made<P>>, Vec<anyhow::Error>) {
        if !self.has_sections() {
            let why = "there is nothing to do: add a [[listen]], [[connect]] or [[run]] section";
            return (Vec::new(), vec![Failure::usage(format!("{}: {why}", self.path.display()))]);
        }
        let (mut plans, mut faults) = (Vec::new(), Vec::new());
        let all = [&self.listen, &self.connect, &self.run];
        for (name, sections) in SECTIONS.into_iter().zip(all) {
            for section in sections {
                let place = Place { name, line: section.line };
                let (planned, found) = self.plan_with_all_faults(place, section, &plan);
                faults.extend(found.faults);
                plans.extend(planned.map(|plan| Made { place, plan, left_out: found.left_out }));
            }
        }
        (plans, faults)
    }

    /// What can be made of a section without the keys that are wrong, if that is anything.
    fn plan_with_all_faults<P>(
        &self,
        place: Place,
        section: &Section,
        plan: &impl Fn(Job) -> Result<P>,
    ) -> (Option<P>, Found) {
        let command = subcommand(place.name);
        let positional: Vec<String> =
            command.get_positionals().map(|argument| argument.get_id().to_string()).collect();
        let keys = keys_of(&command);
        let mut left = section.clone();
        let mut found = Found::default();
        loop {
            let read = self.job(place.name, &left, &ArgMatches::default());
            let was_read = read.is_ok();
            let planned = read.and_then(|job| {
                plan(job).map_err(|error| {
                    let said = one_line(&error);
                    let key = entry_meant(&left.entries, &said).map(|entry| entry.key.clone());
                    Fault { error: self.at(place, &error), key, said }
                })
            });
            let Fault { error, key, said } = match planned {
                Ok(planned) => return (Some(planned), found),
                Err(fault) => fault,
            };
            let mut wrong = left.entries.iter().position(|entry| Some(&entry.key) == key.as_ref());
            if wrong.is_none() && !was_read {
                wrong = self.needs_what_is_missing(place, &left, &said);
            }
            found.note(error, &said, key.as_ref(), &positional);
            match wrong {
                // One of several values: there may be something wrong with others, too.
                Some(at)
                    if left.entries.get_mut(at).is_some_and(|entry| entry.leave_out_what_is_meant(&said)) => {
                }
                Some(at) => {
                    let key = left.entries.remove(at).key;
                    // What was meant by it is missing now.
                    found.left_out.extend(similar(&key, keys.iter().map(String::as_str)).map(str::to_owned));
                    found.left_out.push(key);
                }
                None => return (None, found),
            }
        }
    }

    /// The key without which something else would be said: the one that needs what is missing.
    fn needs_what_is_missing(&self, place: Place, section: &Section, said: &str) -> Option<usize> {
        (0..section.entries.len()).find(|at| {
            let mut without = section.clone();
            without.entries.remove(*at);
            let read = self.job(place.name, &without, &ArgMatches::default());
            read.err().is_none_or(|fault| fault.said != said)
        })
    }

    /// Sections that listen where another one does, or where the metrics are, whatever else is wrong with them.
    pub fn repeated_addresses(&self) -> Vec<anyhow::Error> {
        let entries = self.listen.iter().chain(&self.connect).flat_map(|section| &section.entries);
        let entries = entries.filter(|entry| ADDRESSES.contains(&entry.key.as_str()));
        let mut seen: Vec<SocketAddr> = Vec::new();
        let mut faults = Vec::new();
        let only_v6 = is_v6_only();
        for entry in entries.chain(self.process.iter().filter(|entry| entry.key == METRICS)) {
            let Values::Texts(texts) = &entry.values else { continue };
            for address in texts.iter().filter_map(|text| plan::socket_address(text).ok()) {
                if let Some(other) = seen.iter().find(|other| overlap(**other, address, only_v6)) {
                    let who = if entry.key == METRICS { "the metrics and a section" } else { "two sections" };
                    let and = match other {
                        other if *other == address => String::new(),
                        other if other.ip().is_unspecified() => {
                            format!(" and {other}, which is all addresses")
                        }
                        other => format!(" and {other}"),
                    };
                    let why = format!("{who} listen on {address}{and}: choose another port for one");
                    faults.push(fault(&self.path, entry.line, &why));
                } else if address.port() != 0 {
                    seen.push(address);
                }
            }
        }
        faults
    }
}

/// Whether sockets of IPv6 leave all connections of IPv4 to others.
fn is_v6_only() -> bool {
    std::fs::read_to_string("/proc/sys/net/ipv6/bindv6only").is_ok_and(|text| text.trim() == "1")
}

/// Whether only one of the two may listen: they are equal, or one of them stands for all addresses.
fn overlap(one: SocketAddr, other: SocketAddr, only_v6: bool) -> bool {
    let is_free = one.port() == 0 || other.port() == 0;
    !is_free && (covers(one, only_v6, other) || covers(other, only_v6, one))
}

impl Entry {
    /// Leaves out the one of its values that a message quotes. False where there is no other, or none is quoted.
    fn leave_out_what_is_meant(&mut self, said: &str) -> bool {
        let Values::Texts(texts) = &mut self.values else { return false };
        let is_quoted =
            |text: &String| ['\'', '"'].iter().any(|quote| said.contains(&format!("{quote}{text}{quote}")));
        match texts.iter().position(is_quoted) {
            Some(at) if texts.len() > 1 => {
                texts.remove(at);
                true
            }
            _ => false,
        }
    }
}

/// Whether a message names a flag, and not only a longer one.
fn names_flag(said: &str, key: &str) -> bool {
    flag_in(said, key).is_some()
}

fn flag_in(said: &str, key: &str) -> Option<(usize, usize)> {
    let flag = format!("--{key}");
    let ends = |at: &usize| {
        !said
            .get(at + flag.len()..)
            .is_some_and(|rest| rest.starts_with(|c: char| c == '-' || c.is_alphanumeric()))
    };
    said.match_indices(&flag).map(|(at, _)| at).find(ends).map(|at| (at, flag.len()))
}

/// What a message names first: a flag, or the value of one. None if it names nothing of the section.
pub(super) fn entry_meant<'a>(entries: &'a [Entry], said: &str) -> Option<&'a Entry> {
    let named = entries.iter().flat_map(|entry| {
        let texts = match &entry.values {
            Values::Texts(texts) => texts.as_slice(),
            Values::Flag(_) => &[],
        };
        let values_at = texts.iter().filter_map(|text| {
            let short = text.len() < VALUE_BYTES_MIN;
            let at = if short { said.find(&format!("{text:?}")) } else { said.find(text.as_str()) };
            Some((at?, text.len()))
        });
        let named_at = flag_in(said, &entry.key).into_iter().chain(values_at);
        named_at.map(|(at, length)| (at, Reverse(length), entry.line, entry)).collect::<Vec<_>>()
    });
    named.min_by_key(|(at, length, line, _)| (*at, *length, *line)).map(|(_, _, _, entry)| entry)
}
