//! The connector's side: asks the service.

use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Pays `amount` into an account, `times` times, each after the answer to the one before; the last balance.
///
/// # Errors
/// The stream failed for good, or the balance did not grow by what was paid.
pub async fn pay_often(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    account: u32,
    amount: u64,
    times: u64,
) -> io::Result<u64> {
    let mut balance = 0;
    for time in 0..times {
        stream.write_u32(account).await?;
        stream.write_u64(amount).await?;
        let new = stream.read_u64().await?;
        if time > 0 && new != balance + amount {
            let why = format!(
                "account {account}: {amount} paid to {balance} make {new}; does somebody else pay, too?"
            );
            return Err(io::Error::other(why));
        }
        balance = new;
    }
    Ok(balance)
}

/// The number of an account (FNV-1a of its name).
pub fn number_of(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |number, byte| (number ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}
