//! A user name and a password, as SOCKS and HTTP carry them.

use subtle::ConstantTimeEq;

/// What a local program has to present to a front end.
#[derive(Clone)]
pub struct Credentials {
    user: String,
    password: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

impl Credentials {
    /// From `user:password`, each of 1 to 255 bytes.
    ///
    /// # Errors
    /// When the text has another form.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let (user, password) = text.split_once(':').ok_or("expected user:password")?;
        if !(1..=255).contains(&user.len()) || !(1..=255).contains(&password.len()) {
            return Err("user and password have 1 to 255 bytes each");
        }
        Ok(Self { user: user.to_owned(), password: password.to_owned() })
    }

    /// Compares without telling by its duration how much agreed.
    #[must_use]
    pub fn matches(&self, user: &[u8], password: &[u8]) -> bool {
        let user = self.user.as_bytes().ct_eq(user);
        let password = self.password.as_bytes().ct_eq(password);
        (user & password).into()
    }

    /// Compares with the value of an HTTP `Basic` authorization.
    #[must_use]
    pub fn matches_basic(&self, encoded: &[u8]) -> bool {
        let expected = base64(format!("{}:{}", self.user, self.password).as_bytes());
        expected.as_bytes().ct_eq(encoded).into()
    }
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits =
            group.iter().enumerate().fold(0_u32, |bits, (at, byte)| bits | u32::from(*byte) << (16 - 8 * at));
        for place in 0..4 {
            if place <= group.len() {
                let sextet = (bits >> (18 - 6 * place)) & 63;
                text.push(ALPHABET.get(sextet as usize).copied().map_or('=', char::from));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_rfc_4648() {
        for (plain, encoded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(plain.as_bytes()), encoded);
        }
    }

    #[test]
    fn only_the_right_user_with_the_right_password_matches() {
        let credentials = Credentials::parse("ann:se:cret").unwrap();
        assert!(credentials.matches(b"ann", b"se:cret"));
        assert!(!credentials.matches(b"ann", b"se:cre"));
        assert!(!credentials.matches(b"bob", b"se:cret"));
        assert!(credentials.matches_basic(b"YW5uOnNlOmNyZXQ="));
        assert!(!credentials.matches_basic(b"YW5uOnNlOmNyZXQ"));
        assert!(Credentials::parse("ann").is_err() && Credentials::parse(":x").is_err());
        assert!(!format!("{credentials:?}").contains("cret"));
    }
}
