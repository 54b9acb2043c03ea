//! Batches of copies: every byte arrives at its target, by every path, and order is kept.

mod common;

use common::{BOUND, Rng, buffer, device, end, get, pinned, pinned_bytes};
use kvtide_kernels::{
    Copier, Device, Error, Event, HostRegion, Priority, Stream, WaitWord, Way,
    copy::{BATCHES_MAX, COPIES_MAX, Copy, Options, Path, Ticket},
};
use std::{sync::Arc, time::Instant};

const PATHS: [Path; 5] = [Path::Measured, Path::Below(3000), Path::Engines, Path::OneByOne, Path::Kernel];

fn copier(device: &Arc<Device>, path: Path) -> Copier {
    // Small launches, so that a batch takes several.
    Copier::new(device, Options { path, launch_bytes: 64 << 10, ..Options::default() }).expect("a copier")
}

/// Return copies from a range into another one with `room` bytes for each, without overlap in the target; update the model of the
/// target.
fn batch(rng: &mut Rng, from: (u64, &[u8]), to: (u64, &mut [u8]), count: usize) -> Vec<Copy> {
    let room = to.1.len() / count;
    let mut copies = Vec::new();
    for place in rng.shuffled(count) {
        let whole = rng.below(8) == 0;
        let bytes = if whole { room } else { rng.below(room + 1) };
        // Often aligned, as pages are; often unaligned.
        let align = [1, 1, 4, 16][rng.below(4)];
        let start = place * room + if bytes < room { rng.below((room - bytes) / align + 1) * align } else { 0 };
        let source = rng.below((from.1.len() - bytes) / align + 1) * align;
        to.1[start..start + bytes].copy_from_slice(&from.1[source..source + bytes]);
        copies.push(Copy { from: from.0 + source as u64, to: to.0 + start as u64, bytes, region: 0 });
    }
    copies
}

#[test]
fn every_byte_arrives_by_every_path_and_way() {
    let device = device();
    let mut rng = Rng(11);
    for path in PATHS {
        let mut copier = copier(&device, path);
        for way in Way::ALL {
            for count in [1, 7, 60] {
                let (source, mut target) = (rng.bytes(256 << 10), rng.bytes(256 << 10));
                let (up, down) = (way == Way::Up, way == Way::Down);
                let (host_from, host_to) = (pinned(&device, &source), pinned(&device, &target));
                let (there_from, there_to) = (buffer(&device, &source), buffer(&device, &target));
                let from = if up { host_from.address() } else { there_from.address() };
                let to = if down { host_to.address() } else { there_to.address() };
                let copies = batch(&mut rng, (from, &source), (to, &mut target), count);
                // SAFETY: all memory stays until the batch has ended.
                let ticket = unsafe { copier.submit(way, &copies) }.expect("submitted");
                end(&mut copier, ticket).expect("copied");
                let got = if down { pinned_bytes(&host_to) } else { get(&device, to, target.len()) };
                assert!(got == target, "{path:?} {way:?} {count}");
            }
        }
        let stats = copier.stats();
        assert_eq!((stats.batches, stats.copies, stats.failed), (9, 3 * 68, 0));
        match path {
            Path::Kernel => assert_eq!((stats.engine_fragments, stats.launches > 9), (0, true), "{stats:?}"),
            Path::Engines | Path::OneByOne => assert_eq!(stats.kernel_fragments, 0),
            Path::Below(_) => assert!(stats.engine_fragments > 0 && stats.kernel_fragments > 0, "{stats:?}"),
            Path::Measured => {}
        }
        assert_eq!(copier.is_batched(), path != Path::OneByOne);
        assert_eq!(copier.in_flight(), 0);
    }
}

#[test]
fn the_crossover_is_measured_in_time_and_told() {
    let device = device();
    let copier = copier(&device, Path::Measured);
    let crossover = copier.crossover();
    assert_eq!(copier.kernel_missing(), None);
    assert!(!crossover.measured.is_empty() || crossover.cut_short.is_some(), "{crossover}");
    assert!(crossover.measured.iter().all(|m| m.engines > 0.0 && m.kernel > 0.0), "{crossover:?}");
    assert!(
        !Way::ALL.map(|way| crossover.bytes(way)).contains(&usize::MAX),
        "very large ones go by the engines: {crossover}"
    );
    assert_eq!(copier.stats().batches, 0, "what measured is not counted");
}

