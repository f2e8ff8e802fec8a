//! The service: accounts that payments go to. It reads requests and writes answers, and that is all it knows.
//!
//! A request is an account (4 bytes) and an amount (8 bytes), its answer the new balance (8 bytes), all big-endian. A
//! request that came twice, or not at all, would show in every balance after it.

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, PoisonError};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// What every account holds.
#[derive(Debug, Default)]
pub struct Ledger {
    balances: Mutex<HashMap<u32, u64>>,
}

impl Ledger {
    /// Adds to an account; its new balance.
    pub fn pay(&self, account: u32, amount: u64) -> u64 {
        let mut balances = self.balances.lock().unwrap_or_else(PoisonError::into_inner);
        let balance = balances.entry(account).or_default();
        *balance = balance.wrapping_add(amount);
        *balance
    }
}

/// Answers requests until the client has no more.
///
/// # Errors
/// The stream ended within a request, or failed for good.
pub async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin, ledger: &Ledger) -> io::Result<()> {
    loop {
        let account = match stream.read_u32().await {
            Ok(account) => account,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return stream.shutdown().await,
            Err(error) => return Err(error),
        };
        let amount = stream.read_u64().await?;
        stream.write_u64(ledger.pay(account, amount)).await?;
    }
}
