//! What clients have asked and were answered, for a judge that others wrote: whether one server could have said all that.

use crate::common::{eventually, folder};
use crate::replicate::BREAK;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// With so much at first.
pub const ACCOUNTS: u64 = 4;
const OPENING: u64 = 50;
/// Of each a new one after so many requests, else the judge would have too much to remember.
const LIST_REQUESTS: u64 = 120;
const FAULTS: usize = 5;
/// They go on if they ask so much more.
const PROGRESS: usize = 200;

/// How many times something goes wrong. `OUTLAST_FAULTS` says another number.
pub fn faults() -> usize {
    std::env::var("OUTLAST_FAULTS").map_or(FAULTS, |count| count.parse().unwrap())
}

/// Of several clients.
pub struct History {
    begun: Instant,
    lines: Mutex<Vec<String>>,
}

/// What a client asks.
#[derive(Clone, Debug)]
pub struct Request {
    pub key: String,
    /// As `tools/linearize` knows it.
    pub op: &'static str,
    pub arguments: Vec<String>,
}

impl Request {
    pub fn new(key: impl Into<String>, op: &'static str, arguments: &[&dyn ToString]) -> Self {
        let arguments = arguments.iter().map(|argument| argument.to_string()).collect();
        Self { key: key.into(), op, arguments }
    }
}

impl History {
    pub fn new() -> Self {
        Self { begun: Instant::now(), lines: Mutex::default() }
    }

    /// A client has asked that, and was answered. An answer of none is one that says that nothing was done.
    fn ask(&self, client: usize, request: &Request, asks: impl FnOnce() -> Option<String>) {
        let begin = self.begun.elapsed();
        let answer = asks();
        let end = self.begun.elapsed();
        if let Some(answer) = answer {
            self.note(client, request, &answer, (begin, end));
        }
    }

    fn note(&self, client: usize, request: &Request, answer: &str, (begin, end): (Duration, Duration)) {
        let Request { key, op, arguments } = request;
        let (begin_ns, end_ns) = (begin.as_nanos(), end.as_nanos());
        // Words and numbers, which are written in JSON as here.
        self.lines.lock().unwrap().push(format!(
            "{{\"client\":{client},\"key\":{key:?},\"op\":{op:?},\"arguments\":{arguments:?},\"answer\":{answer:?},\"begin_ns\":{begin_ns},\"end_ns\":{end_ns}}}\n"
        ));
    }

    pub fn count(&self) -> usize {
        self.lines.lock().unwrap().len()
    }

    /// Whether one server could have said all that, and what the judge says. Where it could not the file stays.
    pub fn judge(&self) -> Result<String, String> {
        let folder = folder();
        let file = folder.path().join("history.jsonl");
        std::fs::write(&file, self.lines.lock().unwrap().concat()).unwrap();
        let output = Command::new(judge()).arg(&file).output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        if output.status.success() {
            return Ok(said);
        }
        let kept = folder.keep();
        Err(format!("{said} in {}", kept.display()))
    }
}

/// Of some server.
pub trait Client {
    /// What it answers; none: nothing was done, and that is known.
    fn answer_to(&mut self, request: &Request) -> Option<String>;
}

/// Numbers that look as if they were by chance (Marsaglia 2003, xorshift).
struct Numbers(u64);

