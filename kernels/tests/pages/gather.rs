//! Lists of fragments of any alignment, and blocks between engines' layouts and pages of kvtide.

use crate::rig::{POISON, Rig, Rng};
use kvtide_kernels::launch::Gather;
use kvtide_kernels::params::{CopyFragment, GatherItem, GatherLayout, GatherParams};
use kvtide_kernels::reference::gather as reference;

#[test]
fn fragments_of_any_alignment_are_copied() {
    let (rig, mut random) = (Rig::new(), Rng::seeded());
    let gather = Gather::new(&rig.device).expect("kernels load");
    for (grain, blocks) in [(16, 2), (4, 3), (1, 64)] {
        let (mut list, mut read, mut written) = (vec![], 0usize, 0usize);
        for _ in 0..40 {
            let units = random.within(0..if grain == 16 { 900 } else { 2000 });
            let gap = grain * random.within(0..5);
            list.push(CopyFragment {
                from: read as u64,
                to: written as u64,
                bytes: (units * grain) as u32,
                reserved: 0,
            });
            read += units * grain + gap;
            written += units * grain + grain * random.within(0..5);
        }
        let source = random.bytes(read.max(1));
        let mut expected = vec![POISON; written.max(1)];
        for f in &list {
            expected[f.to as usize..][..f.bytes as usize]
                .copy_from_slice(&source[f.from as usize..][..f.bytes as usize]);
        }
        let longest = list.iter().map(|f| f.bytes).max().expect("some");
        // From device to host memory, then from host to device memory.
        for to_host in [true, false] {
            let (device_from, host_from) = (rig.upload(&source), rig.pinned(&source));
            let (device_to, host_to) = (rig.poisoned(expected.len()), rig.pinned(&vec![POISON; expected.len()]));
            let (from, to) = if to_host {
                (device_from.address(), host_to.address())
            } else {
                (host_from.address(), device_to.address())
            };
            let resolved: Vec<CopyFragment> =
                list.iter().map(|f| CopyFragment { from: f.from + from, to: f.to + to, ..*f }).collect();
            let resolved = rig.pinned(&resolved);
            // SAFETY: all memory lives until `finish` has returned; the fragments do not overlap.
            unsafe { gather.copy_list(&rig.stream, resolved.address(), list.len() as u32, longest, blocks) }
                .expect("launched");
            rig.finish();
            let found: Vec<u8> = if to_host {
                crate::rig::values(&host_to, expected.len())
            } else {
                rig.download(&device_to, expected.len())
            };
            assert!(found == expected, "grain {grain}, to host {to_host}: bytes differ");
        }
    }
}

/// Block layout of an engine.
struct Engine {
    name: &'static str,
    /// Offset of (layer, part).
    bases: Vec<u64>,
    /// Bytes between two blocks.
    block: u64,
    head_stride: u64,
    token_stride: u64,
    bytes: usize,
}

const BLOCKS: usize = 7;

fn engines(layers: u64, heads: u64, tokens: u64, row: u64) -> Vec<Engine> {
    let part = heads * tokens * row;
    let all = |f: &dyn Fn(u64, u64) -> u64| {
        (0..layers).flat_map(|l| (0..2).map(move |p| (l, p))).map(|(l, p)| f(l, p)).collect()
    };
    let blocks = BLOCKS as u64;
    let bytes = (layers * 2 * blocks * part) as usize;
    vec![
        Engine {
            name: "layers first, K and V apart, tokens before heads",
            bases: all(&|l, p| (p * layers + l) * blocks * part),
            block: part,
            head_stride: row,
            token_stride: heads * row,
            bytes,
        },
        Engine {
            name: "layers first, K and V together, heads before tokens",
            bases: all(&|l, p| (l * 2 * blocks + p) * part),
            block: 2 * part,
            head_stride: tokens * row,
            token_stride: row,
            bytes,
        },
        Engine {
            name: "pages first, K and V interleaved by token",
            bases: all(&|l, p| l * 2 * part + p * heads * row),
            block: layers * 2 * part,
            head_stride: row,
            token_stride: 2 * heads * row,
            bytes,
        },
    ]
}

