//! Ways to crash, for those who want to see that nobody does: with `--crashes` alone.

/// Does not return.
pub fn crash(how: &[u8]) -> ! {
    match how {
        b"segv" => {
            let nowhere = std::hint::black_box(std::ptr::null_mut::<u8>());
            // SAFETY: none. That is what it is for.
            unsafe { nowhere.write_volatile(1) };
        }
        b"exit" => std::process::exit(3),
        b"hang" => loop {
            std::hint::spin_loop();
        },
        b"oom" => {
            let mut all = Vec::new();
            loop {
                all.push(std::hint::black_box(vec![1u8; 64 << 20]));
            }
        }
        #[allow(clippy::panic, reason = "asked for")]
        b"panic" => panic!("a client has asked for it"),
        _ => {}
    }
    std::process::abort()
}
