//! Sockets in the file system.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Listens at `path`. A socket there that nobody listens on was left behind by a process that was killed, and is
/// replaced; anything else that is there stays.
///
/// # Errors
/// `AddrInUse` when the path is taken.
pub fn bind_replacing(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if !is_abandoned(path) {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        other => other,
    }
}

/// Whether it is a socket that nobody listens on. Not followed if it is a link: that would be somebody's.
pub fn is_abandoned(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
        && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_socket_that_nobody_listens_on_is_replaced() {
        let folder = std::env::temp_dir().join(format!("outlast-unix-socket-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("socket");
        let first = bind_replacing(&path).unwrap();
        assert_eq!(bind_replacing(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        drop(bind_replacing(&path).unwrap());

        let file = folder.join("file");
        std::fs::write(&file, "precious").unwrap();
        let link = folder.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for taken in [&file, &link] {
            assert_eq!(bind_replacing(taken).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
        assert!(link.is_symlink());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
