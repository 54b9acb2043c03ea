//! Recorded blocks are found after a restart.

use crate::ram::{Ram, again, blocks, layout, open, put, slab};
use kvtide_format::log::LogError;

#[test]
fn blocks_come_back_as_they_were_recorded() {
    let mut superblock = layout(8);
    let (mut log, recovered) = open(Ram::new(&superblock), &superblock);
    assert!(recovered.slabs.is_empty() && recovered.run == 1);
    let slab = slab(3, 1, 4);
    log.grant(&slab).unwrap();
    let kept = put(3, 5, 1 << 16, &[0b1011], &[7, 8, 9, 10]);
    log.put(&kept).unwrap();
    log.put(&put(3, 6, 1 << 16, &[0b1111], &[1, 2, 3, 4])).unwrap();
    log.erase(3, 6, 1 << 16).unwrap();
    log.write().unwrap();
    log.put(&put(3, 7, 1 << 16, &[0b1111], &[1, 2, 3, 4])).unwrap();
    let ram = log.storage().clone();
    for restart in 0..3 {
        again(&mut superblock);
        let (mut log, recovered) = open(ram.clone(), &superblock);
        assert_eq!(blocks(&recovered), [(3, 5, 1 << 16)], "restart {restart}: the last was not written");
        assert_eq!(recovered.slabs[0].header, slab);
        let found = recovered.slabs[0].blocks.get(0);
        assert_eq!(found.crcs, [7, 8, 0, 10], "the absent plane is zero");
        assert_eq!((found.hash, found.parent, found.present, found.shard), (kept.hash, kept.parent, kept.present, 1));
        assert_eq!(log.status().blocks, 1);
        drop(log.storage().clone());
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let superblock = layout(8);
    let (mut log, _) = open(Ram::new(&superblock), &superblock);
    log.grant(&slab(0, 1, 4)).unwrap();
    let good = put(0, 0, 1, &[15], &[0; 4]);
    for bad in [
        put(0, 16, 1, &[15], &[0; 4]),
        put(0, 0, 0, &[15], &[0; 4]),
        put(0, 0, 1, &[15, 0], &[0; 4]),
        put(0, 0, 1, &[15], &[0; 3]),
    ] {
        assert!(matches!(log.put(&bad), Err(LogError::Nonsense { region: 0, .. })), "{bad:?}");
    }
    assert!(matches!(log.put(&put(1, 0, 1, &[15], &[0; 4])), Err(LogError::NotGranted { region: 1 })));
    assert!(log.grant(&slab(8, 1, 4)).is_err(), "there are eight regions");
    log.put(&good).unwrap();
    assert_eq!(log.status().blocks, 1);
}
