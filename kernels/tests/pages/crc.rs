//! Sums of pages of all lengths.

use crate::rig::{Rig, Rng, values};
use kvtide_kernels::launch::{CRC_SEGMENT, Crc, CrcList, crc_segments};
use kvtide_kernels::params::CrcItem;
use kvtide_kernels::reference::crc::crc32c;

fn check(rig: &Rig, random: &mut Rng, crc: &Crc, lengths: &[usize]) {
    let longest = *lengths.iter().max().expect("some");
    let mut bytes = vec![];
    let offsets: Vec<usize> = lengths
        .iter()
        .map(|&length| {
            bytes.resize(bytes.len().next_multiple_of(64), 0);
            let at = bytes.len();
            bytes.extend(random.bytes(length));
            at
        })
        .collect();
    let pages = rig.upload(&bytes);
    let items: Vec<CrcItem> = offsets
        .iter()
        .zip(lengths)
        .map(|(&at, &length)| CrcItem { address: pages.address() + at as u64, bytes: length as u64 })
        .collect();
    let segments = crc_segments(longest as u64) as usize;
    let (listed, sums) = (rig.pinned(&items), rig.pinned(&vec![0xa5a5_a5a5u32; segments * lengths.len()]));
    let list = CrcList {
        items: listed.address(),
        sums: sums.address(),
        count: lengths.len() as u32,
        bytes_max: longest as u64,
    };
    // SAFETY: all memory lives until `finish` has returned.
    unsafe { crc.crc32c(&rig.stream, &list) }.expect("launched");
    rig.finish();
    let words: Vec<u32> = values(&sums, segments * lengths.len());
    for (i, &length) in lengths.iter().enumerate() {
        let found = words[i * segments..][..segments].iter().fold(0, |sum, word| sum ^ word);
        assert_eq!(found, crc32c(&bytes[offsets[i]..][..length]), "{length} bytes");
    }
}

#[test]
fn sums_are_the_cpu_s() {
    let (rig, mut random) = (Rig::new(), Rng::seeded());
    let crc = Crc::new(&rig.device).expect("kernels load");
    let segment = CRC_SEGMENT as usize;
    check(&rig, &mut random, &crc, &[0, 1, 3, 15, 16, 17, 4080, 4095, 4096, 4097, 8192 + 33]);
    check(&rig, &mut random, &crc, &[segment - 1, segment, segment + 1, 2 * segment + 5, 7]);
    let odd = random.within(1..segment);
    check(&rig, &mut random, &crc, &[odd, 3 * segment]);
    check(&rig, &mut random, &crc, &[0]);
}
