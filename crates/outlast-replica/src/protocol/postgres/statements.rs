//! What is known of a statement of PostgreSQL without understanding it: whether its result follows from the data, and whether it would leave servers
//! with different data. Words decide: those outside of strings and of comments.

use super::replies::Compare;

/// Functions that have another value at each server, and at each call. What writes one is refused.
const BY_CHANCE: &[&str] = &[
    "RANDOM",
    "RANDOM_NORMAL",
    "GEN_RANDOM_UUID",
    "GEN_RANDOM_BYTES",
    "GEN_SALT",
    "PGP_PUB_ENCRYPT",
    "PGP_PUB_ENCRYPT_BYTEA",
    "PGP_SYM_ENCRYPT",
    "PGP_SYM_ENCRYPT_BYTEA",
    "UUIDV4",
    "UUIDV7",
    "UUID_GENERATE_V1",
    "UUID_GENERATE_V1MC",
    "UUID_GENERATE_V4",
];
/// Those that are about the server, its files, its numbers of transactions, or the connection.
const BY_SERVER: &[&str] = &[
    "PG_BACKEND_PID",
    "PG_CURRENT_SNAPSHOT",
    "PG_CURRENT_WAL_INSERT_LSN",
    "PG_CURRENT_WAL_LSN",
    "PG_CURRENT_XACT_ID",
    "PG_CURRENT_XACT_ID_IF_ASSIGNED",
    "PG_LS_DIR",
    "PG_POSTMASTER_START_TIME",
    "PG_READ_BINARY_FILE",
    "PG_READ_FILE",
    "PG_STAT_FILE",
    "TXID_CURRENT",
    "TXID_CURRENT_IF_ASSIGNED",
    "TXID_CURRENT_SNAPSHOT",
    "INET_CLIENT_PORT",
    "INET_CLIENT_ADDR",
    "INET_SERVER_ADDR",
    "INET_SERVER_PORT",
    "LO_CREAT",
    "LO_CREATE",
    "LO_EXPORT",
    "LO_FROM_BYTEA",
    "LO_IMPORT",
    "PG_EXPORT_SNAPSHOT",
    "PG_DATABASE_SIZE",
    "PG_RELATION_SIZE",
    "PG_TOTAL_RELATION_SIZE",
    "VERSION",
];
/// Columns of each table that are about the server: places of rows, and numbers of transactions.
const COLUMNS: &[&str] = &["CTID", "XMIN", "XMAX"];
/// Refused wherever they are.
const SIGNALS: &[&str] =
    &["PG_CANCEL_BACKEND", "PG_TERMINATE_BACKEND", "PG_RELOAD_CONF", "PG_ROTATE_LOGFILE"];
/// Those that ask another server.
const OTHERS: &[&str] =
    &["DBLINK", "DBLINK_CONNECT", "DBLINK_CONNECT_U", "DBLINK_EXEC", "DBLINK_OPEN", "DBLINK_SEND_QUERY"];
