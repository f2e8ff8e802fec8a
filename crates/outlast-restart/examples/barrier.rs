//! A server with a handler of its own for faults, which it goes on behind, as those that touch pages before they have them: that
//! is no crash. `!abort` is one.
//!
//! `cargo run --example barrier -- 127.0.0.1:8080`, and say something in lines.
#![allow(clippy::print_stdout, reason = "a program")]

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

static PAGE: AtomicUsize = AtomicUsize::new(0);
static FAULTS: AtomicU64 = AtomicU64::new(0);
const PAGE_BYTES: usize = 4096;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listener = outlast_restart::listen(address)?;
    println!("listening on {}", listener.local_addr()?);
    handle_faults()?;
    let mut generation = outlast_restart::register()?;
    let number = generation.number();
    println!("generation {number} {}", std::process::id());
    for client in generation.incoming(&listener)? {
        let mut client = client?;
        while client.receive()? > 0 {
            while let Some(end) = client.input().iter().position(|&byte| byte == b'\n') {
                if client.input().starts_with(b"!abort") && number == 1 {
                    std::process::abort();
                }
                touch();
                let answer = format!("{number} {}\n", FAULTS.load(Ordering::SeqCst));
                client.write_all(answer.as_bytes())?;
                client.done(end + 1);
            }
        }
    }
    Ok(())
}

/// What is touched, and not there.
fn touch() {
    let page = PAGE.load(Ordering::SeqCst);
    // SAFETY: a page of our own that nobody else uses; the handler makes it one that can be written to.
    unsafe {
        libc::mprotect(std::ptr::without_provenance_mut(page), PAGE_BYTES, libc::PROT_NONE);
        std::ptr::with_exposed_provenance_mut::<u8>(page).write_volatile(1);
    }
}

extern "C" fn on_fault(_signal: i32, _info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    FAULTS.fetch_add(1, Ordering::SeqCst);
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: as above.
    unsafe {
        libc::mprotect(std::ptr::without_provenance_mut(PAGE.load(Ordering::SeqCst)), PAGE_BYTES, rights)
    };
}

fn handle_faults() -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_fault;
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a new mapping; zeroes are a sigaction, of which the rest is filled before it is used.
    unsafe {
        let page = libc::mmap(std::ptr::null_mut(), PAGE_BYTES, libc::PROT_NONE, flags, -1, 0);
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        PAGE.store(page.expose_provenance(), Ordering::SeqCst);
        let action = action.assume_init_mut();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO;
        if libc::sigaction(libc::SIGSEGV, action, std::ptr::null_mut()) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
