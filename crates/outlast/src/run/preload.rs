//! Whether a library can be loaded into a program that keeps its sockets over a crash.

use super::elf::{self, Elf, Kind};
use crate::cmd::run::Preload;
use crate::exit::Failure;
use anyhow::Result;
use outlast_session::relay::dial::plain;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The library's file.
const LIBRARY: &str = "liboutlast_preload.so";
/// The dynamic loader's variable.
pub const VARIABLE: &str = "LD_PRELOAD";
/// How the reason ends where the program needs no library.
const BY_ITSELF: &str = "takes over its connections by itself";
/// What runs text that is executable.
const SHELL: &str = "/bin/sh";
/// Where a file has its capabilities, and the longest form of them.
const CAPABILITIES: &str = "security.capability";
const CAPABILITY_BYTES: usize = 24;
/// Scripts for scripts: as deep as the kernel goes.
const SCRIPTS_MAX: usize = 5;

/// The library that is loaded into the program, or why there is none.
#[derive(Debug, PartialEq, Eq)]
pub enum Choice {
    Load(PathBuf),
    /// Whether nobody expects it: it was not wanted, or is not needed.
    Without {
        why: String,
        is_expected: bool,
    },
}

/// Chooses. `path` is where programs are searched for.
pub fn choose(when: Preload, given: Option<&Path>, program: &OsStr, path: &OsStr) -> Result<Choice> {
    let found = match (when, given) {
        (Preload::Never, _) => {
            return Ok(Choice::Without { why: "--preload never".into(), is_expected: true });
        }
        (_, Some(given)) if !given.is_file() => {
            return Err(Failure::usage(format!("there is no preload library {}", given.display())));
        }
        (_, Some(given)) => match elf::kind(given) {
            Ok(Kind::Elf(Elf { is_shared: true, .. })) => std::path::absolute(given).ok(),
            Ok(_) => {
                let given = given.display();
                return Err(Failure::usage(format!("{given} is no shared library (--preload-library)")));
            }
            Err(error) => {
                let (given, why) = (given.display(), plain(&error));
                return Err(Failure::system(format!("cannot read {given} (--preload-library): {why}")));
            }
        },
        (_, None) => beside(LIBRARY),
    };
    let choice = match found {
        Some(library) => match obstacle(&library, program, path) {
            None => Choice::Load(library),
            Some(why) => {
                let is_expected = why.ends_with(BY_ITSELF);
                Choice::Without { why, is_expected }
            }
        },
        None => {
            let why = if is_proc_missing() {
                "/proc is not mounted, without which the library is not found and does not work: mount it"
                    .to_owned()
            } else {
                format!("there is no {LIBRARY} beside outlast or in ../lib/outlast")
            };
            Choice::Without { why, is_expected: false }
        }
    };
    match choice {
        Choice::Without { why, .. } if when == Preload::Always => {
            let name = program.to_string_lossy();
            Err(Failure::usage(format!("cannot preload a library into {name} (--preload always): {why}")))
        }
        choice => Ok(choice),
    }
}

/// What the program's environment has for the library, which is in front of those that the user has there, unless one of
/// them has to be the first.
pub fn variable(library: &Path, existing: Option<OsString>) -> (&'static str, OsString) {
    let library = library.as_os_str();
    let Some(existing) = existing.filter(|existing| !existing.is_empty()) else {
        return (VARIABLE, library.to_owned());
    };
    let has_first = existing.to_string_lossy().split([' ', ':']).any(|path| {
        Path::new(path).file_name().is_some_and(|name| elf::is_first_library(&name.to_string_lossy()))
    });
    let ordered = if has_first { [&existing, library] } else { [library, &existing] };
    (VARIABLE, ordered.join(OsStr::new(":")))
}

/// Where processes cannot be looked at, and this program does not know where its own file is.
pub fn is_proc_missing() -> bool {
    std::env::current_exe().is_err()
}

/// Where an installation has this library.
pub fn beside(library: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let folder = own.parent()?;
    let places = [folder.join(library), folder.parent()?.join("lib/outlast").join(library)];
    places.into_iter().find(|place| place.is_file())
}