#[test]
fn a_batch_waits_for_the_events_that_it_was_ordered_after() {
    let device = device();
    let mut rng = Rng(12);
    for path in [Path::Engines, Path::OneByOne, Path::Kernel, Path::Below(3000)] {
        let (mut copier, mut witness) = (copier(&device, path), copier(&device, path));
        let stream = Stream::new(&device, Priority::Normal).expect("a stream");
        let event = Event::new(&device).expect("an event");
        let (old, new) = (rng.bytes(64 << 10), rng.bytes(64 << 10));
        let (source, there) = (pinned(&device, &new), buffer(&device, &old));
        let target = pinned(&device, &old);
        let (same, beside) = (pinned(&device, &old), buffer(&device, &old));
        // Declared last, so that it is dropped first if this fails: freeing memory waits for the device.
        let word = WaitWord::new(&device).expect("a word");

        // A step of the engine that will write `there`, held by a word.
        let held = word.arm().expect("armed");
        stream.wait_word(&word, held).expect("waits");
        // SAFETY: all memory stays until the end of the test.
        unsafe { stream.copy(there.address(), source.address(), new.len()) }.expect("copied");
        stream.record(&event).expect("recorded");
        copier.order_after(&event).expect("ordered");
        let copies: Vec<Copy> = (0..16_u64)
            .map(|n| Copy {
                from: there.address() + n * 4096,
                to: target.address() + n * 4096,
                bytes: 1000 + n as usize * 200,
                region: 0,
            })
            .collect();
        // SAFETY: as above.
        let ticket = unsafe { copier.submit(Way::Down, &copies) }.expect("submitted");
        // Another copier does the same several times without an order: a batch that did not wait would have ended by then.
        let unordered: Vec<Copy> = copies
            .iter()
            .map(|c| Copy {
                from: beside.address() + (c.from - there.address()),
                to: same.address() + (c.to - target.address()),
                ..*c
            })
            .collect();
        for _ in 0..5 {
            // SAFETY: both stay until the batch has ended.
            let ticket = unsafe { witness.submit(Way::Down, &unordered) }.expect("submitted");
            end(&mut witness, ticket).expect("copied");
        }
        assert!(!copier.poll(ticket).expect("asked"), "{path:?}: it cannot have ended");
        assert!(!copier.settle(Instant::now()).expect("asked"));
        word.release(held);
        end(&mut copier, ticket).expect("copied");
        let got = pinned_bytes(&target);
        for copy in &copies {
            let at = (copy.to - target.address()) as usize;
            assert!(got[at..at + copy.bytes] == new[at..at + copy.bytes], "{path:?}: the step's bytes");
            assert!(got[at + copy.bytes..at + 4096] == old[at + copy.bytes..at + 4096], "{path:?}: nothing beyond");
        }
    }
}

#[test]
fn too_many_batches_or_copies_are_refused_and_nothing_is_started() {
    let device = device();
    let mut copier = copier(&device, Path::Engines);
    let (source, target) = (pinned(&device, &[7; 4096]), buffer(&device, &[0; 4096]));
    let word = WaitWord::new(&device).expect("a word");
    let (stream, event) =
        (Stream::new(&device, Priority::Normal).expect("a stream"), Event::new(&device).expect("an event"));
    stream.wait_word(&word, word.arm().expect("armed")).expect("waits");
    stream.record(&event).expect("recorded");
    copier.order_after(&event).expect("ordered");
    let one = Copy { from: source.address(), to: target.address(), bytes: 16, region: 0 };
    let place = |n: usize| Copy { from: one.from, to: one.to + 16 * n as u64, bytes: 16, region: 0 };

    // SAFETY: refused before any address is read.
    assert!(matches!(unsafe { copier.submit(Way::Up, &vec![one; COPIES_MAX + 1]) }, Err(Error::Invalid { .. })));
    // SAFETY: both stay until every batch has ended.
    let tickets: Vec<Ticket> =
        (0..BATCHES_MAX).map(|n| unsafe { copier.submit(Way::Up, &[place(n)]) }.expect("submitted")).collect();
    assert_eq!(copier.in_flight(), BATCHES_MAX);
    // SAFETY: as above.
    assert!(matches!(unsafe { copier.submit(Way::Up, &[place(100)]) }, Err(Error::Busy { limit: BATCHES_MAX, .. })));
    word.release_all();
    assert!(copier.settle(Instant::now() + BOUND).expect("asked"));
    assert_eq!(copier.in_flight(), BATCHES_MAX, "settled is not polled");
    for ticket in &tickets {
        assert!(copier.poll(*ticket).expect("copied"));
        assert!(matches!(copier.poll(*ticket), Err(Error::Invalid { .. })), "an end is reported once");
    }
    // A new batch reuses an old slot; the old ticket does not match it.
    // SAFETY: as above.
    let fresh = unsafe { copier.submit(Way::Up, &[place(200)]) }.expect("submitted");
    assert!(tickets.iter().all(|&old| copier.poll(old).is_err()));
    end(&mut copier, fresh).expect("copied");
    let got = get(&device, target.address(), 4096);
    assert!((0..BATCHES_MAX).chain([200]).all(|n| got[16 * n..16 * n + 16] == [7; 16]));
    assert!(got[16 * 100..16 * 101] == [0; 16], "the refused one copied nothing");
}

