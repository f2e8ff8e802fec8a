//! What is known of a statement of SQL without understanding it: whether its result follows from the data, and whether it would leave servers with
//! different data. Words decide: those outside of strings, of comments and of quoted names.

use super::Holds;
use super::replies::Compare;

/// Functions that have another value at each server, and at each call. What writes one is refused.
const BY_CHANCE: &[&str] = &["UUID", "UUID_SHORT", "UUID_V4", "UUID_V7", "SYS_GUID", "RAND", "RANDOM_BYTES"];
/// Those that are about the server, its files, or the connection.
const BY_SERVER: &[&str] = &["CONNECTION_ID", "LOAD_FILE", "IS_USED_LOCK", "VERSION"];
/// The same of variables of the system.
const VARIABLES: &[&str] =
    &["HOSTNAME", "SERVER_ID", "SERVER_UID", "PSEUDO_THREAD_ID", "RAND_SEED1", "RAND_SEED2", "VERSION"];
/// Where one of these is, the result may be another one at each server: by the time, the server, or the order of rows.
const NOT_COMPARED: &[&str] = &[
    "NOW",
    "SYSDATE",
    "CURDATE",
    "CURTIME",
    "CURRENT_DATE",
    "CURRENT_TIME",
    "CURRENT_TIMESTAMP",
    "LOCALTIME",
    "LOCALTIMESTAMP",
    "UNIX_TIMESTAMP",
    "UTC_DATE",
    "UTC_TIME",
    "UTC_TIMESTAMP",
    "BENCHMARK",
    "SLEEP",
    "GET_LOCK",
    "USER",
    "CURRENT_USER",
    "LIMIT",
    "FETCH",
    "ROWNUM",
    "OVER",
    "GROUP",
    "GROUP_CONCAT",
    "JSON_ARRAYAGG",
    "JSON_OBJECTAGG",
    "INFORMATION_SCHEMA",
    "PERFORMANCE_SCHEMA",
    "MYSQL",
    "SYS",
    "EXECUTE",
    "CALL",
    "PROFILE",
];
/// Databases that are about the server.
const ABOUT_SERVER: &[&str] = &["INFORMATION_SCHEMA", "PERFORMANCE_SCHEMA", "MYSQL", "SYS"];
/// Statements that read, and begin so. Results of those behind these are not compared.
const READS: &[&str] = &["SELECT", "WITH", "VALUES", "TABLE"];
const READS_ABOUT_SERVER: &[&str] =
    &["SHOW", "EXPLAIN", "DESCRIBE", "DESC", "HELP", "ANALYZE", "CHECK", "CHECKSUM"];
const REPEATABLE: &[&str] =
    &["SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE", "WITH", "SHOW", "EXPLAIN", "DESCRIBE", "DESC"];
/// What one says of these may be about the statement before it, which another one, and be it the same, comes between.
const ABOUT_LAST: &[&str] = &[
    "LAST_INSERT_ID",
    "ROW_COUNT",
    "FOUND_ROWS",
    "IDENTITY",
    "INSERT_ID",
    "WARNING_COUNT",
    "ERROR_COUNT",
    "RELEASE_LOCK",
    "RELEASE_ALL_LOCKS",
];
/// One that has one of these may write, however it begins; or what it reads may be locked.
const WRITES: &[&str] = &[
    "INTO", "UPDATE", "DELETE", "INSERT", "REPLACE", "SET", "CREATE", "ALTER", "DROP", "TRUNCATE", "RENAME",
    "CALL", "DO", "GRANT", "EXECUTE", "SHARE", "LOCK", "NEXTVAL", "SETVAL",
];
/// What follows these is a name, and no call.
const BEFORE_NAMES: &[&str] = &[
    "INTO",
    "TABLE",
    "KEY",
    "INDEX",
    "UNIQUE",
    "REFERENCES",
    "UPDATE",
    "FROM",
    "JOIN",
    "EXISTS",
    "AS",
    "CONSTRAINT",
    "PROCEDURE",
    "FUNCTION",
    "VIEW",
    "TRIGGER",
];

/// Within so many words CREATE says what it makes: CREATE OR REPLACE UNIQUE INDEX.
const CREATE_WORDS: usize = 4;

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Goes(Compare),
    /// Every server would do something else. Clients are told this.
    Refused(&'static str),
}

pub(super) const KILL: &str = "KILL: a connection has another number at each server";
const CHANCE: &str =
    "a function that has another value at each server (UUID, RAND and the like), in a statement that writes";
const SERVER: &str =
    "CONNECTION_ID or LOAD_FILE, in a statement that writes: it is another one at each server";
