//! The scheduler and the write-back cap against simple models.

use crate::cap::Cap;
use crate::schedule::{Entry, Scheduler};
use kvtide_types::IoClass;
use proptest::prelude::*;
use std::collections::BTreeMap;

const CLASSES: [IoClass; 3] = [IoClass::Demand, IoClass::Prefetch, IoClass::WriteBack];
const TIMEOUT_US: u64 = 1000;
const DEPTH: u32 = 16;
const CAP: u64 = 1 << 20;

#[derive(Clone, Debug)]
enum Step {
    Push(usize, u64),
    Urge(u32, usize),
    Next(u32),
    End,
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0usize..3, 1u64..(1 << 19)).prop_map(|(class, bytes)| Step::Push(class, bytes)),
        1 => (0u32..60, 0usize..3).prop_map(|(id, class)| Step::Urge(id, class)),
        4 => (0u32..=DEPTH).prop_map(Step::Next),
        2 => Just(Step::End),
        1 => (0u64..600).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..300)
}

proptest! {
    #[test]
    fn turns_are_taken_in_order_of_class_and_arrival_and_nothing_is_lost(steps in steps()) {
        let mut scheduler = Scheduler::new(DEPTH, TIMEOUT_US, Cap::new(CAP));
        // By class: ids in order, with bytes and time of arrival.
        let mut model: [Vec<(u32, u64, u64)>; 3] = Default::default();
        let mut at_device: Vec<u64> = Vec::new();
        let (mut now, mut next, mut seen) = (0, 0, BTreeMap::new());
        for step in steps {
            match step {
                Step::Push(class, bytes) => {
                    let entry = Entry { key: (1, next), class: CLASSES[class], bytes, queued_us: now, alone: false, item: next };
                    scheduler.push(entry);
                    model[class].push((next, bytes, now));
                    next += 1;
                }
                Step::Urge(id, class) => {
                    let from = (class + 1..3).find(|&from| model[from].iter().any(|(other, ..)| *other == id));
                    prop_assert_eq!(scheduler.urge((1, id), CLASSES[class]), from.is_some());
                    if let Some(from) = from {
                        let at = model[from].iter().position(|(other, ..)| *other == id).unwrap();
                        let moved = model[from].remove(at);
                        model[class].push(moved);
                    }
                }
                Step::Next(free) => {
                    let admitted = |bytes: u64| at_device.is_empty() || at_device.iter().sum::<u64>() + bytes <= CAP;
                    let reserved = free <= DEPTH / 8;
                    let class = match &model {
                        _ if free == 0 => None,
                        [demand, ..] if !demand.is_empty() => Some(0),
                        _ if reserved => None,
                        [_, prefetch, _] if !prefetch.is_empty() => Some(1),
                        [.., writeback] if writeback.first().is_some_and(|(_, bytes, _)| admitted(*bytes)) => Some(2),
                        _ => None,
                    };
                    let wanted = class.map(|class| (class, model[class].remove(0)));
                    let entry = scheduler.next(free);
                    let got = entry.as_ref().map(|entry| (entry.class as usize, (entry.item, entry.bytes, entry.queued_us)));
                    prop_assert_eq!(got, wanted);
                    if let Some((class, (id, bytes, _))) = got {
                        prop_assert!(seen.insert(id, "begun").is_none());
                        if class == 2 {
                            at_device.push(bytes);
                        }
                    }
                }
                Step::End => if let Some(bytes) = at_device.pop() {
                    scheduler.cap.end(now, bytes);
                },
                Step::Wait(us) => {
                    now += us;
                    if model.iter().any(|queue| !queue.is_empty()) {
                        let oldest = model.iter().flatten().map(|(_, _, queued)| queued + TIMEOUT_US).min().unwrap();
                        prop_assert!(scheduler.due_us().is_some_and(|due| due <= oldest), "the deadline would be missed");
                    }
                    while let Some(entry) = scheduler.expired(now) {
                        prop_assert!(entry.queued_us + TIMEOUT_US <= now, "expired too early");
                        prop_assert!(seen.insert(entry.item, "expired").is_none());
                        model.iter_mut().for_each(|queue| queue.retain(|(id, ..)| *id != entry.item));
                    }
                    prop_assert!(model.iter().flatten().all(|(_, _, queued)| queued + TIMEOUT_US > now));
                }
            }
            prop_assert_eq!(scheduler.len(), model.iter().map(Vec::len).sum::<usize>());
            prop_assert_eq!(scheduler.cap.at_device(), at_device.iter().sum::<u64>());
        }
        let left: Vec<u32> = scheduler.drain().map(|entry| entry.item).collect();
        prop_assert_eq!(left.len() + seen.len(), next as usize);
        prop_assert!(scheduler.due_us().is_none());
    }

    #[test]
    fn the_cap_stays_within_its_bounds(
        most in 1u64..(64 << 20), steps in prop::collection::vec((0u64..5000, 1u64..(1 << 20), 0u8..3), 1..2000),
    ) {
        let mut cap = Cap::new(most);
        let mut open = Vec::new();
        for (index, (us, bytes, what)) in (0u64..).zip(steps) {
            match what {
                0 => cap.demand(index * 100, us),
                1 if cap.admits(bytes) => {
                    cap.begin(bytes);
                    open.push(bytes);
                    prop_assert!(open.len() == 1 || cap.at_device() <= cap.bytes());
                }
                _ => if let Some(bytes) = open.pop() { cap.end(index * 100, bytes) },
            }
            prop_assert!(cap.bytes() >= 256 << 10 && cap.bytes() <= most.max(256 << 10));
            prop_assert_eq!(cap.at_device(), open.iter().sum::<u64>());
        }
    }
}

/// Simulate a device on which demand takes `alone_us`, plus `beside_us` for every MiB of write-back in flight.
fn settle(cap: &mut Cap, alone_us: u64, beside_us: u64, reads: u64) {
    for index in 0..reads {
        // Every fourth read runs without write-back.
        let busy = index % 4 != 0;
        if busy {
            cap.begin(cap.bytes());
        }
        let us = alone_us + if busy { (cap.bytes() * beside_us) >> 20 } else { 0 };
        cap.demand(index * 50, us);
        if busy {
            cap.end(index * 50, cap.at_device());
        }
    }
}

#[test]
fn write_back_gives_way_to_demand_that_suffers_and_takes_what_it_leaves() {
    let most = 64 << 20;
    let mut cap = Cap::new(most);
    settle(&mut cap, 500, 1000, 40_000);
    let suffered = cap.bytes();
    assert!(suffered <= 1 << 20, "demand latency doubles at 512 KiB, but {suffered} bytes are admitted");
    settle(&mut cap, 500, 1, 400_000);
    assert_eq!(cap.bytes(), most, "demand is not slowed down");
}

#[test]
fn write_back_has_the_device_for_itself_when_nobody_demands_anything() {
    let mut cap = Cap::new(16 << 20);
    settle(&mut cap, 500, 100_000, 40_000);
    assert!(cap.bytes() < 1 << 20);
    let mut now = 10_000_000;
    for _ in 0..10 {
        now += 1000;
        cap.begin(4096);
        cap.end(now, 4096);
    }
    assert_eq!(cap.bytes(), 16 << 20);
}
