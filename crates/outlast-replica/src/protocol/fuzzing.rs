//! What must hold for all bytes that clients and servers may say.

use super::redis::{Replies, Requests};
use super::{Protocol, Questions};

/// Counts the same, in whatever pieces bytes come.
pub fn redis(bytes: &[u8]) {
    let Some((at, bytes)) = bytes.split_first() else { return };
    let (front, back) = bytes.split_at(usize::from(*at).min(bytes.len()));
    let mut parts = Requests::default();
    let counted = parts.count(front).and_then(|count| Some(count + parts.count(back)?));
    assert_eq!(counted, Requests::default().count(bytes));
    let mut questions = Questions::new(Protocol::Redis);
    for piece in [front, back] {
        questions.ask(piece);
        let instead = questions.instead_of(piece);
        assert!(instead.is_none_or(|instead| instead.len() == piece.len() && instead != piece));
    }
    let mut parts = Replies::default();
    let counted = parts.count(front).and_then(|count| Some(count + parts.count(back)?));
    assert_eq!(counted, Replies::default().count(bytes));
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]
mod tests {
    use super::redis;

    const SEEDS: [(&str, &[u8]); 5] = [
        ("refused", b"\x06*2\r\n$4\r\nSPOP\r\n$1\r\nx\r\nspop 'x'\r\n"),
        ("requests", b"\x05*2\r\n$3\r\nGET\r\n$1\r\nx\r\nping\r\n"),
        ("replies", b"\x09+OK\r\n$2\r\nab\r\n*2\r\n:1\r\n$-1\r\n"),
        ("resp3", b"\x03%1\r\n+a\r\n#t\r\n>1\r\n+m\r\n|1\r\n+b\r\n,1\r\n_\r\n"),
        ("nested", b"\x02*1\r\n*1\r\n*2\r\n~1\r\n(5\r\n=5\r\ntxt:a\r\n"),
    ];

    #[test]
    fn the_corpus_has_all_seeds_and_changes_to_them_mislead_nobody() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/redis");
        for (name, bytes) in SEEDS {
            let path = folder.join(name);
            if std::env::var_os("OUTLAST_WRITE_CORPUS").is_some() {
                std::fs::create_dir_all(&folder).unwrap();
                std::fs::write(&path, bytes).unwrap();
            }
            assert_eq!(std::fs::read(&path).unwrap(), bytes, "run with OUTLAST_WRITE_CORPUS=1");
        }
        for entry in std::fs::read_dir(&folder).unwrap() {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            for at in 0..bytes.len() {
                for value in 0..=255 {
                    let mut changed = bytes.clone();
                    changed[at] = value;
                    redis(&changed);
                }
            }
        }
    }
}