const FILES: &str = "LOAD DATA and LOAD XML: files may be other ones at each server";

/// Of this statement.
pub(super) fn verdict(sql: &[u8]) -> Verdict {
    let mut words = Words::new(sql);
    let (mut first, mut before) = (None, Word::default());
    let (mut is_known, mut writes_it, mut refused) = (true, false, None);
    let (mut names_table, mut count) = (false, 0);
    while let Some(word) = words.next() {
        first = first.or(Some(word));
        let follows_dot = before.ends_with_dot;
        if !word.is_quoted && !follows_dot && word.is("KILL") {
            return Verdict::Refused(KILL);
        }
        // CREATE INDEX a ON t (b), CREATE TRIGGER a BEFORE INSERT ON t.
        let creates = first.is_some_and(|first: Word<'_>| first.is("CREATE"));
        names_table |= creates && count <= CREATE_WORDS && (word.is("INDEX") || word.is("TRIGGER"));
        count += 1;
        if before.is("LOAD") && (word.is("DATA") || word.is("XML")) {
            return Verdict::Refused(FILES);
        }
        let is_name = !words.is_punctuated && before.is_in(BEFORE_NAMES)
            || before.is("ON") && core::mem::take(&mut names_table);
        let is_call = words.is_call() && !follows_dot && !is_name;
        let is_variable = word.is_in(VARIABLES) && (word.is_variable || before.is_variable);
        if is_call && word.is_in(BY_CHANCE) {
            (refused, is_known) = (refused.or(Some(CHANCE)), false);
        }
        if is_call && word.is_in(BY_SERVER) || is_variable {
            (refused, is_known) = (refused.or(Some(SERVER)), false);
        }
        writes_it |= !word.is_quoted && word.is_in(WRITES);
        is_known &= !word.is_in(NOT_COMPARED) && !word.is_variable;
        before = word;
        let is_number = word.text.iter().all(u8::is_ascii_digit);
        before.ends_with_dot = words.rest.first() == Some(&b'.') && !is_number;
    }
    is_known &= !words.assigns;
    writes_it |= words.assigns;
    let begins = |list| first.is_some_and(|first: Word<'_>| first.is_in(list));
    let reads = !writes_it && (begins(READS) || begins(READS_ABOUT_SERVER));
    match refused {
        Some(why) if !reads => Verdict::Refused(why),
        _ if begins(READS_ABOUT_SERVER) => Verdict::Goes(Compare::Form),
        _ => Verdict::Goes(if is_known { Compare::All } else { Compare::Form }),
    }
}

/// Whether it has had no effect if it was ended by an error, and its transaction goes on: one statement, which does not commit, and gives no variable
/// a value.
pub(super) fn is_repeatable(sql: &[u8]) -> bool {
    let mut words = Words::new(sql);
    let first = words.next();
    while words.next().is_some() {}
    first.is_some_and(|first| first.is_in(REPEATABLE)) && !words.has_several && !words.assigns
}

/// Whether it may lock something for longer than a transaction, or wait for as long as it says.
pub(super) fn names_locks(sql: &[u8]) -> bool {
    let mut words = Words::new(sql);
    let mut first = None;
    core::iter::from_fn(|| words.next()).any(|word| {
        let is_first = first.replace(()).is_none();
        word.is("GET_LOCK") || is_first && (word.is("LOCK") || word.is("FLUSH") || word.is("BACKUP"))
    })
}

/// Whether reads may lock rows from then on.
pub(super) fn has_reads_lock(sql: &[u8]) -> bool {
    let name = b"SERIALIZABLE";
    sql.windows(name.len()).any(|window| window.eq_ignore_ascii_case(name))
}

/// Whether it does the same if a server has ended it by an error, and gets it again.
pub(super) fn may_be_kept(sql: &[u8]) -> bool {
    let mut words = Words::new(sql);
    let (mut is_about_last, mut locks) = (false, 0);
    while let Some(word) = words.next() {
        is_about_last |= word.is_in(ABOUT_LAST);
        // The first of several stays locked.
        locks += u32::from(word.is("GET_LOCK"));
    }
    !is_about_last && locks <= 1
}

/// What it may leave to its transaction.
pub(super) fn holds(sql: &[u8]) -> Holds {
    let mut words = Words::new(sql);
    let Some(first) = words.next() else { return Holds::Locks };
    let mut rest = core::iter::from_fn(|| words.next());
    let writes = rest.any(|word| !word.is_quoted && word.is_in(WRITES));
    match first {
        _ if writes => Holds::Locks,
        first if first.is_in(READS) || first.is_in(READS_ABOUT_SERVER) => Holds::Reads,
        first if first.is_in(&["BEGIN", "START", "USE"]) => Holds::Nothing,
        _ => Holds::Locks,
    }
}

/// The database that a statement chooses, if it does nothing else.
pub(super) fn chosen(is_statement: bool, sql: &[u8]) -> &[u8] {
    let mut words = Words::new(if is_statement { sql } else { b"" });
    let chooses = words.next().is_some_and(|word| word.is("USE"));
    words.next().filter(|_| chooses).map_or(&b""[..], |word| word.text)
}

/// Whether a database is about the server.
pub(super) fn is_about_server(database: &[u8]) -> bool {
    Word { text: database, ..Word::default() }.is_in(ABOUT_SERVER)
}

/// One word of a statement, without the quotes of a name.
#[derive(Clone, Copy, Debug, Default)]
struct Word<'a> {
    text: &'a [u8],
    is_quoted: bool,
    /// Of the system: it had two of these in front: @.
    is_variable: bool,
    /// What follows belongs to it.
    ends_with_dot: bool,
}

impl Word<'_> {
    fn is(&self, other: &str) -> bool {
        self.text.eq_ignore_ascii_case(other.as_bytes())
    }

    fn is_in(&self, list: &[&str]) -> bool {
        list.iter().any(|other| self.is(other))
    }
}

