//! What a router knows of a space: feed events and tokens in, KV events out. Neither threads nor clocks.
//!
//! A block is announced while it and all its ancestors are cached and have tokens: then a lookup can find it, and a router that wants
//! parents first can place it.

use super::tokens::Noted;
use super::wire::{CPU, Event, STORAGE, event_hash, locality};
use kvtide_types::FeedEvent;
use std::collections::{BTreeSet, HashMap};

/// Maximum blocks of one event.
const EVENT_BLOCKS_MAX: usize = 64;

/// A cached block.
#[derive(Clone, Copy, Debug)]
struct Node {
    parent: u128,
    /// It is on NVMe.
    recorded: bool,
    announced: bool,
}

/// The cached blocks of a space.
#[derive(Debug)]
pub struct State {
    page_tokens: u32,
    nodes: HashMap<u128, Node>,
    /// Parent and child of each block that has a parent.
    children: BTreeSet<(u128, u128)>,
    announced: usize,
}

impl State {
    /// Return a state without blocks.
    pub fn new(page_tokens: u32) -> State {
        State { page_tokens, nodes: HashMap::new(), children: BTreeSet::new(), announced: 0 }
    }

    /// Return the cached blocks that are announced, and those that are not.
    pub fn len(&self) -> (usize, usize) {
        (self.announced, self.nodes.len() - self.announced)
    }

    /// Forget all blocks.
    pub fn clear(&mut self, out: &mut Vec<Event>) {
        *self = State::new(self.page_tokens);
        out.push(Event::AllBlocksCleared);
    }

    /// Void what was announced. Return the first blocks of all prefixes: [`State::noted`] with these announces everything again.
    pub fn repeat(&mut self, out: &mut Vec<Event>) -> Vec<u128> {
        out.push(Event::AllBlocksCleared);
        self.announced = 0;
        self.nodes.values_mut().for_each(|node| node.announced = false);
        self.nodes.iter().filter(|(_, node)| node.parent == 0).map(|(hash, _)| *hash).collect()
    }

    /// Apply an event of the feed or of a listing. A gap is the caller's: it clears and applies the listing.
    pub fn apply(&mut self, event: FeedEvent, tokens: &impl Fn(u128) -> Option<Noted>, out: &mut Vec<Event>) {
        match event {
            FeedEvent::Stored { hash, parent, .. } => {
                // After a listing, the feed repeats what happened meanwhile.
                if self.nodes.get(&hash).is_some_and(|node| node.parent == parent) {
                    return;
                }
                self.remove(hash, out);
                self.nodes.insert(hash, Node { parent, recorded: false, announced: false });
                if parent != 0 {
                    self.children.insert((parent, hash));
                }
                self.announce(hash, tokens, out);
            }
            FeedEvent::Recorded { hash } => {
                let Some(node) = self.nodes.get_mut(&hash).filter(|node| !node.recorded) else { return };
                node.recorded = true;
                let node = *node;
                if node.announced
                    && let Some(noted) = tokens(hash)
                {
                    push_stored(out, hash, node.parent, &noted, STORAGE, self.page_tokens);
                } else if node.announced {
                    // Its tokens were dropped meanwhile: a removal from storage would name a block that was never there.
                    self.nodes.entry(hash).and_modify(|node| node.recorded = false);
                }
            }
            FeedEvent::Removed { hash } => self.remove(hash, out),
            FeedEvent::Gap | FeedEvent::Used { .. } => {}
        }
    }

    /// Blocks have got tokens.
    pub fn noted(&mut self, hashes: &[u128], tokens: &impl Fn(u128) -> Option<Noted>, out: &mut Vec<Event>) {
        hashes.iter().for_each(|&hash| self.announce(hash, tokens, out));
    }

    /// Announce a block, and the descendants that waited for it, if it is cached and has tokens.
    fn announce(&mut self, hash: u128, tokens: &impl Fn(u128) -> Option<Noted>, out: &mut Vec<Event>) {
        let (mut next, mut recorded) = (vec![hash], Vec::new());
        while let Some(hash) = next.pop() {
            let Some(node) = self.nodes.get(&hash).copied().filter(|node| !node.announced) else { continue };
            if node.parent != 0 && !self.nodes.get(&node.parent).is_some_and(|parent| parent.announced) {
                continue;
            }
            let Some(noted) = tokens(hash).filter(|noted| noted.tokens.len() == self.page_tokens as usize) else {
                continue;
            };
            self.nodes.entry(hash).and_modify(|node| node.announced = true);
            self.announced += 1;
            push_stored(out, hash, node.parent, &noted, CPU, self.page_tokens);
            if node.recorded {
                recorded.push((hash, node.parent, noted));
            }
            next.extend(self.children_of(hash));
        }
        for (hash, parent, noted) in recorded {
            push_stored(out, hash, parent, &noted, STORAGE, self.page_tokens);
        }
    }

