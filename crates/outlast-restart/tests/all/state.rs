//! The state region in real processes: what is kept, what is refused, who is waited for.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::state::{Area, child, ends};
use outlast_restart::policy::Inheritance;
use outlast_restart::state::{Cell, Map, Options, Record, Region, StateError, SuspectPart, check_image};
use std::io::{Read, Write};
use std::os::fd::AsFd;

fn options(area: Area) -> Options<'static> {
    Options { address: Some(area.address()), layout: "test", layout_version: 3, ..Options::default() }
}

fn counter(region: &Region) -> Cell<u64> {
    region.root().unwrap()
}

fn count(region: &Region) -> Result<u64, StateError> {
    let counter = counter(region);
    region.transaction(|tx| {
        tx.set(counter, tx.get(counter)? + 1)?;
        Ok(tx.sequence())
    })
}

#[test]
fn what_is_committed_is_there_and_numbered() {
    let region = Region::anonymous("test", &options(Area::new())).unwrap();
    assert!(region.is_named());
    assert_eq!((region.committed(), region.get(counter(&region)).unwrap()), (0, 0));
    for n in 1..100 {
        assert_eq!(count(&region).unwrap(), n);
        assert_eq!((region.committed(), region.get(counter(&region)).unwrap()), (n, n));
    }
    region.check().unwrap();
}

#[test]
fn errors_and_panics_take_everything_back() {
    let region = Region::anonymous("test", &options(Area::new())).unwrap();
    count(&region).unwrap();
    let usage = region.usage().unwrap();
    let spoil = |region: &Region| {
        region.transaction(|tx| -> Result<(), StateError> {
            tx.set(counter(region), 1000)?;
            let map = Map::create(tx)?;
            map.insert(tx, b"key", &[7; 1000])?;
            Err(StateError::Missing { what: "sense", offset: 0 })
        })
    };
    assert!(matches!(spoil(&region), Err(StateError::Missing { what: "sense", .. })));
    let panicked = std::panic::catch_unwind(|| {
        region.transaction(|tx| -> Result<(), StateError> {
            tx.set(counter(&region), 1000)?;
            tx.put(b"a record")?;
            std::panic::resume_unwind(Box::new("on purpose"))
        })
    });
    assert!(panicked.is_err());
    assert_eq!((region.committed(), region.get(counter(&region)).unwrap()), (1, 1));
    assert_eq!(region.usage().unwrap(), usage);
    region.check().unwrap();
    assert_eq!(count(&region).unwrap(), 2);
}

#[test]
fn what_is_begun_is_taken_back_unless_it_is_committed() {
    let region = Region::anonymous("test", &options(Area::new())).unwrap();
    let mut tx = region.begin().unwrap();
    tx.set(counter(&region), 7).unwrap();
    drop(tx);
    assert_eq!((region.committed(), region.get(counter(&region)).unwrap()), (0, 0));
    let mut tx = region.begin().unwrap();
    tx.set(counter(&region), 8).unwrap();
    tx.commit().unwrap();
    assert_eq!((region.committed(), region.get(counter(&region)).unwrap()), (1, 8));
}

#[test]
fn a_transaction_in_a_transaction_is_refused() {
    let region = Region::anonymous("test", &options(Area::new())).unwrap();
    region
        .transaction(|tx| {
            tx.set(counter(&region), 7)?;
            assert!(matches!(count(&region), Err(StateError::Nested)));
            assert!(matches!(region.check(), Err(StateError::Nested)));
            Ok::<_, StateError>(())
        })
        .unwrap();
    assert_eq!(region.get(counter(&region)).unwrap(), 7);
}

#[test]
fn limits_are_told_and_nothing_is_lost() {
    let region = Region::anonymous("test", &options(Area::new())).unwrap();
    let record = region.transaction(|tx| tx.put(&vec![7; 200_000])).unwrap();
    let error = region.transaction(|tx| tx.write(record, 0, &vec![8; 200_000])).unwrap_err();
    assert!(matches!(error, StateError::TransactionTooLarge { limit: 131_072 }), "{error}");
    let error = region.transaction(|tx| tx.allocate(1 << 20)).unwrap_err();
    let usage = region.usage().unwrap();
    let told = format!(
        "no room for {} more bytes: {} of the region are used, {} free (not in one piece, perhaps)",
        (1 << 20) + 8,
        usage.used_bytes,
        usage.heap_bytes - usage.used_bytes
    );
    assert_eq!(error.to_string(), told);
    region.read(|view| view.bytes(record).map(|bytes| assert_eq!(bytes, vec![7; 200_000]))).unwrap();
    for gone in [Record::NONE, Record::from_offset_bytes(17), Record::from_offset_bytes(!7)] {
        let error = region.read(|view| view.bytes(gone).map(drop)).unwrap_err();
        assert!(matches!(error, StateError::Missing { what: "record", .. }), "{error}");
    }
    region.transaction(|tx| tx.free(record)).unwrap();
    assert!(matches!(region.transaction(|tx| tx.free(record)), Err(StateError::Missing { .. })));
    // Gone to the last byte.
    assert_eq!(region.usage().unwrap().used_bytes, 0);
    region.check().unwrap();
}

