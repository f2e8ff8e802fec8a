//! Programs that load the library, and a page that is written as a node does.

#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::Command;

/// A page that children inherit.
fn page(time_us: u64) -> File {
    let file =
        File::from(rustix::fs::memfd_create("outlast-clock", rustix::fs::MemfdFlags::empty()).unwrap());
    let words = [u64::from_ne_bytes(*b"outlast\x01"), time_us, !time_us];
    file.write_all_at(&words.map(u64::to_ne_bytes).concat(), 0).unwrap();
    file
}

fn said(program: &str, arguments: &[&str], clock: &str) -> String {
    let library = std::env::current_exe().unwrap().with_file_name("liboutlast_clock.so");
    assert!(library.is_file(), "there is no {}", library.display());
    let output = Command::new(program)
        .args(arguments)
        .env("LD_PRELOAD", library)
        .env("OUTLAST_CLOCK", clock)
        .output()
        .unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn a_program_has_the_time_of_the_page() {
    let page = page(1_234_567_890_123_000);
    let number = page.as_raw_fd().to_string();
    assert_eq!(said("date", &["-u", "+%s.%N"], &number), "1234567890.123000000");
    // So have those that it executes, and what it asks otherwise.
    let all = "import time; print(int(time.time()), time.time_ns() % 1000000000, time.gmtime().tm_year)";
    assert_eq!(
        said("sh", &["-c", &format!("true; python3 -c '{all}'")], &number),
        "1234567890 123000000 2009"
    );
    // By other functions.
    let perl = "use Time::HiRes qw(gettimeofday); my ($s, $us) = gettimeofday; print \"$s $us \", time";
    assert_eq!(said("perl", &["-e", perl], &number), "1234567890 123000 1234567890");
    // How long something takes, and what it waits for, is as it was.
    let takes = "import time; a = time.monotonic(); time.sleep(0.05); print(time.monotonic() - a >= 0.05)";
    assert_eq!(said("python3", &["-c", takes], &number), "True");
}

#[test]
fn who_waits_until_a_time_of_day_waits_as_long_as_it_says() {
    let waits = "
import ctypes, time
libc, deadline = ctypes.CDLL(None), (ctypes.c_long * 2)()
mutex, condition, semaphore = (ctypes.create_string_buffer(256) for _ in range(3))
libc.sem_init(semaphore, 0, 0)
libc.pthread_mutex_lock(mutex)
waits = [lambda: libc.sem_timedwait(semaphore, deadline),
         lambda: libc.pthread_cond_timedwait(condition, mutex, deadline),
         lambda: libc.pthread_cond_clockwait(condition, mutex, 0, deadline),
         lambda: libc.pthread_mutex_timedlock(mutex, deadline)]
for wait in waits:
    until = time.time_ns() + 50_000_000
    deadline[0], deadline[1] = until // 1_000_000_000, until % 1_000_000_000
    begun = time.monotonic()
    assert wait() != 0
    assert 0.04 <= time.monotonic() - begun < 20, wait
print('all')
";
    // In 2009, and in 2096.
    for time_us in [1_234_567_890_123_000, 4_000_000_000_123_000] {
        assert_eq!(said("python3", &["-c", waits], &page(time_us).as_raw_fd().to_string()), "all");
    }
}

#[test]
fn without_a_page_or_with_none_yet_it_has_that_of_the_machine() {
    let now_s = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let (empty, before) = (page(0), now_s());
    for clock in [empty.as_raw_fd().to_string(), "99".to_owned(), "nothing".to_owned()] {
        let said: u64 = said("date", &["+%s"], &clock).parse().unwrap();
        assert!((before..=now_s()).contains(&said), "{clock}: {said}");
    }
}
