//! A disk that journals its writes and flushes.

use super::model::{Model, Said};
use crate::ram::whole;
use kvtide_format::log::Storage;
use std::cell::RefCell;
use std::io;
use std::rc::Rc;

/// Bytes that a power cut never splits.
pub const TORN: usize = 512;

/// A journal entry; entries are in order.
#[derive(Clone, Debug)]
pub enum Entry {
    Write {
        offset: usize,
        bytes: Vec<u8>,
    },
    Flush,
    Said(Said),
    /// A start recovered this.
    Adopted(Model),
}

/// Memory that journals. Clones share the same disk.
#[derive(Clone)]
pub struct Disk(Rc<RefCell<State>>);

struct State {
    bytes: Vec<u8>,
    journal: Vec<Entry>,
}

impl Disk {
    pub fn new(bytes: Vec<u8>) -> Disk {
        Disk(Rc::new(RefCell::new(State { bytes, journal: Vec::new() })))
    }

    pub fn say(&self, said: Said) {
        self.0.borrow_mut().journal.push(Entry::Said(said));
    }

    pub fn adopted(&self, model: Model) {
        self.0.borrow_mut().journal.push(Entry::Adopted(model));
    }

    /// Return the journal since the last call.
    pub fn journal(&self) -> Vec<Entry> {
        std::mem::take(&mut self.0.borrow_mut().journal)
    }

    pub fn page(&self, offset: usize, bytes: usize) -> Vec<u8> {
        self.0.borrow().bytes[offset..offset + bytes].to_vec()
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.0.borrow().bytes.clone()
    }
}

impl Storage for Disk {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        whole(offset, into.len());
        into.copy_from_slice(&self.0.borrow().bytes[offset as usize..][..into.len()]);
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        whole(offset, bytes.len());
        let state = &mut *self.0.borrow_mut();
        state.bytes[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        state.journal.push(Entry::Write { offset: offset as usize, bytes: bytes.to_vec() });
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.borrow_mut().journal.push(Entry::Flush);
        Ok(())
    }
}
