//! What the sockets in the folder are called. The number of a process is not enough for a name: containers have PID namespaces of
//! their own, the first process in each has the same number, and some share one folder.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;

/// Of the socket at which this process is asked: its number, for whoever looks into the folder, and what nobody else has.
pub fn of_this_process() -> String {
    format!("{}-{}.sock", std::process::id(), token())
}

/// Of a socket that is made to see whether one can be made.
pub fn to_check() -> String {
    format!("{}-{}.check", std::process::id(), token())
}

/// Of a socket that does not listen yet. It is hidden, and short: the path of a socket has 107 bytes at most.
pub fn beside() -> String {
    format!(".{}", token())
}

/// The number of the process that has made a socket, in its own PID namespace.
pub fn number_in(socket: &Path) -> Option<u32> {
    let stem = socket.file_name()?.to_str()?.strip_suffix(".sock")?;
    // Earlier versions have the number alone.
    stem.split_once('-').map_or(stem, |(number, _)| number).parse().ok()
}

/// Another one each time: the standard library draws these keys from the kernel.
fn token() -> String {
    let token = RandomState::new().build_hasher().finish();
    format!("{:08x}", token & 0xffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_number_and_is_never_the_same() {
        let names: std::collections::BTreeSet<String> = (0..100).map(|_| of_this_process()).collect();
        assert_eq!(names.len(), 100, "{names:?}");
        let own = Some(std::process::id());
        assert!(names.iter().all(|name| number_in(Path::new("/run/outlast").join(name).as_path()) == own));
        assert_eq!(number_in(Path::new("/run/outlast/4711.sock")), Some(4711));
        for other in ["/run/outlast/4711-0a.kept", "/run/outlast/x.sock", "/run/outlast/.0a", "/"] {
            assert_eq!(number_in(Path::new(other)), None, "{other}");
        }
    }
}
