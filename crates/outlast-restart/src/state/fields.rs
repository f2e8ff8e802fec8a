//! Words that are made up of several numbers.

/// `fields! { Name { field: bits, .. } }`: a word with these numbers in it, from the lowest bit.
macro_rules! fields {
    ($name:ident { $($field:ident: $bits:expr),+ }) => {
        #[derive(Clone, Copy)]
        pub(crate) struct $name(pub(crate) u64);

        impl $name {
            #[inline]
            pub(crate) fn new($($field: u64),+) -> Self {
                Self($(($field & (u64::MAX >> (64 - $bits.len()))) << $bits.start)|+)
            }

            $(#[inline]
            pub(crate) fn $field(self) -> u64 {
                (self.0 >> $bits.start) & (u64::MAX >> (64 - $bits.len()))
            })+
        }
    };
}

pub(crate) use fields;
