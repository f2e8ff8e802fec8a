//! Whether a program that is about to be executed ends where this library is loaded into it: pure, from the bytes of its
//! file. Nothing is allocated, as it is asked in children made by `vfork`, too.

use std::ops::Range;

/// Machine code of this library's kind, in which numbers are read as here: of 64 bits, the lowest byte first.
const BEGIN: &[u8] = b"\x7fELF\x02\x01";
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const SEGMENT_BYTES: u64 = 56;
const ENTRY_BYTES: usize = 16;
/// More are not looked at.
const SEGMENTS_MAX: u64 = 64;
const ENTRIES_MAX: u64 = 1024;
/// The loader of another C library, which does not have all functions that this library needs.
const OTHER_LOADER: &[u8] = b"ld-musl";
/// Libraries that end the program where another one is loaded before them: AddressSanitizer's of GCC, and of clang.
/// What `outlast run` (`elf.rs`) knows of them is the same.
const FIRST_LIBRARIES: [&[u8]; 2] = [b"libasan.so", b"libclang_rt.asan"];

/// A file's bytes from a place on; fewer at its end, or where it cannot be read.
pub trait ReadAt {
    fn read_at(&self, at: u64, bytes: &mut [u8]) -> usize;
}

/// What is executed.
#[derive(Debug, PartialEq, Eq)]
pub enum Program {
    /// It goes on with the library, or without a word where its loader leaves it out.
    GoesOn,
    /// It ends.
    Ends,
    /// Text for another program, whose path is where the file's beginning was.
    Script,
}

/// Looks at it. `line` is room for the file's beginning, and has the path of a script's interpreter then, which ends with a zero.
pub fn look_at(file: &impl ReadAt, line: &mut [u8]) -> Program {
    let length = file.read_at(0, line);
    let begin = line.get(..length).unwrap_or_default();
    match begin.strip_prefix(b"#!") {
        Some(rest) => match interpreter(rest) {
            Some(Range { start, end }) => {
                let mark = begin.len() - rest.len();
                line.copy_within(mark + start..mark + end, 0);
                line.get_mut(end - start..).unwrap_or_default().fill(0);
                Program::Script
            }
            None => Program::GoesOn,
        },
        None if begin.starts_with(BEGIN) && does_end(file).unwrap_or(false) => Program::Ends,
        None => Program::GoesOn,
    }
}

/// Where its path is in the line.
fn interpreter(line: &[u8]) -> Option<Range<usize>> {
    let line = line.split(|byte| matches!(byte, b'\n' | 0)).next()?;
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r');
    let start = line.iter().position(|byte| !is_blank(byte))?;
    let length = line.iter().skip(start).position(is_blank).unwrap_or(line.len() - start);
    Some(start..start + length)
}

/// None: it is not understood.
fn does_end(file: &impl ReadAt) -> Option<bool> {
    if let Some(loader) = segment(file, |kind, _| kind == PT_INTERP)? {
        let path = Text::read(file, loader.offset);
        let name = path.get().rsplit(|byte| *byte == b'/').next()?;
        if name.starts_with(OTHER_LOADER) {
            return Some(true);
        }
    }
    let Some(dynamic) = segment(file, |kind, _| kind == PT_DYNAMIC)? else { return Some(false) };
    let Some(strings) = entries(file, &dynamic).find(|(tag, _)| *tag == DT_STRTAB) else {
        return Some(false);
    };
    // An address, where it is loaded from the file.
    let Some(loaded) = segment(file, |kind, segment| kind == PT_LOAD && segment.has(strings.1))? else {
        return Some(false);
    };
    let strings = loaded.offset.checked_add(strings.1.checked_sub(loaded.address)?)?;
    let mut needed = entries(file, &dynamic).filter(|(tag, _)| *tag == DT_NEEDED);
    Some(needed.any(|(_, name)| {
        let name = Text::read(file, strings.saturating_add(name));
        FIRST_LIBRARIES.iter().any(|first| name.get().starts_with(first))
    }))
}

