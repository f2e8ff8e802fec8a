//! The seeds of a fuzz target, and what must hold for random changes to them: what the tests of parsers share.

use crate::random::Random;
use std::path::PathBuf;

/// The corpus of one fuzz target.
pub(crate) struct Corpus {
    folder: PathBuf,
    seeds: Vec<(&'static str, Vec<u8>)>,
}

impl Corpus {
    /// Of the target `name` in `fuzz/`, which has these seeds and what fuzzing has found since.
    pub(crate) fn new(name: &str, seeds: Vec<(&'static str, Vec<u8>)>) -> Self {
        Self { folder: PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name), seeds }
    }

    /// With `OUTLAST_WRITE_CORPUS` set, writes the seeds; without, checks that they are there.
    pub(crate) fn has_all_seeds(&self) {
        for (name, bytes) in &self.seeds {
            let path = self.folder.join(name);
            if std::env::var_os("OUTLAST_WRITE_CORPUS").is_some() {
                std::fs::create_dir_all(&self.folder).unwrap();
                std::fs::write(&path, bytes).unwrap();
            }
            let committed = std::fs::read(&path).ok();
            assert!(
                committed.as_ref() == Some(bytes),
                "{} is stale: run with OUTLAST_WRITE_CORPUS=1",
                path.display()
            );
        }
    }

    /// Checks what is in the corpus, and 100,000 random changes to it. `holds` panics if something does not hold, and says
    /// whether the bytes were taken: some have to be, and some refused.
    pub(crate) fn changed_at_random(
        &self,
        change: impl Fn(&mut Vec<u8>, &mut Random),
        holds: impl Fn(&[u8]) -> bool + std::panic::RefUnwindSafe,
    ) {
        let mut paths: Vec<_> =
            std::fs::read_dir(&self.folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        let inputs: Vec<_> = paths.iter().map(|path| std::fs::read(path).unwrap()).collect();
        for bytes in &inputs {
            holds(bytes);
        }
        let seed = std::env::var("OUTLAST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
        let mut random = Random(seed);
        let (mut taken, mut refused) = (0, 0);
        for _ in 0..100_000 {
            let mut bytes = inputs[random.size(inputs.len())].clone();
            change(&mut bytes, &mut random);
            match std::panic::catch_unwind(|| holds(&bytes)) {
                Ok(true) => taken += 1,
                Ok(false) => refused += 1,
                Err(_) => panic!("OUTLAST_SEED={seed} fails for {bytes:02x?}"),
            }
        }
        assert!(
            taken > 1000 && refused > 1000,
            "{taken} taken and {refused} refused: that tests one side only"
        );
    }
}
