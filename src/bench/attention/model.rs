//! Attention that could be a decoder's: a few pages have most of it, most of them keep it, some come and go.

use half::f16;
use kvtide_wire::score::TOP_MAX;

/// How far a page's level returns in a step to where it belongs, and how far it is thrown off.
const RETURN: f32 = 0.08;
const NOISE: f32 = 0.35;
/// What a digest's estimate of a level is off by.
const ESTIMATE_NOISE: f32 = 0.3;
/// One page in so many jumps up at a step, by so much: some attention comes without a sign.
const JUMPS: u32 = 100;
const JUMP: f32 = 3.0;

/// Seeded, so that every run measures the same.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u32
    }

    /// 0 to 1.
    fn unit(&mut self) -> f32 {
        (self.bits() >> 8) as f32 / (1 << 24) as f32
    }

    /// Mean 0, variance 1, and bell-shaped enough.
    fn noise(&mut self) -> f32 {
        ((0..4).map(|_| self.unit()).sum::<f32>() - 2.0) * 3.0f32.sqrt()
    }
}

/// The best entries of an estimate or of what was read, as an engine tells them.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// Index of the page, and the bits of its share's logarithm.
    pub(super) top: Vec<(u32, u16)>,
    /// Those of the share of all other pages.
    pub(super) rest: u16,
    order: Vec<u32>,
}

impl Told {
    /// Names the highest of `levels`, shares being in proportion to their exponentials; −∞ has none.
    fn tell(&mut self, levels: &[f32]) {
        let most = levels.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let whole: f32 = levels.iter().map(|level| (level - most).exp()).sum();
        self.order.clear();
        self.order.extend((0..levels.len() as u32).filter(|at| levels[*at as usize] > f32::NEG_INFINITY));
        let exact = self.order.len() <= TOP_MAX;
        if !exact {
            self.order.select_nth_unstable_by(TOP_MAX, |a, b| levels[*b as usize].total_cmp(&levels[*a as usize]));
            self.order.truncate(TOP_MAX);
        }
        self.order.sort_unstable();
        let share = |at: u32| (levels[at as usize] - most).exp() / whole;
        let named: f32 = self.order.iter().map(|at| share(*at)).sum();
        let bits = |share: f32| f16::from_f32(share.clamp(0.0, 1.0).ln()).to_bits();
        self.top.clear();
        self.top.extend(self.order.iter().map(|at| (*at, bits(share(*at)))));
        self.rest = if exact { f16::NEG_INFINITY.to_bits() } else { bits(1.0 - named) };
    }
}

/// A decoder's planes over a sequence of a fixed length.
pub(super) struct Decoder {
    random: Random,
    /// By plane and page: where the logarithm of its share belongs, and where it is.
    base: Vec<f32>,
    levels: Vec<f32>,
    pages: usize,
    scratch: Vec<f32>,
}

impl Decoder {
    pub(super) fn new(planes: usize, pages: usize) -> Decoder {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        // Exponential in the logarithm: shares that fall off with a power of their rank.
        let base: Vec<f32> = (0..planes * pages).map(|_| -1.5 * random.unit().max(1e-6).ln()).collect();
        Decoder { levels: base.clone(), random, base, pages, scratch: vec![0.0; pages] }
    }

    /// One step further.
    pub(super) fn step(&mut self) {
        for (level, base) in self.levels.iter_mut().zip(&self.base) {
            *level += RETURN * (base - *level) + NOISE * self.random.noise();
            if self.random.bits().is_multiple_of(JUMPS) {
                *level += JUMP;
            }
        }
    }

    fn levels(&self, plane: usize) -> &[f32] {
        &self.levels[plane * self.pages..][..self.pages]
    }

    /// What digests make of the step's query.
    pub(super) fn estimate(&mut self, plane: usize, told: &mut Told) {
        let mut scratch = std::mem::take(&mut self.scratch);
        for (at, scratch) in scratch.iter_mut().enumerate() {
            *scratch = self.levels[plane * self.pages + at] + ESTIMATE_NOISE * self.random.noise();
        }
        told.tell(&scratch);
        self.scratch = scratch;
    }

    /// What attention saw that read these pages alone.
    pub(super) fn read(&mut self, plane: usize, read: &[bool], told: &mut Told) {
        let mut scratch = std::mem::take(&mut self.scratch);
        for (scratch, (level, read)) in scratch.iter_mut().zip(self.levels(plane).iter().zip(read)) {
            *scratch = if *read { *level } else { f32::NEG_INFINITY };
        }
        told.tell(&scratch);
        self.scratch = scratch;
    }
}
