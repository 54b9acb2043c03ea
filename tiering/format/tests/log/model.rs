//! The log against a plain map: after any operations, a restart finds exactly the contents of the map.

use crate::cipher::Toy;
use crate::crash::Dice;
use crate::ram::Ram;
use kvtide_format::Superblock;
use kvtide_format::log::{Cipher, Log, LogError, Put, Recovered, Salt, SlabHeader};
use proptest::prelude::*;
use std::collections::BTreeMap;

const REGIONS: u32 = 4;
const SLOTS: u32 = 12;

#[derive(Clone, Debug)]
enum Op {
    /// Region, planes, codec, encrypted.
    Grant(u32, usize, bool, bool),
    Free(u32),
    Put(u32, u32, u64),
    Erase(u32, u32, bool),
    Write,
    Flush,
    Compact,
    Restart,
    /// The storage has no room for more, or has it again.
    Room(bool),
}

fn op() -> impl Strategy<Value = Op> {
    let planes = prop_oneof![4 => 1usize..40, 1 => 40usize..200];
    let (region, slot) = (0..REGIONS, 0..SLOTS);
    prop_oneof![
        2 => (region.clone(), planes, any::<bool>(), any::<bool>()).prop_map(|(r, p, c, e)| Op::Grant(r, p, c, e)),
        1 => region.clone().prop_map(Op::Free),
        24 => (region.clone(), slot.clone(), any::<u64>()).prop_map(|(r, s, seed)| Op::Put(r, s, seed)),
        6 => (region, slot, any::<bool>()).prop_map(|(r, s, right)| Op::Erase(r, s, right)),
        6 => Just(Op::Write),
        2 => Just(Op::Flush),
        2 => Just(Op::Compact),
        1 => Just(Op::Restart),
    ]
}

/// An owned block, without borrows.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Block {
    generation: u32,
    shard: u16,
    salt: u32,
    hash: u128,
    parent: u128,
    present: Vec<u32>,
    crcs: Vec<u32>,
    sectors: Vec<u16>,
    tags: Vec<[u8; 16]>,
}

impl Block {
    fn new(slab: &SlabHeader, generation: u32, salt: u32, seed: u64) -> Block {
        let mut dice = Dice::new(seed);
        let planes = slab.page_bytes.len();
        let mut present: Vec<u32> = (0..slab.words()).map(|_| dice.next() as u32).collect();
        if !planes.is_multiple_of(32) {
            *present.last_mut().unwrap() &= (1 << (planes % 32)) - 1;
        }
        // The log keeps no data of absent planes.
        let there = |plane: usize| present[plane / 32] >> (plane % 32) & 1 == 1;
        let crcs = (0..planes).map(|plane| if there(plane) { dice.next() as u32 } else { 0 }).collect();
        let sectors =
            (0..planes).filter(|_| slab.codec > 0).map(|plane| if there(plane) { dice.next() as u16 } else { 0 });
        let sectors = sectors.collect();
        let tag = |plane| if there(plane) { [plane as u8 ^ seed as u8; 16] } else { [0; 16] };
        let tags = (0..planes).filter(|_| slab.encrypted).map(tag).collect();
        let salt = if slab.encrypted { salt } else { 0 };
        let (hash, parent) = (u128::from(dice.next()) << 70, u128::from(dice.next()) << 3);
        Block { generation, shard: (seed % 3) as u16, salt, hash, parent, present, crcs, sectors, tags }
    }

    fn put(&self, region: u32, slot: u32) -> Put<'_> {
        let Block { generation, shard, salt, hash, parent, .. } = *self;
        let (present, crcs, sectors, tags) = (&*self.present, &*self.crcs, &*self.sectors, &*self.tags);
        Put { region, slot, generation, shard, salt, hash, parent, present, crcs, sectors, tags }
    }
}

/// The valid contents: by region its slab, and its blocks by slot.
type Map = BTreeMap<u32, (SlabHeader, BTreeMap<u32, Block>)>;

