//! Synthetic attention similar to a decoder's: a few pages get most of it, most of them keep it, some change.

use half::f16;
use kvtide_types::random::Random;
use kvtide_wire::score::TOP_MAX;

/// Per step, the part of its distance to the base level by which a page's level returns, and the standard deviation of its noise.
const RETURN: f32 = 0.08;
const NOISE: f32 = 0.35;
/// Standard deviation of the error of a digest's estimate.
const ESTIMATE_NOISE: f32 = 0.3;
/// One page in `JUMPS` jumps up at a step, by `JUMP`: attention that cannot be predicted.
const JUMPS: u64 = 100;
const JUMP: f32 = 3.0;

/// Return a number from 0 to 1.
fn unit(random: &mut Random) -> f32 {
    (random.next() >> 40) as f32 / (1 << 24) as f32
}

/// Return approximately normal noise with mean 0 and variance 1.
fn noise(random: &mut Random) -> f32 {
    ((0..4).map(|_| unit(random)).sum::<f32>() - 2.0) * 3.0f32.sqrt()
}

/// The best entries of an estimate or of a read, as an engine reports them.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// Index of the page, and the bits of the logarithm of its share.
    pub(super) top: Vec<(u32, u16)>,
    /// Bits of the logarithm of the share of all other pages.
    pub(super) rest: u16,
    order: Vec<u32>,
}

impl Told {
    /// Set the entries to the highest of `levels`. Shares are proportional to their exponentials; −∞ has no share.
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

/// Attention of a decoder's planes over a sequence of fixed length.
pub(super) struct Decoder {
    random: Random,
    /// By plane and page: the base level and the current level, as the logarithm of the share.
    base: Vec<f32>,
    levels: Vec<f32>,
    pages: usize,
    scratch: Vec<f32>,
}

impl Decoder {
    pub(super) fn new(planes: usize, pages: usize) -> Decoder {
        let mut random = Random::new(1);
        // Exponentially distributed logarithms, so that shares fall with a power of their rank.
        let base: Vec<f32> = (0..planes * pages).map(|_| -1.5 * unit(&mut random).max(1e-6).ln()).collect();
        Decoder { levels: base.clone(), random, base, pages, scratch: vec![0.0; pages] }
    }

    /// Advance by one step.
    pub(super) fn step(&mut self) {
        for (level, base) in self.levels.iter_mut().zip(&self.base) {
            *level += RETURN * (base - *level) + NOISE * noise(&mut self.random);
            if self.random.one_in(JUMPS) {
                *level += JUMP;
            }
        }
    }

    fn levels(&self, plane: usize) -> &[f32] {
        &self.levels[plane * self.pages..][..self.pages]
    }

    /// Set `told` to the digests' estimate for the step's query.
    pub(super) fn estimate(&mut self, plane: usize, told: &mut Told) {
        let mut scratch = std::mem::take(&mut self.scratch);
        for (at, scratch) in scratch.iter_mut().enumerate() {
            *scratch = self.levels[plane * self.pages + at] + ESTIMATE_NOISE * noise(&mut self.random);
        }
        told.tell(&scratch);
        self.scratch = scratch;
    }

    /// Set `told` to the attention over the pages that were read.
    pub(super) fn read(&mut self, plane: usize, read: &[bool], told: &mut Told) {
        let mut scratch = std::mem::take(&mut self.scratch);
        for (scratch, (level, read)) in scratch.iter_mut().zip(self.levels(plane).iter().zip(read)) {
            *scratch = if *read { *level } else { f32::NEG_INFINITY };
        }
        told.tell(&scratch);
        self.scratch = scratch;
    }
}