#[test]
fn two_regions_are_two() {
    let (area, other_area) = (Area::new(), Area::new());
    let region = Region::anonymous("test", &options(area)).unwrap();
    let error = Region::anonymous("test", &options(area)).unwrap_err();
    assert!(matches!(error, StateError::AddressTaken { address } if address == area.address()), "{error}");
    let other = Region::anonymous("test", &options(other_area)).unwrap();
    count(&region).unwrap();
    // One within the other is allowed, as they have a lock each.
    region.transaction(|_| count(&other)).unwrap();
    assert_eq!((region.committed(), other.committed()), (2, 1));
    drop(region);
    let again = Region::anonymous("test", &options(area)).unwrap();
    assert_eq!(again.committed(), 0);
}

#[test]
fn impossible_sizes_and_places_are_told() {
    let area = Area::new();
    let small = Options { size_bytes: 8192, ..options(area) };
    let error = Region::anonymous("test", &small).unwrap_err();
    assert_eq!(error.to_string(), "the size of a region cannot be 8192: 16384 is the least");
    assert!(Region::anonymous("test", &Options { size_bytes: 16384, ..options(area) }).is_ok());
    let error = Region::anonymous("test", &Options { address: Some(4097), ..options(area) }).unwrap_err();
    assert!(matches!(error, StateError::Address { address: 4097 }));
    let region = Region::anonymous("test", &Options { root_bytes: 64, ..options(area) }).unwrap();
    assert!(matches!(region.root::<[u64; 513]>(), Err(StateError::OutOfBounds { end: 4104, .. })));
}

#[test]
fn a_file_is_found_again_and_others_are_refused() {
    let area = Area::new();
    let folder = crate::common::state::Folder::new();
    let path = folder.0.join("region");
    let region = Region::open(&path, &options(area)).unwrap();
    count(&region).unwrap();
    let size = region.size_bytes();
    drop(region);
    // Its place is known from the first time.
    let region = Region::open(&path, &Options { address: None, ..options(area) }).unwrap();
    assert_eq!((region.address(), count(&region).unwrap()), (area.address(), 2));
    let fd = region.fd().unwrap().try_clone_to_owned().unwrap();
    drop(region);
    let region = Region::from_fd(fd, &options(area)).unwrap();
    assert_eq!(region.committed(), 2);
    drop(region);

    let mut good = Vec::new();
    std::fs::File::open(&path).unwrap().read_to_end(&mut good).unwrap();
    let refused = |image: &[u8], options: &Options<'_>| {
        std::fs::File::create(&path).unwrap().write_all(image).unwrap();
        let error = Region::open(&path, options).unwrap_err();
        assert_eq!(error.to_string(), check_image(image, options).unwrap_err().to_string());
        assert_eq!(std::fs::read(&path).unwrap(), image, "it was overwritten");
        error.to_string()
    };
    let fits = options(area);
    let text = refused(&good, &Options { layout: "other", ..fits });
    assert_eq!(text, "the region was made for another application, not for \"other\"");
    let text = refused(&good, &Options { layout_version: 4, ..fits });
    assert_eq!(text, "the region has layout version 3, not 4: convert it or begin with a new one");
    let text = refused(&good, &Options { size_bytes: size + 1, ..fits });
    assert_eq!(
        text,
        format!("the region has {size} bytes, and {} are asked for: begin with a new one", size + 1)
    );
    let text = refused(&good, &Options { address: Some(Area::new().address()), ..fits });
    assert!(text.starts_with("the region was made for address"), "{text}");
    let text = refused(&good[..size - 1], &fits);
    assert_eq!(text, format!("the region is cut off: {} bytes are left of {size}", size - 1));
    assert!(refused(&good[..4096], &fits).starts_with("the region is cut off"));
    assert!(refused(&good[..1000], &fits).starts_with("the region is cut off"));
    assert!(refused(&good[..60], &fits).starts_with("this is no state region"));
    assert!(refused(b"#!/bin/sh\n", &fits).starts_with("this is no state region"));
    let mut other = good.clone();
    other[8] = 2;
    assert_eq!(
        refused(&other, &fits),
        "the region has format 2, and this program knows 1: begin with a new one"
    );
    let mut garbled = good.clone();
    garbled[40] ^= 1;
    assert!(refused(&garbled, &fits).contains("the checksum of the header is wrong"));
    // Whose maker has died between its two steps, is finished.
    let fresh = folder.0.join("fresh");
    drop(Region::open(&fresh, &fits).unwrap());
    std::fs::File::options().write(true).open(&fresh).unwrap().set_len(4096).unwrap();
    assert_eq!(count(&Region::open(&fresh, &fits).unwrap()).unwrap(), 1);
}