/// Why a library cannot be loaded into the program, if so, whatever it does there.
pub fn obstacle_to_any(library: &Path, program: &OsStr, path: &OsStr) -> Option<String> {
    obstacle(library, program, path).filter(|why| !why.ends_with(BY_ITSELF))
}

/// Why the library cannot be loaded into the program, if so.
pub fn obstacle(library: &Path, program: &OsStr, path: &OsStr) -> Option<String> {
    // The loader splits its variable there.
    if library.as_os_str().to_string_lossy().contains([' ', ':']) {
        return Some(format!("the path {} has a space or a colon", library.display()));
    }
    let Ok(Kind::Elf(Elf { machine, .. })) = elf::kind(library) else {
        return Some(format!("{} is no library", library.display()));
    };
    // What cannot be started is said when it is to be.
    find(program, path).filter(|file| is_executable(file))?;
    let (file, elf) = match executable(program.into(), path) {
        Ok(found) => found,
        Err(why) => return Some(why),
    };
    let name = file.display();
    if elf.uses_library {
        return Some(format!("{name} {BY_ITSELF}"));
    }
    let Some(loader) = &elf.loader else { return Some(format!("{name} is linked statically")) };
    if elf.machine != machine {
        return Some(format!("{name} is for another kind of processor than the library"));
    }
    if loader.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld-musl")) {
        return Some(format!("{name} uses another C library than the GNU one"));
    }
    if let Some(library) = &elf.first_library {
        return Some(format!(
            "{name} is linked with AddressSanitizer ({library}), before which no other library may be loaded"
        ));
    }
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let is_root = rustix::process::getuid().is_root();
    let why = if is_of_other(&file, user, group) {
        "setuid"
    } else if !is_root && has_capabilities(&file) {
        "file capabilities, see getcap(8)"
    } else {
        return None;
    };
    Some(format!("{name} runs with rights that its caller does not have ({why})"))
}

/// Whether it is executed as another user or group.
fn is_of_other(file: &Path, user: u32, group: u32) -> bool {
    std::fs::metadata(file).is_ok_and(|file| {
        (file.mode() & 0o4000 != 0 && file.uid() != user)
            || (file.mode() & 0o2000 != 0 && file.gid() != group)
    })
}

/// Whether it is executed with capabilities, unless root does so, who has them: then the system loads nothing into it.
fn has_capabilities(file: &Path) -> bool {
    let mut room = [0; CAPABILITY_BYTES];
    let length = rustix::fs::getxattr(file, CAPABILITIES, &mut room).unwrap_or(0);
    // The kernel's `struct vfs_cap_data`: a version with a flag, and twice what is permitted and what may be inherited.
    let (words, _) = room.get(..length).unwrap_or_default().as_chunks::<4>();
    let word = |number: usize| words.get(number).copied().map_or(0, u32::from_le_bytes);
    word(0) & 1 != 0 || word(1) != 0 || word(3) != 0
}

/// The machine code that is executed in the end.
fn executable(mut program: OsString, path: &OsStr) -> Result<(PathBuf, Elf), String> {
    for _ in 0..SCRIPTS_MAX {
        let name = program.to_string_lossy().into_owned();
        let file = find(&program, path).ok_or_else(|| format!("there is no program {name}"))?;
        match elf::kind(&file).map_err(|error| format!("cannot read {name}: {error}"))? {
            Kind::Elf(elf) => return Ok((file, elf)),
            Kind::Script(interpreter, argument) => {
                let is_env = interpreter.file_name().is_some_and(|name| name == "env");
                program = match argument.filter(|argument| is_env && !argument.starts_with('-')) {
                    Some(argument) => argument.into(),
                    None => interpreter.into(),
                };
            }
            // Text without a first line for the kernel: execvp(3) has the shell run it.
            Kind::Unknown if is_executable(&file) && program != SHELL => program = SHELL.into(),
            Kind::Unknown => return Err(format!("{name} is no program")),
        }
    }
    Err("it is a script for a script, and so on".into())
}