fn same(recovered: &Recovered, map: &Map) {
    assert_eq!(recovered.slabs.len(), map.len());
    for (found, (slab, blocks)) in recovered.slabs.iter().zip(map.values()) {
        assert_eq!(&found.header, slab);
        assert_eq!((found.blocks.len(), found.sealed), (blocks.len(), 0));
        for block in found.blocks.iter() {
            assert_eq!(block, blocks[&block.slot].put(slab.region, block.slot));
        }
    }
    let counts = &recovered.counts;
    assert_eq!(counts.blocks, map.values().map(|slab| slab.1.len() as u64).sum::<u64>());
    assert_eq!(counts.torn + counts.corrupt + counts.lost_unflushed + counts.unreadable, 0);
}

struct World {
    log: Log<Ram>,
    superblock: Superblock,
    map: Map,
    grant: u64,
    generation: u32,
    full: u64,
}

fn cipher() -> Option<Box<dyn Cipher>> {
    Some(Box::new(Toy::new(42)))
}

impl World {
    fn new() -> World {
        World::sized(SLOTS, 128 << 10)
    }

    /// Create a world with this number of slots per region, and bytes per half.
    fn sized(slots: u32, half_bytes: u64) -> World {
        let region_bytes = u64::from(slots) * (64 << 10);
        let block = Superblock::new(77, u64::from(REGIONS) * region_bytes, region_bytes).unwrap();
        let superblock = Superblock {
            log_offset: 8192,
            log_bytes: 2 * half_bytes,
            regions_offset: 8192 + 2 * half_bytes,
            starts: 0,
            ..block
        };
        let (log, _) = Log::open(Ram::new(&superblock), &superblock, cipher(), &mut |_| {}).unwrap();
        let mut world = World { log, superblock, map: Map::new(), grant: 0, generation: 0, full: 0 };
        world.restart();
        world
    }

    fn restart(&mut self) {
        self.log.write().unwrap();
        self.superblock.starts += 1;
        let ram = self.log.storage().clone();
        let (log, recovered) = Log::open(ram, &self.superblock, cipher(), &mut |_| {}).unwrap();
        same(&recovered, &self.map);
        self.log = log;
        // The opened log may be full. There must be room for the salt.
        self.log.storage().room = u64::MAX;
        self.log.salt(&Salt { number: self.superblock.starts, bytes: [self.superblock.starts as u8; 32] }).unwrap();
    }