#[test]
fn a_file_that_may_be_another_users_is_refused() {
    let area = Area::new();
    let folder = crate::common::state::Folder::new();
    let (path, victim) = (folder.0.join("region"), folder.0.join("victim"));
    std::fs::write(&victim, b"").unwrap();
    std::os::unix::fs::symlink(&victim, &path).unwrap();
    let error = Region::open(&path, &options(area)).unwrap_err();
    assert!(matches!(error, StateError::SymbolicLink), "{error}");
    assert_eq!(std::fs::read(&victim).unwrap(), b"");
    let own = rustix::process::geteuid().as_raw();
    if own != 0 {
        eprintln!("SKIPPED: another user's file, as only root can make one");
        return;
    }
    std::os::unix::fs::chown(&victim, Some(65534), None).unwrap();
    let error = Region::open(&victim, &options(area)).unwrap_err();
    assert!(matches!(error, StateError::ForeignFile { owner: 65534, own: 0 }), "{error}");
    assert_eq!(std::fs::read(&victim).unwrap(), b"");
}

#[test]
fn a_damaged_heap_is_refused_and_can_be_cleared() {
    let area = Area::new();
    let region = Region::anonymous("test", &Options { suspect_bytes: 8192, ..options(area) }).unwrap();
    count(&region).unwrap();
    let record = region.transaction(|tx| tx.put(b"a record")).unwrap();
    let header = usize::try_from(record.offset_bytes() - 8).unwrap() + area.address();
    // SAFETY: within the region. That is what a bug elsewhere in a program may do.
    unsafe { std::ptr::without_provenance_mut::<u64>(header).write_volatile(0) };
    let error = region.adopt(Inheritance::Everything, |_| Ok::<_, StateError>(())).unwrap_err();
    assert!(error.to_string().contains("no block of the heap begins here"), "{error}");
    // Other parts are as they were.
    assert_eq!(region.get(counter(&region)).unwrap(), 1);
    region.clear().unwrap();
    region.check().unwrap();
    assert_eq!((region.get(counter(&region)).unwrap(), region.committed()), (0, 3));
    assert_eq!(region.usage().unwrap().records, 0);
}

#[test]
fn the_suspect_part_is_kept_if_it_is_wanted_and_sound() {
    let area = Area::new();
    let region = Region::anonymous("test", &Options { suspect_bytes: 8192, ..options(area) }).unwrap();
    let suspect = region.suspect();
    assert_eq!(suspect.length(), 8192);
    let fill = || suspect.write(5, b"cached").unwrap();
    let read = || {
        let mut bytes = [0; 6];
        suspect.read(5, &mut bytes).unwrap();
        bytes
    };
    fill();
    count(&region).unwrap();
    let adopted = region.adopt(Inheritance::Everything, |region| {
        count(region)?;
        Ok::<_, StateError>(())
    });
    assert_eq!((adopted.unwrap().suspect, &read()), (SuspectPart::Kept, b"cached"));
    let adopted = region.adopt(Inheritance::Everything, |_| Err("not sound"));
    assert_eq!((adopted.unwrap().suspect, read()), (SuspectPart::Discarded, [0; 6]));
    for inheritance in [Inheritance::WithoutSuspectState, Inheritance::Listeners] {
        fill();
        let adopted = region.adopt(inheritance, |_| -> Result<(), ()> { panic!("nobody is asked") });
        assert_eq!((adopted.unwrap().suspect, read()), (SuspectPart::Discarded, [0; 6]));
    }
    assert!(matches!(suspect.write(8190, b"abc"), Err(StateError::OutOfBounds { end: 8193, .. })));
    assert_eq!(region.get(counter(&region)).unwrap(), 2);
}

