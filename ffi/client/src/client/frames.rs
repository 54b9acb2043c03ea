//! The frames of tier 0 that are left for pages where digests count against it.

use super::{Options, Result, attach::bad, options::DeviceChoice};
use kvtide_wire::{
    digest::sketch::GROUPS_MAX,
    geometry::{PlaneKind, stride},
};

/// Digests take at most one part in so many of a page's bytes.
const DIGEST_PART: usize = 20;

/// Tier-0 frames of each class, without those whose place the digests take.
pub(super) fn without_digests(options: &Options) -> Result<Vec<u32>> {
    let mut frames = options.tier0_frames.clone();
    let Some(digests) = &options.digests else { return Ok(frames) };
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
        if plane.kind == PlaneKind::State as u16 {
            continue;
        }
        digests.keys.check(options.space.page_tokens, plane.page_bytes).map_err(|why| bad("digests", why))?;
        let (bytes, page) = (digests.page_bytes(), plane.page_bytes);
        if bytes == 0 || usize::from(digests.groups) > GROUPS_MAX {
            let why = format!(
                "{} groups; a sketch has 0 to {GROUPS_MAX}, and one of the digests is to be kept",
                digests.groups
            );
            return Err(bad("digests", why));
        }
        if bytes * DIGEST_PART > page as usize {
            return Err(bad(
                "digests",
                format!("{bytes} bytes for a page of {page}, more than one part in {DIGEST_PART}"),
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
                    format!("they take the place of {cost} frames of a class that has no more"),
                ));
            }
        }
    }
    Ok(frames)
}

/// What a device can keep.
#[cfg(feature = "cuda")]
fn on_device(options: &Options, digests: &crate::agent::attention::DigestOptions) -> Result<()> {
    if options.lanes != 1 {
        return Err(bad("digests", "on a device they are one lane's"));
    }
    crate::agent::stream::check(digests, options.space.page_tokens).map_err(|why| bad("digests", why))
}

/// What a device can keep: this build has none, which attaching says.
#[cfg(not(feature = "cuda"))]
fn on_device(_: &Options, _: &crate::agent::attention::DigestOptions) -> Result<()> {
    Ok(())
}