    /// Forget a block. Its descendants stay cached, but no lookup finds them.
    fn remove(&mut self, hash: u128, out: &mut Vec<Event>) {
        let Some(node) = self.nodes.get(&hash).copied() else { return };
        let mut next = vec![hash];
        while let Some(hash) = next.pop() {
            let Some(node) = self.nodes.get_mut(&hash).filter(|node| node.announced) else { continue };
            node.announced = false;
            let recorded = node.recorded;
            self.announced -= 1;
            push_removed(out, hash, CPU);
            if recorded {
                push_removed(out, hash, STORAGE);
            }
            next.extend(self.children_of(hash));
        }
        self.nodes.remove(&hash);
        self.children.remove(&(node.parent, hash));
    }

    fn children_of(&self, hash: u128) -> Vec<u128> {
        self.children.range((hash, 0)..=(hash, u128::MAX)).map(|(_, child)| *child).collect()
    }
}

/// Add a block to the last event if it continues it, or add an event.
fn push_stored(out: &mut Vec<Event>, hash: u128, parent: u128, noted: &Noted, medium: &'static str, block_size: u32) {
    let parent = (parent != 0).then(|| event_hash(parent));
    if let Some(Event::BlockStored { block_hashes, token_ids, medium: last, lora_name, .. }) = out.last_mut()
        && *last == medium
        && block_hashes.len() < EVENT_BLOCKS_MAX
        && block_hashes.last().copied() == parent
        && lora_name.as_deref() == noted.adapter.as_deref()
    {
        block_hashes.push(event_hash(hash));
        token_ids.extend_from_slice(&noted.tokens);
        return;
    }
    out.push(Event::BlockStored {
        block_hashes: vec![event_hash(hash)],
        parent_block_hash: parent,
        token_ids: noted.tokens.to_vec(),
        block_size,
        lora_id: None,
        medium,
        lora_name: noted.adapter.as_deref().map(Into::into),
        locality: locality(medium),
    });
}

