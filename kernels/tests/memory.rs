//! Memory of a device: it keeps its content at one address, and reports unsupported operations.

mod common;

use common::{BOUND, Rng, buffer, device, done, get, pinned, pinned_bytes, put};
use kvtide_kernels::{Arena, Buffer, Error, Event, HostRegion, Pinned, Priority, Stream, WaitWord};
use std::{sync::Arc, time::Instant};

const MIB: u64 = 1 << 20;
const CHUNK: u64 = 64 * MIB;

#[test]
fn an_arena_grows_and_shrinks_at_one_address_and_keeps_what_stays() {
    let device = device();
    let arena = Arena::reserve(&device, 3 * CHUNK + 10 * MIB, CHUNK).expect("addresses");
    let base = arena.base();
    assert_eq!((arena.committed(), arena.bytes_max()), (0, 3 * CHUNK + 10 * MIB));
    let mut rng = Rng(1);
    let first = rng.bytes(4096);

    assert_eq!(arena.grow_to(1).expect("memory"), CHUNK, "whole chunks");
    put(&device, base + CHUNK - 4096, &first);
    assert_eq!(arena.grow_to(arena.bytes_max()).expect("memory"), 3 * CHUNK + 10 * MIB, "the last one is short");
    let last = rng.bytes(4096);
    put(&device, base + arena.bytes_max() - 4096, &last);
    assert_eq!(get(&device, base + arena.bytes_max() - 4096, 4096), last);

    assert_eq!(arena.shrink_to(CHUNK + 1).expect("given back"), 2 * CHUNK, "the requested part stays");
    assert_eq!(arena.shrink_to(2 * CHUNK).expect("given back"), 2 * CHUNK);
    assert_eq!(arena.shrink_to(CHUNK).expect("given back"), CHUNK);
    assert_eq!(get(&device, base + CHUNK - 4096, 4096), first);
    assert_eq!(arena.grow_to(2 * CHUNK).expect("memory"), 2 * CHUNK);
    let again = rng.bytes(4096);
    put(&device, base + 2 * CHUNK - 4096, &again);
    assert_eq!(get(&device, base + 2 * CHUNK - 4096, 4096), again);
    assert_eq!(get(&device, base + CHUNK - 4096, 4096), first);
    assert_eq!(arena.base(), base);

    assert!(matches!(arena.grow_to(arena.bytes_max() + 1), Err(Error::Invalid { .. })));
    assert_eq!(arena.committed(), 2 * CHUNK);
    assert_eq!(arena.shrink_to(0).expect("given back"), 0);
}

#[test]
fn memory_that_an_arena_gave_back_is_free_again() {
    let device = device();
    let free = || device.memory().expect("asked").0;
    let arena = Arena::reserve(&device, 2 * CHUNK, CHUNK).expect("addresses");
    arena.grow_to(2 * CHUNK).expect("memory");
    // Other tests of this process allocate and free memory at the same time, so only differences as large as this arena are
    // checked.
    let full = free();
    arena.shrink_to(0).expect("given back");
    assert!(free() > full, "{} bytes free, {full} before", free());
}

#[test]
fn a_chunk_out_of_bounds_is_refused_and_a_small_arena_is_one_chunk() {
    let device = device();
    for chunk in [0, MIB, 63 * MIB, 64 * MIB + 1, 513 * MIB] {
        assert!(matches!(Arena::reserve(&device, 2048 * MIB, chunk), Err(Error::Invalid { .. })), "{chunk}");
    }
    let small = Arena::reserve(&device, 5 * MIB, CHUNK).expect("addresses");
    assert_eq!(small.grow_to(1).expect("memory"), small.bytes_max());
    assert!(small.bytes_max() >= 5 * MIB && small.bytes_max() < 8 * MIB);
}

#[test]
fn given_memory_is_looked_at_and_never_given_back() {
    let device = device();
    let theirs = Buffer::new(&device, 8192).expect("memory");
    let bytes = Rng(2).bytes(8192);
    put(&device, theirs.address(), &bytes);
    let arena = Arena::given(&device, theirs.address(), 8192).expect("memory of this device");
    assert_eq!(
        (arena.base(), arena.committed(), arena.grow_to(100).expect("it is there")),
        (theirs.address(), 8192, 8192)
    );
    assert!(matches!(arena.shrink_to(0), Err(Error::Unsupported { .. })));
    drop(arena);
    assert_eq!(get(&device, theirs.address(), 8192), bytes);

    let ours = Pinned::new(&device, 4096).expect("memory");
    for (pointer, bytes) in
        [(0, 4096), (theirs.address() + 8, 16), (theirs.address(), 0), (ours.address(), 4096), (4096, 4096)]
    {
        assert!(Arena::given(&device, pointer, bytes).is_err(), "{bytes} bytes at {pointer:#x}");
    }
}

