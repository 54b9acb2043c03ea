//! Tables of handles: what a `kvt_client *` and the other handles contain.
//!
//! A handle is not an address. It contains the index of a slot, in a table that is never freed, and the generation of the
//! slot's value. A closed handle, a handle of another type and an arbitrary number are recognised without access to the
//! memory that they would point to. Dereferencing a handle by mistake faults at once, because no address has its top byte
//! set.
//!
//! Rules of a slot's `state` word (generation, flags, number of users):
//! 1. 0 users: the slot is free, or being filled by the thread that took it off the free list. No other thread reads its
//!    value.
//! 2. `insert` publishes the value with 1 user (the handle itself).
//! 3. A call adds itself as a user by a compare-exchange that checks generation and flags. In a shared table, any number
//!    of calls may be inside. In an exclusive table, a call enters only if the handle itself is the sole user, so it may
//!    mutate the value.
//! 4. `close` sets `CLOSED`, after which no call enters, and removes the handle's own use.
//! 5. The thread that takes the users to 0 owns the value: it drops it, increments the generation, and puts the slot on
//!    the free list.
//!
//! The table is lock-free on purpose: if a process forks while another thread is in a call, the child can still use its
//! table.

#[cfg(test)]
mod tests;
mod uses;

pub(crate) use uses::{ExclusiveUse, SharedUse};

use super::error::Fault;
use kvtide_client::process;
use kvtide_wire::status::Status;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Slots of a chunk; chunks are allocated on first use.
const CHUNK_SLOTS: usize = 64;
/// Chunks of a table.
const CHUNKS: usize = 256;
/// Maximum open handles of one type in a process.
const SLOTS_MAX: usize = CHUNK_SLOTS * CHUNKS;

const USERS: u64 = (1 << 30) - 1;
/// A call panicked: the value may be inconsistent, so the handle can only be closed.
const POISONED: u64 = 1 << 30;
const CLOSED: u64 = 1 << 31;
const GENERATION_SHIFT: u32 = 32;
/// Free list: index + 1 in the low half (0: empty), a counter against ABA in the high half.
const INDEX: u64 = 0xffff_ffff;

/// Any number of calls may use a handle at once: the value is `Sync`.
pub(crate) struct Shared;
/// One call at a time; a second one is rejected.
pub(crate) struct Exclusive;

struct Slot<T> {
    state: AtomicU64,
    /// Process that opened the handle.
    pid: AtomicU32,
    /// Next free slot's index + 1.
    next_free: AtomicU32,
    value: UnsafeCell<Option<T>>,
}

type Chunk<T> = [Slot<T>; CHUNK_SLOTS];

/// All open handles of one type. `M` is [`Shared`] or [`Exclusive`].
pub(crate) struct Table<T, M> {
    /// C name of the type, for messages; `kind` is the top byte of its handles.
    name: &'static str,
    kind: u8,
    chunks: [AtomicPtr<Chunk<T>>; CHUNKS],
    free: AtomicU64,
    /// Slots ever used.
    used: AtomicU32,
    mode: PhantomData<fn() -> M>,
}

// SAFETY: a value is only reached through a slot's `state` (rules above): by one thread at a time (rules 1, 3 exclusive, 5), which
// needs T: Send, or by several through `&T` in a shared table: its `enter` requires T: Sync.
unsafe impl<T: Send, M> Sync for Table<T, M> {}

impl<T, M> Table<T, M> {
    pub(crate) const fn new(name: &'static str, kind: u8) -> Table<T, M> {
        assert!(kind != 0, "a handle is never NULL");
        assert!(size_of::<usize>() == 8, "handles hold a kind, a generation and an index");
        Table {
            name,
            kind,
            chunks: [const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS],
            free: AtomicU64::new(0),
            used: AtomicU32::new(0),
            mode: PhantomData,
        }
    }

