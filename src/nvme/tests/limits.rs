//! Limits of an unprivileged user: little locked memory.

use super::fixture::*;
use crate::{DiskMessage, DiskThread, FeatureUse, IoEngine, Settings};
use kvtide_types::{IoKind, Status};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use std::sync::Arc;

/// Locked-memory limit that a distribution gives users.
const LOCKED: u64 = 8 << 20;

/// Run a check on a thread without privileges: capabilities belong to a thread and the threads that it starts.
fn as_a_user(check: impl FnOnce() + Send + 'static) {
    // The limit applies to the process, but threads with the capability, such as those of other tests, are exempt.
    let limit = getrlimit(Resource::Memlock);
    let lower = |bytes: Option<u64>| Some(bytes.map_or(LOCKED, |bytes| bytes.min(LOCKED)));
    setrlimit(Resource::Memlock, Rlimit { current: lower(limit.current), maximum: limit.maximum }).unwrap();
    let thread = std::thread::spawn(move || {
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::IPC_LOCK);
        sets.permitted.remove(CapabilitySet::IPC_LOCK);
        sets.inheritable.remove(CapabilitySet::IPC_LOCK);
        set_capabilities(None, sets).unwrap();
        check();
    });
    thread.join().unwrap();
}

#[test]
fn without_locked_memory_pages_move_all_the_same() {
    if !uring_works() {
        return;
    }
    as_a_user(|| {
        let dir = Dir::new();
        let mut rig = Rig::start(&Settings { engine: IoEngine::Uring, ..dir.settings() });
        let mode = rig.status().mode;
        assert!(mode.ends_with("+unregistered"), "{mode}");
        let host = memory(2 * LOCKED);
        rig.send(DiskMessage::Register(Arc::clone(&host)));
        for (slot, sizes, align) in [(0, &[65536][..], 4096), (1, &[8192; 8][..], 4096), (2, &[1000, 77, 5000][..], 64)]
        {
            let pages = parts(&host, sizes, align, MIB);
            pages.iter().for_each(|part| fill(&host, part.offset, part.bytes.into(), u64::from(part.plane)));
            let write = rig.transfer(IoKind::Write, slot, 65536, pages);
            let wrote = rig.run(write);
            assert_eq!(wrote.status, Status::Ok, "{mode}");
            let read = rig.transfer(IoKind::Read, slot, 65536, wrote.parts);
            let read = rig.run(read);
            assert!(read.status == Status::Ok && read.parts.iter().all(|part| part.ok), "{mode}");
        }
        let status = rig.status();
        assert_eq!((status.registered_bytes, status.unregistered_bytes), (0, 2 * LOCKED));
    });
}

#[test]
fn registered_memory_that_is_demanded_and_not_allowed_is_an_error_with_the_way_out() {
    if !uring_works() {
        return;
    }
    as_a_user(|| {
        let dir = Dir::new();
        let demand = Settings { engine: IoEngine::Uring, registered: FeatureUse::Required, ..dir.settings() };
        let error = DiskThread::open(&demand).err().expect("registration must fail").to_string();
        assert!(error.contains("registered = \"required\"") && error.contains("LimitMEMLOCK"), "{error}");
    });
}

#[test]
fn what_contradicts_itself_is_refused() {
    let dir = Dir::new();
    let demand = Settings { engine: IoEngine::Threads, registered: FeatureUse::Required, ..dir.settings() };
    let error = DiskThread::open(&demand).err().expect("the threads engine registers no memory").to_string();
    assert!(error.contains("registered = \"required\""), "{error}");
    for settings in [
        Settings { depth: 0, ..dir.settings() },
        Settings { depth: 1025, ..dir.settings() },
        Settings { number: 16, ..dir.settings() },
        Settings { staging_bytes: 4096, ..dir.settings() },
        Settings { region_bytes: 1000, ..dir.settings() },
        Settings { capacity_bytes: MIB, ..dir.settings() },
    ] {
        assert!(DiskThread::open(&settings).is_err(), "{settings:?}");
    }
}