    /// Return false if there was no room and nothing has changed.
    fn took(&mut self, result: Result<(), LogError>) -> bool {
        match result {
            Ok(()) => true,
            Err(LogError::Full { .. }) => {
                self.full += 1;
                false
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::Grant(region, planes, coded, encrypted) => {
                self.grant += 1;
                let (key, domain, page_bytes) = ([planes as u8; 32], "d".repeat(planes % 65), vec![128; planes]);
                let slab = SlabHeader::new(region, self.grant, key, &domain, 64 << 10, page_bytes);
                let slab = SlabHeader { shards: 3, codec: u8::from(coded), encrypted, ..slab };
                let granted = self.log.grant(&slab);
                if self.took(granted) {
                    self.map.insert(region, (slab, BTreeMap::new()));
                }
            }
            Op::Free(region) => {
                let freed = self.log.free(region);
                assert!(self.took(freed), "the reserve is there");
                self.map.remove(&region);
            }
            Op::Put(region, slot, seed) => {
                let Some((slab, _)) = self.map.get(&region) else { return };
                self.generation += 1;
                let block = Block::new(slab, self.generation, self.superblock.starts, seed);
                let put = self.log.put(&block.put(region, slot));
                if self.took(put) {
                    self.map.get_mut(&region).unwrap().1.insert(slot, block);
                }
            }
            Op::Erase(region, slot, right) => {
                let Some((_, blocks)) = self.map.get(&region) else { return };
                let Some(generation) = blocks.get(&slot).map(|block| block.generation) else { return };
                let erased = self.log.erase(region, slot, generation - u32::from(!right));
                assert!(self.took(erased), "the reserve is there");
                if right {
                    self.map.get_mut(&region).unwrap().1.remove(&slot);
                }
            }
            Op::Write => self.log.write().unwrap(),
            Op::Flush => self.log.flush().unwrap(),
            Op::Compact => {
                self.log.compact_step().unwrap();
            }
            Op::Restart => self.restart(),
            Op::Room(there) => self.log.storage().room = if there { u64::MAX } else { 0 },
        }
        let status = self.log.status();
        assert_eq!(status.blocks, self.map.values().map(|slab| slab.1.len() as u64).sum::<u64>());
        assert!(status.used_bytes <= status.half_bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn a_restart_finds_what_the_map_holds(ops in prop::collection::vec(op(), 1..500)) {
        let mut world = World::new();
        ops.iter().for_each(|op| world.run(op));
        world.restart();
    }
}

#[test]
fn what_replaced_a_block_and_is_gone_again_does_not_bring_it_back() {
    // A compaction copies the first block, then finds the second one dead, and its erasure.
    for turns in 1..60u64 {
        let mut world = World::new();
        world.run(&Op::Grant(0, 200, true, false));
        world.run(&Op::Put(0, 0, 1));
        for turn in 0..turns {
            world.run(&Op::Put(0, 1 + (turn % 8) as u32, turn));
            world.run(&Op::Write);
        }
        world.run(&Op::Compact);
        world.run(&Op::Put(0, 0, 2));
        world.run(&Op::Erase(0, 0, true));
        for turn in 0..60 {
            world.run(&Op::Put(0, 1 + (turn % 8) as u32, turn));
            world.run(&Op::Write);
        }
        world.restart();
    }
}

#[test]
fn a_full_log_says_so_and_can_be_emptied() {
    let mut world = World::new();
    // 192 KiB of records for halves of 128 KiB.
    for region in 0..REGIONS {
        world.run(&Op::Grant(region, 200, true, true));
    }
    for seed in 0..400u64 {
        world.run(&Op::Put((seed % 4) as u32, (seed / 4 % u64::from(SLOTS)) as u32, seed));
        if seed % 5 == 0 {
            world.run(&Op::Write);
        }
    }
    assert!(world.full > 0 && world.log.status().compactions > 1, "{} refused", world.full);
    world.restart();
    // Erase blocks one by one, each durably; then there is room.
    for place in 0..REGIONS * SLOTS {
        world.run(&Op::Erase(place % REGIONS, place / REGIONS, true));
        world.run(&Op::Flush);
    }
    assert_eq!(world.log.status().blocks, 0);
    let before = world.full;
    for slot in 0..4 {
        world.run(&Op::Put(0, slot, 1));
        world.run(&Op::Flush);
    }
    assert_eq!(world.full, before);
    world.restart();
}

/// Return the reserved bytes per half.
fn reserved(world: &mut World) -> u64 {
    world.log.storage().reserved.iter().filter(|&&reserved| reserved).count() as u64 * 4096 / 2
}

#[test]
fn halves_are_reserved_as_they_are_reached() {
    const SLOTS: u32 = 250;
    let mut world = World::sized(SLOTS, 4 << 20);
    assert_eq!(reserved(&mut world), 1 << 20);
    world.run(&Op::Room(false));
    (0..REGIONS).for_each(|region| world.run(&Op::Grant(region, 200, true, false)));
    let fill = |world: &mut World| {
        for seed in 0..u64::from(REGIONS * SLOTS) * 2 {
            world.run(&Op::Put((seed % 4) as u32, (seed / 4) as u32 % SLOTS, seed));
            world.run(&Op::Write);
        }
    };
    // Within the available room, dead records make room, and the live blocks do not all fit.
    fill(&mut world);
    let status = world.log.status();
    assert!(world.full > 0 && status.compactions > 1, "{status:?}");
    assert_eq!((reserved(&mut world), status.half_bytes), (1 << 20, 1 << 20));
    let Some((slab, _)) = world.map.get(&0) else { panic!("region 0 is granted") };
    let block = Block::new(slab, u32::MAX, 0, 1);
    let refused = (0..SLOTS).find_map(|slot| world.log.put(&block.put(0, slot)).err());
    let message = refused.expect("no room").to_string();
    assert!(message.contains("in a half of 1048576 bytes; the half cannot grow: "), "{message}");
    // A full file system is not asked again for each record that is refused.
    let refusals = |world: &mut World, most: u32| {
        let puts = 0..most;
        puts.take_while(|_| world.log.put(&block.put(0, 0)).is_err()).count()
    };
    let asked = world.log.storage().asked;
    assert_eq!(refusals(&mut world, 1000), 1000);
    let again = world.log.storage().asked - asked;
    assert!((3..=4).contains(&again), "{again} reservations for 1000 refused records");
    // A start needs no more room than before.
    world.restart();
    let before = world.full;
    fill(&mut world);
    assert_eq!((world.full, world.log.status().half_bytes), (before, 4 << 20), "there is room again");
    assert!(reserved(&mut world) > 1 << 20);
    world.restart();
}

#[test]
fn whenever_room_is_refused_nothing_is_lost_and_blocks_can_go() {
    const SLOTS: u64 = 250;
    for seed in 1..12 {
        let mut world = World::sized(SLOTS as u32, 4 << 20);
        let mut dice = Dice::new(seed);
        (0..REGIONS).for_each(|region| world.run(&Op::Grant(region, 200, true, region % 2 == 1)));
        for _ in 0..6000 {
            let (region, slot) = ((dice.next() % u64::from(REGIONS)) as u32, (dice.next() % SLOTS) as u32);
            world.run(&match dice.next() % 1000 {
                0..600 => Op::Put(region, slot, dice.next()),
                600..700 => Op::Erase(region, slot, true),
                700..960 => Op::Write,
                960..980 => Op::Compact,
                980..996 => Op::Room(dice.next().is_multiple_of(3)),
                996 => Op::Grant(region, 200, true, false),
                _ => Op::Restart,
            });
        }
        world.restart();
    }
}

#[test]
fn blocks_without_their_key_are_kept_and_not_shown() {
    let mut world = World::new();
    world.run(&Op::Grant(0, 4, false, true));
    world.run(&Op::Grant(1, 4, false, false));
    for slot in 0..5 {
        world.run(&Op::Put(0, slot, 9));
        world.run(&Op::Put(1, slot, 9));
    }
    world.run(&Op::Write);
    // A start without the key, and one with another key.
    for other in [None, Some(43)] {
        world.superblock.starts += 1;
        let ram = world.log.storage().clone();
        let cipher = other.map(|key| Box::new(Toy::new(key)) as Box<dyn Cipher>);
        let opened = Log::open(ram, &world.superblock, cipher, &mut |_| {}).unwrap();
        let (mut log, recovered) = opened;
        assert_eq!((recovered.slabs[0].blocks.len(), recovered.slabs[1].blocks.len()), (0, 5));
        if other.is_none() {
            assert_eq!((recovered.slabs[0].sealed, recovered.counts.corrupt, recovered.counts.blocks), (5, 0, 10));
            let refused = log.put(&Block::new(&recovered.slabs[0].header, 99, 1, 1).put(0, 7));
            assert!(matches!(refused, Err(LogError::Cipher { region: 0, .. })), "{refused:?}");
            // The next start, with the key, finds all of them.
            world.log = log;
            world.restart();
        } else {
            assert_eq!(
                (recovered.slabs[0].sealed, recovered.counts.corrupt),
                (0, 5),
                "a record sealed with another key is forged"
            );
        }
    }
}
