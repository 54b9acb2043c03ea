//! Bit flips: no flip may yield wrong data.

use crate::crash::Dice;
use crate::ram::{Ram, layout, open};
use kvtide_format::log::{Counts, Put, Recovered, SlabHeader, inspect};
use kvtide_format::{PageKey, SUPERBLOCK_BYTES, Superblock};

const PLANES: usize = 2;
const PAGE: usize = 512;
const SLOT: usize = 4096;

fn header(region: u32) -> SlabHeader {
    SlabHeader::new(region, 7 + u64::from(region), [0xAB; 32], "research", SLOT as u64, vec![PAGE as u32; PLANES])
}

/// Create a disk with blocks in these slots, including their pages.
fn disk(superblock: &Superblock, places: &[(u32, u32)]) -> Ram {
    let mut ram = Ram::new(superblock);
    ram.bytes.resize(superblock.file_bytes() as usize, 0);
    let (mut log, _) = open(ram, superblock);
    let mut dice = Dice::new(1);
    for &(region, slot) in places {
        if slot == 0 {
            log.grant(&header(region)).unwrap();
        }
        let mut crcs = [0; PLANES];
        let at = slot_at(superblock, region, slot);
        for (plane, crc) in crcs.iter_mut().enumerate() {
            let page: Vec<u8> = (0..PAGE).map(|_| dice.next() as u8).collect();
            *crc = key(superblock, region, slot, plane).checksum(&page);
            log.storage().bytes[at + plane * PAGE..][..PAGE].copy_from_slice(&page);
        }
        let hash = u128::from(dice.next()) << 64 | u128::from(slot);
        let put = Put {
            region,
            slot,
            generation: 5,
            shard: 0,
            salt: 0,
            hash,
            parent: hash ^ 1,
            present: &[3],
            crcs: &crcs,
            sectors: &[],
            tags: &[],
        };
        log.put(&put).unwrap();
    }
    log.flush().unwrap();
    log.storage().clone()
}

fn slot_at(superblock: &Superblock, region: u32, slot: u32) -> usize {
    (superblock.regions_offset + u64::from(region) * superblock.region_bytes) as usize + slot as usize * SLOT
}

fn key(superblock: &Superblock, region: u32, slot: u32, plane: usize) -> PageKey {
    PageKey { store: superblock.store, region, slot, generation: 5, plane: plane as u16 }
}

fn look(ram: &mut Ram, superblock: &Superblock) -> Recovered {
    inspect(ram, superblock, None, &mut |_| {}).unwrap()
}

/// Check that the recovered blocks differ from the true ones only by missing ones; return whether any is missing.
fn nothing_wrong(found: &Recovered, truth: &Recovered) -> bool {
    let mut missing = false;
    for slab in &found.slabs {
        let real = truth.slabs.iter().find(|real| real.header == slab.header).expect("a slab that never was");
        for block in slab.blocks.iter() {
            assert!(real.blocks.iter().any(|real| real == block), "a block that never was: {block:?}");
        }
        missing |= slab.blocks.len() != real.blocks.len();
    }
    missing | (found.slabs.len() != truth.slabs.len())
}

fn noticed(counts: &Counts) -> bool {
    counts.torn + counts.corrupt + counts.lost_unflushed > 0
}

/// A small layout: halves of 64 KiB, two regions of 16 slots.
fn small() -> Superblock {
    let block = Superblock::new(0xF11B, 2 * 16 * SLOT as u64, 16 * SLOT as u64).unwrap();
    Superblock { log_offset: 8192, log_bytes: 128 << 10, regions_offset: 8192 + (128 << 10), starts: 1, ..block }
}

