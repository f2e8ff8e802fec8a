//! A relay that only splices: no sessions, no retained bytes. What the session relay is held against.

use super::{Plan, Relay, SPLICE};
use crate::ground::End;
use crate::launch::Launch;
use crate::options::RelayArguments;
use anyhow::{Context, Result};
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};

/// Room of the pipe between two sockets.
const PIPE_BYTES: usize = 1 << 20;

/// The pair.
pub fn pair(plan: &Plan) -> Result<Relay> {
    let launch = |end, from: SocketAddr, to: SocketAddr| {
        let arguments =
            ["splice-relay", "--listen", &from.to_string(), "--to", &to.to_string()].map(str::to_owned);
        Ok::<_, anyhow::Error>(Launch::this(plan.ground, end)?.arguments(arguments))
    };
    let near = launch(End::Client, plan.near, plan.far)?;
    plan.pair(SPLICE, near, launch(End::Server, plan.far, plan.server)?)
}

/// Relays until it is killed.
pub fn run(arguments: &RelayArguments) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(arguments.listen).await.context("cannot listen")?;
        loop {
            let Ok((near, _)) = listener.accept().await else { continue };
            tokio::spawn(relay(near, arguments.to));
        }
    })
}

async fn relay(near: TcpStream, to: SocketAddr) -> io::Result<()> {
    near.set_nodelay(true)?;
    let far = TcpStream::connect(to).await?;
    far.set_nodelay(true)?;
    tokio::try_join!(one_way(&near, &far), one_way(&far, &near)).map(|_| ())
}

async fn one_way(from: &TcpStream, to: &TcpStream) -> io::Result<()> {
    let (output, input) = pipe()?;
    loop {
        let count = splice_ready(from, Interest::READABLE, from, &input, PIPE_BYTES).await?;
        if count == 0 {
            return socket2::SockRef::from(to).shutdown(Shutdown::Write);
        }
        let mut left = count;
        while left > 0 {
            left -= splice_ready(to, Interest::WRITABLE, &output, to, left).await?;
        }
    }
}

/// Splices once `socket`, which is one of the two, is ready.
async fn splice_ready(
    socket: &TcpStream,
    interest: Interest,
    from: &impl AsFd,
    to: &impl AsFd,
    most: usize,
) -> io::Result<usize> {
    socket.async_io(interest, || splice(from, to, most)).await
}

fn splice(from: &impl AsFd, to: &impl AsFd, most: usize) -> io::Result<usize> {
    let (from, to) = (from.as_fd().as_raw_fd(), to.as_fd().as_raw_fd());
    let (none, flags) = (std::ptr::null_mut(), libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK);
    // SAFETY: both descriptors are borrowed for the length of the call, and no offsets are given.
    let count = unsafe { libc::splice(from, none, to, none, most, flags) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// The end to read from and the end to write to.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: there is room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made both, and nobody else has them.
    let [output, input] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    let room = i32::try_from(PIPE_BYTES).map_err(io::Error::other)?;
    // SAFETY: the descriptor is ours. Less room than asked for is slower, not wrong.
    unsafe { libc::fcntl(input.as_raw_fd(), libc::F_SETPIPE_SZ, room) };
    Ok((output, input))
}