/// A part of the file.
struct Segment {
    offset: u64,
    address: u64,
    bytes: u64,
}

impl Segment {
    fn has(&self, address: u64) -> bool {
        address.checked_sub(self.address).is_some_and(|within| within < self.bytes)
    }
}

/// The first one that is looked for, if there is one. None: it is not understood.
fn segment(file: &impl ReadAt, is_it: impl Fn(u32, &Segment) -> bool) -> Option<Option<Segment>> {
    let (at, sizes) = (word(file, 32)?, word(file, 54)?);
    let (size, count) = (sizes & 0xffff, sizes >> 16 & 0xffff);
    (size == SEGMENT_BYTES).then_some(())?;
    for number in 0..count.min(SEGMENTS_MAX) {
        let at = at.checked_add(number * SEGMENT_BYTES)?;
        let kind = u32::try_from(word(file, at)? & 0xffff_ffff).ok()?;
        let [offset, address, bytes] = [8, 16, 32].map(|field| word(file, at.saturating_add(field)));
        let segment = Segment { offset: offset?, address: address?, bytes: bytes? };
        if is_it(kind, &segment) {
            return Some(Some(segment));
        }
    }
    Some(None)
}

/// What the loader is told: tags and their values.
fn entries(file: &impl ReadAt, dynamic: &Segment) -> impl Iterator<Item = (u64, u64)> {
    let count = (dynamic.bytes / ENTRY_BYTES as u64).min(ENTRIES_MAX);
    let offset = dynamic.offset;
    let entry = move |number| {
        let mut bytes = [0; ENTRY_BYTES];
        let read = file.read_at(offset.checked_add(number * ENTRY_BYTES as u64)?, &mut bytes);
        let [tag, value] = bytes.as_chunks::<8>().0 else { return None };
        (read == bytes.len()).then(|| (u64::from_le_bytes(*tag), u64::from_le_bytes(*value)))
    };
    (0..count).map_while(entry).take_while(|(tag, _)| *tag != DT_NULL)
}

fn word(file: &impl ReadAt, at: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    (file.read_at(at, &mut bytes) == bytes.len()).then(|| u64::from_le_bytes(bytes))
}

/// The longest path of a loader, and name of a library, that is looked at.
const TEXT_BYTES: usize = 160;

/// A text in the file, or its beginning.
struct Text {
    bytes: [u8; TEXT_BYTES],
    length: usize,
}

impl Text {
    fn read(file: &impl ReadAt, at: u64) -> Self {
        let mut bytes = [0; TEXT_BYTES];
        let length = file.read_at(at, &mut bytes);
        Self { bytes, length }
    }