/// They end by the time of day, which stands still while the server works.
const SLEEPS: &[&str] = &["PG_SLEEP", "PG_SLEEP_FOR", "PG_SLEEP_UNTIL"];
/// Where one of these is, the result may be another one at each server: by the time, the server, or the order of rows.
const NOT_COMPARED: &[&str] = &[
    "NOW",
    "CLOCK_TIMESTAMP",
    "CURRENT_DATE",
    "CURRENT_TIME",
    "CURRENT_TIMESTAMP",
    "LOCALTIME",
    "LOCALTIMESTAMP",
    "STATEMENT_TIMESTAMP",
    "TIMEOFDAY",
    "TRANSACTION_TIMESTAMP",
    "AGE",
    "LIMIT",
    "OFFSET",
    "FETCH",
    "OVER",
    "GROUP",
    "DISTINCT",
    "TABLESAMPLE",
    "ARRAY_AGG",
    "STRING_AGG",
    "JSON_AGG",
    "JSONB_AGG",
    "JSON_OBJECT_AGG",
    "JSONB_OBJECT_AGG",
    "XMLAGG",
    // Sums of floating numbers depend on the order of rows.
    "SUM",
    "AVG",
    "STDDEV",
    "STDDEV_POP",
    "STDDEV_SAMP",
    "VARIANCE",
    "VAR_POP",
    "VAR_SAMP",
    "CORR",
    "COVAR_POP",
    "COVAR_SAMP",
    "INFORMATION_SCHEMA",
    "OID",
    "TABLEOID",
    "EXECUTE",
    "CALL",
    "DO",
    "VERSION",
];
/// The catalogue, and functions about it.
const CATALOGUE: &[u8] = b"PG_";
/// Statements that read, and begin so. Results of those behind these are not compared.
const READS: &[&str] = &["SELECT", "WITH", "VALUES", "TABLE"];
const READS_ABOUT_SERVER: &[&str] = &["SHOW", "EXPLAIN"];
/// One that was ended by an error has had no effect.
const REPEATABLE: &[&str] = &["SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "WITH", "VALUES", "TABLE"];
/// One that has one of these may write, however it begins.
const WRITES: &[&str] = &[
    "INTO",
    "UPDATE",
    "DELETE",
    "INSERT",
    "MERGE",
    "SET",
    "CREATE",
    "ALTER",
    "DROP",
    "TRUNCATE",
    "CALL",
    "DO",
    "GRANT",
    "EXECUTE",
    "NEXTVAL",
    "SETVAL",
    "COPY",
    "SET_CONFIG",
    "LO_CREATE",
    "PREPARE",
];
/// What follows these is a name, and no call.
const BEFORE_NAMES: &[&str] = &[
    "INTO",
    "TABLE",
    "INDEX",
    "REFERENCES",
    "UPDATE",
    "EXISTS",
    "AS",
    "CONSTRAINT",
    "PROCEDURE",
    "FUNCTION",
    "VIEW",
    "TRIGGER",
];
/// They end what may hold locks for longer than a transaction.
const ADVISORY: &[u8] = b"ADVISORY";

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Goes(Compare),
    /// Every server would do something else. Clients are told this.
    Refused(&'static str),
}

const CHANCE: &str = "a function that has another value at each server (random, gen_random_uuid and the like), in a statement that writes";
const SERVER: &str = "what is another one at each server (ctid, xmin, txid_current, pg_backend_pid and the like), in a statement that writes";
const FILES: &str = "COPY with a file or a program of the server: they may be other ones at each";
const SIGNAL: &str = "pg_cancel_backend and the like: a connection has another number at each server";
const OUTSIDE: &str = "what is done at another server: each server would do it once";
const UNICODE: &str = "a name with the numbers of its letters (U&): it is not known which one it is";
/// How such a name begins.
const UNICODE_NAME: &[u8] = b"U&\"";
const SLEEP: &str = "pg_sleep: the time of servers stands still while they work, so it would never end";
const NOTIFY: &str = "LISTEN: each server would notify at another place among its replies";
const PASSWORD: &str = "a password in clear: each server would salt it otherwise. Give what a server keeps of it: psql does so with \\password";

/// Of these statements.
pub(super) fn verdict(sql: &[u8]) -> Verdict {
    if sql.windows(UNICODE_NAME.len()).any(|window| window.eq_ignore_ascii_case(UNICODE_NAME)) {
        return Verdict::Refused(UNICODE);
    }
    let mut words = Words { stops: true, ..Words::new(sql) };
    let mut all = Verdict::Goes(Compare::All);
    loop {
        match one(&mut words) {
            Some(refused @ Verdict::Refused(_)) => return refused,
            Some(Verdict::Goes(Compare::Form)) => all = Verdict::Goes(Compare::Form),
            Some(Verdict::Goes(Compare::All)) => {}
            None => return all,
        }
    }
}

/// Of the next one.
fn one(words: &mut Words<'_>) -> Option<Verdict> {
    let mut first: Option<Word<'_>> = None;
    let (mut before, mut second) = (Word::default(), Word::default());
    let (mut is_known, mut writes_it, mut refused, mut count) = (true, false, None, 0);
    let (mut has_client, mut names_password, mut is_salted) = (false, false, false);
    while let Some(word) = words.next() {
        if first.is_none() {
            first = Some(word);
        }
        count += 1;
        if count == 2 {
            second = word;
        }
        let is_first = count == 1;
        if is_first && word.is("LISTEN") {
            return Some(Verdict::Refused(NOTIFY));
        }
        let is_name = !words.is_punctuated && before.is_in(BEFORE_NAMES);
        let is_call = words.is_call() && !is_name;
        if is_call && word.is_in(SIGNALS) {
            return Some(Verdict::Refused(SIGNAL));
        }
        if is_call && word.is_in(OTHERS) {
            return Some(Verdict::Refused(OUTSIDE));
        }
        if word.is("TABLESAMPLE") {
            refused = refused.or(Some(CHANCE));
        }
        if is_call && word.is_in(SLEEPS) {
            return Some(Verdict::Refused(SLEEP));
        }
        if is_call && word.is_in(BY_CHANCE) {
            (refused, is_known) = (refused.or(Some(CHANCE)), false);
        }
        let is_column = word.is_in(COLUMNS) && first.is_some_and(|first| !first.is("CREATE"));
        if is_call && word.is_in(BY_SERVER) || is_column {
            (refused, is_known) = (refused.or(Some(SERVER)), false);
        }
        has_client |= word.is("STDIN") || word.is("STDOUT");
        if before.is("PASSWORD") && word.is("NULL") {
            is_salted = true;
        }
        names_password |= word.is("PASSWORD");
        if names_password && words.text_begins(&["SCRAM-SHA-256$", "md5"]) {
            is_salted = true;
        }
        writes_it |= !word.is_quoted && word.is_in(WRITES);
        let is_catalogue =
            word.text.get(..CATALOGUE.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(CATALOGUE));
        is_known &= !word.is_in(NOT_COMPARED) && !is_catalogue;
        before = word;
    }
    let Some(first) = first else {
        return (!words.rest.is_empty()).then_some(Verdict::Goes(Compare::All));
    };
    if first.is("COPY") && !has_client {
        return Some(Verdict::Refused(FILES));
    }
    if first.is("CREATE") && second.is("SUBSCRIPTION") {
        return Some(Verdict::Refused(OUTSIDE));
    }
    let is_of_role = (first.is("CREATE") || first.is("ALTER")) && second.is_in(&["USER", "ROLE", "GROUP"]);
    if is_of_role && names_password && !is_salted {
        return Some(Verdict::Refused(PASSWORD));
    }
    let reads = !writes_it && (first.is_in(READS) || first.is_in(READS_ABOUT_SERVER) || first.is("COPY"));
    Some(match refused {
        Some(why) if !reads => Verdict::Refused(why),
        _ if first.is_in(READS_ABOUT_SERVER) => Verdict::Goes(Compare::Form),
        _ => Verdict::Goes(if is_known { Compare::All } else { Compare::Form }),
    })
}

/// Whether it has had no effect if it was ended by an error, and does the same if it comes again: one statement, outside of a transaction.
pub(super) fn is_repeatable(sql: &[u8]) -> bool {
    let mut words = Words::new(sql);
    let Some(first) = words.next() else { return false };
    let mut is_one = first.is_in(REPEATABLE) && !names_locks(sql);
    while words.next().is_some() {
        is_one &= !words.is_behind;
    }
    is_one
}

/// Whether it may lock something for longer than a transaction.
pub(super) fn names_locks(sql: &[u8]) -> bool {
    sql.windows(ADVISORY.len()).any(|window| window.eq_ignore_ascii_case(ADVISORY))
}

/// One word of a statement, without the quotes of a name.
#[derive(Clone, Copy, Debug, Default)]
struct Word<'a> {
    text: &'a [u8],
    is_quoted: bool,
}

