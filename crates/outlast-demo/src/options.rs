//! The command line.

use clap::{Parser, ValueEnum};
use std::path::PathBuf;

/// Unmodified curl, scp and ssh move real data through Outlast while every link they have is broken; then servers crash
/// many times a second while clients use them; then machines with redis and MariaDB die.
#[derive(Clone, Debug, Parser)]
#[command(version, about)]
pub struct Options {
    /// What to show [default: everything]
    #[arg(long, value_enum)]
    pub scene: Option<Scene>,
    /// How much to move each way: a number with K, M or G
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "1G")]
    pub size: u64,
    /// The same with 64 MiB; servers crash for 4 s each, not 15 s; and fewer machines die
    #[arg(long, conflicts_with = "size")]
    pub quick: bool,
    /// Where chance starts: the same seed breaks links at the same bytes
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    /// On loopback with the faults that need no root, even if there is root
    #[arg(long)]
    pub loopback: bool,
    /// Break each transfer so often and then let it be
    #[arg(long, value_name = "NUMBER")]
    pub breaks: Option<usize>,
    /// After how long a silent machine is taken for dead: on a busy machine longer
    #[arg(long, value_name = "TIME", default_value = "100ms")]
    pub detect: String,
    /// The outlast program [default: the one beside this program]
    #[arg(long, value_name = "FILE")]
    pub outlast: Option<PathBuf>,
    /// Where data and received files are kept meanwhile [default: beside this program]
    #[arg(long, value_name = "FOLDER")]
    pub folder: Option<PathBuf>,
}

/// A part of the demonstration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scene {
    /// Links break under transfers
    Links,
    /// Servers crash under load
    Restart,
    /// Machines die under load
    Machines,
}

impl Options {
    /// Whether this scene is wanted.
    pub fn shows(&self, scene: Scene) -> bool {
        self.scene.is_none_or(|only| only == scene)
    }

    /// How much each transfer moves.
    pub fn bytes(&self) -> u64 {
        if self.quick { 64 << 20 } else { self.size }
    }
}

fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no size: give a number with K, M or G");
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text.get(digits.len()..).unwrap_or_default().to_ascii_uppercase().as_str() {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let bytes = number.checked_mul(1 << shift).ok_or_else(wrong)?;
    if !(1 << 20..=1 << 40).contains(&bytes) {
        return Err(format!("{text:?} is too little or too much: give 1M to 1024G"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_are_read() {
        assert_eq!(size("64M"), Ok(64 << 20));
        assert_eq!(size("1g"), Ok(1 << 30));
        for wrong in ["", "M", "5", "12X", "99999999999999G"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