#[test]
fn the_lock_of_a_dead_process_is_taken_over_and_its_changes_are_taken_back() {
    let region = Region::anonymous("test", &options(Area::new())).unwrap();
    count(&region).unwrap();
    for zombie in [true, false] {
        let pid = child(|| {
            let _ = region.transaction(|tx| -> Result<(), StateError> {
                tx.set(counter(&region), 1000)?;
                tx.put(&[1; 5000])?;
                std::process::abort()
            });
        });
        if zombie {
            // It has died, and nobody has buried it.
            while crate::common::state::is_alive(pid) {
                std::thread::yield_now();
            }
            let adopted = region.adopt(Inheritance::Everything, |_| Ok::<_, StateError>(())).unwrap();
            assert!(adopted.rolled_back);
            ends(pid);
        } else {
            ends(pid);
            assert!(region.recover().unwrap() && !region.recover().unwrap());
            assert_eq!(region.get(counter(&region)).unwrap(), 1);
        }
        assert_eq!(region.usage().unwrap().used_bytes, 0);
    }
    assert_eq!(count(&region).unwrap(), 2);
}

#[test]
fn who_waits_for_a_thread_gets_it_when_that_dies() {
    let region = Region::anonymous("test", &options(Area::new())).unwrap();
    let began = region.root::<u64>().unwrap();
    let pid = child(|| {
        let _ = region.transaction(|tx| -> Result<(), StateError> {
            tx.set(began, 1)?;
            loop {
                std::thread::sleep(std::time::Duration::from_secs(1));
            }
        });
    });
    // It has the lock as soon as the word is seen, without the lock.
    let word = std::ptr::without_provenance::<u64>(began.offset_bytes() + region.address());
    // SAFETY: within the region.
    while unsafe { word.read_volatile() } == 0 {
        std::thread::yield_now();
    }
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..4).map(|_| scope.spawn(|| count(&region).unwrap())).collect();
        std::thread::sleep(std::time::Duration::from_millis(30));
        crate::common::state::kill(pid);
        let mut told: Vec<_> = waiting.into_iter().map(|thread| thread.join().unwrap()).collect();
        told.sort_unstable();
        assert_eq!(told, [1, 2, 3, 4]);
    });
    assert_eq!(region.get(began).unwrap(), 4);
}

#[test]
fn threads_and_processes_take_turns() {
    let region = Region::anonymous("test", &options(Area::new())).unwrap();
    let work = || {
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..5000).for_each(|_| assert!(count(&region).unwrap() > 0)));
            }
        });
    };
    let children: Vec<_> = (0..2).map(|_| child(work)).collect();
    work();
    children.into_iter().for_each(|pid| assert_eq!(ends(pid), 0));
    assert_eq!((region.get(counter(&region)).unwrap(), region.committed()), (45_000, 45_000));
}

#[test]
fn a_region_cannot_be_cut_off_while_it_is_mapped() {
    let region = Region::anonymous("test", &options(Area::new())).unwrap();
    let file = std::fs::File::from(region.fd().unwrap().as_fd().try_clone_to_owned().unwrap());
    assert!(file.set_len(0).is_err());
}

#[test]
fn every_generation_goes_on_where_the_last_one_was() {
    let this = std::env::current_exe().unwrap();
    let counter = this.parent().unwrap().parent().unwrap().join("examples/counter");
    let output = std::process::Command::new(counter).arg("600000").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let mut generations = 0;
    for (line, number) in said.lines().zip(1..) {
        if let Some(last) = line.strip_suffix(" generations have counted to 600000") {
            assert_eq!(last.parse(), Ok(generations));
            assert!(generations > 5, "{said}");
            return;
        }
        let back = u8::from(number > 1);
        assert_eq!(line, format!("generation {number} goes on, {back} was taken back"));
        generations = number;
    }
    panic!("it has not come to the end: {said}");
}

/// What sandboxes do: the call is answered as by a kernel that does not know it.
fn forbid_memory_files() {
    let call = u32::try_from(libc::SYS_memfd_create).unwrap();
    let (load, compare, give) = (0x20, 0x15, 0x06);
    let no_such_call = libc::SECCOMP_RET_ERRNO | u32::try_from(libc::ENOSYS).unwrap();
    let mut filter = [
        libc::sock_filter { code: load, jt: 0, jf: 0, k: 0 },
        libc::sock_filter { code: compare, jt: 0, jf: 1, k: call },
        libc::sock_filter { code: give, jt: 0, jf: 0, k: no_such_call },
        libc::sock_filter { code: give, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW },
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: integers, and a program that is copied.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

#[test]
fn without_memory_files_children_have_it_all_the_same() {
    let pid = child(|| {
        forbid_memory_files();
        let region = Region::anonymous("test", &options(Area::new())).unwrap();
        assert!(!region.is_named() && region.fd().is_none());
        assert_eq!(ends(child(|| assert_eq!(count(&region).unwrap(), 1))), 0);
        assert_eq!(count(&region).unwrap(), 2);
        region.check().unwrap();
    });
    assert_eq!(ends(pid), 0);
}