fn push_removed(out: &mut Vec<Event>, hash: u128, medium: &'static str) {
    match out.last_mut() {
        Some(Event::BlockRemoved { block_hashes, medium: last, .. })
            if *last == medium && block_hashes.len() < EVENT_BLOCKS_MAX =>
        {
            block_hashes.push(event_hash(hash));
        }
        _ => out.push(Event::BlockRemoved { block_hashes: vec![event_hash(hash)], medium, locality: locality(medium) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, HashSet};

    const PAGE_TOKENS: u32 = 2;

    /// The tokens of a block that has some.
    fn noted(hash: u128) -> Noted {
        let adapter = hash.is_multiple_of(5).then(|| "adapter".into());
        Noted { tokens: [hash as u32, (hash >> 64) as u32].into(), adapter }
    }

    /// What a router knows: each block with its parent and tokens, by medium.
    #[derive(Debug, Default, PartialEq)]
    struct Router(BTreeMap<(&'static str, u64), Block>);

    type Block = (Option<u64>, Vec<u32>, Option<String>);

    impl Router {
        fn apply(&mut self, events: Vec<Event>) {
            for event in events {
                match event {
                    Event::AllBlocksCleared => self.0.clear(),
                    Event::BlockRemoved { block_hashes, medium, .. } => {
                        for hash in block_hashes {
                            assert!(self.0.remove(&(medium, hash)).is_some(), "{hash} is not there");
                        }
                    }
                    Event::BlockStored {
                        block_hashes,
                        parent_block_hash,
                        token_ids,
                        block_size,
                        medium,
                        lora_name,
                        ..
                    } => {
                        assert_eq!((block_size, token_ids.len()), (PAGE_TOKENS, block_hashes.len() * 2));
                        let mut parent = parent_block_hash;
                        for (hash, tokens) in block_hashes.into_iter().zip(token_ids.chunks(2)) {
                            assert!(parent.is_none_or(|parent| self.0.contains_key(&(CPU, parent))), "parents first");
                            let block = (parent, tokens.to_vec(), lora_name.clone());
                            assert_eq!(self.0.insert((medium, hash), block), None, "{hash} is there already");
                            parent = Some(hash);
                        }
                    }
                }
            }
        }
    }

    /// The plain model: what is cached, with parent and place, and what has tokens.
    #[derive(Default)]
    struct Model {
        cached: BTreeMap<u128, (u128, bool)>,
        noted: HashSet<u128>,
    }

    impl Model {
        fn is_visible(&self, mut hash: u128) -> bool {
            while hash != 0 {
                let Some((parent, _)) = self.cached.get(&hash) else { return false };
                if !self.noted.contains(&hash) {
                    return false;
                }
                hash = *parent;
            }
            true
        }

        fn expected(&self) -> Router {
            let mut router = Router::default();
            for (&hash, &(parent, recorded)) in self.cached.iter().filter(|(hash, _)| self.is_visible(**hash)) {
                let Noted { tokens, adapter } = noted(hash);
                let parent = (parent != 0).then(|| event_hash(parent));
                let block = (parent, tokens.to_vec(), adapter.map(|adapter| adapter.to_string()));
                if recorded {
                    router.0.insert((STORAGE, event_hash(hash)), block.clone());
                }
                router.0.insert((CPU, event_hash(hash)), block);
            }
            router
        }

        fn listing(&self) -> Vec<FeedEvent> {
            let events = self.cached.iter().rev().flat_map(|(&hash, &(parent, recorded))| {
                let stored = FeedEvent::Stored { hash, parent, relayed: false };
                std::iter::once(stored).chain(recorded.then_some(FeedEvent::Recorded { hash }))
            });
            events.collect()
        }
    }

    #[test]
    fn a_router_knows_what_a_plain_model_lists() {
        const BLOCKS: u64 = 300;
        let mut seed = 1u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        // A tree: the parent of block n is block n / 2 - 10, and the first ones have none.
        let name = |n: u64| if n == 0 { 0 } else { u128::from(n) << 64 | u128::from(n * 0x9e37_79b9) };
        let parent = |n: u64| name((n / 2).saturating_sub(10));
        let (mut state, mut model, mut router) = (State::new(PAGE_TOKENS), Model::default(), Router::default());
        let mut seen = [0; 2];
        for step in 0..100_000u32 {
            let (n, mut out) = (1 + random(BLOCKS), Vec::new());
            let hash = name(n);
            let op = random(1000);
            if (300..480).contains(&op) {
                model.noted.insert(hash);
            }
            let known = model.noted.clone();
            let tokens = |hash| known.contains(&hash).then(|| noted(hash));
            match op {
                // Any order of stores and removals: the feed is not trusted to keep to ancestors first.
                0..300 => {
                    model.cached.entry(hash).or_insert((parent(n), false));
                    state.apply(FeedEvent::Stored { hash, parent: parent(n), relayed: false }, &tokens, &mut out);
                }
                300..480 => state.noted(&[hash, name(1 + random(BLOCKS))], &tokens, &mut out),
                480..700 => {
                    model.cached.entry(hash).and_modify(|block| block.1 = true);
                    state.apply(FeedEvent::Recorded { hash }, &tokens, &mut out);
                }
                700..900 => {
                    model.cached.remove(&hash);
                    state.apply(FeedEvent::Removed { hash }, &tokens, &mut out);
                }
                900..990 => state.apply(FeedEvent::Used { hash, count: 1 }, &tokens, &mut out),
                990..993 => {
                    state.clear(&mut out);
                    model.listing().into_iter().for_each(|event| state.apply(event, &tokens, &mut out));
                }
                993..996 => {
                    let roots = state.repeat(&mut out);
                    state.noted(&roots, &tokens, &mut out);
                }
                // Tokens of blocks that are not cached are dropped.
                _ => model.noted.retain(|hash| model.cached.contains_key(hash)),
            }
            router.apply(out);
            if step % 7 == 0 || step > 99_000 {
                assert_eq!(router, model.expected(), "step {step}");
                let visible = model.cached.keys().filter(|hash| model.is_visible(**hash)).count();
                assert_eq!(state.len(), (visible, model.cached.len() - visible));
                seen[0] = seen[0].max(visible);
                seen[1] = seen[1].max(state.len().1);
            }
        }
        assert!(seen.into_iter().all(|most| most > 40), "{seen:?}: both kinds of blocks were common");
    }

    #[test]
    fn blocks_of_a_prefix_share_an_event_and_wait_for_the_first_one() {
        let (mut state, mut out) = (State::new(PAGE_TOKENS), Vec::new());
        for hash in 1..=100 {
            let stored = FeedEvent::Stored { hash, parent: hash - 1, relayed: false };
            state.apply(stored, &|hash| (hash != 1).then(|| noted(hash)), &mut out);
        }
        assert!(out.is_empty(), "the first block has no tokens");
        let plain = |hash| Some(Noted { adapter: None, ..noted(hash) });
        state.noted(&[1], &plain, &mut out);
        let blocks = |event: &Event| match event {
            Event::BlockStored { block_hashes, parent_block_hash, .. } => (block_hashes.len(), *parent_block_hash),
            _ => panic!("{event:?}"),
        };
        assert_eq!(out.iter().map(blocks).collect::<Vec<_>>(), [(64, None), (36, Some(64))]);
        out.clear();
        let short = |hash| Some(Noted { tokens: [1].into(), ..noted(hash) });
        state.apply(FeedEvent::Stored { hash: 200, parent: 0, relayed: false }, &short, &mut out);
        assert!(out.is_empty(), "one token of two");
    }
}
