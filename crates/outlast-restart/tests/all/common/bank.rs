//! A bank in a region: what it contains after so many transfers is known, so whoever looks can tell old from new from
//! wrong.

use outlast_restart::state::{Map, Options, Record, Region, StateError, bytemuck};
use std::collections::BTreeMap;

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[bytemuck(crate = "bytemuck")]
#[repr(C)]
struct Root {
    transfers: u64,
    accounts: [u64; 4],
    receipt: Record,
    map: Map,
}

pub const TOTAL: u64 = 4000;

/// What one transfer consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// Words of the root.
    Small,
    /// A receipt, which replaces the last one, and changes of a map as well.
    Large,
}

pub fn options(address: usize) -> Options<'static> {
    Options {
        size_bytes: 48 << 10,
        log_bytes: 12 << 10,
        address: Some(address),
        layout: "bank",
        ..Options::default()
    }
}

/// What the bank should contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bank {
    transfers: u64,
    accounts: [u64; 4],
    receipt: Vec<u8>,
    map: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// From which account to which, and how much.
fn order(n: u64, accounts: [u64; 4]) -> (usize, usize, u64) {
    let place = |n: u64| usize::try_from(n % 4).unwrap();
    (place(n), place(n + 1), (n % 97).min(accounts[place(n)]))
}

fn receipt(n: u64) -> Vec<u8> {
    vec![n.to_le_bytes()[0]; usize::try_from(n * 37 % 400).unwrap()]
}

fn inserted(n: u64) -> (Vec<u8>, Vec<u8>) {
    let value = vec![n.to_le_bytes()[0]; usize::try_from(n * 13 % 90).unwrap()];
    (format!("customer {}", n * 5 % 23).into_bytes(), value)
}

fn removed(n: u64) -> Vec<u8> {
    format!("customer {}", n * 11 % 23).into_bytes()
}

impl Bank {
    pub fn new() -> Self {
        Self { transfers: 0, accounts: [TOTAL / 4; 4], receipt: Vec::new(), map: BTreeMap::new() }
    }

    /// In a region that is empty.
    pub fn found(&self, region: &Region) {
        let root = region.root::<Root>().unwrap();
        region
            .transaction(|tx| {
                let (map, receipt) = (Map::create(tx)?, tx.put(&[])?);
                tx.set(root, Root { transfers: 0, accounts: self.accounts, receipt, map })
            })
            .unwrap();
    }

    pub fn transfers(&self) -> u64 {
        self.transfers
    }

    /// As it is after so many.
    pub fn advance_to(&mut self, transfers: u64, kind: Transfer) {
        while self.transfers < transfers {
            self.transfers += 1;
            let n = self.transfers;
            let (from, to, amount) = order(n, self.accounts);
            self.accounts[from] -= amount;
            self.accounts[to] += amount;
            if kind == Transfer::Large {
                self.receipt = receipt(n);
                let (key, value) = inserted(n);
                self.map.insert(key, value);
                self.map.remove(&removed(n));
            }
        }
    }

    /// What there is.
    pub fn read(region: &Region) -> Self {
        let root = region.root::<Root>().unwrap();
        let read = |view: &outlast_restart::state::View<'_>| {
            let root = view.get(root)?;
            Ok::<_, StateError>(Self {
                transfers: root.transfers,
                accounts: root.accounts,
                receipt: view.bytes(root.receipt)?.to_vec(),
                map: root.map.entries(view)?.into_iter().collect(),
            })
        };
        let bank = region.read(read).unwrap();
        assert_eq!(bank.accounts.iter().sum::<u64>(), TOTAL);
        bank
    }
}

/// One more, in a transaction.
pub fn transfer(region: &Region, kind: Transfer) -> Result<u64, StateError> {
    let cell = region.root::<Root>()?;
    region.transaction(|tx| {
        let mut root = tx.get(cell)?;
        root.transfers += 1;
        let n = root.transfers;
        let (from, to, amount) = order(n, root.accounts);
        root.accounts[from] -= amount;
        root.accounts[to] += amount;
        if kind == Transfer::Large {
            let old = root.receipt;
            root.receipt = tx.put(&receipt(n))?;
            tx.free(old)?;
            let (key, value) = inserted(n);
            root.map.insert(tx, &key, &value)?;
            root.map.remove(tx, &removed(n))?;
        }
        tx.set(cell, root)?;
        Ok(n)
    })
}