#[test]
fn a_segment_is_registered_when_it_is_needed_and_no_more_when_it_goes() {
    let device = device();
    let bytes = Rng(3).bytes(1 << 20);
    let file = rustix::fs::memfd_create("segment", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
    rustix::fs::ftruncate(&file, bytes.len() as u64).expect("its size");
    let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
    // SAFETY: a fresh mapping.
    let map = unsafe {
        rustix::mm::mmap(std::ptr::null_mut(), bytes.len(), protection, rustix::mm::MapFlags::SHARED, &file, 0)
    };
    let map: *mut u8 = map.expect("a mapping").cast();
    // SAFETY: as long as the mapping.
    unsafe { map.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };

    for _ in 0..2 {
        // SAFETY: the mapping outlives the region.
        let region = unsafe { HostRegion::new(&device, map, bytes.len()) }.expect("whole pages");
        assert_eq!(region.took(), None, "not before it is needed");
        let address = region.address().expect("registered");
        assert!(region.took().is_some() && region.address().expect("it is still") == address);
        assert_eq!(get(&device, address + 4096, 8192), bytes[4096..4096 + 8192]);
        // The driver refuses a second registration of the same bytes; the region reports that.
        // SAFETY: as above.
        let twice = unsafe { HostRegion::new(&device, map, 4096) }.expect("whole pages");
        assert!(matches!(twice.address(), Err(Error::Call { call: "cuMemHostRegister", .. })));
        drop(twice);
        assert_eq!(get(&device, address, 16), bytes[..16], "a refused one takes nothing away");
    }
    // SAFETY: exactly the mapping, unregistered.
    unsafe { rustix::mm::munmap(map.cast(), bytes.len()) }.expect("unmapped");
    // SAFETY: refused before it is accessed.
    assert!(unsafe { HostRegion::new(&device, std::ptr::dangling_mut(), 4096) }.is_err(), "not aligned");
}

#[test]
fn large_pinned_memory_begins_where_huge_pages_fit_and_is_advised() {
    let device = device();
    const HUGE: usize = 2 << 20;
    let pinned: Vec<_> = [HUGE, HUGE + 5000, 3 * HUGE].map(|bytes| Pinned::new(&device, bytes).expect("memory")).into();
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("the maps of this process");
    for memory in &pinned {
        assert!(memory.as_ptr().addr().is_multiple_of(HUGE), "{memory:?}");
        let map = |line: &&str| {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let number = |text| usize::from_str_radix(text, 16).ok();
            range.is_some_and(|(from, to)| {
                number(from).is_some_and(|from| from <= memory.as_ptr().addr())
                    && number(to).is_some_and(|to| memory.as_ptr().addr() < to)
            })
        };
        let flags = smaps.lines().skip_while(|line| !map(line)).find(|line| line.starts_with("VmFlags:"));
        let flags: Vec<_> = flags.expect("flags of a map").split(' ').collect();
        assert!(flags.contains(&"dc"), "not inherited by a child: {flags:?}");
        assert_eq!(flags.contains(&"hg"), std::fs::exists("/sys/kernel/mm/transparent_hugepage").unwrap_or(false));
    }
    // SAFETY: within the memory.
    unsafe { pinned[2].as_ptr().write_bytes(7, 3 * HUGE) };
    // As many as the system gives.
    assert!(pinned[2].huge_bytes().is_some_and(|bytes| bytes <= 3 * HUGE as u64 && bytes.is_multiple_of(HUGE as u64)));
    drop(pinned);
    let small = Pinned::new(&device, 8192).expect("memory");
    assert!(small.huge_bytes().is_some_and(|bytes| bytes <= 8192));
}

#[test]
fn nothing_of_memory_is_no_memory() {
    let device = device();
    assert!(matches!(Buffer::new(&device, 0), Err(Error::Invalid { .. })));
    assert!(matches!(Pinned::new(&device, 0), Err(Error::Invalid { .. })));
    assert!(matches!(Pinned::new(&device, usize::MAX), Err(Error::Invalid { .. })));
    assert!(pinned_bytes(&Pinned::new(&device, 5000).expect("memory")).iter().all(|&b| b == 0));
}

#[test]
fn a_stream_waits_for_events_of_others() {
    let device = device();
    let mut rng = Rng(4);
    for round in 0..20 {
        let bytes = rng.bytes(64 << 10);
        let (source, there, back) =
            (pinned(&device, &bytes), buffer(&device, &vec![0; bytes.len()]), pinned(&device, &vec![1; bytes.len()]));
        let (one, two) = (
            Stream::new(&device, Priority::Low).expect("a stream"),
            Stream::new(&device, Priority::High).expect("a stream"),
        );
        let arrived = Event::new(&device).expect("an event");
        assert!(arrived.query().expect("asked"), "one never recorded is done");
        // SAFETY: all memory stays until both streams are done.
        unsafe { one.copy(there.address(), source.address(), bytes.len()) }.expect("copied");
        one.record(&arrived).expect("recorded");
        two.wait_event(&arrived).expect("waits");
        // SAFETY: as above.
        unsafe { two.copy(back.address(), there.address(), bytes.len()) }.expect("copied");
        done(&two);
        assert_eq!(pinned_bytes(&back), bytes, "round {round}");
        assert!(arrived.query().expect("asked"));
        // The event was its last work; a stream may take a moment longer to report that it is idle.
        done(&one);
    }
}

#[test]
fn a_word_holds_a_stream_until_it_is_released() {
    let device = device();
    let stream = Stream::new(&device, Priority::Normal).expect("a stream");
    let bytes = Rng(5).bytes(4096);
    let (source, target) = (pinned(&device, &bytes), pinned(&device, &[0; 4096]));
    let event = Event::new(&device).expect("an event");
    let word = WaitWord::new(&device).expect("a word");
    let (first, second) = (word.arm().expect("armed"), word.arm().expect("armed"));
    stream.wait_word(&word, second).expect("waits");
    // SAFETY: both stay until the stream is done.
    unsafe { stream.copy(target.address(), source.address(), bytes.len()) }.expect("copied");
    stream.record(&event).expect("recorded");

    word.release(first);
    assert!(!event.query().expect("asked"), "the one before is not it");
    word.release(second);
    assert!(event.wait_until(Instant::now() + BOUND).expect("no work failed"));
    assert_eq!(pinned_bytes(&target), bytes);
    word.release(first);
    assert_eq!(word.value(), second, "a word never goes back");
    stream.wait_word(&word, first).expect("waits");
    done(&stream);
}

#[test]
fn a_word_that_goes_lets_everything_go_and_the_next_owner_starts_anew() {
    let device = device();
    let stream = Stream::new(&device, Priority::Normal).expect("a stream");
    // Its place is reused more often than a page has places.
    for _ in 0..200 {
        let word = WaitWord::new(&device).expect("a word");
        let target = word.arm().expect("armed");
        stream.wait_word(&word, target).expect("waits");
        let event = Event::new(&device).expect("an event");
        stream.record(&event).expect("recorded");
        assert!(!event.query().expect("asked"), "held, whatever its place was used for before");
        drop(word);
        done(&stream);
    }
}

#[test]
fn a_borrowed_stream_must_be_named_and_be_of_the_primary_context() {
    let device = device();
    // SAFETY: no stream is used.
    assert!(matches!(unsafe { Stream::borrow(&device, 0) }, Err(Error::Invalid { .. })));
    let own = Stream::new(&device, Priority::Normal).expect("a stream");
    {
        // SAFETY: `own` outlives it.
        let borrowed = unsafe { Stream::borrow(&device, own.raw()) }.expect("of this device");
        assert_eq!(borrowed.raw(), own.raw());
        assert!(!borrowed.is_capturing().expect("asked"));
    }
    done(&own); // a borrowed one destroys nothing
    for default in [1, 2] {
        // SAFETY: the default streams live as long as the context.
        let borrowed = unsafe { Stream::borrow(&device, default) }.expect("a default stream");
        done(&borrowed);
    }
}

#[test]
fn whatever_lives_on_a_device_keeps_it_in_any_order_of_drops() {
    let device = device();
    let (arena, held) =
        (Arena::reserve(&device, MIB, CHUNK).expect("addresses"), Pinned::new(&device, 4096).expect("memory"));
    let (stream, event) =
        (Stream::new(&device, Priority::Normal).expect("a stream"), Event::new(&device).expect("an event"));
    let (table, word) = (Buffer::new(&device, 4096).expect("memory"), WaitWord::new(&device).expect("a word"));
    arena.grow_to(MIB).expect("memory");
    drop(device);
    // SAFETY: both stay until the stream is done.
    unsafe { stream.copy(arena.base(), held.address(), 4096) }.expect("copied");
    stream.record(&event).expect("recorded");
    drop(word);
    done(&stream);
    drop(stream);
    drop(arena);
    assert!(event.query().expect("asked"));
    drop((table, held, event));
}

#[test]
fn any_thread_may_use_what_another_made() {
    let device = device();
    let arena = Arc::new(Arena::reserve(&device, 2 * CHUNK, CHUNK).expect("addresses"));
    let threads: Vec<_> = (0..4_u64)
        .map(|n| {
            let (device, arena) = (Arc::clone(&device), Arc::clone(&arena));
            std::thread::spawn(move || {
                arena.grow_to(CHUNK + n).expect("memory");
                let bytes = Rng(n).bytes(4096);
                for at in [n * 4096, CHUNK - (n + 1) * 4096] {
                    put(&device, arena.base() + at, &bytes);
                    assert_eq!(get(&device, arena.base() + at, 4096), bytes);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    assert_eq!(arena.committed(), 2 * CHUNK);
}
