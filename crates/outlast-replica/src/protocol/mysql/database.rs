//! The same by the names that all databases have.

use super::OfMysql;
use crate::connection::Piece;
use crate::entry::Again;
use crate::protocol::database::{Database, Given};
use alloc::vec::Vec;

impl Database for OfMysql {
    fn ask(&mut self, bytes: &[u8]) {
        self.ask(bytes);
    }

    fn answer(&mut self, bytes: &[u8], takes: &mut dyn FnMut(Piece<'_>)) {
        self.answer(bytes, takes);
    }

    fn given(&mut self) -> Vec<Given> {
        self.given()
    }

    fn rest(&mut self) -> Vec<u8> {
        self.rest()
    }

    fn of_node(&mut self) -> Vec<u8> {
        self.of_node()
    }

    fn refused(&mut self) -> Option<&'static str> {
        self.refused()
    }

    fn refuse(&mut self) {
        self.refuse();
    }

    fn is_refused(&self) -> bool {
        self.is_refused()
    }

    fn quits(&self) -> bool {
        self.quits()
    }

    fn is_greeted(&self) -> bool {
        self.is_greeted()
    }

    fn server_number(&self) -> Option<u32> {
        self.server_number()
    }

    fn note_canonical(&mut self, number: u64, reply: &[u8]) {
        self.note_canonical(number, reply);
    }

    fn reply_bytes(&self) -> usize {
        self.reply_bytes()
    }

    fn give_up(&mut self) {
        self.give_up();
    }

    fn pass(&mut self) {
        self.pass();
    }

    fn owes(&self) -> bool {
        self.owes()
    }

    fn are_answered(&self) -> bool {
        self.are_answered()
    }

    fn is_broken(&self) -> bool {
        self.is_broken()
    }

    fn interrupt(&mut self, keeps: bool) {
        self.interrupt(keeps);
    }

    fn is_kept(&self) -> bool {
        self.is_kept()
    }

    fn give_again(&mut self, how: Again) {
        self.give_again(how);
    }

    fn forget_kept(&mut self) {
        self.forget_kept();
    }

    fn is_in_transaction(&self) -> bool {
        self.is_in_transaction()
    }

    fn may_hold_locks(&self, reads_matter: bool) -> bool {
        self.may_hold_locks(reads_matter)
    }

    fn waits_for_readers(&self) -> bool {
        self.waits_for_readers()
    }

    fn times_out(&self) -> bool {
        self.times_out()
    }
}
