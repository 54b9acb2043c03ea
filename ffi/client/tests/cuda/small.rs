//! A tier 0 that starts with fewer frames than its maximum.

use super::{
    fake::{FRAMES, Fake, LONG, PLANES},
    rig::{attached_with, filled, on_device},
};
use kvtide_client::{Client, Options};
use kvtide_wire::status::Status;

#[test]
fn a_tier_0_begins_small_and_grows() {
    let initial = 2 * u32::from(PLANES);
    let (_fake, client, mut channel, mut bound) = attached_with(|options| options.tier0_initial = vec![initial]);
    assert!(client.frame_ptr(initial - 1).is_some() && client.frame_ptr(initial).is_none());
    let first = filled(&mut channel, &mut bound, 2);
    // The daemon knows the initial size: every frame that it assigned has memory.
    let blocks = client.seq_blocks(first).expect("blocks");
    let frames = blocks.iter().flat_map(|block| (0..PLANES).map(|plane| bound.lane.pte(*block, plane)));
    assert!(frames.flatten().all(|frame| frame < initial), "a frame without memory");
    assert_eq!(channel.resize_tier0(0, FRAMES, LONG).expect("grows"), FRAMES);
    assert!(client.frame_ptr(FRAMES - 1).is_some());
    let second = filled(&mut channel, &mut bound, 3);
    bound.read_all(first, 2);
    bound.read_all(second, 3);
}

#[test]
fn a_beginning_that_cannot_be_is_refused() {
    let fake = Fake::start();
    for initial in [vec![FRAMES + 1], vec![1, 1]] {
        let refused = Client::attach(Options { tier0_initial: initial, ..on_device(&fake) });
        assert_eq!(refused.err().expect("refused").status(), Status::Invalid);
    }
}
