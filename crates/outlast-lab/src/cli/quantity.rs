//! Reading times, fractions and rates.

use std::time::Duration;

pub(super) fn time(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| "write a time like 500ms, 2s or 1m30s".to_owned())
}

/// A fraction as `1%` or `0.01`.
pub(super) fn fraction(text: &str) -> Result<f64, String> {
    let wrong = || "write a share from 0% to 100%, like 1% or 0.01".to_owned();
    let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |percent| (percent, 100.0));
    let value = number.trim().parse::<f64>().map_err(|_| wrong())? / scale;
    if (0.0..=1.0).contains(&value) { Ok(value) } else { Err(wrong()) }
}

/// Bytes a second, from bits (`10mbit`) or bytes (`1.2MB`).
pub(super) fn rate(text: &str) -> Result<u64, String> {
    let wrong = || {
        "write a rate like 10mbit, 500kbit, 1gbit (bits) or 1.2MB, 300kB (bytes), each a second".to_owned()
    };
    let split = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(split);
    let bytes = match unit.strip_suffix("/s").unwrap_or(unit) {
        "kbit" => 125.0,
        "mbit" | "Mbit" => 125e3,
        "gbit" | "Gbit" => 125e6,
        "B" => 1.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        _ => return Err(wrong()),
    };
    let value = number.trim().parse::<f64>().map_err(|_| wrong())? * bytes;
    if !(1.0..=1e15).contains(&value) {
        return Err(wrong());
    }
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to be from 1 to 1e15"
    )]
    Ok(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_read_both_ways() {
        assert_eq!(fraction("1%"), Ok(0.01));
        assert_eq!(fraction("0.25"), Ok(0.25));
        for wrong in ["", "%", "101%", "-1%", "much", "nan"] {
            assert!(fraction(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_are_read_in_bits_and_bytes() {
        assert_eq!(rate("10mbit"), Ok(1_250_000));
        assert_eq!(rate("1.2MB/s"), Ok(1_200_000));
        assert_eq!(rate("1gbit"), Ok(125_000_000));
        for wrong in ["", "10", "mbit", "-1MB", "0kbit", "10 parsecs", "nanMB"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }
}
