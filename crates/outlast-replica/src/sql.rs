//! A client of MySQL and MariaDB for the few questions of a node to its own server. The library for that (`mysql`) brings sixty others; packets and
//! proofs are here already.

use crate::protocol::Protocol;
use crate::protocol::mysql::login::{Hash, prove};
use crate::protocol::mysql::packet::{Fields, HEADER_BYTES, length, packet};
use crate::protocol::mysql::salt_of;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A server that does not answer for so long hangs.
const TIMEOUT: Duration = Duration::from_secs(10);
const PACKET_BYTES_MAX: usize = 1 << 20;
const ROWS_MAX: usize = 1 << 16;
const QUIT: u8 = 1;
const QUERY: u8 = 3;
/// Long passwords, protocol 4.1, secure connection, plugins.
const CAPABILITIES: u32 = 1 | 1 << 9 | 1 << 15 | 1 << 19;
const UTF8: u8 = 33;
const NATIVE: &[u8] = b"mysql_native_password\0";

/// An account of the server that nodes use.
#[derive(Clone, PartialEq, Eq)]
pub struct Account {
    /// Its name.
    pub user: String,
    /// None: it has none.
    pub password: Option<String>,
    /// What the server speaks.
    pub protocol: Protocol,
}

impl std::fmt::Debug for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Account").field("user", &self.user).finish_non_exhaustive()
    }
}

/// A row of a result; none: NULL.
pub(crate) type Row = Vec<Option<String>>;

/// A connection to it.
#[derive(Debug)]
pub(crate) struct Client {
    socket: TcpStream,
    /// Of the last packet.
    number: u8,
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

impl Client {
    /// Logs in.
    ///
    /// # Errors
    /// The server cannot be reached, or does not let this account in.
    pub(crate) fn connect(server: SocketAddr, account: &Account) -> io::Result<Self> {
        let socket = TcpStream::connect_timeout(&server, TIMEOUT)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.set_write_timeout(Some(TIMEOUT))?;
        let mut client = Self { socket, number: 0 };
        let greeting = client.read()?;
        let mut salt = salt_of(&greeting).ok_or_else(|| broken("it is no server of MySQL or MariaDB"))?;
        let password = account.password.as_deref().unwrap_or_default().as_bytes();
        let proof = |salt: &Hash| {
            if password.is_empty() { Vec::new() } else { prove(password, salt).to_vec() }
        };
        let own = proof(&salt);
        let mut said = CAPABILITIES.to_le_bytes().to_vec();
        said.extend((1_u32 << 24).to_le_bytes());
        said.push(UTF8);
        said.extend([0; 23]);
        said.extend(account.user.bytes().filter(|byte| *byte != 0));
        said.extend([0, u8::try_from(own.len()).unwrap_or(0)]);
        said.extend(own);
        said.extend(NATIVE);
        client.write(&said)?;
        loop {
            let answer = client.read()?;
            match answer.get(HEADER_BYTES) {
                Some(0) => {
                    client.set("SET SESSION wait_timeout = 31536000")?;
                    return Ok(client);
                }
                Some(0xfe) => {
                    salt = salt_of(&answer).ok_or_else(|| {
                        broken("it wants another proof of who the node is than mysql_native_password")
                    })?;
                    client.write(&proof(&salt))?;
                }
                _ => return Err(broken("it asks for what is not understood")),
            }
        }
    }

    /// Has it do something that has no result.
    ///
    /// # Errors
    /// The server says one, or does not answer.
    pub(crate) fn set(&mut self, statement: &str) -> io::Result<()> {
        self.number = u8::MAX;
        self.write(&[&[QUERY], statement.as_bytes()].concat())?;
        self.read().map(drop)
    }

    /// All rows of the result.
    ///
    /// # Errors
    /// The server says one, or does not answer.
    pub(crate) fn rows(&mut self, query: &str) -> io::Result<Vec<Row>> {
        self.number = u8::MAX;
        self.write(&[&[QUERY], query.as_bytes()].concat())?;
        let first = self.read()?;
        let count = Fields(first.get(HEADER_BYTES..).unwrap_or_default()).number();
        let count = count.and_then(|count| usize::try_from(count).ok()).filter(|count| *count > 0);
        let count = count.ok_or_else(|| broken("it has no result"))?;
        // The columns, and an end.
        for _ in 0..=count {
            self.read()?;
        }
        let mut rows = Vec::new();
        while rows.len() < ROWS_MAX {
            let row = self.read()?;
            let payload = row.get(HEADER_BYTES..).unwrap_or_default();
            if payload.first() == Some(&0xfe) && payload.len() < 9 {
                return Ok(rows);
            }
            let mut fields = Fields(payload);
            rows.push((0..count).map(|_| value(&mut fields)).collect());
        }
        Err(broken("it has too many rows"))
    }

    fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut packet = vec![0; HEADER_BYTES];
        self.socket.read_exact(&mut packet)?;
        let length = length(&packet).filter(|length| *length <= PACKET_BYTES_MAX);
        let length = length.ok_or_else(|| broken("it says more than was asked"))?;
        self.number = packet[3];
        packet.resize(HEADER_BYTES + length, 0);
        self.socket.read_exact(&mut packet[HEADER_BYTES..])?;
        match packet.get(HEADER_BYTES..) {
            // Its number, and what it means; a state in between, but not in place of a greeting.
            Some([0xff, _, _, text @ ..]) => {
                let text = if text.first() == Some(&b'#') { text.get(6..).unwrap_or_default() } else { text };
                Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    String::from_utf8_lossy(text).into_owned(),
                ))
            }
            _ => Ok(packet),
        }
    }

    fn write(&mut self, payload: &[u8]) -> io::Result<()> {
        self.number = self.number.wrapping_add(1);
        self.socket.write_all(&packet(self.number, payload))
    }
}

/// The server would note in its log that it was left without a word.
impl Drop for Client {
    fn drop(&mut self) {
        self.number = u8::MAX;
        let _ = self.write(&[QUIT]);
    }
}

fn value(fields: &mut Fields<'_>) -> Option<String> {
    let length = usize::try_from(fields.number()?).ok()?;
    fields.take(length).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}
