//! A program's output in files.
//!
//! The program writes into a pipe, and a process of its own, this program as `keep-log`, from there into the file. So
//! nothing is lost when the file is rotated, and the program goes on writing when its supervisor dies: that process ends
//! when the last who can write has ended. The supervisor holds both ends, too: should the writer of the file die, no output
//! is lost and the program is not killed by SIGPIPE, and another one takes its place.

use crate::cli::values::with_usable_log_filter;
use crate::exit::{Code, Failure};
use anyhow::Result;
use clap::Args;
use outlast_restart::supervisor::Handle;
use outlast_session::relay::dial::plain;
use std::fs::{File, OpenOptions};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// `outlast keep-log`.
#[derive(Debug, Args)]
pub struct KeepLogArgs {
    /// The file
    pub file: PathBuf,
    /// Size at which it is rotated
    #[arg(long)]
    pub size: u64,
    /// How many old ones are kept
    #[arg(long)]
    pub keep: u32,
}

/// Largest file and number of old ones, if nothing else is said.
pub const SIZE_BYTES: u64 = 16 << 20;
pub const KEEP: u32 = 4;
/// As much as a pipe holds.
const CHUNK_BYTES: usize = 64 << 10;
/// After the program's end, time for its last words to be written: others below it may hold the pipe open.
const LAST_WORDS_TIMEOUT: Duration = Duration::from_secs(2);
/// Before another process that writes is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// Where output goes.
#[derive(Clone, Debug)]
pub struct Place {
    pub file: PathBuf,
    pub size_bytes: u64,
    pub keep: u32,
}

/// The supervisor's side.
#[derive(Debug)]
pub struct Capture {
    reader: Arc<PipeReader>,
    writer: PipeWriter,
    keeper: Arc<Mutex<Child>>,
    /// Asks for another keeper.
    again: Sender<()>,
}

impl Capture {
    /// Begins to write. Errors with the file are found here.
    pub fn start(place: Place, supervisor: Handle) -> Result<Self> {
        let absolute = |error: io::Error| cannot_write(&place.file, &error);
        let place = Place { file: std::path::absolute(&place.file).map_err(absolute)?, ..place };
        open(&place.file).map_err(|error| cannot_write(&place.file, &error))?;
        let (reader, writer) = io::pipe()?;
        let keeper = Arc::new(Mutex::new(keeper(&place, &reader, &supervisor)?));
        let (again, asked) = std::sync::mpsc::channel();
        let reader = Arc::new(reader);
        let replacing = Replacing { place, reader: reader.clone(), keeper: keeper.clone(), supervisor };
        // Started now: when another process is needed, there may be no thread to be had, either.
        std::thread::Builder::new().name("keep-log".into()).spawn(move || replacing.run(&asked))?;
        Ok(Self { reader, writer, keeper, again })
    }

    /// Has the program's output go there.
    pub fn attach(&self, command: &mut Command) -> io::Result<()> {
        command.stdout(self.writer.try_clone()?).stderr(self.writer.try_clone()?);
        Ok(())
    }

    /// A child has ended: if it was the one that writes, another one does.
    pub fn on_buried(&self, pid: u32) {
        if pid == lock(&self.keeper).id() {
            let _ = self.again.send(());
        }
    }

