//! Number of tier-0 frames left for pages when digests count against tier 0.

use super::{Options, Result, attach::bad, options::DeviceChoice};
use kvtide_wire::{
    digest::sketch::GROUPS_MAX,
    geometry::{PlaneKind, stride},
};

/// Digests take at most 1/20 of a page's bytes.
const DIGEST_PART: usize = 20;

/// Return the tier-0 frames of each class, reduced by the frames that digests take.
pub(super) fn without_digests(options: &Options) -> Result<Vec<u32>> {
    let mut frames = options.tier0_frames.clone();
    let Some(digests) = &options.digests else { return Ok(frames) };
    if !(1..=GROUPS_MAX).contains(&usize::from(digests.groups)) {
        return Err(bad("digests", format!("{} groups: use 1 to {GROUPS_MAX}", digests.groups)));
    }
    if options.device != DeviceChoice::Cpu {
        on_device(options, digests)?;
    }
    let mut classes: Vec<u32> = Vec::new();
    let mut paid = false;
    for plane in &options.space.planes {
        let class = classes.iter().position(|bytes| *bytes == plane.page_bytes).unwrap_or_else(|| {
            classes.push(plane.page_bytes);
            classes.len() - 1
        });
        if plane.kind == PlaneKind::State {
            continue;
        }
        digests.keys.check(options.space.page_tokens, plane.page_bytes).map_err(|why| bad("digests", why))?;
        let (bytes, page) = (digests.page_bytes(), plane.page_bytes);
        if bytes * DIGEST_PART > page as usize {
            return Err(bad(
                "digests",
                format!("{bytes} bytes a page exceed 1/{DIGEST_PART} of a page ({page} bytes)"),
            ));
        }
        if std::mem::replace(&mut paid, true) {
            continue;
        }
        let cost = digests.frames(stride(page));
        match frames.get_mut(class).map(|frames| (*frames, frames)) {
            Some((all, left)) if cost < all => *left = all - cost,
            _ => {
                return Err(bad(
                    "digests",
                    format!("they take {cost} frames, and their size class has no more than that"),
                ));
            }
        }
    }
    Ok(frames)
}

/// Check the digests that a device can keep.
#[cfg(feature = "cuda")]
fn on_device(options: &Options, digests: &crate::agent::attention::DigestOptions) -> Result<()> {
    if options.lanes != 1 {
        return Err(bad("digests", "on a device they need a session with exactly one lane"));
    }
    crate::agent::stream::check(digests, options.space.page_tokens).map_err(|why| bad("digests", why))
}

/// This build has no device support; attach reports that.
#[cfg(not(feature = "cuda"))]
fn on_device(_: &Options, _: &crate::agent::attention::DigestOptions) -> Result<()> {
    Ok(())
}