    /// Open a handle for `value`.
    pub(crate) fn insert<H>(&'static self, value: T) -> Result<*mut H, Fault> {
        let index = self.take_slot()?;
        let slot = self.slot(index).expect("a slot that was taken exists");
        // SAFETY: rule 1: the slot has no users and this thread took it off the free list.
        unsafe { *slot.value.get() = Some(value) };
        slot.pid.store(process::id(), Ordering::Relaxed);
        let generation = slot.state.load(Ordering::Relaxed) >> GENERATION_SHIFT;
        // Release: pairs with the Acquire of `enter`, which then sees value and pid.
        slot.state.store(generation << GENERATION_SHIFT | 1, Ordering::Release);
        let bits = (u64::from(self.kind) << 56) | (generation & 0xffff_ffff) << 24 | u64::from(index);
        Ok(std::ptr::without_provenance_mut(bits as usize))
    }

    fn take_slot(&self) -> Result<u32, Fault> {
        let mut head = self.free.load(Ordering::Acquire);
        while head & INDEX != 0 {
            let index = (head & INDEX) as u32 - 1;
            let next = self.slot(index).expect("a slot on the free list exists").next_free.load(Ordering::Relaxed);
            let tag = (head >> 32).wrapping_add(1) << 32;
            match self.free.compare_exchange_weak(head, tag | u64::from(next), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(index),
                Err(seen) => head = seen,
            }
        }
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            ((used as usize) < SLOTS_MAX).then_some(used + 1)
        });
        let Ok(index) = taken else {
            return Err(Fault::new(
                Status::Limit,
                format!("this process has {SLOTS_MAX} open handles of type {}, the maximum", self.name),
            ));
        };
        let chunk = &self.chunks[index as usize / CHUNK_SLOTS];
        if chunk.load(Ordering::Acquire).is_null() {
            let fresh = Box::into_raw(Box::new(std::array::from_fn(|_| Slot {
                state: AtomicU64::new(0),
                pid: AtomicU32::new(0),
                next_free: AtomicU32::new(0),
                value: UnsafeCell::new(None),
            })));
            let race = chunk.compare_exchange(std::ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire);
            if race.is_err() {
                // SAFETY: another thread's chunk won; ours was never shared.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
        Ok(index)
    }

    fn slot(&self, index: u32) -> Option<&Slot<T>> {
        let chunk = self.chunks.get(index as usize / CHUNK_SLOTS)?.load(Ordering::Acquire);
        // SAFETY: a published chunk is initialised and never freed.
        let chunk = unsafe { chunk.as_ref() }?;
        Some(&chunk[index as usize % CHUNK_SLOTS])
    }

    /// Return the slot and generation of a handle; reject handles of other tables and processes.
    fn resolve<H>(&self, handle: *const H) -> Result<(u32, &Slot<T>, u64), Fault> {
        let bits = handle.addr() as u64;
        if bits == 0 {
            return Err(Fault::new(Status::Invalid, format!("the {} is NULL", self.name)));
        }
        let index = (bits & 0xff_ffff) as u32;
        let slot = if bits >> 56 == u64::from(self.kind) { self.slot(index) } else { None };
        let Some(slot) = slot else {
            return Err(Fault::new(Status::Invalid, format!("{handle:p} is not a {}", self.name)));
        };
        // A slot has the pid of its last `insert`, so a handle of the parent is recognised even if other threads of the parent
        // were inside when it forked (the child counts their uses for ever).
        let owner = slot.pid.load(Ordering::Relaxed);
        if owner != 0 && owner != process::id() {
            return Err(Fault::new(
                Status::Fork,
                format!("the {} was opened by process {owner}; this is process {}", self.name, process::id()),
            ));
        }
        Ok((index, slot, bits >> 24 & 0xffff_ffff))
    }

    fn stale(&self) -> Fault {
        Fault::new(Status::Invalid, format!("the {} is already closed", self.name))
    }

    /// Add a user if `allowed` accepts the state.
    fn add_user<H>(
        &'static self,
        handle: *const H,
        allowed: impl Fn(u64) -> Result<(), Fault>,
    ) -> Result<(u32, &'static Slot<T>), Fault> {
        let (index, slot, generation) = self.resolve(handle)?;
        let mut state = slot.state.load(Ordering::Relaxed);
        loop {
            if state >> GENERATION_SHIFT != generation || state & CLOSED != 0 || state & USERS == 0 {
                return Err(self.stale());
            }
            if state & POISONED != 0 {
                let why = format!("an earlier call on this {} panicked; it can only be closed", self.name);
                return Err(Fault::new(Status::Internal, why));
            }
            allowed(state)?;
            // Acquire: pairs with the Release of `insert` and of the previous user's leaving.
            match slot.state.compare_exchange_weak(state, state + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok((index, slot)),
                Err(seen) => state = seen,
            }
        }
    }

    /// Remove a user; the last one drops the value (rule 5).
    fn leave(&self, index: u32, slot: &Slot<T>) {
        // Release: this user's work happens before the next exclusive user, or before the drop. Acquire: for that drop.
        let state = slot.state.fetch_sub(1, Ordering::AcqRel) - 1;
        if state & USERS != 0 {
            return;
        }
        // SAFETY: rule 5: no users are left, and `CLOSED` keeps new ones out.
        let value = unsafe { (*slot.value.get()).take() };
        let generation = (state >> GENERATION_SHIFT).wrapping_add(1) & 0xffff_ffff;
        slot.state.store(generation << GENERATION_SHIFT, Ordering::Relaxed);
        let mut head = self.free.load(Ordering::Relaxed);
        loop {
            slot.next_free.store((head & INDEX) as u32, Ordering::Relaxed);
            let tag = (head >> 32).wrapping_add(1) << 32;
            // Release: pairs with the Acquire of `take_slot`, which then sees the empty value and the new generation.
            match self.free.compare_exchange_weak(
                head,
                tag | u64::from(index + 1),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(seen) => head = seen,
            }
        }
        drop(value); // last: it may wait or panic, and the slot is consistent already
    }

    /// Close a handle: no call enters any more. Its value is dropped when the last call inside has left.
    fn close_if<H>(&'static self, handle: *mut H, users_max: u64) -> Result<(), Fault> {
        let (index, slot, generation) = self.resolve(handle)?;
        let mut state = slot.state.load(Ordering::Relaxed);
        loop {
            if state >> GENERATION_SHIFT != generation || state & CLOSED != 0 || state & USERS == 0 {
                return Err(self.stale());
            }
            if state & USERS > users_max {
                return Err(self.busy());
            }
            match slot.state.compare_exchange_weak(state, state | CLOSED, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break,
                Err(seen) => state = seen,
            }
        }
        self.leave(index, slot);
        Ok(())
    }

    fn busy(&self) -> Fault {
        Fault::new(Status::Busy, format!("another thread is in a call on this {}", self.name))
    }
}

impl<T: Sync> Table<T, Shared> {
    /// Enter the value for a call, beside other calls.
    pub(crate) fn enter<H>(&'static self, handle: *const H) -> Result<SharedUse<T>, Fault> {
        let (index, slot) = self.add_user(handle, |_| Ok(()))?;
        Ok(SharedUse { table: self, index, slot })
    }

    /// Close the handle. The value is dropped after the calls inside have ended.
    pub(crate) fn close<H>(&'static self, handle: *mut H) -> Result<(), Fault> {
        self.close_if(handle, USERS)
    }
}

impl<T> Table<T, Exclusive> {
    /// Enter the value for a call, alone.
    pub(crate) fn enter<H>(&'static self, handle: *const H) -> Result<ExclusiveUse<T>, Fault> {
        let (index, slot) =
            self.add_user(handle, |state| if state & USERS == 1 { Ok(()) } else { Err(self.busy()) })?;
        Ok(ExclusiveUse { table: self, index, slot })
    }

    /// Close the handle; fails while a call is inside.
    pub(crate) fn close<H>(&'static self, handle: *mut H) -> Result<(), Fault> {
        self.close_if(handle, 1)
    }
}