impl Numbers {
    /// Others in each run, or as `OUTLAST_SEED` says.
    fn of(client: usize) -> Self {
        let seed: u64 = std::env::var("OUTLAST_SEED").map_or(1, |seed| seed.parse().unwrap_or(1));
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (client as u64 + 1) << 32 | 1)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

/// What a client asks next: of registers, lists, and accounts.
fn next(numbers: &mut Numbers, client: usize, count: u64) -> Request {
    let value = format!("{client}.{count}");
    match numbers.below(10) {
        0 | 1 => Request::new(format!("r{}", numbers.below(3)), "set", &[&value]),
        2 | 3 => Request::new(format!("r{}", numbers.below(3)), "get", &[]),
        4 => Request::new("counter", "incr", &[]),
        5 => Request::new(format!("list{}", count / LIST_REQUESTS), "push", &[&value]),
        6 => Request::new(format!("list{}", count / LIST_REQUESTS), "all", &[]),
        7 | 8 => {
            let from = numbers.below(ACCOUNTS);
            let to = (from + 1 + numbers.below(ACCOUNTS - 1)) % ACCOUNTS;
            Request::new("bank", "transfer", &[&from, &to, &(1 + numbers.below(30))])
        }
        _ => Request::new("bank", "balances", &[]),
    }
}

/// Clients that ask until they are to end.
pub struct Asking {
    history: Arc<History>,
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Asking {
    /// The last one opens the accounts, and asks nothing more.
    pub fn start(mut clients: Vec<impl Client + Send + 'static>) -> Self {
        let (history, ends) = (Arc::new(History::new()), Arc::new(AtomicBool::new(false)));
        let mut last = clients.pop().unwrap();
        let open = Request::new("bank", "open", &[&OPENING, &OPENING, &OPENING, &OPENING]);
        history.ask(clients.len(), &open, || last.answer_to(&open));
        let threads = clients.into_iter().enumerate().map(|(number, mut client)| {
            let (history, ends) = (history.clone(), ends.clone());
            std::thread::spawn(move || {
                let (mut numbers, mut count) = (Numbers::of(number), 0);
                while !ends.load(Ordering::Relaxed) {
                    count += 1;
                    let request = next(&mut numbers, number, count);
                    history.ask(number, &request, || client.answer_to(&request));
                    std::thread::sleep(BREAK);
                }
            })
        });
        Self { threads: threads.collect(), history, ends }
    }

    /// Waits until all have gone on from here.
    pub fn go_on(&self) {
        let before = self.history.count();
        eventually("nothing goes on", || (self.history.count() > before + PROGRESS).then_some(()));
    }

    pub fn end(self) -> Arc<History> {
        self.ends.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
        self.history
    }
}

/// Builds it, once.
fn judge() -> &'static Path {
    static JUDGE: OnceLock<PathBuf> = OnceLock::new();
    JUDGE.get_or_init(|| {
        let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("linearize-{}", std::process::id()));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/linearize");
        let mut build = Command::new("go");
        let build = build.args(["build", "-o"]).arg(&built).arg(".").current_dir(source);
        let output = build.output().expect("go builds the judge of histories (tools/deps.sh installs it)");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        built
    })
}

#[test]
fn answers_that_one_server_could_not_have_said_are_found() {
    let ms = Duration::from_millis;
    let set = |value: &str| Request::new("r", "set", &[&value]);
    let get = Request::new("r", "get", &[]);
    // Two at a time: both orders are one.
    let mut history = History::new();
    history.note(0, &set("1"), "OK", (ms(0), ms(10)));
    history.note(1, &get, "nothing", (ms(5), ms(7)));
    history.note(2, &get, "1", (ms(5), ms(7)));
    assert!(history.judge().unwrap().contains("3 requests are linearizable"));
    // What was read is not taken back.
    history.note(2, &get, "nothing", (ms(8), ms(9)));
    let why = history.judge().unwrap_err();
    assert!(why.contains("are not linearizable"), "{why}");
    std::fs::remove_dir_all(why.rsplit(" in ").next().unwrap()).unwrap();

    history = History::new();
    let accounts = |op, arguments: &[&dyn ToString]| Request::new("bank", op, arguments);
    history.note(0, &accounts("open", &[&5, &5]), "OK", (ms(0), ms(1)));
    history.note(0, &accounts("transfer", &[&0, &1, &3]), "yes", (ms(2), ms(3)));
    history.note(0, &accounts("transfer", &[&0, &1, &3]), "no", (ms(4), ms(5)));
    history.note(0, &accounts("balances", &[]), "2 8", (ms(6), ms(7)));
    history.note(0, &Request::new("l", "push", &[&1]), "1", (ms(0), ms(1)));
    history.note(0, &Request::new("l", "push", &[&2]), "2", (ms(2), ms(3)));
    history.note(0, &Request::new("l", "all", &[]), "1 2", (ms(4), ms(5)));
    history.judge().unwrap();
    // Money that is nowhere for a moment.
    history.note(1, &accounts("balances", &[]), "2 5", (ms(2), ms(7)));
    let why = history.judge().unwrap_err();
    std::fs::remove_dir_all(why.rsplit(" in ").next().unwrap()).unwrap();
}
