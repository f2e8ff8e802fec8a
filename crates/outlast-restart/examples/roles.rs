//! A master and three workers that nobody sees crash. Workers answer lines over TCP, each by itself backwards; besides, master and
//! workers ask each other all the time, over channels that outlive both, and check that nothing is lost, or comes twice.
//! Kill the processes as you like.
//!
//! `cargo run --example roles -- 127.0.0.1:7` and `nc 127.0.0.1 7`. Of further arguments `together` has all workers begin again when
//! one crashes, `poison` asks now and then what crashes whoever is asked, `strict` ends it all when one crashes more often than
//! a service should, `nobody` begins as root and goes on as nobody, as services do that need privileges only to begin. The line `end` on the standard input ends it in order.
#![allow(clippy::print_stdout, reason = "a program")]

use outlast_restart::policy::Policy;
use outlast_restart::roles::{Member, Recovery, Role, Roles};
use outlast_restart::{Connection, Generation};
use std::io;
use std::net::TcpListener;
use std::time::Duration;

const WORKERS: usize = 3;
/// A process crashes by itself, too: once in so many questions.
const CRASH_EVERY: u64 = 3000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listener = TcpListener::bind(address)?;
    println!("listening on {}", listener.local_addr()?);
    // For an example that is there to be crashed.
    let patient = Policy { intensity: 20, intensity_window_ms: 20, ..Policy::default() };
    let policy = if is_asked_for("strict") { Policy::default() } else { patient };
    let recovery = if is_asked_for("together") { Recovery::Together } else { Recovery::Alone };
    let worker = Role::new("worker").processes(WORKERS).policy(policy).recovery(recovery);
    // On one kind of channel the master asks, on the other one the workers do.
    let roles = Roles::new().role(Role::new("master").policy(policy)).role(worker);
    let member = roles.channels("master", "worker").channels("worker", "master").split()?;
    if is_asked_for("nobody") {
        become_nobody()?;
    }
    // Once in each process. The master has no clients.
    let listener = Some(listener).filter(|_| member.role() == "worker");
    let mut generation = member.register()?;
    // From here on, whatever crashes: the next generation of this process begins here.
    talk(&member, &mut generation)?;
    println!(
        "{} {} generation {} {}",
        member.role(),
        member.index(),
        generation.number(),
        std::process::id()
    );
    match listener {
        Some(listener) => {
            for client in generation.incoming(&listener)? {
                let client = client?;
                std::thread::spawn(move || serve(client));
            }
        }
        None => loop {
            let mut line = String::new();
            if io::stdin().read_line(&mut line)? == 0 {
                std::thread::park();
            }
            if line == "end\n" {
                break;
            }
        },
    }
    Ok(())
}

/// By one of the arguments behind the address.
fn is_asked_for(manner: &str) -> bool {
    std::env::args().skip(2).any(|asked| asked == manner)
}

/// Gives up root's privileges, before anything is done for others.
fn become_nobody() -> io::Result<()> {
    const NOBODY: u32 = 65534;
    // SAFETY: numbers, and no groups.
    let has_failed = unsafe {
        libc::setgroups(0, std::ptr::null()) < 0 || libc::setgid(NOBODY) < 0 || libc::setuid(NOBODY) < 0
    };
    if has_failed { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Begins to ask, and to answer, on all channels, which come in the order in which they were declared.
fn talk(member: &Member, generation: &mut Generation) -> io::Result<()> {
    let is_master = member.role() == "master";
    let count = if is_master { WORKERS } else { 1 };
    for (place, channel) in generation.channels()?.into_iter().enumerate() {
        let asks = is_master == (place < count);
        let worker = if is_master { channel.index } else { member.index() };
        // Which conversation it is.
        let name = (worker as u64) << 1 | u64::from(place < count);
        let connection = channel.connection;
        let conversation = if asks { ask } else { answer };
        std::thread::spawn(move || match conversation(connection, name) {
            Ok(()) => println!("wrong: conversation {name} has ended"),
            Err(error) => println!("wrong: conversation {name}: {error}"),
        });
    }
    Ok(())
}

/// The question number `number` of a conversation: a line of any length.
fn question(name: u64, number: u64) -> Vec<u8> {
    let mut line = format!("{name} asks {number}: ").into_bytes();
    let length = [3, 30, 300, 9000][usize::try_from(number % 4).unwrap_or(0)];
    line.extend((0..length).map(|place: u64| b'a' + u8::try_from((place + number) % 26).unwrap_or(0)));
    line.push(b'\n');
    line
}

fn answer_to(question: &[u8]) -> Vec<u8> {
    let mut answer: Vec<u8> = question.iter().rev().skip(1).copied().collect();
    answer.push(b'\n');
    answer
}

/// What was noted with the last message: how many there were.
fn number(of: &Connection) -> u64 {
    of.note().try_into().map_or(0, u64::from_ne_bytes)
}

/// The next line, which is not done then.
fn line(from: &mut Connection) -> io::Result<Vec<u8>> {
    loop {
        if let Some(length) = from.input().iter().position(|&byte| byte == b'\n') {
            return Ok(from.input()[..=length].to_vec());
        }
        if from.receive()? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

fn check(is: &[u8], expected: &[u8]) -> io::Result<()> {
    let text = |bytes| String::from_utf8_lossy(bytes).chars().take(40).collect::<String>();
    let wrong = || io::Error::other(format!("{:?} and not {:?}", text(is), text(expected)));
    if is == expected { Ok(()) } else { Err(wrong()) }
}

fn ask(mut to: Connection, name: u64) -> io::Result<()> {
    loop {
        let number = number(&to);
        let question = question(name, number);
        // What an earlier generation has written of it is not written again.
        to.write_all(&question)?;
        let answer = line(&mut to)?;
        check(&answer, &answer_to(&question))?;
        to.set_note(&(number + 1).to_ne_bytes())?;
        to.done(answer.len());
        if (u64::from(std::process::id()) * 7919 + number).is_multiple_of(CRASH_EVERY) {
            let nowhere = std::hint::black_box(std::ptr::null_mut::<u8>());
            // SAFETY: none. That is what it is for.
            unsafe { nowhere.write_volatile(1) };
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn answer(mut from: Connection, name: u64) -> io::Result<()> {
    let is_poisoned = is_asked_for("poison");
    loop {
        let number = number(&from);
        let question = line(&mut from)?;
        check(&question, &self::question(name, number))?;
        // Once three of us have died of it, it is not dealt with any more.
        if is_poisoned && number % 100 == 50 && from.crashes() < 3 {
            std::process::abort();
        }
        from.write_all(&answer_to(&question))?;
        from.set_note(&(number + 1).to_ne_bytes())?;
        // From here on nobody deals with it again.
        from.done(question.len());
        if number.is_multiple_of(100) {
            println!("conversation {name} has {number} questions");
        }
    }
}

fn serve(mut client: Connection) -> io::Result<()> {
    loop {
        let Ok(question) = line(&mut client) else { return Ok(()) };
        client.write_all(&answer_to(&question))?;
        client.done(question.len());
    }
}