#[test]
fn neighbours_in_two_registrations_are_copied_as_two() {
    const PAGE: usize = 4096;
    let device = device();
    let bytes = Rng(14).bytes(2 * PAGE);
    let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let map = unsafe {
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), 2 * PAGE, protection, rustix::mm::MapFlags::PRIVATE)
    };
    let map = map.expect("memory").cast::<u8>();
    // SAFETY: within the new mapping.
    unsafe { map.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    // SAFETY: the mapping outlives both.
    let regions = [0, PAGE].map(|at| unsafe { HostRegion::new(&device, map.wrapping_add(at), PAGE) }.expect("a page"));
    let target = buffer(&device, &vec![0; 2 * PAGE]);
    for path in [Path::Engines, Path::OneByOne, Path::Kernel] {
        let mut copier = copier(&device, path);
        let mut copies = Vec::new();
        for (at, region) in regions.iter().enumerate() {
            let (from, to) = (region.address().expect("registered"), target.address() + (at * PAGE) as u64);
            let half = |n: usize| (n * PAGE / 2) as u64;
            copies.extend([0, 1].map(|n| Copy {
                from: from + half(n),
                to: to + half(n),
                bytes: PAGE / 2,
                region: from,
            }));
        }
        assert_eq!(copies[1].from + (PAGE / 2) as u64, copies[2].from, "adjacent");
        // SAFETY: all memory stays until the batch has ended.
        let ticket = unsafe { copier.submit(Way::Up, &copies) }.expect("submitted");
        end(&mut copier, ticket).expect("copied");
        let stats = copier.stats();
        assert_eq!(stats.engine_fragments + stats.kernel_fragments, 2, "joined within a registration only: {stats:?}");
        assert!(get(&device, target.address(), 2 * PAGE) == bytes, "{path:?}");
    }
    drop(regions);
    // SAFETY: exactly the mapping, unregistered.
    unsafe { rustix::mm::munmap(map.cast(), 2 * PAGE) }.expect("unmapped");
}

#[test]
fn nothing_to_copy_ends_at_once() {
    let device = device();
    let mut copier = copier(&device, Path::Below(3000));
    for copies in [&[][..], &[Copy { from: 1, to: 2, bytes: 0, region: 0 }]] {
        // SAFETY: nothing is read or written.
        let ticket = unsafe { copier.submit(Way::Down, copies) }.expect("submitted");
        end(&mut copier, ticket).expect("nothing to fail");
    }
}

#[test]
fn copies_that_must_not_stand_behind_a_wait_go_by_the_engines() {
    let device = device();
    let mut copier = copier(&device, Path::Kernel);
    let (source, target) = (pinned(&device, &[9; 64]), buffer(&device, &[0; 64]));
    let copy = Copy { from: source.address(), to: target.address(), bytes: 64, region: 0 };
    // SAFETY: both stay until the batch has ended.
    let ticket = unsafe { copier.submit_by_engines(Way::Up, &[copy]) }.expect("submitted");
    end(&mut copier, ticket).expect("copied");
    assert_eq!((copier.stats().engine_fragments, copier.stats().launches), (1, 0));
    assert_eq!(get(&device, target.address(), 64), [9; 64]);
}

#[test]
fn batches_that_are_under_way_together_have_lists_of_their_own() {
    let device = device();
    let mut copier = copier(&device, Path::Kernel);
    let (stream, event) =
        (Stream::new(&device, Priority::Normal).expect("a stream"), Event::new(&device).expect("an event"));
    let bytes = Rng(13).bytes(BATCHES_MAX * 4096);
    let (source, target) = (pinned(&device, &bytes), buffer(&device, &vec![0; bytes.len()]));
    let word = WaitWord::new(&device).expect("a word");
    stream.wait_word(&word, word.arm().expect("armed")).expect("waits");
    stream.record(&event).expect("recorded");
    copier.order_after(&event).expect("ordered");
    let tickets: Vec<Ticket> = (0..BATCHES_MAX as u64 * 4096)
        .step_by(4096)
        .map(|at| {
            let copies = [0, 2048].map(|half| at + half);
            let copies = copies.map(|at| Copy {
                from: source.address() + at,
                to: target.address() + at,
                bytes: 1000,
                region: 0,
            });
            // SAFETY: all memory stays until every batch has ended.
            unsafe { copier.submit(Way::Up, &copies) }.expect("submitted")
        })
        .collect();
    word.release_all();
    tickets.into_iter().for_each(|ticket| end(&mut copier, ticket).expect("copied"));
    let got = get(&device, target.address(), bytes.len());
    for at in (0..bytes.len()).step_by(2048) {
        assert!(got[at..at + 1000] == bytes[at..at + 1000], "at {at}");
    }
}