    /// The program has ended for good.
    pub fn finish(self) {
        let Self { reader, writer, keeper, again } = self;
        drop((reader, writer, again));
        let deadline = Instant::now() + LAST_WORDS_TIMEOUT;
        while matches!(lock(&keeper).try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn lock(keeper: &Mutex<Child>) -> MutexGuard<'_, Child> {
    keeper.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread that starts another one in the place of a process that wrote. Without it the program would stand still as soon as
/// the pipe is full: it is tried until it can be done.
struct Replacing {
    place: Place,
    reader: Arc<PipeReader>,
    keeper: Arc<Mutex<Child>>,
    supervisor: Handle,
}

impl Replacing {
    /// Until the program has ended for good.
    fn run(&self, asked: &Receiver<()>) {
        let mut last_at = None::<Instant>;
        while asked.recv().is_ok() {
            let (file, mut is_told) = (self.place.file.display(), false);
            // The next one may end as soon.
            std::thread::sleep(last_at.map_or(Duration::ZERO, |at| AGAIN.saturating_sub(at.elapsed())));
            loop {
                // Under the lock: whoever hears of its end looks for its number.
                let started = {
                    let mut present = lock(&self.keeper);
                    keeper(&self.place, &self.reader, &self.supervisor).map(|next| *present = next)
                };
                match started {
                    Ok(()) => {
                        last_at = Some(Instant::now());
                        tracing::warn!("the process that writes {file} has ended: another one does");
                        break;
                    }
                    Err(error) if !is_told => {
                        tracing::error!(
                            "nobody writes {file} at present, as no process can be started for that: {}; it is tried \
                             again each second, and the program may have to wait for it",
                            plain(&error)
                        );
                        is_told = true;
                    }
                    Err(_) => {}
                }
                match asked.recv_timeout(AGAIN) {
                    Err(RecvTimeoutError::Disconnected) => return,
                    Ok(()) | Err(RecvTimeoutError::Timeout) => {}
                }
            }
        }
    }
}

/// Starts the process that writes.
fn keeper(place: &Place, reader: &PipeReader, supervisor: &Handle) -> io::Result<Child> {
    // Itself, also when the file has been replaced since.
    let keeper = with_usable_log_filter(&mut Command::new("/proc/self/exe"))
        .arg0("outlast")
        .arg("keep-log")
        .arg(&place.file)
        .args(["--size", &place.size_bytes.to_string(), "--keep", &place.keep.to_string()])
        .stdin(reader.try_clone()?)
        .stdout(Stdio::null())
        .spawn()?;
    // It ends by itself, after the last word.
    supervisor.spare(keeper.id());
    Ok(keeper)
}

pub fn cannot_write(file: &Path, error: &io::Error) -> anyhow::Error {
    Failure::system(format!("cannot write the program's output to {}: {}", file.display(), plain(error)))
}

fn open(file: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(file)
}

/// `outlast keep-log`: writes what comes until its end, whatever happens.
pub fn keep(args: &KeepLogArgs) -> Result<Code> {
    // What ends the program and its supervisor is not for this: there may be last words.
    rustix::process::setsid().ok();
    // Not `exe`, as it was started.
    rustix::thread::set_name(c"outlast").ok();
    for number in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
        // SAFETY: ignoring a signal runs no code of ours.
        unsafe { libc::signal(number, libc::SIG_IGN) };
    }
    let place = Place { file: args.file.clone(), size_bytes: args.size, keep: args.keep };
    let mut log = Log { place, file: None, bytes: 0, at_line_start: true, failing: false };
    let mut input = io::stdin().lock();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match input.read(&mut chunk) {
            Ok(0) => return Ok(Code::Ok),
            Ok(count) => log.take(chunk.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// To whoever hears it: its end, or a full disk, must not be the end of the program's output.
fn say(what: &str) {
    let _ = writeln!(io::stderr(), "outlast: {what}");
}

/// The file that is written.
struct Log {
    place: Place,
    file: Option<File>,
    bytes: u64,
    at_line_start: bool,
    failing: bool,
}

impl Log {
    /// Writes, or says that it cannot: the program must not wait for a full disk.
    fn take(&mut self, chunk: &[u8]) {
        match self.write(chunk) {
            Ok(()) => self.failing = false,
            Err(error) => {
                self.file = None;
                if !std::mem::replace(&mut self.failing, true) {
                    let file = self.place.file.display();
                    say(&format!("output is lost, as {file} cannot be written: {}", plain(&error)));
                }
            }
        }
    }

    fn write(&mut self, mut chunk: &[u8]) -> io::Result<()> {
        while !chunk.is_empty() {
            let mut file = match self.file.take() {
                Some(file) => file,
                None => {
                    let file = open(&self.place.file)?;
                    self.bytes = file.metadata()?.len();
                    file
                }
            };
            let room = self.place.size_bytes.saturating_sub(self.bytes);
            let (now, rest, rotate) = divide(chunk, room, self.at_line_start, self.place.size_bytes);
            file.write_all(now)?;
            self.bytes += now.len() as u64;
            self.at_line_start = now.last().map_or(self.at_line_start, |byte| *byte == b'\n');
            chunk = rest;
            if !rotate {
                self.file = Some(file);
            } else if let Err(error) = self.rotate() {
                // Rather too long than lost. It is tried again when it is twice as long.
                say(&format!("cannot rotate {}: {}", self.place.file.display(), plain(&error)));
                (self.file, self.bytes) = (Some(file), 0);
            }
        }
        Ok(())
    }

    fn rotate(&self) -> io::Result<()> {
        let name = |number: u32| match number {
            0 => self.place.file.clone(),
            number => {
                let mut name = self.place.file.clone().into_os_string();
                name.push(format!(".{number}"));
                name.into()
            }
        };
        for number in (0..self.place.keep).rev() {
            match std::fs::rename(name(number), name(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if self.place.keep == 0 { std::fs::remove_file(name(0)) } else { Ok(()) }
    }
}

/// What of `chunk` still goes into a file with `room` left, what does not, and whether a new file begins between. A line
/// stays in one file, unless it is longer than a whole one.
fn divide(chunk: &[u8], room: u64, at_line_start: bool, size: u64) -> (&[u8], &[u8], bool) {
    if chunk.len() as u64 <= room {
        return (chunk, &[], false);
    }
    let fits = usize::try_from(room).unwrap_or(usize::MAX).min(chunk.len());
    let (head, tail) = chunk.split_at(fits);
    let end = match head.iter().rposition(|byte| *byte == b'\n') {
        Some(newline) => newline + 1,
        None if at_line_start && room < size => 0,
        // The line is finished where it began, if it ends soon.
        None => tail.iter().position(|byte| *byte == b'\n').map_or(chunk.len(), |newline| fits + newline + 1),
    };
    let (now, rest) = chunk.split_at(end);
    let overlong = rest.is_empty() && now.last() != Some(&b'\n') && room > 0;
    (now, rest, !overlong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_stay_whole_and_nothing_is_lost_over_rotations() {
        let folder = tempfile::tempdir().unwrap();
        for seed in 1..50_u64 {
            let file = folder.path().join(format!("{seed}.log"));
            let place = Place { file: file.clone(), size_bytes: 1_000, keep: 1_000 };
            let mut log = Log { place, file: None, bytes: 0, at_line_start: true, failing: false };
            let mut state = seed;
            let mut next = |bound: usize| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                usize::try_from(state >> 33).unwrap() % bound
            };
            let mut text = String::new();
            for line in 0..500 {
                text.push_str(&format!("{line}:{}\n", "x".repeat(next(150))));
            }
            let mut rest = text.as_bytes();
            while !rest.is_empty() {
                let (chunk, after) = rest.split_at(rest.len().min(1 + next(700)));
                log.take(chunk);
                rest = after;
            }
            let mut parts: Vec<String> = (1..)
                .map_while(|number| std::fs::read_to_string(format!("{}.{number}", file.display())).ok())
                .collect();
            assert!(parts.len() > 10, "{} rotations only", parts.len());
            assert!(parts.iter().all(|part| part.ends_with('\n') && part.len() < 2_000), "a line was cut");
            parts.reverse();
            parts.push(std::fs::read_to_string(&file).unwrap_or_default());
            assert!(parts.concat() == text, "something is lost");
        }
    }

    #[test]
    fn old_files_are_removed_and_lines_without_end_are_cut() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("log");
        let place = Place { file: file.clone(), size_bytes: 100, keep: 2 };
        let mut log = Log { place, file: None, bytes: 0, at_line_start: true, failing: false };
        for _ in 0..20 {
            log.take(&[b'x'; 60]);
        }
        let count = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(count, 3, "the file and two old ones");
        assert!(std::fs::metadata(folder.path().join("log.2")).unwrap().len() < 400);
    }
}
