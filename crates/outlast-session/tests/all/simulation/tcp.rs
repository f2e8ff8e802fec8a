//! TCP connections as far as a session can tell: two kernels, what lies between them, and everything that can go
//! wrong there.
//!
//! A byte given to the sending kernel is in flight until it enters the receiving kernel's queue. That is when the
//! receiving kernel acknowledges it; the sending kernel learns so a moment later, or never. What is in flight when the
//! path breaks is lost, what has entered stays readable. A FIN counts as one byte.

use std::collections::VecDeque;

/// A connection, by its place in [`Net`].
pub type ConnId = usize;

/// One end of a connection, or of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}

impl Side {
    pub const BOTH: [Side; 2] = [Side::Client, Side::Server];

    pub fn other(self) -> Side {
        match self {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        }
    }
}

/// What a read came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    Data,
    /// End of input, for whatever reason.
    Eof,
    Nothing,
    Broken,
}

/// One direction.
#[derive(Debug, Default)]
struct Pipe {
    flight: VecDeque<u8>,
    arrived: VecDeque<u8>,
    given_bytes: u64,
    /// Payload and FIN that entered the receiver's kernel.
    entered_bytes: u64,
    /// What the sender's kernel knows to have entered.
    acked_bytes: u64,
    fin_given: bool,
    fin_entered: bool,
    /// The sender has reset the connection: nothing follows what has entered.
    aborted: bool,
    /// The receiver's kernel takes nothing any more.
    frozen: bool,
}

impl Pipe {
    fn is_fin_under_way(&self) -> bool {
        self.fin_given && !self.fin_entered && !self.aborted
    }
}

#[derive(Debug, Default)]
struct End {
    /// The kernel has noticed that the connection is dead.
    told: bool,
    /// Somebody has taken the socket's error: reads give end of input from now on.
    error_taken: bool,
    closed: bool,
    /// Closed in order: the kernel still takes a FIN.
    orderly: bool,
}

/// One connection.
#[derive(Debug)]
pub struct Conn {
    pipes: [Pipe; 2],
    ends: [End; 2],
    /// Nothing gets through any more.
    pub cut: bool,
    /// A reset is on its way to this end.
    reset_due: [bool; 2],
    pub send_buffer_bytes: usize,
    pub receive_buffer_bytes: usize,
    overshoot_bytes: usize,
    /// Nothing in between terminates TCP.
    pub direct: bool,
    /// Something in between acknowledges on its own account.
    acks_early: bool,
}

impl Conn {
    fn room_bytes(&self, side: Side) -> usize {
        let pipe = &self.pipes[side as usize];
        let queued_bytes = (pipe.given_bytes - pipe.acked_bytes) as usize;
        if queued_bytes < self.send_buffer_bytes {
            self.send_buffer_bytes + self.overshoot_bytes - queued_bytes
        } else {
            0
        }
    }
}

/// All connections.
#[derive(Debug, Default)]
pub struct Net {
    conns: Vec<Conn>,
}

/// The buffers of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    pub send_bytes: usize,
    pub receive_bytes: usize,
    /// By how much one send can exceed the send buffer.
    pub overshoot_bytes: usize,
}

/// The connection is dead, and this end knows.
#[derive(Clone, Copy, Debug)]
pub struct Dead;

impl Net {
    pub fn connect(&mut self, buffers: Buffers, direct: bool, acks_early: bool) -> ConnId {
        self.conns.push(Conn {
            pipes: Default::default(),
            ends: Default::default(),
            cut: false,
            reset_due: [false; 2],
            send_buffer_bytes: buffers.send_bytes,
            receive_buffer_bytes: buffers.receive_bytes,
            overshoot_bytes: buffers.overshoot_bytes,
            direct,
            acks_early,
        });
        self.conns.len() - 1
    }

    pub fn conn(&self, conn: ConnId) -> &Conn {
        &self.conns[conn]
    }

    pub fn conns(&self) -> usize {
        self.conns.len()
    }

    /// How much one send takes now.
    pub fn room_bytes(&self, conn: ConnId, side: Side) -> usize {
        self.conns[conn].room_bytes(side)
    }

    /// Gives bytes to the kernel; 0 is "try again later".
    pub fn send(&mut self, conn: ConnId, side: Side, bytes: &[u8]) -> Result<usize, Dead> {
        let conn = &mut self.conns[conn];
        let end = &conn.ends[side as usize];
        if end.told || end.closed || conn.pipes[side as usize].fin_given {
            return Err(Dead);
        }
        let count = bytes.len().min(conn.room_bytes(side));
        let pipe = &mut conn.pipes[side as usize];
        pipe.flight.extend(&bytes[..count]);
        pipe.given_bytes += count as u64;
        Ok(count)
    }

    /// Appends up to `most` received bytes to `out`.
    pub fn receive(&mut self, conn: ConnId, side: Side, most: usize, out: &mut Vec<u8>) -> Got {
        let conn = &mut self.conns[conn];
        let pipe = &mut conn.pipes[side.other() as usize];
        let end = &mut conn.ends[side as usize];
        if !pipe.arrived.is_empty() {
            shift(&mut pipe.arrived, most, out);
            return Got::Data;
        }
        if end.told && !end.error_taken {
            end.error_taken = true;
            return Got::Broken;
        }
        if end.told || end.closed || pipe.fin_entered { Got::Eof } else { Got::Nothing }
    }

    /// SIOCOUTQ.
    pub fn unacked_bytes(&self, conn: ConnId, side: Side) -> u64 {
        let pipe = &self.conns[conn].pipes[side as usize];
        pipe.given_bytes + u64::from(pipe.fin_given) - pipe.acked_bytes
    }

