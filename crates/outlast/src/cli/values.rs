//! Values of flags: sizes, times, numbers, addresses.

use outlast_session::Scoped;
use std::net::{AddrParseError, SocketAddr};
use std::time::Duration;
use tracing_subscriber::filter::LevelFilter;

/// A process of our own that a command starts: what the environment says of the log may be what only `--log` has made up for.
pub fn with_usable_log_filter(command: &mut std::process::Command) -> &mut std::process::Command {
    const NAME: &str = "OUTLAST_LOG";
    match std::env::var_os(NAME) {
        Some(filter) if filter.to_str().is_none_or(|filter| log_filter(filter).is_err()) => {
            command.env_remove(NAME)
        }
        _ => command,
    }
}

/// Checks what the parser of filters takes for something else than was meant: a level that is misspelt or missing.
pub fn log_filter(text: &str) -> Result<String, String> {
    let level = |text: &str| !text.is_empty() && text.parse::<LevelFilter>().is_ok();
    let target =
        |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "_:-".contains(c));
    for directive in text.split(',').map(str::trim).filter(|directive| !directive.is_empty()) {
        let known = match directive.split_once('=') {
            Some((of, at)) => target(of) && level(at),
            None => level(directive),
        };
        if !known {
            return Err(format!(
                "{directive:?} is neither a level (off, error, warn, info, debug, trace) nor one for a part, such as \
                 outlast_session=debug"
            ));
        }
    }
    Ok(text.to_owned())
}

/// An address without a name to resolve.
pub fn own_address(text: &str) -> Result<SocketAddr, String> {
    match Scoped::parse(text) {
        Some(scoped) => scoped.resolve().map_err(|error| error.to_string()),
        // Names would have to be looked up: an address is one of this machine.
        None => text.parse().map_err(|_: AddrParseError| {
            format!("{text:?} is no address with a port from 0 to 65535: give one such as 127.0.0.1:9100 or [::1]:9100")
        }),
    }
}

/// A time with a unit.
pub fn duration(text: &str) -> Result<Duration, String> {
    if text.starts_with('-') && text.chars().any(|character| character.is_ascii_digit()) {
        return Err(format!("{text:?} is less than no time: give a number without a sign, such as 30s"));
    }
    let wrong = || format!("{text:?} is no time: give a number with a unit, such as 500ms, 30s or 24h");
    humantime::parse_duration(text).map_err(|_| wrong())
}

/// A time, or `forever`.
pub fn patience(text: &str) -> Result<outlast_session::Patience, String> {
    match text {
        "forever" => Ok(outlast_session::Patience::Forever),
        _ => match duration(text) {
            Ok(Duration::ZERO) => {
                Err("the first connection takes some time, too: give it more than none".into())
            }
            Ok(time) => Ok(outlast_session::Patience::For(time)),
            Err(error) => Err(format!("{error}, or forever")),
        },
    }
}

/// A number from 1.
pub fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| format!("{text:?} is no number from 1"))
}

/// A number of bytes, with K, M or G if one likes.
pub fn byte_count(text: &str) -> Result<usize, String> {
    let wrong = || format!("{text:?} is no size: give bytes, or a number with K, M or G");
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = text.get(digits.len()..).unwrap_or_default();
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err(wrong()),
    };
    let number: usize = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// A time that is not 0.
pub fn more_than_none(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("it takes more time than none".into()),
        time => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_times_and_patience_are_read() {
        assert_eq!(byte_count("65536"), Ok(65536));
        assert_eq!(byte_count("4160K"), Ok(4160 << 10));
        assert_eq!(byte_count("4MiB"), Ok(4 << 20));
        assert!(byte_count("4X").is_err() && byte_count("").is_err() && byte_count("99999999999G").is_err());
        assert_eq!(duration("1m 30s"), Ok(Duration::from_secs(90)));
        assert_eq!(patience("forever"), Ok(outlast_session::Patience::Forever));
        assert!(patience("soon").unwrap_err().contains("forever"));
        assert!(patience("0s").unwrap_err().contains("more than none"));
    }

    #[test]
    fn filters_name_levels() {
        for text in ["info", "WARN", "off", "outlast_session=debug", "warn, outlast_session::relay=trace", ""]
        {
            assert_eq!(log_filter(text).as_deref(), Ok(text));
        }
        for text in
            ["bogus", "bogus=", "=debug", "==", "info,bogus=", "outlast=inof", "a b=info", "info=x=debug"]
        {
            assert!(log_filter(text).unwrap_err().contains("neither a level"), "{text}");
        }
    }
}
