//! What one schedule is made of, all of it drawn from the seed.

use super::tcp::{Buffers, Side};
use outlast_session::LinkMode;
use outlast_stream::SplitMix64;

/// How bytes are acknowledged in a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Kernel,
    Window,
    /// As `Window`, between ends that cannot read what a broken link has left in their kernel.
    WindowDiscarding,
    Udp,
    Inband,
    /// `Kernel` where the path is direct, else `Inband`.
    Auto,
}

/// A deliberate mistake, to see that it is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    None,
    /// Something on the path acknowledges bytes that it then loses.
    AckingMiddlebox,
    /// An end says what it expects next without freezing the old link first.
    NoFreeze,
    /// A client gives an attempt up without looking whether it had been welcomed.
    UnreadWelcome,
    /// The Welcome an end has not looked at yet counts as bytes of the stream.
    WelcomeAsPayload,
    /// Any end of input counts as the end of the stream.
    EofIsEnd,
    /// A FIN behind the unread bytes of a broken link is forgotten.
    ForgottenFin,
    /// Too small a window.
    SmallWindow,
    /// The end of the stream counts as delivered once the FIN is acknowledged, by peers that drop what they have not
    /// read.
    FinMeansRead,
    /// As in `FinMeansRead`, by any peer, but before the link was welcomed.
    UnwelcomedFin,
    /// A control frame is forgotten when it comes up in the middle of another frame.
    DroppedEndAck,
    /// An acknowledgement counts as told when a frame goes on whose header was written before.
    AckTooOld,
    /// One byte of what is sent again is another one.
    ChangedByte,
}

/// One schedule's parameters.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub mode: Mode,
    pub mistake: Mistake,
    pub psk: bool,
    /// What each application writes in all, and the most it writes or reads at once.
    pub total_bytes: [u64; 2],
    pub write_bytes_max: u64,
    pub read_bytes_max: u64,
    pub buffers: Buffers,
    pub retain_bytes_max: usize,
    /// Writes from here on pass by the ring where they can.
    pub bypass_bytes_min: usize,
    /// Bytes carried by the network in one go.
    pub carry_bytes_max: u64,
    pub steps: u32,
    pub keep_ms: u64,
    /// Time passed by one step, at most.
    pub step_ms_max: u64,
    /// How often the actions are chosen.
    pub weights: [u32; super::world::ACTIONS],
    /// One in so many datagrams is lost, and one in so many comes twice; 0 is never.
    pub datagram_loss: u64,
    pub datagram_copies: u64,
    /// The server's datagrams come in only where the client's have gone out, on the same link (`udp`).
    pub datagram_nat: bool,
    /// One in so many paths has something in between that terminates TCP (`Auto`); 0 is never.
    pub indirect: u64,
    /// The application in place of the server's is started again once.
    pub restarts: bool,
    /// This end's application ends its stream when it has seen the end of the other.
    pub ends_last: Option<Side>,
    /// A Hello that never arrived is used by somebody else.
    pub hijacks: bool,
    /// The client gives the session up in the end.
    pub aborts: bool,
}

impl Plan {
    pub fn new(seed: u64, mode: Mode, mistake: Mistake) -> Self {
        let mut random = SplitMix64::new(seed ^ 0x0051_11D0);
        let total_bytes = [total(&mut random), total(&mut random)];
        let buffers = Buffers {
            send_bytes: between(&mut random, 300, 8 << 10),
            receive_bytes: between(&mut random, 300, 8 << 10),
            overshoot_bytes: between(&mut random, 0, 2 << 10),
        };
        let largest = total_bytes[0].max(total_bytes[1]) as usize;
        let mut retain_bytes_max = between(&mut random, 64.max(largest / 128), 16 << 10);
        if matches!(mode, Mode::Window | Mode::WindowDiscarding) {
            // A ring that could not hold a whole window would never get room.
            retain_bytes_max += buffers.send_bytes + buffers.receive_bytes + buffers.overshoot_bytes;
        }
        let mut weights = [0; super::world::ACTIONS];
        for weight in &mut weights {
            *weight = [0, 1, 2, 4, 8, 16][random.below(6) as usize];
        }
        super::world::temper(&mut weights, &mut random);
        let ends_last = [None, Some(Side::Client), Some(Side::Server)][random.below(3) as usize];
        // Errors are to have one cause.
        let sound = mistake == Mistake::None;
        let restarts = random.one_in(12) && sound;
        let hijacks = random.one_in(16) && sound;
        let mut plan = Self {
            seed,
            mode,
            mistake,
            psk: random.one_in(3),
            total_bytes,
            write_bytes_max: [8, 64, 1024, 16 << 10, 200 << 10][random.below(5) as usize],
            read_bytes_max: [16, 256, 4096, 64 << 10][random.below(4) as usize],
            buffers,
            retain_bytes_max,
            bypass_bytes_min: [64, 1024, 32 << 10, usize::MAX][random.below(4) as usize],
            carry_bytes_max: [64, 512, 4096, 16 << 10][random.below(4) as usize],
            steps: 40 + random.below(700) as u32,
            keep_ms: if random.one_in(8) && sound { 1000 } else { 3_600_000 },
            step_ms_max: 1 + random.below(40),
            weights,
            datagram_loss: [0, 2, 5, 20][random.below(4) as usize],
            datagram_copies: [0, 3, 10][random.below(3) as usize],
            datagram_nat: random.one_in(3),
            indirect: if mode == Mode::Auto { [1, 1, 2, 4][random.below(4) as usize] } else { 0 },
            restarts,
            ends_last,
            hijacks,
            aborts: random.one_in(32) && sound,
        };
        if mistake == Mistake::AckTooOld {
            // Rare elsewhere: a peer with a full ring, whose last acknowledgement was due within the last frame.
            plan.total_bytes = [2 << 10, 64 << 10];
            plan.ends_last = Some(Side::Client);
            plan.retain_bytes_max = plan.retain_bytes_max.min(2 << 10);
        }
        plan
    }

    /// The mode of a client's first link, and whether it can do with another.
    pub fn first_mode(&self) -> (LinkMode, bool) {
        match self.mode {
            Mode::Kernel => (LinkMode::Kernel, false),
            Mode::Window | Mode::WindowDiscarding => (LinkMode::Window, false),
            Mode::Udp => (LinkMode::Udp, false),
            Mode::Inband => (LinkMode::Inband, false),
            Mode::Auto => (LinkMode::Kernel, true),
        }
    }

    /// Bytes that the two kernels can hold between the ends.
    pub fn window_bytes(&self) -> u64 {
        let buffers = &self.buffers;
        let whole = (buffers.send_bytes + buffers.receive_bytes + buffers.overshoot_bytes) as u64;
        if self.mistake == Mistake::SmallWindow { whole / 8 } else { whole }
    }

    pub fn discards(&self) -> bool {
        self.mode == Mode::WindowDiscarding
    }
}

/// Mostly short streams, some long ones, some empty.
fn total(random: &mut SplitMix64) -> u64 {
    match random.below(16) {
        0 => 0,
        1..=8 => random.below(8 << 10),
        9..=13 => random.below(32 << 10),
        14 => random.below(64 << 10),
        _ => random.below(256 << 10),
    }
}

fn between(random: &mut SplitMix64, least: usize, most: usize) -> usize {
    // Small values are as likely as large ones: that is where the corners are.
    let most = if random.one_in(2) { most } else { least + (most.saturating_sub(least)) / 8 };
    least + random.below((most.saturating_sub(least) + 1) as u64) as usize
}