    /// SIOCINQ.
    pub fn unread_bytes(&self, conn: ConnId, side: Side) -> u64 {
        self.conns[conn].pipes[side.other() as usize].arrived.len() as u64
    }

    /// `tcpi_bytes_received`.
    pub fn received_bytes(&self, conn: ConnId, side: Side) -> u64 {
        self.conns[conn].pipes[side.other() as usize].entered_bytes
    }

    pub fn shut_write(&mut self, conn: ConnId, side: Side) -> Result<(), Dead> {
        let conn = &mut self.conns[conn];
        if conn.ends[side as usize].told || conn.ends[side as usize].closed {
            return Err(Dead);
        }
        conn.pipes[side as usize].fin_given = true;
        Ok(())
    }

    /// From now on this end takes in nothing more; what it has stays readable.
    pub fn freeze(&mut self, conn: ConnId, side: Side) {
        self.conns[conn].pipes[side.other() as usize].frozen = true;
    }

    /// The error of this end's socket is taken by somebody else.
    pub fn take_error(&mut self, conn: ConnId, side: Side) {
        self.conns[conn].ends[side as usize].error_taken = true;
    }

    /// Closes the socket: with a reset, or in order.
    pub fn close(&mut self, conn: ConnId, side: Side, orderly: bool) {
        let conn = &mut self.conns[conn];
        let end = &mut conn.ends[side as usize];
        if end.closed {
            return;
        }
        end.closed = true;
        end.orderly = orderly;
        if orderly {
            conn.pipes[side as usize].fin_given = true;
        } else {
            conn.pipes[side as usize].flight.clear();
            conn.pipes[side as usize].aborted = true;
            conn.reset_due[side.other() as usize] = true;
        }
    }

    /// Whether this end's kernel knows that the connection is dead (POLLERR).
    pub fn is_told(&self, conn: ConnId, side: Side) -> bool {
        self.conns[conn].ends[side as usize].told
    }

    /// Whether anything is under way from `from` to the other end.
    pub fn is_busy(&self, conn: ConnId, from: Side) -> bool {
        let conn = &self.conns[conn];
        let pipe = &conn.pipes[from as usize];
        let stream = !pipe.flight.is_empty() || pipe.is_fin_under_way();
        !conn.cut && ((stream && !pipe.frozen) || conn.reset_due[from.other() as usize])
    }

    /// The network carries up to `most` bytes on.
    pub fn deliver(&mut self, conn: ConnId, from: Side, most: usize) {
        let to = from.other();
        let conn = &mut self.conns[conn];
        let pipe = &mut conn.pipes[from as usize];
        if conn.cut {
            return;
        }
        if conn.acks_early {
            pipe.acked_bytes = pipe.given_bytes + u64::from(pipe.fin_given);
        }
        if conn.ends[to as usize].closed && !pipe.flight.is_empty() {
            // Nobody is there to take it.
            conn.reset_due[from as usize] = true;
        }
        if !pipe.frozen {
            let room_bytes = conn.receive_buffer_bytes.saturating_sub(pipe.arrived.len());
            let count = most.min(room_bytes).min(pipe.flight.len());
            if !conn.ends[to as usize].closed {
                carry(&mut pipe.flight, &mut pipe.arrived, count);
                pipe.entered_bytes += count as u64;
            }
            let open = !conn.ends[to as usize].closed || conn.ends[to as usize].orderly;
            if pipe.flight.is_empty() && pipe.is_fin_under_way() && count < most && open {
                pipe.fin_entered = true;
                pipe.entered_bytes += 1;
            }
        }
        if conn.reset_due[to as usize] && (pipe.flight.is_empty() || pipe.frozen) {
            conn.ends[to as usize].told = true;
            conn.reset_due[to as usize] = false;
            conn.cut = true;
        }
    }

    /// The sender's kernel learns what has entered at the other end.
    pub fn acknowledge(&mut self, conn: ConnId, from: Side) {
        let conn = &mut self.conns[conn];
        let pipe = &mut conn.pipes[from as usize];
        if !conn.cut && !conn.ends[from as usize].told {
            pipe.acked_bytes = pipe.acked_bytes.max(pipe.entered_bytes);
        }
    }

    /// The path breaks: what is in flight is lost.
    pub fn cut(&mut self, conn: ConnId) {
        let conn = &mut self.conns[conn];
        conn.cut = true;
        for pipe in &mut conn.pipes {
            pipe.flight.clear();
        }
    }

    /// This end's kernel notices that the path is broken.
    pub fn tell(&mut self, conn: ConnId, side: Side) {
        let conn = &mut self.conns[conn];
        if conn.cut {
            conn.ends[side as usize].told = true;
        }
    }
}

/// Moves bytes from one queue to another.
fn carry(from: &mut VecDeque<u8>, to: &mut VecDeque<u8>, count: usize) {
    let (front, back) = from.as_slices();
    let first = count.min(front.len());
    to.extend(&front[..first]);
    to.extend(&back[..count - first]);
    from.drain(..count);
}

/// Takes up to `most` bytes off a queue.
pub fn shift(from: &mut VecDeque<u8>, most: usize, out: &mut Vec<u8>) -> usize {
    let count = most.min(from.len());
    let (front, back) = from.as_slices();
    let first = count.min(front.len());
    out.extend_from_slice(&front[..first]);
    out.extend_from_slice(&back[..count - first]);
    from.drain(..count);
    count
}
