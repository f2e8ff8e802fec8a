//! Several acknowledgement modes at once: those on offer, those that can be used.

use super::LinkMode;
use core::fmt;

/// A set of modes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes(u8);

impl Modes {
    /// All of them.
    pub const ALL: Self = Self(0b1111);
    /// None.
    pub const NONE: Self = Self(0);

    /// This mode alone.
    pub const fn only(mode: LinkMode) -> Self {
        Self(1 << (mode as u8 - 1))
    }

    /// As it is on the wire; modes of later versions are left out.
    pub(crate) const fn from_wire(value: u64) -> Self {
        let [.., last] = value.to_be_bytes();
        Self(last & Self::ALL.0)
    }

    /// PROTOCOL 1.10: bit 0 is mode 1, bit 3 is mode 4.
    pub(crate) const fn to_wire(self) -> u64 {
        self.0 as u64
    }

    /// Whether `mode` is one of them.
    pub const fn has(self, mode: LinkMode) -> bool {
        self.0 & Self::only(mode).0 != 0
    }

    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many there are.
    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// These and `mode`.
    #[must_use]
    pub const fn with(self, mode: LinkMode) -> Self {
        Self(self.0 | Self::only(mode).0)
    }

    /// These, but not `mode`.
    #[must_use]
    pub const fn without(self, mode: LinkMode) -> Self {
        Self(self.0 & !Self::only(mode).0)
    }

    /// All others.
    #[must_use]
    pub const fn others(self) -> Self {
        Self(!self.0 & Self::ALL.0)
    }

    /// By their numbers.
    pub fn iter(self) -> impl Iterator<Item = LinkMode> {
        (1..=4).filter_map(LinkMode::from_u8).filter(move |mode| self.has(*mode))
    }
}

/// For people: `kernel, udp and inband`.
impl fmt::Display for Modes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        let last = self.count() - 1;
        for (index, mode) in (0..).zip(self.iter()) {
            let before = match index {
                0 => "",
                index if index == last => " and ",
                _ => ", ",
            };
            write!(f, "{before}{mode}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_what_was_put_into_them() {
        let both = Modes::only(LinkMode::Kernel).with(LinkMode::Inband);
        assert_eq!(both.to_wire(), 0b1001);
        assert_eq!(Modes::from_wire(0xFFFF_FFF9), both, "modes of later versions");
        assert_eq!(both.others().iter().collect::<Vec<_>>(), [LinkMode::Window, LinkMode::Udp]);
        assert_eq!(both.without(LinkMode::Kernel), Modes::only(LinkMode::Inband));
        let names =
            [Modes::NONE, both.without(LinkMode::Kernel), both, Modes::ALL].map(|modes| modes.to_string());
        assert_eq!(names, ["none", "inband", "kernel and inband", "kernel, window, udp and inband"]);
    }
}
