//! What is seen: lines with the time, and a bar below them.

use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// As wide as a line gets, tables included.
pub const COLUMNS: usize = 100;
/// Where the text of an event begins.
const EVENT_INDENT: usize = 11;

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

    /// Lines of their own, as wide as [`COLUMNS`] at the most.
    pub fn line(&self, text: impl AsRef<str>) {
        let lines: Vec<String> = text.as_ref().split('\n').flat_map(wrapped).collect();
        let text = lines.join("\n");
        if self.bar.is_hidden() {
            // A closed pipe is no reason to stop: the exit code still tells.
            let _ = writeln!(std::io::stdout(), "{text}");
        } else {
            self.bar.suspend(|| {
                let _ = writeln!(std::io::stdout(), "{text}");
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

/// A line in pieces that fit: the later ones are indented as far as the first, or below the text of an event.
fn wrapped(line: &str) -> Vec<String> {
    let text = line.trim_start_matches(' ');
    let is_event = text.starts_with(|c: char| c.is_ascii_digit());
    let indent = if is_event { EVENT_INDENT } else { line.len() - text.len() };
    let (mut lines, mut rest) = (Vec::new(), line.to_owned());
    while rest.chars().count() > COLUMNS {
        let fits = rest.char_indices().nth(COLUMNS).map_or(rest.len(), |(at, _)| at);
        let first_word = rest.len() - rest.trim_start().len();
        // The last space at which it fits, or the first one behind a word that is longer than a line.
        let spaces = rest.match_indices(' ').map(|(at, _)| at).filter(|at| *at > first_word);
        let Some(cut) = spaces.clone().take_while(|at| *at <= fits).last().or_else(|| spaces.clone().next())
        else {
            break;
        };
        let later = format!("{:indent$}{}", "", rest[cut..].trim_start());
        rest.truncate(cut);
        lines.push(std::mem::replace(&mut rest, later));
    }
    lines.push(rest);
    lines
}

/// A command with its arguments as one would type it, continued on lines of their own where it is long. A flag and its
/// value stay together.
pub fn command_line(host: &str, words: &[String]) -> String {
    let is_flag = |word: &str| word.starts_with('-');
    let mut parts: Vec<String> = Vec::new();
    let mut after_flag = false;
    for word in words {
        match parts.last_mut() {
            Some(flag) if after_flag && !is_flag(word) => {
                flag.push(' ');
                flag.push_str(&quoted(word));
            }
            _ => parts.push(quoted(word)),
        }
        after_flag = is_flag(word) && word != "--";
    }
    let mut text = format!("  {host:<7}");
    let mut column = text.chars().count();
    for part in parts {
        let length = part.chars().count() + 1;
        if column + length + " \\".len() > COLUMNS {
            text.push_str(" \\\n");
            text.push_str(&" ".repeat(EVENT_INDENT));
            column = EVENT_INDENT;
        }
        text.push(' ');
        text.push_str(&part);
        column += length;
    }
    text
}

/// For a shell, if that is necessary.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
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

    #[test]
    fn long_lines_are_wrapped_at_words() {
        let line = format!("    1.234  {}", "word ".repeat(40));
        let lines = wrapped(&line);
        assert!(lines.len() > 2 && lines.iter().all(|line| line.chars().count() <= COLUMNS), "{lines:?}");
        assert!(lines[1].starts_with("           word"), "{lines:?}");
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&lines.join(" ")), words(&line), "none is lost");
        assert_eq!(wrapped(&"x".repeat(300)), ["x".repeat(300)]);
        assert_eq!(wrapped(&"µ ".repeat(60)), ["µ ".repeat(50).trim_end(), &"µ ".repeat(10)]);
    }

    #[test]
    fn commands_are_continued_as_in_a_shell() {
        let words: Vec<String> = ["ssh", "-o", "ProxyCommand=outlast connect --stdio"]
            .iter()
            .map(|&word| word.to_owned())
            .collect();
        assert_eq!(command_line("client", &words), "  client  ssh -o 'ProxyCommand=outlast connect --stdio'");
        let long: Vec<String> = (0..30).map(|number| format!("--flag-{number}")).collect();
        let lines = command_line("server", &long);
        assert!(lines.lines().all(|line| line.chars().count() <= COLUMNS), "{lines}");
        assert_eq!(lines.replace(" \\\n", "").split_whitespace().count(), 31, "{lines}");
    }
}
