//! Tests of the table alone: handles that are reused, misused, shared by threads, or poisoned by a panic.

use super::*;
use crate::status::kvt_status;
use std::sync::Arc;
use std::sync::mpsc;

/// A value that counts its drops.
struct Probe(Arc<AtomicU32>, u32);

impl Drop for Probe {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Handle;

fn status<T>(result: Result<T, Fault>) -> kvt_status {
    result.map_or_else(|fault| kvt_status::of(fault.status()), |_| kvt_status::KVT_OK)
}

#[test]
fn a_closed_handle_stays_closed_when_its_slot_is_used_again() {
    static TABLE: Table<Probe, Exclusive> = Table::new("kvt_test", b'T');
    let drops = Arc::new(AtomicU32::new(0));
    let first: *mut Handle = TABLE.insert(Probe(Arc::clone(&drops), 1)).unwrap();
    assert!(!first.is_null());
    assert_eq!(TABLE.enter(first).unwrap().1, 1);
    TABLE.close(first).unwrap();
    assert_eq!(drops.load(Ordering::Relaxed), 1);
    assert_eq!(status(TABLE.close(first)), kvt_status::KVT_EINVAL);
    let second: *mut Handle = TABLE.insert(Probe(Arc::clone(&drops), 2)).unwrap();
    assert_eq!(TABLE.used.load(Ordering::Relaxed), 1, "the slot is used again");
    assert_ne!(first, second);
    assert_eq!(status(TABLE.enter(first)), kvt_status::KVT_EINVAL);
    assert_eq!(TABLE.enter(second).unwrap().1, 2);
    TABLE.close(second).unwrap();
}

#[test]
fn what_is_no_handle_is_refused_without_a_look() {
    static TABLE: Table<u32, Exclusive> = Table::new("kvt_test", b'T');
    static OTHER: Table<u32, Exclusive> = Table::new("kvt_other", b'O');
    let other: *mut Handle = OTHER.insert(1).unwrap();
    let own: *mut Handle = TABLE.insert(2).unwrap();
    let kind = u64::from(b'T') << 56;
    for bits in [0, 8, u64::MAX, kind, kind | 1 << 24, kind | 0xff_ffff, other.addr() as u64] {
        let handle: *mut Handle = std::ptr::without_provenance_mut(bits as usize);
        let expected = if handle == own { kvt_status::KVT_OK } else { kvt_status::KVT_EINVAL };
        assert_eq!(status(TABLE.enter(handle)), expected, "{bits:#x}");
    }
}

#[test]
fn a_second_thread_is_told_that_an_exclusive_handle_is_in_use() {
    static TABLE: Table<u32, Exclusive> = Table::new("kvt_test", b'T');
    let handle: *mut Handle = TABLE.insert(5).unwrap();
    let bits = handle.addr();
    let inside = TABLE.enter(handle).unwrap();
    let other = std::thread::spawn(move || {
        let handle: *mut Handle = std::ptr::without_provenance_mut(bits);
        (status(TABLE.enter(handle)), status(TABLE.close(handle)))
    });
    assert_eq!(other.join().unwrap(), (kvt_status::KVT_EBUSY, kvt_status::KVT_EBUSY));
    drop(inside);
    assert_eq!(status(TABLE.close(handle)), kvt_status::KVT_OK);
}

#[test]
fn a_shared_value_lives_until_its_last_call_has_left() {
    static TABLE: Table<Probe, Shared> = Table::new("kvt_test", b'T');
    let drops = Arc::new(AtomicU32::new(0));
    let handle: *mut Handle = TABLE.insert(Probe(Arc::clone(&drops), 0)).unwrap();
    let (a, b) = (TABLE.enter(handle).unwrap(), TABLE.enter(handle).unwrap());
    TABLE.close(handle).unwrap();
    assert_eq!(status(TABLE.enter(handle)), kvt_status::KVT_EINVAL, "no call enters a closed handle");
    drop(a);
    assert_eq!(drops.load(Ordering::Relaxed), 0);
    drop(b);
    assert_eq!(drops.load(Ordering::Relaxed), 1);
}

#[test]
fn a_handle_whose_call_panicked_can_only_be_closed() {
    static TABLE: Table<u32, Exclusive> = Table::new("kvt_test", b'T');
    let handle: *mut Handle = TABLE.insert(5).unwrap();
    let caught = crate::entry::entry("kvt_test", || {
        let _inside = TABLE.enter(handle)?;
        panic!("half-way");
    });
    assert_eq!(caught, kvt_status::KVT_EINTERNAL);
    // SAFETY: `kvt_last_error` returns a NUL-terminated text of this thread.
    let text = unsafe { std::ffi::CStr::from_ptr(crate::error::kvt_last_error()) };
    assert_eq!(text.to_str(), Ok("kvt_test: half-way"));
    assert_eq!(status(TABLE.enter(handle)), kvt_status::KVT_EINTERNAL);
    assert_eq!(status(TABLE.close(handle)), kvt_status::KVT_OK);
    assert_eq!(status(TABLE.enter(handle)), kvt_status::KVT_EINVAL);
}

#[test]
fn the_table_is_bounded() {
    static TABLE: Table<u8, Exclusive> = Table::new("kvt_test", b'T');
    let handles: Vec<*mut Handle> = (0..SLOTS_MAX).map(|i| TABLE.insert(i as u8).unwrap()).collect();
    assert_eq!(status(TABLE.insert::<Handle>(0)), kvt_status::KVT_ELIMIT);
    for (i, handle) in handles.iter().enumerate() {
        assert_eq!(*TABLE.enter(*handle).unwrap(), i as u8);
        TABLE.close(*handle).unwrap();
    }
    let again: *mut Handle = TABLE.insert(1).unwrap();
    TABLE.close(again).unwrap();
}

/// Threads open, use, close and pass on handles of one table: a handle never shows another value, or none.
#[test]
fn threads_never_meet_in_a_slot() {
    static TABLE: Table<(u64, u64), Exclusive> = Table::new("kvt_test", b'T');
    const ROUNDS: u64 = 3_000;
    const THREADS: u64 = 4;
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel::<(usize, u64)>()).unzip();
    let workers: Vec<_> = receivers
        .into_iter()
        .enumerate()
        .map(|(i, receiver)| {
            let next = senders[(i + 1) % senders.len()].clone();
            std::thread::spawn(move || {
                for round in 0..ROUNDS {
                    let value = (i as u64) << 32 | round;
                    let handle: *mut Handle = TABLE.insert((value, !value)).unwrap();
                    let mut inside = TABLE.enter(handle).unwrap();
                    assert_eq!(*inside, (value, !value));
                    inside.1 = value;
                    drop(inside);
                    next.send((handle.addr(), value)).unwrap();
                    while let Ok((bits, value)) = receiver.try_recv() {
                        let handle: *mut Handle = std::ptr::without_provenance_mut(bits);
                        assert_eq!(*TABLE.enter(handle).unwrap(), (value, value));
                        TABLE.close(handle).unwrap();
                        assert_eq!(status(TABLE.enter(handle)), kvt_status::KVT_EINVAL);
                    }
                }
                receiver
            })
        })
        .collect();
    drop(senders);
    let receivers: Vec<_> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
    for (bits, _) in receivers.iter().flat_map(mpsc::Receiver::try_iter) {
        TABLE.close(std::ptr::without_provenance_mut::<Handle>(bits)).unwrap();
    }
}