    fn get(&self) -> &[u8] {
        let bytes = self.bytes.get(..self.length).unwrap_or_default();
        bytes.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(file: &Vec<u8>) -> Program {
        look_at(file, &mut [0; 256])
    }

    impl ReadAt for Vec<u8> {
        fn read_at(&self, at: u64, bytes: &mut [u8]) -> usize {
            let rest = usize::try_from(at).ok().and_then(|at| self.get(at..)).unwrap_or_default();
            let length = rest.len().min(bytes.len());
            bytes[..length].copy_from_slice(&rest[..length]);
            length
        }
    }

    /// A program with this loader, that needs these libraries.
    fn program(loader: Option<&str>, needed: &[&str]) -> Vec<u8> {
        const BASE: u64 = 0x40_0000;
        let (segments, dynamic, strings) = (64, 64 + 3 * 56, 64 + 3 * 56 + 16 * (needed.len() + 2));
        let mut texts = vec![0];
        let mut put = |text: &str| {
            let at = texts.len();
            texts.extend(text.bytes().chain([0]));
            u64::try_from(at).unwrap()
        };
        let mut entries: Vec<[u64; 2]> = needed.iter().map(|name| [1, put(name)]).collect();
        let loader = loader.map(&mut put);
        let number = |value: usize| u64::try_from(value).unwrap();
        entries.extend([[5, BASE + number(strings)], [0, 0]]);
        let mut file = BEGIN.to_vec();
        file.resize(32, 0);
        file.extend(number(segments).to_le_bytes());
        file.resize(54, 0);
        file.extend([56, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        let all = number(strings + texts.len());
        let mut segment = |kind: u64, offset: u64, bytes: u64| {
            let fields = [kind, offset, BASE + offset, 0, bytes, bytes, 1];
            file.extend(fields.iter().flat_map(|field| field.to_le_bytes()));
        };
        segment(1, 0, all);
        segment(2, number(dynamic), number(16 * entries.len()));
        segment(if loader.is_some() { 3 } else { 4 }, number(strings) + loader.unwrap_or(0), 40);
        file.extend(entries.iter().flatten().flat_map(|value| value.to_le_bytes()));
        file.extend(texts);
        file
    }

    const GLIBC: Option<&str> = Some("/lib64/ld-linux-x86-64.so.2");

    #[test]
    fn programs_that_end_are_told_from_those_that_go_on() {
        let cases = [
            (program(GLIBC, &["libm.so.6", "libc.so.6"]), Program::GoesOn),
            (program(GLIBC, &["libasan.so.8", "libc.so.6"]), Program::Ends),
            (program(GLIBC, &["libm.so.6", "libclang_rt.asan-x86_64.so", "libc.so.6"]), Program::Ends),
            // These do not mind.
            (program(GLIBC, &["libtsan.so.2", "libubsan.so.1", "liblsan.so.0"]), Program::GoesOn),
            (program(GLIBC, &["not-libasan.so.8"]), Program::GoesOn),
            (program(Some("/lib/ld-musl-x86_64.so.1"), &["libc.so"]), Program::Ends),
            (program(Some("/ld-musl/ld.so"), &[]), Program::GoesOn),
            (program(None, &[]), Program::GoesOn),
            (b"text".to_vec(), Program::GoesOn),
            (vec![], Program::GoesOn),
            (b"#!".to_vec(), Program::GoesOn),
            (b"#! \t\n/bin/sh".to_vec(), Program::GoesOn),
        ];
        for (file, expected) in cases {
            assert_eq!(look(&file), expected, "{}", String::from_utf8_lossy(&file));
        }
        for line in ["#!/bin/sh", "#! /bin/sh -e\nexit", "#!\t/bin/sh\r\n"] {
            let mut path = [0; 256];
            assert_eq!(look_at(&line.as_bytes().to_vec(), &mut path), Program::Script, "{line}");
            assert!(path.starts_with(b"/bin/sh\0"), "{line}");
        }
        // As long as the kernel reads, and longer.
        let long = [b"#!", &[b'x'; 400][..]].concat();
        let mut path = [0; 256];
        assert_eq!(look_at(&long, &mut path), Program::Script);
        assert_eq!((path[253], path[254]), (b'x', 0));
    }

    #[test]
    fn programs_of_this_system_go_on_and_broken_ones_do_no_harm() {
        let shell = std::fs::read("/bin/sh").unwrap();
        assert_eq!(look(&shell), Program::GoesOn);
        let mut seed = 7_u64;
        let mut random = |below: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            usize::try_from(seed >> 33).unwrap() % below
        };
        let whole = program(GLIBC, &["libm.so.6", "libasan.so.8"]);
        for _ in 0..20_000 {
            let mut broken = whole.clone();
            broken.truncate(whole.len() - random(2) * random(whole.len()));
            for _ in 0..random(8) {
                let at = random(whole.len());
                if let Some(byte) = broken.get_mut(at) {
                    *byte = u8::try_from(random(256)).unwrap();
                }
            }
            look(&broken);
        }
    }
}