impl Word<'_> {
    fn is(&self, other: &str) -> bool {
        self.text.eq_ignore_ascii_case(other.as_bytes())
    }

    fn is_in(&self, list: &[&str]) -> bool {
        list.iter().any(|other| self.is(other))
    }
}

/// The words of statements.
struct Words<'a> {
    rest: &'a [u8],
    /// Something comes behind a semicolon.
    is_behind: bool,
    /// Something is between the last two words: a bracket, a comma.
    is_punctuated: bool,
    /// A semicolon is an end.
    stops: bool,
}

impl<'a> Words<'a> {
    fn new(sql: &'a [u8]) -> Self {
        Self { rest: sql, is_behind: false, is_punctuated: false, stops: false }
    }

    /// Whether a bracket follows, behind blanks and comments.
    fn is_call(&self) -> bool {
        let mut words = Words::new(self.rest);
        words.skip_blank();
        words.rest.first() == Some(&b'(')
    }

    /// Whether a string follows that begins with one of these.
    fn text_begins(&self, with: &[&str]) -> bool {
        let mut words = Words::new(self.rest);
        words.skip_blank();
        let text = words.rest.strip_prefix(b"'");
        text.is_some_and(|text| with.iter().any(|with| text.starts_with(with.as_bytes())))
    }

