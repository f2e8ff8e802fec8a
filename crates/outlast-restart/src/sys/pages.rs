//! Pages that a new process finds only when it first touches them: a child has none of its parent's code mapped. Looking
//! for them costs half a microsecond and more each, at the worst moment.

const PAGE_BYTES: usize = 4096;

/// The code of this process, as far as it is loaded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Code(Vec<(usize, usize)>);

impl Code {
    /// Where it is now; nothing where that cannot be told.
    pub(crate) fn of_this_process() -> Self {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        Self(maps.lines().filter_map(code).collect())
    }

    /// Has all of it mapped, in this process. It is in memory already: nothing is read, and none is used.
    pub(crate) fn map(&self) {
        for &(begin, length) in &self.0 {
            // SAFETY: changes nothing but how soon pages are found. A kernel before 5.14 refuses.
            unsafe {
                libc::madvise(std::ptr::without_provenance_mut(begin), length, libc::MADV_POPULATE_READ)
            };
        }
    }
}

/// Has pages that can be written to, so that nothing is left to do when they are: of private memory, copies of one's own.
/// A kernel before 5.14 refuses, and they come one by one.
pub(crate) fn populate(begin: usize, length: usize) {
    let page = begin & !(PAGE_BYTES - 1);
    // SAFETY: changes nothing but how soon pages are there.
    unsafe {
        libc::madvise(
            std::ptr::without_provenance_mut(page),
            begin + length - page,
            libc::MADV_POPULATE_WRITE,
        )
    };
}

/// The stack around the caller's frame: what is called next, and who is returned to.
pub(crate) fn populate_stack() {
    let here = 0u8;
    populate((&raw const here).addr() - PAGE_BYTES, 2 * PAGE_BYTES);
}

/// Beginning and length of a part of a file that is executed, from a line of /proc/PID/maps.
fn code(line: &str) -> Option<(usize, usize)> {
    let mut columns = line.split_whitespace();
    let (range, rights) = (columns.next()?, columns.next()?);
    let is_file = columns.nth(3)?.starts_with('/');
    let (begin, end) = range.split_once('-')?;
    let [begin, end] = [begin, end].map(|text| usize::from_str_radix(text, 16).ok());
    (is_file && rights == "r-xp").then_some((begin?, end?.checked_sub(begin?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_what_is_executed_and_of_a_file() {
        let line = "7f0000001000-7f0000003000 r-xp 00001000 fe:00 77    /usr/lib/libc.so.6";
        assert_eq!(code(line), Some((0x7f00_0000_1000, 0x2000)));
        assert_eq!(code(&line.replace("r-xp", "rw-p")), None);
        assert_eq!(code("7fff0000-7fff1000 r-xp 00000000 00:00 0    [vdso]"), None);
        let code = Code::of_this_process();
        assert!(!code.0.is_empty());
        code.map();
    }
}
