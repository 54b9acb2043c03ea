//! Every short history and, at each of its writes, every choice of unflushed writes.

use super::walk::{Effort, Walk};
use super::world::World;

/// Number of different operations.
const OPS: usize = 6;
const EFFORT: Effort = Effort { all: 125, random: 24, again: 8 };

fn run(world: &mut World, op: usize) {
    let held = |world: &World| (0..2).find(|&slot| world.held(0, slot).is_some_and(|block| !block.leaving));
    let empty = |world: &World| (0..2).find(|&slot| world.held(0, slot).is_none());
    match op {
        0 => {
            if let Some(slot) = empty(world) {
                world.put(0, slot);
            }
        }
        1 => {
            if let Some(slot) = held(world) {
                world.erase(0, slot);
            }
        }
        2 => world.write(),
        3 => world.flush(),
        4 => world.grant(0),
        _ => world.kill(),
    }
}

#[test]
fn every_short_history_survives_every_crash() {
    let length: u32 = std::env::var("KVTIDE_CRASH_LENGTH").ok().and_then(|n| n.parse().ok()).unwrap_or(4);
    let (mut images, mut histories) = (0, 0);
    for number in 0..OPS.pow(length) {
        let ops: Vec<usize> = (0..length).map(|i| number / OPS.pow(i) % OPS).collect();
        let mut world = World::new();
        world.grant(0);
        world.put(0, 0);
        // The writes before the history are the same in all histories, so they are not checked again.
        let (model, superblock) = (world.model.clone(), world.superblock);
        let early = world.disk.journal();
        let mut walk =
            Walk::new(vec![0; superblock.file_bytes() as usize], Default::default(), &superblock, number as u64);
        early.iter().for_each(|entry| walk.pass(entry));
        assert_eq!(walk.model.blocks.len(), model.blocks.len());
        for (index, &op) in ops.iter().enumerate() {
            run(&mut world, op);
            walk.superblock = world.superblock;
            for entry in world.disk.journal() {
                if index + 1 < ops.len() {
                    walk.pass(&entry);
                    continue;
                }
                walk.step(&entry, EFFORT).unwrap_or_else(|error| panic!("{ops:?}: {error}"));
            }
        }
        images += walk.images;
        histories += 1;
    }
    println!("{histories} histories of {length}, {images} images");
    assert!(images > histories);
}