#[test]
fn blocks_move_between_layouts() {
    let (rig, mut random) = (Rig::new(), Rng::seeded());
    let gather = Gather::new(&rig.device).expect("kernels load");
    for (layers, heads, tokens, row) in [(2u64, 3u64, 16u64, 64u64), (1, 8, 5, 256), (3, 1, 64, 512)] {
        let page = layers * 2 * heads * tokens * row;
        let page_bases: Vec<u64> = (0..layers * 2).map(|i| i * heads * tokens * row).collect();
        for engine in engines(layers, heads, tokens, row) {
            let engine_bytes = random.bytes(engine.bytes);
            // Each block to another page; the order of pages is random, and one page must not change.
            let (blocks, pages) = (random.shuffled(BLOCKS), random.shuffled(BLOCKS + 1));
            let items: Vec<GatherItem> = (0..BLOCKS)
                .map(|i| GatherItem { from: blocks[i] as u64 * engine.block, to: pages[i] as u64 * page })
                .collect();
            let shape = GatherParams {
                from: GatherLayout { bases: 0, head_stride: engine.head_stride, token_stride: engine.token_stride },
                to: GatherLayout { bases: 0, head_stride: tokens * row, token_stride: row },
                count: BLOCKS as u32,
                layers: layers as u32,
                parts: 2,
                heads: heads as u32,
                tokens: tokens as u32,
                row_bytes: row as u32,
                ..Default::default()
            };
            let page_bytes = (BLOCKS + 1) * page as usize;
            let mut expected = vec![POISON; page_bytes];
            reference::gather(&shape, (&engine.bases, &page_bases), &items, &engine_bytes, &mut expected);

            let (source, to) = (rig.upload(&engine_bytes), rig.pinned(&vec![POISON; page_bytes]));
            let engine_bases: Vec<u64> = engine.bases.iter().map(|b| b + source.address()).collect();
            let (bases, listed) = (rig.upload(&engine_bases), rig.pinned(&page_bases));
            let resolved: Vec<GatherItem> =
                items.iter().map(|i| GatherItem { to: i.to + to.address(), ..*i }).collect();
            let resolved = rig.upload(&resolved);
            let out = GatherParams {
                from: GatherLayout { bases: bases.address(), ..shape.from },
                to: GatherLayout { bases: listed.address(), ..shape.to },
                items: resolved.address(),
                ..shape
            };
            // SAFETY: all memory lives until `finish` has returned.
            unsafe { gather.gather(&rig.stream, &out, 5) }.expect("launched");
            rig.finish();
            assert!(crate::rig::values::<u8>(&to, page_bytes) == expected, "{}: pages differ", engine.name);

            // And back, into poisoned memory. Nothing is written there while the lane's status is set.
            let (target, status) = (rig.poisoned(engine.bytes), rig.upload(&[3u32]));
            let target_bases: Vec<u64> = engine.bases.iter().map(|b| b + target.address()).collect();
            let target_bases = rig.upload(&target_bases);
            let back: Vec<GatherItem> =
                items.iter().map(|i| GatherItem { from: i.to + to.address(), to: i.from }).collect();
            let back = rig.upload(&back);
            let home = GatherParams {
                from: out.to,
                to: GatherLayout { bases: target_bases.address(), ..shape.from },
                items: back.address(),
                ..shape
            };
            let failed = GatherParams { status: status.address(), ..home };
            // SAFETY: as above.
            unsafe { gather.gather(&rig.stream, &failed, 64) }.expect("launched");
            rig.finish();
            assert!(
                rig.download::<u8>(&target, engine.bytes).iter().all(|&byte| byte == POISON),
                "a failed lane wrote"
            );
            // SAFETY: as above.
            unsafe { gather.gather(&rig.stream, &home, 64) }.expect("launched");
            rig.finish();
            assert!(rig.download::<u8>(&target, engine.bytes) == engine_bytes, "{}: changed", engine.name);
        }
    }
}
