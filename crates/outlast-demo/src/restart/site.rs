//! The files that are served: random bytes that the seed decides, kept in memory to compare with.

use anyhow::Result;
use outlast_lab::Random;
use std::path::Path;

/// From smaller than a segment to longer than several crashes take.
const SIZES_BYTES: [usize; 6] = [0, 500, 8 << 10, 100 << 10, 1_500_000, 12 << 20];

/// One file.
#[derive(Debug)]
pub struct File {
    pub name: String,
    pub bytes: Vec<u8>,
}

/// Writes the files into a folder.
pub fn build(folder: &Path, seed: u64) -> Result<Vec<File>> {
    std::fs::create_dir_all(folder)?;
    let mut random = Random::new(seed);
    let mut files = Vec::new();
    for size in SIZES_BYTES {
        let mut bytes: Vec<u8> =
            std::iter::repeat_with(|| random.next_u64().to_le_bytes()).take(size / 8 + 1).flatten().collect();
        bytes.truncate(size);
        let name = format!("{size}.bin");
        std::fs::write(folder.join(&name), &bytes)?;
        files.push(File { name, bytes });
    }
    Ok(files)
}

/// Some of the files, in any order, small ones more often: what belongs to a page.
pub fn page<'a>(files: &'a [File], random: &mut Random, most: u64) -> Vec<&'a File> {
    let number = 2 + random.below(most - 1);
    (0..number)
        .filter_map(|_| {
            let place = random.below(files.len() as u64).min(random.below(files.len() as u64));
            files.get(usize::try_from(place).ok()?)
        })
        .collect()
}
