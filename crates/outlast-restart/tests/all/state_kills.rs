//! Processes with threads that change a region all the time, and are killed all the time.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a failed expectation is the message of a test"
)]

use crate::common::bank::{Bank, Transfer, options, transfer};
use crate::common::state::{Area, child, ends, kill};
use crate::common::{Random, number};
use outlast_restart::policy::Inheritance;
use outlast_restart::state::{Region, StateError};
use std::time::Duration;

fn hammer(region: &Region, kind: Transfer) -> i32 {
    child(|| {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    loop {
                        transfer(region, kind).unwrap();
                    }
                });
            }
        });
    })
}

fn kills(kind: Transfer, count: u64) {
    let region = Region::anonymous("bank", &options(Area::new().address())).unwrap();
    let mut bank = Bank::new();
    bank.found(&region);
    let seed = number("OUTLAST_SEED", 1);
    let mut random = Random(seed);
    let mut hammers: Vec<_> = (0..3).map(|_| hammer(&region, kind)).collect();
    let mut rolled_back = 0;
    for n in 0..count {
        std::thread::sleep(Duration::from_micros(random.below(1500)));
        let which = usize::try_from(random.below(3)).unwrap();
        kill(hammers[which]);
        ends(hammers[which]);
        // About one time in six a transaction is under way then: in sixty of them it is always seen.
        if n % 4 == 0 {
            // All of them: then it is still.
            for pid in &hammers {
                if *pid != hammers[which] {
                    kill(*pid);
                    ends(*pid);
                }
            }
            let adopted = region.adopt(Inheritance::Everything, |_| Ok::<_, StateError>(())).unwrap();
            rolled_back += u64::from(adopted.rolled_back);
            let found = Bank::read(&region);
            bank.advance_to(found.transfers(), kind);
            assert_eq!(found, bank, "seed {seed}, kill {n}");
            // One has founded it.
            assert_eq!(region.committed(), found.transfers() + 1);
            hammers = (0..3).map(|_| hammer(&region, kind)).collect();
        } else {
            hammers[which] = hammer(&region, kind);
        }
        // Whoever lives goes on, and so does this process.
        if n % 4 == 0 {
            transfer(&region, kind).unwrap();
            region.check().unwrap();
        }
    }
    for pid in hammers {
        kill(pid);
        ends(pid);
    }
    eprintln!("{kind:?}: {count} kills, {} transfers, {rolled_back} found under way", bank.transfers());
    assert!(bank.transfers() > count && rolled_back > 0);
}

#[test]
fn killed_in_small_transactions() {
    kills(Transfer::Small, number("OUTLAST_KILLS", 250));
}

#[test]
fn killed_in_large_transactions() {
    kills(Transfer::Large, number("OUTLAST_KILLS", 250));
}
