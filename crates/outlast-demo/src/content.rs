//! What is moved: an archive of this system's own files.

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Most bytes read at once.
const CHUNK_BYTES: usize = 1 << 20;

/// The file of that size in `folder`, made if it is not there.
pub fn archive(folder: &Path, bytes: u64) -> Result<PathBuf> {
    let path = folder.join(format!("archive-{bytes}.tar"));
    if path.metadata().is_ok_and(|metadata| metadata.len() == bytes) {
        return Ok(path);
    }
    let mut file = tempfile::NamedTempFile::new_in(folder).context("cannot make the archive")?;
    let mut missing = bytes;
    while missing > 0 {
        // Should the system be smaller than that, it comes again.
        let packed = pack(file.as_file_mut(), missing)?;
        ensure!(packed > 0, "tar packs nothing");
        missing -= packed;
    }
    file.persist(&path).context("cannot keep the archive")?;
    Ok(path)
}

fn pack(file: &mut File, bytes_max: u64) -> Result<u64> {
    let mut tar = Command::new("tar")
        .args(["-C", "/", "--ignore-failed-read", "-cf", "-", "usr/share", "usr/lib", "usr/bin"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start tar")?;
    let output = tar.stdout.take().context("tar has no output")?;
    let packed = std::io::copy(&mut output.take(bytes_max), file).context("cannot write the archive");
    // It may have more to say than was wanted.
    let _ = tar.kill();
    let _ = tar.wait();
    file.flush()?;
    packed
}

/// The SHA-256 of a file, in hexadecimal.
pub fn sha256(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut hash = Sha256::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match file.read(&mut chunk)? {
            0 => break,
            count => hash.update(&chunk[..count]),
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_known_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("abc");
        std::fs::write(&path, "abc").unwrap();
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(&path).unwrap(), known);
    }

    #[test]
    fn the_archive_has_the_size_and_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = archive(folder.path(), 1 << 20).unwrap();
        let made = path.metadata().unwrap().modified().unwrap();
        assert_eq!(path.metadata().unwrap().len(), 1 << 20);
        assert_eq!(archive(folder.path(), 1 << 20).unwrap().metadata().unwrap().modified().unwrap(), made);
    }
}