#[test]
fn every_bit_of_one_block_its_slab_and_their_records() {
    let superblock = small();
    let mut ram = disk(&superblock, &[(0, 0)]);
    let truth = look(&mut ram, &superblock);
    assert_eq!((truth.slabs.len(), truth.slabs[0].blocks.len()), (1, 1));
    // All bytes written into the log: the checkpoint's mark, and the batch with slab and block.
    let used = superblock.log_offset as usize..superblock.log_offset as usize + 2 * SLOT;
    assert!(
        ram.bytes[used.clone()].iter().any(|byte| *byte != 0)
            && ram.bytes[used.end..used.end + SLOT].iter().all(|byte| *byte == 0)
    );
    let (mut flips, mut batch_lost) = (0, 0);
    for bit in used.start * 8..used.end * 8 {
        ram.bytes[bit / 8] ^= 1 << (bit % 8);
        let found = look(&mut ram, &superblock);
        let missing = nothing_wrong(&found, &truth);
        // A batch with an invalid header is no batch; after the last good one that is the end of the log.
        let header = bit / 8 >= used.start + SLOT && bit / 8 < used.start + SLOT + 64;
        assert!(noticed(&found.counts) || missing && header, "bit {bit} was not noticed: {:?}", found.counts);
        batch_lost += u64::from(missing);
        ram.bytes[bit / 8] ^= 1 << (bit % 8);
        flips += 1;
    }
    // The pages of the block.
    let block = truth.slabs[0].blocks.get(0);
    for bit in 0..PLANES * PAGE * 8 {
        let at = slot_at(&superblock, 0, 0) + bit / 8;
        ram.bytes[at] ^= 1 << (bit % 8);
        let plane = bit / 8 / PAGE;
        let page = &ram.bytes[slot_at(&superblock, 0, 0) + plane * PAGE..][..PAGE];
        assert_ne!(key(&superblock, 0, 0, plane).checksum(page), block.crcs[plane], "bit {bit}");
        ram.bytes[at] ^= 1 << (bit % 8);
        flips += 1;
    }
    println!("{flips} bits, {batch_lost} cost the block, none was believed");
    assert_eq!(look(&mut ram, &superblock), truth, "every bit was turned back");
}

#[test]
fn every_bit_of_a_superblock() {
    let superblock = layout(8);
    let mut bytes = superblock.encode();
    for bit in 0..SUPERBLOCK_BYTES * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(Superblock::decode(&bytes).is_err(), "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn random_bits_over_a_full_tier() {
    let superblock = small();
    let places: Vec<(u32, u32)> = (0..2).flat_map(|region| (0..16).map(move |slot| (region, slot))).collect();
    let mut ram = disk(&superblock, &places);
    let truth = look(&mut ram, &superblock);
    assert_eq!(truth.counts.blocks, 32);
    let mut dice = Dice::new(2);
    let (mut in_log, mut in_pages) = (0, 0);
    let flips = 4000;
    for _ in 0..flips {
        // Flip one to four bits at once, anywhere after the superblocks.
        let count = 1 + dice.below(4);
        let first = superblock.log_offset * 8;
        let bits: Vec<u64> = (0..count).map(|_| first + dice.below(ram.bytes.len() as u64 * 8 - first)).collect();
        bits.iter().for_each(|bit| ram.bytes[(bit / 8) as usize] ^= 1 << (bit % 8));
        let found = look(&mut ram, &superblock);
        in_log += u64::from(nothing_wrong(&found, &truth) || noticed(&found.counts));
        for slab in &found.slabs {
            for block in slab.blocks.iter() {
                for plane in 0..PLANES {
                    let at = slot_at(&superblock, block.region, block.slot) + plane * PAGE;
                    let hit = bits.iter().any(|bit| (at..at + PAGE).contains(&((bit / 8) as usize)));
                    let twice = (0..bits.len()).any(|i| bits[..i].contains(&bits[i]));
                    let sum = key(&superblock, block.region, block.slot, plane).checksum(&ram.bytes[at..at + PAGE]);
                    assert_eq!(sum != block.crcs[plane], hit && !twice, "{bits:?} in {block:?}");
                    in_pages += u64::from(hit);
                }
            }
        }
        bits.iter().for_each(|bit| ram.bytes[(bit / 8) as usize] ^= 1 << (bit % 8));
    }
    println!("{flips} times 1 to 4 bits: {in_log} in what counts of the log, {in_pages} in pages, none was believed");
    assert!(in_log > 0 && in_pages > 0);
}
