//! What is seen: lines with the time, and a bar below them.

use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The terminal. Clones write to the same one.
#[derive(Clone, Debug)]
pub struct Screen {
    start: Instant,
    bar: Arc<ProgressBar>,
}

impl Screen {
    /// Without a bar, for what comes between transfers.
    pub fn new() -> Self {
        Self { start: Instant::now(), bar: Arc::new(ProgressBar::hidden()) }
    }

    /// With a bar for a transfer. On a terminal it moves; elsewhere there are only lines.
    pub fn with_bar(&self, bytes: u64) -> Self {
        let form = "           {wide_bar:.green/white} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}";
        self.with(bytes, form)
    }

    /// With a bar for what takes so long; its progress is in milliseconds.
    pub fn with_clock(&self, time: Duration) -> Self {
        let form = "           {wide_bar:.green/white} {elapsed}";
        self.with(u64::try_from(time.as_millis()).unwrap_or(u64::MAX), form)
    }

    fn with(&self, length: u64, form: &str) -> Self {
        let bar = ProgressBar::new(length);
        if let Ok(style) = ProgressStyle::with_template(form) {
            bar.set_style(style.progress_chars("━╸─"));
        }
        Self { start: self.start, bar: Arc::new(bar) }
    }

    /// One line of its own.
    pub fn line(&self, text: impl AsRef<str>) {
        if self.bar.is_hidden() {
            // A closed pipe is no reason to stop: the exit code still tells.
            let _ = writeln!(std::io::stdout(), "{}", text.as_ref());
        } else {
            self.bar.suspend(|| {
                let _ = writeln!(std::io::stdout(), "{}", text.as_ref());
            });
        }
    }

    /// One line with the time since the start.
    pub fn event(&self, text: impl AsRef<str>) {
        let time = self.start.elapsed().as_secs_f64();
        self.line(format!("{time:9.3}  {}", text.as_ref()));
    }

    /// Moves the bar.
    pub fn progress(&self, position: u64) {
        self.bar.set_position(position);
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Bytes as people say them.
pub fn mebibytes(bytes: u64) -> String {
    let tenths = (bytes * 10) >> 20;
    format!("{}.{} MiB", HumanCount(tenths / 10), tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(mebibytes((1 << 30) + (1 << 19)), "1,024.5 MiB");
    }
}
