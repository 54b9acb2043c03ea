//! Long histories from seeds, with compactions, kills and power cuts.

use super::Dice;
use super::model::Model;
use super::walk::{Effort, Walk};
use super::world::{REGIONS, SLOTS, World};

const EFFORT: Effort = Effort { all: 0, random: 2, again: 16 };

/// Execute one possible operation of a daemon.
fn act(world: &mut World, dice: &mut Dice) {
    let region = dice.below(REGIONS.into()) as u32;
    let slot = dice.below(SLOTS.into()) as u32;
    match dice.below(64) {
        0 => world.kill(),
        1 => world.free(region),
        2..=3 => world.grant(region),
        4..=9 => world.flush(),
        10..=27 => world.write(),
        28..=31 => {
            // Not a guarantee: the log may write pending records.
            world.log.compact_step().unwrap();
        }
        _ if !world.granted(region) => world.grant(region),
        32..=41 => {
            if world.held(region, slot).is_some_and(|block| !block.leaving) {
                world.erase(region, slot);
            }
        }
        _ => {
            if world.held(region, slot).is_none() {
                world.put(region, slot);
            }
        }
    }
}

/// Run a history of several lives, each ended by a power cut at a random moment.
fn history(seed: u64, lives: u32, acts: u32) -> (u64, u64) {
    let mut dice = Dice::new(seed);
    let mut world = World::new();
    let mut walk =
        Walk::new(vec![0; world.superblock.file_bytes() as usize], Model::default(), &world.superblock, seed);
    let (mut images, mut compactions) = (0, 0);
    for life in 0..lives {
        for _ in 0..acts {
            act(&mut world, &mut dice);
        }
        compactions += world.log.status().compactions - 1;
        let journal = world.disk.journal();
        let end = dice.below(journal.len() as u64) as usize;
        walk.superblock = world.superblock;
        for entry in &journal[..end] {
            walk.step(entry, EFFORT).unwrap_or_else(|error| panic!("seed {seed}, life {life}: {error}"));
        }
        images += walk.images;
        // The power cut. The next life begins with its image.
        let image = walk.medium.torn(&mut dice);
        world.power_cut(image, walk.model.clone(), dice.below(3) == 0);
        walk = Walk::new(world.disk.bytes(), world.model.clone(), &world.superblock, dice.next());
        world.disk.journal();
    }
    (images, compactions)
}

#[test]
fn long_histories_survive_every_crash() {
    let seeds: u64 = std::env::var("KVTIDE_CRASH_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(12);
    let (mut images, mut compactions) = (0, 0);
    for seed in 0..seeds {
        let (seen, compacted) = history(seed, 6, 250);
        images += seen;
        compactions += compacted;
    }
    println!("{seeds} seeds, {images} images, {compactions} compactions while serving");
    assert!(compactions > seeds, "{compactions} compactions: the histories are too short to reach one");
}
