//! Every codec restores any page; damaged bytes from the disk do no harm; pages that do not shrink are stored unchanged.

use super::*;
use proptest::prelude::*;

const CODED: [Codec; 2] = [Codec::Lz4, Codec::PlanesZstd];

/// Return numbers like those of a KV cache: small, of similar magnitude, with random mantissas.
fn numbers(width: usize, count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut page = Vec::new();
    for _ in 0..count {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let unit = (state >> 40) as f32 / (1 << 24) as f32 - 0.5;
        let bits = (unit * unit * unit * 4.0).to_bits();
        page.extend_from_slice(&bits.to_le_bytes()[4 - width..]);
    }
    page
}

fn round_trip(coder: &mut Coder, codec: Codec, page: &[u8]) -> u16 {
    let mut stored = vec![0xEE; page.len()];
    let sectors = coder.encode(codec, page, &mut stored);
    assert!(is_possible(codec, page.len() as u32, sectors), "{sectors} sectors of {} bytes", page.len());
    if sectors > 0 {
        let bytes = stored_bytes(page.len() as u32, sectors) as usize;
        assert!(bytes + UNIT <= page.len().next_multiple_of(UNIT));
        assert!(
            stored[bytes..].iter().all(|byte| *byte == 0xEE || bytes < page.len()),
            "no byte is written beyond the end"
        );
        let mut again = vec![0; page.len()];
        coder.decode(codec, &stored[..bytes], &mut again).unwrap();
        assert_eq!(again, page);
    }
    sectors
}

/// Add a valid checksum, as an attacker could.
fn sealed(mut stored: Vec<u8>) -> Vec<u8> {
    if let Some((crc, rest)) = stored.split_first_chunk_mut::<LENGTH>() {
        *crc = crc32c(rest).to_le_bytes();
    }
    stored
}

fn pages() -> impl Strategy<Value = Vec<u8>> {
    let noise = prop::collection::vec(any::<u8>(), 0..20_000);
    let few = prop::collection::vec(0u8..3, 0..40_000);
    let floats = (prop::sample::select(vec![2usize, 4]), 0usize..12_000, any::<u64>());
    prop_oneof![noise, few, floats.prop_map(|(width, count, seed)| numbers(width, count, seed))]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_page_comes_back(pages in prop::collection::vec(pages(), 1..4)) {
        let mut coder = Coder::new().unwrap();
        for codec in CODED {
            // The same tables are used for pages of any size in sequence.
            for page in &pages {
                round_trip(&mut coder, codec, page);
            }
        }
    }

    #[test]
    fn any_bytes_on_the_disk_harm_nothing(
        page in pages(), garbage in prop::collection::vec(any::<u8>(), 0..9000), cut in 0usize..9000, bit in any::<usize>()
    ) {
        let mut coder = Coder::new().unwrap();
        for codec in Codec::ALL {
            let mut again = vec![0; page.len()];
            // The result is not checked: the page's checksum decides. Decoding must not panic or overrun.
            let _ = coder.decode(codec, &sealed(garbage.clone()), &mut again);
            let mut stored = vec![0; page.len()];
            let sectors = coder.encode(codec, &page, &mut stored);
            stored.truncate(stored_bytes(page.len() as u32, sectors) as usize);
            if sectors > 0 {
                let mut flipped = stored.clone();
                let bit = bit % (stored.len() * 8);
                flipped[bit / 8] ^= 1 << (bit % 8);
                prop_assert!(coder.decode(codec, &flipped, &mut again).is_err(), "bit {}", bit);
                let _ = coder.decode(codec, &sealed(flipped), &mut again);
                let _ = coder.decode(codec, &sealed(stored[..cut.min(stored.len())].to_vec()), &mut again);
                let mut longer = vec![0; page.len() + 1];
                prop_assert!(coder.decode(codec, &stored, &mut longer).is_err(), "a longer page");
                prop_assert!(coder.decode(codec, &stored, &mut again[1..]).is_err(), "a shorter page");
            }
        }
    }
}

#[test]
fn numbers_shrink_by_their_planes_and_not_by_lz4() {
    let mut coder = Coder::new().unwrap();
    for (width, most) in [(2, 0.85), (4, 0.95)] {
        let page = numbers(width, 32768 / width, 7);
        let sectors = round_trip(&mut coder, Codec::PlanesZstd, &page);
        let ratio = f64::from(stored_bytes(32768, sectors)) / 32768.0;
        assert!(sectors > 0 && ratio <= most, "width {width}: {ratio}");
        assert_eq!(round_trip(&mut coder, Codec::Lz4, &page), 0, "width {width}");
    }
}

#[test]
fn what_saves_no_sector_stays_as_it_is() {
    let mut coder = Coder::new().unwrap();
    for codec in CODED {
        assert_eq!(round_trip(&mut coder, codec, &[0; 4096]), 0, "one sector cannot shrink");
        assert_eq!(round_trip(&mut coder, codec, &[]), 0);
        assert_eq!(round_trip(&mut coder, codec, &[0; 4097]), 1);
        assert_eq!(round_trip(&mut coder, codec, &[7; 1 << 20]), 2 - u16::from(codec == Codec::PlanesZstd));
    }
    assert_eq!(round_trip(&mut coder, Codec::None, &[0; 8192]), 0);
    assert!(
        !is_possible(Codec::Lz4, 8192, 2) && !is_possible(Codec::None, 8192, 1) && is_possible(Codec::None, 8192, 0)
    );
}

#[test]
fn names_and_numbers_of_codecs_are_told_apart() {
    for codec in Codec::ALL {
        assert_eq!(Codec::from_code(codec.code()), Some(codec));
        assert!(Codec::ALL.iter().all(|other| *other == codec || other.name() != codec.name()));
    }
    assert_eq!(Codec::from_code(3), None);
}
