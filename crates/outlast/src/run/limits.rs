//! Limits of what a program may use of the machine.

use rustix::process::{Resource, Rlimit, getrlimit};
use std::str::FromStr;

const RESOURCES: [(&str, Resource); 12] = [
    ("as", Resource::As),
    ("core", Resource::Core),
    ("cpu", Resource::Cpu),
    ("data", Resource::Data),
    ("fsize", Resource::Fsize),
    ("memlock", Resource::Memlock),
    ("msgqueue", Resource::Msgqueue),
    ("nofile", Resource::Nofile),
    ("nproc", Resource::Nproc),
    ("rss", Resource::Rss),
    ("sigpending", Resource::Sigpending),
    ("stack", Resource::Stack),
];

/// The most of a resource: that is enforced, and that it can be raised to. None: no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    pub name: &'static str,
    resource: Resource,
    soft: Option<u64>,
    /// Not given: as it is, or what is enforced if that is more.
    hard: Option<Option<u64>>,
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || RESOURCES.map(|(name, _)| name).join(", ");
        let (name, values) = text
            .split_once('=')
            .ok_or_else(|| format!("{text:?} is no limit: give NAME=VALUE, such as nofile=100000"))?;
        let found = RESOURCES.into_iter().find(|(known, _)| *known == name);
        let (name, resource) =
            found.ok_or_else(|| format!("there is no limit of {name:?}, only of {}", names()))?;
        let (soft, hard) = values.split_once(':').map_or((values, None), |(soft, hard)| (soft, Some(hard)));
        let limit = Self { name, resource, soft: amount(soft)?, hard: hard.map(amount).transpose()? };
        match limit.hard {
            Some(hard) if above(limit.soft, hard) => {
                Err(format!("{text:?}: {soft} is more than it can be raised to"))
            }
            _ => Ok(limit),
        }
    }
}

fn above(one: Option<u64>, other: Option<u64>) -> bool {
    match (one, other) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(one), Some(other)) => one > other,
    }
}

fn amount(text: &str) -> Result<Option<u64>, String> {
    if matches!(text, "unlimited" | "infinity") {
        return Ok(None);
    }
    let bytes = crate::cli::values::byte_count(text);
    let wrong = || format!("{text:?} is no limit: give a number, with K, M or G if you like, or unlimited");
    bytes.ok().and_then(|bytes| u64::try_from(bytes).ok()).map(Some).ok_or_else(wrong)
}

impl Limit {
    /// As it is set: beside what holds now for this process. `dumps_to_program`: core dumps are not written to files.
    pub fn resolve(&self, dumps_to_program: bool) -> (Resource, Rlimit) {
        let now = getrlimit(self.resource);
        // A dump to a program is made whatever the limit, unless that is 1 (core(5)).
        let soft = match (self.resource, self.soft) {
            (Resource::Core, Some(0)) if dumps_to_program => Some(1),
            (_, soft) => soft,
        };
        let hard = self.hard.unwrap_or(now.maximum);
        let hard = if above(soft, hard) { soft } else { hard };
        (self.resource, Rlimit { current: soft, maximum: hard })
    }
}

impl Limit {
    /// Whether the kernel will let this process set it.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn check(&self) -> Result<(), String> {
        let text =
            |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
        let (resource, wanted) = self.resolve(false);
        let (name, asked) = (self.name, text(wanted.maximum));
        if resource == Resource::Nofile {
            let of_kernel = std::fs::read_to_string("/proc/sys/fs/nr_open").unwrap_or_default();
            if let Ok(most) = of_kernel.trim().parse::<u64>()
                && above(wanted.maximum, Some(most))
            {
                return Err(format!(
                    "{name}={asked} is more than {most}, the most that this kernel allows (fs.nr_open)"
                ));
            }
        }
        let most = getrlimit(resource).maximum;
        if above(wanted.maximum, most) && !may_raise_limits() {
            let most = text(most);
            return Err(format!(
                "{name}={asked} is more than {most}, and only root may raise that (see `ulimit -H -a`)"
            ));
        }
        Ok(())
    }
}

/// Whether this process has CAP_SYS_RESOURCE.
fn may_raise_limits() -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    effective.is_some_and(|bits| bits >> CAP_SYS_RESOURCE & 1 == 1)
}

/// Whether the kernel gives core dumps to a program.
pub fn dumps_to_program() -> bool {
    std::fs::read_to_string("/proc/sys/kernel/core_pattern").is_ok_and(|pattern| pattern.starts_with('|'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_with_units() {
        let limit: Limit = "as=2G:unlimited".parse().unwrap();
        assert_eq!((limit.soft, limit.hard), (Some(2 << 30), Some(None)));
        let (_, set) = "nofile=64:128".parse::<Limit>().unwrap().resolve(false);
        assert_eq!((set.current, set.maximum), (Some(64), Some(128)));
        for (text, part) in [
            ("nofile", "give NAME=VALUE"),
            ("files=3", "there is no limit of \"files\""),
            ("nofile=many", "is no limit"),
            ("nofile=10:5", "more than it can be raised to"),
            ("nofile=unlimited:5", "more than it can be raised to"),
            ("nofile=", "is no limit"),
            ("nofile=1:", "is no limit"),
        ] {
            let said = text.parse::<Limit>().unwrap_err();
            assert!(said.contains(part), "{text}: {said}");
        }
    }

    #[test]
    fn a_dump_to_a_program_is_prevented_by_one_byte() {
        let limit: Limit = "core=0".parse().unwrap();
        assert_eq!(limit.resolve(true).1.current, Some(1));
        assert_eq!(limit.resolve(false).1.current, Some(0));
    }
}
