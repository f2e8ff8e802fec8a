//! What kind of program a file is, as far as it matters for loading a library into it.

use object::Endianness;
use object::elf::{DT_NEEDED, ET_DYN, FileHeader32, FileHeader64, PT_INTERP};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::read::{FileKind, ReadCache};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// What programs have that are linked with `outlast-restart`, and its form for C.
const LIBRARY_SECTION: &[u8] = b".note.outlast";
const LIBRARY_FILE: &[u8] = b"liboutlast.so";
/// How libraries are called that end a program where another one is loaded before them: AddressSanitizer of GCC, and of clang.
/// What `outlast-preload` (`program.rs`) knows of them is the same.
const FIRST_LIBRARIES: [&str; 2] = ["libasan.so", "libclang_rt.asan"];
/// The longest first line of a script that is looked at: what the kernel reads, too.
const FIRST_LINE_BYTES_MAX: u64 = 256;

/// A file that can be executed.
#[derive(Debug, PartialEq, Eq)]
pub enum Kind {
    /// Machine code.
    Elf(Elf),
    /// Text for another program: that, and its first argument.
    Script(PathBuf, Option<String>),
    /// Something else.
    Unknown,
}

/// Which machine it is for, and what loads its libraries.
#[derive(Debug, PartialEq, Eq)]
pub struct Elf {
    pub machine: (u16, bool),
    /// It can be loaded wherever there is room, as libraries are.
    pub is_shared: bool,
    /// None: it is linked statically.
    pub loader: Option<PathBuf>,
    /// It takes over its connections by itself.
    pub uses_library: bool,
    /// A library that it needs, and that has to be loaded before all others.
    pub first_library: Option<String>,
}

/// Whether a library has to be loaded before all others, as its file's name tells.
pub fn is_first_library(name: &str) -> bool {
    FIRST_LIBRARIES.iter().any(|first| name.starts_with(first))
}

/// Looks at the beginning of a file.
pub fn kind(path: &Path) -> io::Result<Kind> {
    let mut file = File::open(path)?;
    let mut start = Vec::new();
    file.by_ref().take(FIRST_LINE_BYTES_MAX).read_to_end(&mut start)?;
    if let Some(line) = start.strip_prefix(b"#!") {
        return Ok(script(line));
    }
    let content = ReadCache::new(file);
    let elf = match FileKind::parse(&content) {
        Ok(FileKind::Elf32) => elf::<FileHeader32<Endianness>>(&content),
        Ok(FileKind::Elf64) => elf::<FileHeader64<Endianness>>(&content),
        _ => None,
    };
    Ok(elf.map_or(Kind::Unknown, Kind::Elf))
}

fn script(line: &[u8]) -> Kind {
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split_whitespace();
    words.next().map_or(Kind::Unknown, |interpreter| {
        Kind::Script(interpreter.into(), words.next().map(str::to_owned))
    })
}

fn elf<H: FileHeader<Endian = Endianness>>(content: &ReadCache<File>) -> Option<Elf> {
    let header = H::parse(content).ok()?;
    let endian = header.endian().ok()?;
    let mut segments = header.program_headers(endian, content).ok()?.iter();
    let named = segments.find(|segment| segment.p_type(endian) == PT_INTERP);
    let loader = match named {
        Some(segment) => Some(segment.interpreter(endian, content).ok()??),
        None => None,
    };
    let loader = loader.map(|name| PathBuf::from(String::from_utf8_lossy(name).into_owned()));
    let machine = (header.e_machine(endian).0, header.is_class_64());
    let is_shared = header.e_type(endian) == ET_DYN;
    let mut elf = Elf { machine, is_shared, loader, uses_library: false, first_library: None };
    look_at_libraries(header, endian, content, &mut elf);
    Some(elf)
}

/// Whether it is linked with the library, which leaves a section of its own, or needs the shared one; and what else it needs
/// that matters.
fn look_at_libraries<H: FileHeader<Endian = Endianness>>(
    header: &H,
    endian: Endianness,
    content: &ReadCache<File>,
    elf: &mut Elf,
) -> Option<()> {
    let sections = header.sections(endian, content).ok()?;
    elf.uses_library = sections.section_by_name(endian, LIBRARY_SECTION).is_some();
    let (entries, strings) = sections.dynamic(endian, content).ok()??;
    let strings = sections.strings(endian, content, strings).ok()?;
    let needed = entries.iter().filter(|entry| entry.tag(endian) == DT_NEEDED);
    for name in needed.filter_map(|entry| entry.string(endian, strings).ok()) {
        elf.uses_library |= name.starts_with(LIBRARY_FILE);
        let name = String::from_utf8_lossy(name);
        if is_first_library(&name) {
            elf.first_library = Some(name.into_owned());
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_scripts_are_told_from_garbage() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let of = |content: &[u8]| {
            std::fs::write(&path, content).unwrap();
            kind(&path).unwrap()
        };
        assert_eq!(of(b"#!/bin/sh -e\nexit"), Kind::Script("/bin/sh".into(), Some("-e".into())));
        assert_eq!(
            of(b"#! /usr/bin/env\tpython3"),
            Kind::Script("/usr/bin/env".into(), Some("python3".into()))
        );
        for nothing in [&b""[..], b"#!", b"#! \n/bin/sh", b"text", b"\x7fELF"] {
            assert_eq!(of(nothing), Kind::Unknown);
        }
        let shell = std::fs::canonicalize("/bin/sh").unwrap();
        let Kind::Elf(own) = kind(&shell).unwrap() else { panic!("the shell is no program") };
        assert!(own.loader.unwrap().to_string_lossy().starts_with("/lib"));
        // Whatever is cut off or overwritten, it is looked at without harm.
        let whole = std::fs::read(&shell).unwrap();
        let mut state = 7u64;
        for _ in 0..2_000 {
            let mut next = |bound: usize| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                usize::try_from(state >> 33).unwrap() % bound
            };
            let mut broken = whole[..next(4096)].to_vec();
            for _ in 0..8 {
                let at = next(1024);
                if let Some(byte) = broken.get_mut(at) {
                    *byte = u8::try_from(next(256)).unwrap();
                }
            }
            let _ = of(&broken);
        }
    }
}