/// The words of a statement.
struct Words<'a> {
    rest: &'a [u8],
    /// A variable is given a value.
    assigns: bool,
    /// Something comes behind a semicolon.
    has_several: bool,
    is_behind: bool,
    /// Something is between the last two words: a bracket, a comma.
    is_punctuated: bool,
}

impl<'a> Words<'a> {
    fn new(sql: &'a [u8]) -> Self {
        Self { rest: sql, assigns: false, has_several: false, is_behind: false, is_punctuated: false }
    }

    /// Whether a bracket follows, behind blanks and comments.
    fn is_call(&self) -> bool {
        let mut words = Words::new(self.rest);
        words.skip_blank();
        words.rest.first() == Some(&b'(')
    }

    fn skip(&mut self, count: usize) {
        self.rest = self.rest.get(count..).unwrap_or_default();
    }

    /// Up to what ends with that.
    fn skip_behind(&mut self, end: &[u8]) {
        let at = self.rest.windows(end.len()).position(|window| window == end);
        self.skip(at.map_or(self.rest.len(), |at| at + end.len()));
    }

    /// Up to the end of what is quoted so: that.
    fn quoted(&mut self, quote: u8) -> &'a [u8] {
        self.skip(1);
        let mut is_escaped = false;
        let end = self.rest.iter().position(|byte| {
            if is_escaped {
                is_escaped = false;
                return false;
            }
            is_escaped = quote != b'`' && *byte == b'\\';
            *byte == quote
        });
        let end = end.unwrap_or(self.rest.len());
        let text = self.rest.get(..end).unwrap_or_default();
        self.skip(end + 1);
        text
    }

    /// Blanks, comments, and the beginnings of those that are worked on: a number says from which version on.
    fn skip_blank(&mut self) {
        loop {
            match *self.rest {
                [byte, ..] if byte.is_ascii_whitespace() || byte.is_ascii_control() => self.skip(1),
                [b'#', ..] => self.skip_behind(b"\n"),
                [b'-', b'-', space, ..] if space.is_ascii_whitespace() || space.is_ascii_control() => {
                    self.skip_behind(b"\n");
                }
                [b'-', b'-'] => self.skip(2),
                [b'/', b'*', b'!', ..] => self.skip_version(3),
                [b'/', b'*', b'M', b'!', ..] => self.skip_version(4),
                [b'/', b'*', ..] => {
                    self.skip(2);
                    self.skip_behind(b"*/");
                }
                [b'*', b'/', ..] => self.skip(2),
                _ => return,
            }
        }
    }

    fn skip_version(&mut self, mark_bytes: usize) {
        self.skip(mark_bytes);
        let digits = self.rest.iter().take(6).take_while(|byte| byte.is_ascii_digit()).count();
        self.skip(if digits < 5 { 0 } else { digits });
    }

    fn next(&mut self) -> Option<Word<'a>> {
        self.is_punctuated = false;
        let word = loop {
            self.skip_blank();
            let is_word =
                |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$') || *byte >= 0x80;
            match *self.rest {
                [] => return None,
                [quote @ (b'\'' | b'"'), ..] => {
                    self.quoted(quote);
                }
                [b'`', ..] => {
                    let text = self.quoted(b'`');
                    break Word { text, is_quoted: true, ..Word::default() };
                }
                [b':', b'=', ..] => {
                    self.assigns = true;
                    self.skip(2);
                }
                [b';', ..] => {
                    self.is_behind = true;
                    self.skip(1);
                }
                [b'@', ..] => {
                    let ats = self.rest.iter().take_while(|byte| **byte == b'@').count();
                    self.skip(ats);
                    let text = self.word(is_word);
                    // One of the client's own is no name of anything.
                    if ats > 1 {
                        break Word { text, is_variable: true, ..Word::default() };
                    }
                }
                [byte, ..] if is_word(&byte) => break Word { text: self.word(is_word), ..Word::default() },
                _ => {
                    self.is_punctuated = true;
                    self.skip(1);
                }
            }
        };
        self.has_several |= self.is_behind;
        Some(word)
    }

    fn word(&mut self, is_word: impl Fn(&u8) -> bool) -> &'a [u8] {
        let end = self.rest.iter().position(|byte| !is_word(byte)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_that_every_server_would_do_otherwise_are_refused() {
        for sql in [
            "kill 5",
            " /* of mine */ KILL QUERY 5",
            "INSERT INTO t VALUES (uuid())",
            "insert into t select RAND (), 'a' from u",
            "SET @a = UUID_SHORT()",
            "select uuid() into @a",
            "select @a := rand()",
            "/*!50000 update */ t set a = rand()",
            "create table t (a char(36) default uuid())",
            "update t set a = connection_id()",
            "LOAD DATA INFILE 'x' INTO TABLE t",
            "select 1; kill 5",
            "begin not atomic kill 5; end",
            "/*!50000KILL 5*/",
            "select 1; update t set a = uuid()",
            "insert into t values (uuid/**/())",
            "insert into t values (`uuid`())",
            "insert into t values (/*!50701uuid()*/)",
            "analyze update t set a = rand()",
            "with x as (select 1) update t set a = uuid()",
            "set @a = @@server_id",
            "insert into t select a from u join v on (rand() < 0.5)",
            "insert into t select a from u join v on rand() < 0.5",
            "insert into t values (1., uuid())",
            "create table x as select u.a from u join v on rand() < 0.5",
            "insert into t values (@@global.hostname)",
        ] {
            assert!(matches!(verdict(sql.as_bytes()), Verdict::Refused(_)), "{sql}");
        }
    }

    #[test]
    fn results_that_may_differ_are_not_compared_and_nothing_else_is_refused() {
        for sql in [
            "select rand()",
            "select uuid(), connection_id()",
            "SELECT NOW()",
            "select * from t limit 1",
            "select @@hostname",
            "show status",
            "explain select 1",
            "select * from information_schema.tables",
            "insert into t values (now())",
            "select * from `information_schema`.`tables`",
            "select @n := @n + 1 from t",
            "select a, b from t group by a",
            "select @@server_id",
            "select 1 into @a from t limit 1",
            "set @old = @@sql_mode",
        ] {
            assert_eq!(verdict(sql.as_bytes()), Verdict::Goes(Compare::Form), "{sql}");
        }
        for sql in [
            "select * from t where a = 'now() it\\'s uuid()'",
            "insert into t values ('rand()', \"it''s\", `uuid`)",
            "insert into t values (1) -- uuid()",
            "insert into t values (1) # uuid()",
            "insert into t /* uuid() */ values (1)",
            "insert into rand values (1)",
            "create table t (a uuid, now_at int)",
            "create table t (uuid char(36), unique key uuid (uuid))",
            "insert into uuid (a) values (1)",
            "create unique index i on uuid (a)",
            "select t.kill, a from t",
            "insert into t values (1, '\\\'uuid()')",
            "load index into cache t",
            "set @mine = 5",
            "begin",
            "commit",
            "(select 1) union (select 2)",
            "",
        ] {
            assert_eq!(verdict(sql.as_bytes()), Verdict::Goes(Compare::All), "{sql}");
        }
    }

    #[test]
    fn a_statement_that_was_ended_is_said_again_only_where_it_had_no_effect() {
        for sql in ["select 1", "UPDATE t SET a = 1", "with x as (select 1) select * from x"] {
            assert!(is_repeatable(sql.as_bytes()), "{sql}");
        }
        for sql in ["commit", "call p()", "alter table t add b int", "update t set a = 1; select 1", ""] {
            assert!(!is_repeatable(sql.as_bytes()), "{sql}");
        }
    }

    #[test]
    fn a_database_that_is_chosen_is_known() {
        assert_eq!(chosen(true, b" use `mysql`"), b"mysql");
        assert!(is_about_server(b"MySQL") && !is_about_server(b"") && chosen(true, b"select 1").is_empty());
    }
}