/// The file that is executed for a name.
pub fn find(program: &OsStr, path: &OsStr) -> Option<PathBuf> {
    if program.to_string_lossy().contains('/') {
        return Some(PathBuf::from(program)).filter(|file| file.is_file());
    }
    std::env::split_paths(path).map(|folder| folder.join(program)).find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_loaded_into_what_can_load_it() {
        let folder = tempfile::tempdir().unwrap();
        // Any library will do to look at.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc = maps
            .lines()
            .find_map(|line| line.split_whitespace().nth(5).filter(|file| file.contains("libc.so")));
        let libc = PathBuf::from(libc.unwrap());
        let script = folder.path().join("script");
        std::fs::write(&script, "#!/usr/bin/env sh\n").unwrap();
        let text = folder.path().join("text");
        std::fs::write(&text, "text").unwrap();
        let astray = folder.path().join("astray");
        std::fs::write(&astray, "#!/no/such\n").unwrap();
        std::fs::set_permissions(&astray, std::fs::Permissions::from_mode(0o755)).unwrap();
        let bare_script = folder.path().join("bare-script");
        std::fs::write(&bare_script, "exec sleep 1\n").unwrap();
        std::fs::set_permissions(&bare_script, std::fs::Permissions::from_mode(0o755)).unwrap();
        let setuid = folder.path().join("setuid");
        std::fs::copy("/bin/sh", &setuid).unwrap();
        // As root one that is somebody else's; or a group that this user is not in cannot be had.
        let stranger = std::os::unix::fs::chown(&setuid, Some(65534), None).is_ok();
        std::fs::set_permissions(&setuid, std::fs::Permissions::from_mode(0o4755)).unwrap();
        let own = folder.path().join("own");
        std::fs::copy("/bin/sh", &own).unwrap();
        std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o4755)).unwrap();
        let path = OsStr::new("/bin:/usr/bin");
        let tried = |when, program: &Path| choose(when, Some(&libc), program.as_os_str(), path);
        for program in [Path::new("sh"), Path::new("/bin/sh"), &script, &bare_script, &own] {
            assert_eq!(tried(Preload::Auto, program).unwrap(), Choice::Load(libc.clone()), "{program:?}");
        }
        // These cannot be started, which is said then.
        for program in [text.as_path(), Path::new("no-such-program"), Path::new("/no/such")] {
            assert!(matches!(tried(Preload::Auto, program).unwrap(), Choice::Load(_)), "{program:?}");
        }
        for (program, part) in [(astray.as_path(), "there is no program /no/such"), (&setuid, "setuid")] {
            if program == setuid && !stranger {
                continue;
            }
            let Choice::Without { why, is_expected: false } = tried(Preload::Auto, program).unwrap() else {
                panic!("{program:?}")
            };
            assert!(why.contains(part), "{why}");
            let why = tried(Preload::Always, program).unwrap_err().to_string();
            assert!(why.contains(part) && why.contains("--preload always"), "{why}");
        }
        assert!(matches!(
            tried(Preload::Never, Path::new("sh")),
            Ok(Choice::Without { is_expected: true, .. })
        ));
        let missing = choose(Preload::Auto, Some(Path::new("/no/such.so")), OsStr::new("sh"), path);
        assert!(missing.unwrap_err().to_string().contains("no preload library /no/such.so"));
        for (given, when) in [(&text, Preload::Auto), (&script, Preload::Always)] {
            let why = choose(when, Some(given), OsStr::new("sh"), path).unwrap_err().to_string();
            assert!(why.contains("is no shared library (--preload-library)"), "{why}");
        }
    }

    #[test]
    fn libraries_of_the_user_stay() {
        let library = Path::new("/lib/ours.so");
        let value = |existing| variable(library, existing).1;
        assert_eq!(value(None), "/lib/ours.so");
        assert_eq!(value(Some("/a.so /b.so".into())), "/lib/ours.so:/a.so /b.so");
        assert_eq!(value(Some(OsString::new())), "/lib/ours.so");
        // It ends a program where it is not the first.
        assert_eq!(value(Some("/a.so /lib/libasan.so.8".into())), "/a.so /lib/libasan.so.8:/lib/ours.so");
        assert_eq!(
            value(Some("libclang_rt.asan-x86_64.so".into())),
            "libclang_rt.asan-x86_64.so:/lib/ours.so"
        );
        assert_eq!(value(Some("/libasan.so/a.so".into())), "/lib/ours.so:/libasan.so/a.so");
    }
}
