//! Memory that a process has mapped, as others see it: by that its copies are known, whatever has become of them.

use super::process::Pid;

/// A file, or memory without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// Device and number of the file, as /proc/PID/maps has them.
    file: (String, String),
}

impl Mapping {
    /// What is mapped at this address of the calling process.
    pub(crate) fn at<T>(address: &T) -> Option<Self> {
        let address = std::ptr::from_ref(address).addr();
        let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
        let (_, file) = maps.lines().filter_map(parse).find(|(range, _)| range.contains(&address))?;
        Some(Self { file })
    }

    /// Whether a process has it, too. Not, where that cannot be seen.
    pub(crate) fn is_in(&self, pid: Pid) -> bool {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        maps.lines().filter_map(parse).any(|(_, file)| file == self.file)
    }
}

/// Of a line of /proc/PID/maps: the addresses, and the file.
fn parse(line: &str) -> Option<(std::ops::Range<usize>, (String, String))> {
    let mut columns = line.split_whitespace();
    let (begin, end) = columns.next()?.split_once('-')?;
    let (device, inode) = (columns.nth(2)?, columns.next()?);
    let [begin, end] = [begin, end].map(|text| usize::from_str_radix(text, 16).ok());
    Some((begin?..end?, (device.to_owned(), inode.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_have_what_was_shared_and_others_have_not() {
        let (_memory, board) = crate::board::Board::create(&crate::policy::Policy::default()).unwrap();
        let mapping = Mapping::at(board).unwrap();
        assert!(mapping.is_in(super::super::process::pid()));
        assert!(!mapping.is_in(Pid::MAX));
        // One that was executed.
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::try_from(other.id()).unwrap();
        while !std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap().starts_with("sleep") {
            std::thread::yield_now();
        }
        assert!(!mapping.is_in(pid));
        other.kill().unwrap();
        other.wait().unwrap();
        // And another board is another one.
        let (_memory, another) = crate::board::Board::create(&crate::policy::Policy::default()).unwrap();
        assert_ne!(Mapping::at(another), Some(mapping));
    }
}
