//! Signals by their names, and the ends of programs.

use outlast_restart::Death;

const SIGNALS: [(i32, &str); 19] = [
    (libc::SIGHUP, "HUP"),
    (libc::SIGINT, "INT"),
    (libc::SIGQUIT, "QUIT"),
    (libc::SIGILL, "ILL"),
    (libc::SIGTRAP, "TRAP"),
    (libc::SIGABRT, "ABRT"),
    (libc::SIGBUS, "BUS"),
    (libc::SIGFPE, "FPE"),
    (libc::SIGKILL, "KILL"),
    (libc::SIGUSR1, "USR1"),
    (libc::SIGSEGV, "SEGV"),
    (libc::SIGUSR2, "USR2"),
    (libc::SIGPIPE, "PIPE"),
    (libc::SIGALRM, "ALRM"),
    (libc::SIGTERM, "TERM"),
    (libc::SIGXCPU, "XCPU"),
    (libc::SIGXFSZ, "XFSZ"),
    (libc::SIGWINCH, "WINCH"),
    (libc::SIGSYS, "SYS"),
];

/// A signal's number, by its number or its name, with or without SIG.
pub fn signal(text: &str) -> Result<i32, String> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let known = SIGNALS.iter().find(|(_, known)| *known == name).map(|(number, _)| *number);
    let number = name.parse().ok().filter(|number| (1..=64).contains(number));
    known.or(number).ok_or_else(|| format!("{text:?} is no signal: give one such as TERM, QUIT or USR1"))
}

/// A program's end: an exit code, or a signal by name.
pub fn ending(text: &str) -> Result<Death, String> {
    if let Ok(code) = text.parse::<u8>() {
        return Ok(Death::Exited(code.into()));
    }
    let wrong = |_| format!("{text:?} is neither an exit code (0 to 255) nor a signal such as TERM");
    signal(text).map(Death::Signal).map_err(wrong)
}

/// An exit code as a shell tells the death by a signal stands for that, too.
pub fn with_signals(endings: &[Death]) -> impl Iterator<Item = Death> {
    endings.iter().flat_map(|&ending| {
        let signal = match ending {
            Death::Exited(code @ 129..=192) => Some(Death::Signal(code - 128)),
            _ => None,
        };
        [Some(ending), signal].into_iter().flatten()
    })
}

/// A signal as people call it.
pub fn signal_name(number: i32) -> String {
    let known = SIGNALS.iter().find(|(known, _)| *known == number);
    known.map_or_else(|| format!("signal {number}"), |(_, name)| format!("SIG{name}"))
}

/// How a process has ended, in a word or two.
pub fn how(death: Death) -> String {
    match death {
        Death::Exited(code) => format!("exit {code}"),
        Death::Signal(number) => signal_name(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_and_codes_are_read_and_named() {
        for (text, number) in [("TERM", 15), ("sigterm", 15), ("SIGUSR1", 10), ("9", 9)] {
            assert_eq!(signal(text), Ok(number));
        }
        for text in ["", "SIG", "TERMINATE", "0", "65", "-9"] {
            assert!(signal(text).unwrap_err().contains("no signal"), "{text}");
        }
        assert_eq!((ending("143"), ending("HUP")), (Ok(Death::Exited(143)), Ok(Death::Signal(1))));
        assert!(ending("256").unwrap_err().contains("neither"));
        let meant: Vec<Death> = with_signals(&[Death::Exited(0), Death::Exited(143)]).collect();
        assert_eq!(meant, [Death::Exited(0), Death::Exited(143), Death::Signal(15)]);
        assert_eq!((how(Death::Signal(11)), how(Death::Exited(3))), ("SIGSEGV".into(), "exit 3".into()));
    }
}