    fn skip(&mut self, count: usize) {
        self.rest = self.rest.get(count..).unwrap_or_default();
    }

    /// Up to what ends with that.
    fn skip_behind(&mut self, end: &[u8]) {
        let at = self.rest.windows(end.len()).position(|window| window == end);
        self.skip(at.map_or(self.rest.len(), |at| at + end.len()));
    }

    /// Comments within comments are counted.
    fn skip_comment(&mut self) {
        let mut depth = 0_u32;
        loop {
            match *self.rest {
                [b'/', b'*', ..] => (depth, self.rest) = (depth + 1, self.rest.get(2..).unwrap_or_default()),
                [b'*', b'/', ..] => (depth, self.rest) = (depth - 1, self.rest.get(2..).unwrap_or_default()),
                [_, ..] => self.skip(1),
                [] => return,
            }
            if depth == 0 {
                return;
            }
        }
    }

    /// Up to the end of what is quoted so: that.
    fn quoted(&mut self, quote: u8, escapes: bool) -> &'a [u8] {
        self.skip(1);
        let mut end = 0;
        while let Some(byte) = self.rest.get(end) {
            let is_doubled = *byte == quote && self.rest.get(end + 1) == Some(&quote);
            if is_doubled || escapes && *byte == b'\\' {
                end += 1;
            } else if *byte == quote {
                break;
            }
            end += 1;
        }
        let end = end.min(self.rest.len());
        let text = self.rest.get(..end).unwrap_or_default();
        self.skip(end + 1);
        text
    }

    fn skip_blank(&mut self) {
        loop {
            match *self.rest {
                [byte, ..] if byte.is_ascii_whitespace() || byte.is_ascii_control() => self.skip(1),
                [b'-', b'-', ..] => {
                    let end = self.rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
                    self.skip(end.unwrap_or(self.rest.len()));
                }
                [b'/', b'*', ..] => self.skip_comment(),
                _ => return,
            }
        }
    }

    /// A string between dollars begins here: with which mark.
    fn dollar_mark(&self) -> Option<&'a [u8]> {
        let rest = self.rest.strip_prefix(b"$")?;
        let end =
            rest.iter().position(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_' && *byte < 0x80)?;
        let is_mark = rest.get(end) == Some(&b'$') && !rest.first()?.is_ascii_digit();
        is_mark.then(|| self.rest.get(..end + 2)).flatten()
    }

    fn next(&mut self) -> Option<Word<'a>> {
        self.is_punctuated = false;
        loop {
            self.skip_blank();
            let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte >= 0x80;
            if let Some(mark) = self.dollar_mark() {
                self.skip(mark.len());
                self.skip_behind(mark);
                continue;
            }
            match *self.rest {
                [] => return None,
                [b'e' | b'E', b'\'', ..] => {
                    self.skip(1);
                    self.quoted(b'\'', true);
                    // It goes on in the next line.
                    while let blank = self.rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count()
                        && self.rest.get(blank) == Some(&b'\'')
                        && self.rest.iter().take(blank).any(|byte| matches!(byte, b'\n' | b'\r'))
                    {
                        self.skip(blank);
                        self.quoted(b'\'', true);
                    }
                }
                [b'\'', ..] => {
                    self.quoted(b'\'', false);
                }
                [b'"', ..] => return Some(Word { text: self.quoted(b'"', false), is_quoted: true }),
                [b';', ..] => {
                    self.skip(1);
                    self.skip_blank();
                    self.is_behind |= !self.rest.is_empty();
                    if self.stops {
                        return None;
                    }
                }
                [byte, ..] if is_word(&byte) => {
                    // A dollar may be in a name, and not in front of it.
                    let is_in = |byte: &u8| is_word(byte) || *byte == b'$';
                    let end = self.rest.iter().position(|byte| !is_in(byte)).unwrap_or(self.rest.len());
                    let (text, rest) = self.rest.split_at(end);
                    self.rest = rest;
                    return Some(Word { text, is_quoted: false });
                }
                _ => {
                    self.is_punctuated = true;
                    self.skip(1);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_that_every_server_would_do_otherwise_are_refused() {
        for sql in [
            "INSERT INTO t VALUES (gen_random_uuid())",
            "insert into t select random () from u",
            "create table t (a uuid default gen_random_uuid())",
            "select random() into t",
            "with x as (select 1) update t set a = random()",
            "/* of /* mine */ */ update t set a = random()",
            "select 1; update t set a = random()",
            "delete from t a using t b where a.ctid < b.ctid",
            "update t set a = 1 where xmin = 5",
            "insert into t values (txid_current())",
            "select pg_terminate_backend(5)",
            "select pg_sleep(1)",
            "set x = 'y'; listen c",
            "unlisten *; listen c",
            "select f('x'); copy t from '/tmp/f'",
            "select (1); create role r password 'x'",
            "; listen c",
            "-- x\rinsert into t values (random())",
            "insert into t values (E'it''s \\'', random())",
            "insert into t values (E'a'\n'\\'', random())",
            "insert into t values ('it''s', random())",
            "insert into t values (U&\"r\\0061ndom\"())",
            "insert into t select * from u tablesample bernoulli (10)",
            "select dblink_exec('x', 'y')",
            "create subscription s connection 'x' publication p",
            "copy t from '/tmp/x'",
            "copy t to program 'cat'",
            "listen c",
            "select 1; LISTEN c",
            "create role r login password 'x'",
            "alter user r with encrypted password 'x'",
            "insert into t values (E'\\'', random())",
            "insert into t values ($$it's$$, random())",
            "insert into t values (pg_catalog.random())",
        ] {
            assert!(matches!(verdict(sql.as_bytes()), Verdict::Refused(_)), "{sql}");
        }
    }

    #[test]
    fn results_that_may_differ_are_not_compared_and_nothing_else_is_refused() {
        for sql in [
            "select random()",
            "select now()",
            "select * from t limit 1",
            "show all",
            "explain select 1",
            "select * from pg_class",
            "insert into t values (now())",
            "select a, b from t group by a",
            "select avg(a) from t",
            "select ctid, * from t",
            "select 1; select now()",
        ] {
            assert_eq!(verdict(sql.as_bytes()), Verdict::Goes(Compare::Form), "{sql}");
        }
        for sql in [
            "select * from t where a = 'now() it''s random()'",
            "insert into t values ('random()', 1)",
            "insert into t values ($a$ random() $a$, $1)",
            "insert into t values (1) -- random()",
            "insert into t /* random() /* x */ random() */ values (1)",
            "insert into random (a) values (1)",
            "create role r password 'SCRAM-SHA-256$4096:a$b:c'",
            "alter role r password null",
            "copy t from stdin",
            "copy (select 1) to stdout",
            "begin",
            "commit",
            "notify c",
            "select a::text, b$c from t where x = $1;",
            "set x = 'y'; select 1; ; notify c;",
            "",
        ] {
            assert_eq!(verdict(sql.as_bytes()), Verdict::Goes(Compare::All), "{sql}");
        }
    }

    #[test]
    fn one_that_was_ended_is_said_again_only_where_it_had_no_effect() {
        for sql in ["select 1", "UPDATE t SET a = 1;", "with x as (select 1) select * from x"] {
            assert!(is_repeatable(sql.as_bytes()), "{sql}");
        }
        for sql in
            ["commit", "call p()", "vacuum", "update t set a = 1; select 1", "select pg_advisory_lock(1)", ""]
        {
            assert!(!is_repeatable(sql.as_bytes()), "{sql}");
        }
    }
}
