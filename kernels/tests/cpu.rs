//! The CPU's attention against the reference in f64, and to the bit between vector units, batches, orders and threads.

use kvtide_kernels::cpu::{Batch, Fold, Head, Pages, Partials, Room, Rows, VectorUnit, Vectors};
use kvtide_kernels::reference::Element;
use kvtide_kernels::reference::attention::{Attention, Layout, Partial};
use proptest::prelude::*;

/// One sequence with its pages, in random numbers.
#[derive(Clone, Debug)]
struct Case {
    element: Element,
    layout: Layout,
    group: usize,
    page_tokens: usize,
    pages: usize,
    queries: usize,
    window: usize,
    q: Vec<u16>,
    kv: Vec<u16>,
}

const KV_HEADS: usize = 2;
const SCALE: f32 = 0.125;

fn case() -> impl Strategy<Value = Case> {
    let layouts = prop_oneof![
        prop::sample::select(vec![1, 24, 64, 96, 128, 256]).prop_map(|head_dim| Layout::Heads { head_dim }),
        Just(Layout::Latent { latent: 64, rope: 16 }),
        Just(Layout::Latent { latent: 512, rope: 64 }),
    ];
    (any::<bool>(), layouts, 1usize..9, 1usize..40, 1usize..5, 1usize..7, 0usize..50, any::<u64>()).prop_map(
        |(bf16, layout, group, page_tokens, pages, queries, window, seed)| {
            let element = if bf16 { Element::Bf16 } else { Element::F16 };
            let mut state = seed | 1;
            let mut number = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                element.from_f32((state >> 40) as f32 / (1 << 22) as f32 - 2.0)
            };
            let heads = if matches!(layout, Layout::Latent { .. }) { 1 } else { KV_HEADS };
            let q = (0..queries * heads * group * layout.key()).map(|_| number()).collect();
            let kv = (0..pages * layout.page(heads, page_tokens)).map(|_| number()).collect();
            Case { element, layout, group, page_tokens, pages, queries, window, q, kv }
        },
    )
}

impl Case {
    fn heads(&self) -> usize {
        if matches!(self.layout, Layout::Latent { .. }) { 1 } else { KV_HEADS }
    }

    /// Tokens of the sequence: the last page is half full, but has the queries.
    fn tokens(&self) -> usize {
        ((self.pages - 1) * self.page_tokens + self.page_tokens.div_ceil(2)).max(self.queries)
    }

    fn page(&self) -> usize {
        self.layout.page(self.heads(), self.page_tokens)
    }

    fn fits(&self) -> bool {
        self.tokens() <= self.pages * self.page_tokens
    }

    fn seen(&self, token: usize) -> (usize, usize) {
        let limit = self.tokens() + token + 1 - self.queries;
        (if self.window == 0 { 0 } else { limit.saturating_sub(self.window) }, limit)
    }

    /// Rows of some query tokens and all query heads of a KV head.
    fn rows(&self, head: usize, tokens: std::ops::Range<usize>) -> Rows {
        let mut rows = Rows::default();
        for token in tokens {
            for row in 0..self.group {
                let at = (token * self.heads() + head) * self.group + row;
                let query = &self.q[at * self.layout.key()..][..self.layout.key()];
                rows.push(query.iter().map(|bits| self.element.to_f32(*bits)), SCALE, self.seen(token));
            }
        }
        rows
    }

    fn shape(&self, unit: VectorUnit) -> Pages {
        let (key, value) = (self.layout.key(), self.layout.value());
        Pages { element: self.element, key, value, stride: key, tokens: self.page_tokens, unit }
    }

    fn head(&self, head: usize, page: usize) -> Head {
        let (kv, tokens) = (&self.kv[page * self.page()..][..self.page()], self.page_tokens * self.layout.key());
        let keys = &kv[head * tokens..];
        let values = match self.layout {
            Layout::Heads { .. } => &kv[(KV_HEADS + head) * tokens..],
            Layout::Latent { .. } => keys,
        };
        Head { keys: keys.as_ptr(), values: values.as_ptr() }
    }

    fn partials(&self, unit: VectorUnit, head: usize, page: usize, rows: &Rows, room: &mut Room) -> Partials {
        // SAFETY: `head` has a page's keys and values.
        unsafe { self.shape(unit).partials(self.head(head, page), page * self.page_tokens, rows, room) }
    }

    fn whole(&self, unit: VectorUnit, head: usize, rows: &Rows) -> Partials {
        let (mut sum, mut room) = (Partials::new(rows.len(), self.layout.value()), Room::default());
        for page in 0..self.pages {
            sum.fold(unit, &self.partials(unit, head, page, rows, &mut room));
        }
        sum
    }

    /// As `whole`, without partial results of pages.
    fn direct(&self, unit: VectorUnit, head: usize, rows: &Rows) -> Partials {
        let (mut sum, shape) = (Partials::new(rows.len(), self.layout.value()), self.shape(unit));
        let pages = (0..self.pages).map(|page| (page, self.head(head, page)));
        // SAFETY: `head` has a page's keys and values.
        unsafe { shape.add(pages, rows, &mut Room::default(), &mut sum) };
        sum
    }

    fn reference(&self, token: usize, head: usize) -> Partial {
        let table: Vec<i32> = (0..self.pages as i32).collect();
        let (lengths, starts) = ([self.tokens() as i32], [0, self.queries]);
        let attention = Attention {
            element: self.element,
            layout: self.layout,
            kv_heads: self.heads(),
            group: self.group,
            page_tokens: self.page_tokens,
            window: self.window,
            scale: SCALE.into(),
            q: &self.q,
            pages: &self.kv,
            page_stride: self.page(),
            block_table: &table,
            table_stride: self.pages,
            lengths: &lengths,
            q_starts: &starts,
        };
        let mut sum = Partial::empty(self.layout.value());
        (0..self.pages).for_each(|page| sum.fold(&attention.page(0, page, token, head).expect("it is in the table")));
        sum
    }
}

/// Cases of the first one's shape as a batch.
struct Batched {
    cases: Vec<Case>,
    query: Vec<u16>,
    starts: Vec<usize>,
}

impl Batched {
    fn new(cases: &[Case]) -> Batched {
        let first = &cases[0];
        let alike = |case: &&Case| {
            (case.element, case.layout, case.group, case.page_tokens)
                == (first.element, first.layout, first.group, first.page_tokens)
        };
        let mut cases: Vec<Case> = cases.iter().filter(alike).cloned().collect();
        // Another sequence of the shape: the first one's pages in reverse order.
        let pages = first.kv.chunks(first.page()).rev().flatten().copied().collect();
        cases.push(Case { kv: pages, ..first.clone() });
        let query = cases.iter().flat_map(|case| &case.q).copied().collect();
        let starts = std::iter::once(0).chain(cases.iter().scan(0, |end, case| {
            *end += case.queries;
            Some(*end)
        }));
        let starts = starts.collect();
        Batched { cases, query, starts }
    }

    /// All pages that queries see.
    fn pages(&self) -> Vec<(usize, usize)> {
        let batch = self.batch(0);
        (0..self.cases.len()).flat_map(|seq| batch.needed(seq).map(move |page| (seq, page))).collect()
    }

    fn batch(&self, out: usize) -> Batch {
        let first = &self.cases[0];
        let (heads, layout) = (first.heads() * first.group, first.layout);
        Batch {
            query: Vectors { at: self.query.as_ptr().expose_provenance(), stride: heads * layout.key() },
            out: Vectors { at: out, stride: heads * layout.value() },
            heads,
            kv_heads: first.heads(),
            page_tokens: first.page_tokens,
            head_dim: layout.key(),
            value_dim: layout.value(),
            element: first.element,
            lengths: self.cases.iter().map(Case::tokens).collect(),
            starts: self.starts.clone(),
            scale: SCALE.into(),
            window: first.window,
        }
    }

    /// Return the output, and the pages' shares and the sums of each sequence. Pages are overwritten after their pass.
    fn attend(&self, passes: &[Vec<(usize, usize)>]) -> (Vec<u16>, Vec<(usize, u64)>, Vec<u32>) {
        let first = &self.cases[0];
        let mut out = vec![0u16; self.query.len() / first.layout.key() * first.layout.value()];
        let batch = self.batch(out.as_mut_ptr().expose_provenance());
        batch.check(*self.starts.last().expect("one more than sequences")).expect("sizes fit");
        let mut fold = Fold::new(&batch, |seq| seq != 0);
        for pass in passes {
            let mut copies: Vec<Vec<u16>> = pass
                .iter()
                .map(|(seq, page)| self.cases[*seq].kv[page * first.page()..][..first.page()].to_vec())
                .collect();
            let pages =
                pass.iter().zip(&copies).map(|((seq, page), copy)| (*seq, *page, copy.as_ptr().expose_provenance()));
            let pages: Vec<_> = pages.collect();
            // SAFETY: the copies are pages of this shape.
            unsafe { fold.add(pages) };
            copies.iter_mut().for_each(|copy| copy.fill(0x7e01)); // not a number
        }
        fold.finish(|_| false).expect("all pages came");
        let shares =
            (0..self.cases.len()).flat_map(|seq| fold.shares(seq)).map(|(page, share)| (page, share.to_bits()));
        let shares = shares.collect();
        let sums = (0..self.cases.len()).filter(|seq| batch.queries(*seq) == 1).flat_map(|seq| fold.sums(seq));
        let sums = sums.map(f32::to_bits).collect();
        drop(fold);
        (out, shares, sums)
    }
}

/// All bits of the partials of a row.
fn bits(partials: &Partials, row: usize) -> Vec<u32> {
    let numbers = partials.o(row).iter().chain([&partials.m[row], &partials.l[row]]);
    numbers.map(|number| number.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn results_are_those_of_the_reference_and_equal_on_all_units(case in case().prop_filter("too short", Case::fits)) {
        for head in 0..case.heads() {
            let rows = case.rows(head, 0..case.queries);
            let found: Vec<Partials> = VectorUnit::all().map(|unit| case.whole(unit, head, &rows)).collect();
            for row in 0..rows.len() {
                for other in &found[1..] {
                    prop_assert_eq!(bits(&found[0], row), bits(other, row), "row {} of head {}", row, head);
                }
                let right = case.reference(row / case.group, head * case.group + row % case.group);
                for (o, right_o) in found[0].o(row).iter().zip(&right.o) {
                    let (o, right) = (f64::from(o / found[0].l[row]), right_o / right.l);
                    prop_assert!((o - right).abs() < 2e-5, "{o} instead of {right} in row {row} of head {head}");
                }
            }
        }
    }

    #[test]
    fn pages_folded_at_once_and_kept_in_any_order_have_the_same_bits(
        case in case().prop_filter("too short", Case::fits),
        order in any::<u64>(),
    ) {
        for unit in VectorUnit::all() {
            let rows = case.rows(0, 0..case.queries);
            let mut pages: Vec<usize> = (0..case.pages).collect();
            pages.sort_by_key(|page| (*page as u64 + 1).wrapping_mul(order | 1) >> 7);
            let mut kept: Vec<Option<Partials>> = vec![None; case.pages];
            let mut room = Room::default();
            for page in pages {
                kept[page] = Some(case.partials(unit, 0, page, &rows, &mut room));
            }
            let mut sum = Partials::new(rows.len(), case.layout.value());
            kept.iter().flatten().for_each(|page| sum.fold(unit, page));
            let direct = case.direct(unit, 0, &rows);
            for row in 0..rows.len() {
                prop_assert_eq!(bits(&sum, row), bits(&direct, row), "row {} on {:?}", row, unit);
            }
        }
    }

    #[test]
    fn a_batch_has_the_same_bits_whatever_the_passes(
        cases in prop::collection::vec(case().prop_filter("too short", Case::fits), 1..4),
        order in any::<u64>(),
        per_pass in 1usize..6,
    ) {
        let batched = Batched::new(&cases);
        let whole = batched.attend(&[batched.pages()]);
        // In another order, some at a time; after its pass a page is overwritten.
        let mut pages = batched.pages();
        pages.sort_by_key(|(seq, page)| (*seq as u64 * 77 + *page as u64 + 1).wrapping_mul(order | 1) >> 7);
        let passes: Vec<_> = pages.chunks(per_pass).map(<[_]>::to_vec).collect();
        prop_assert_eq!(&batched.attend(&passes), &whole);
        // Each result is that of the page loop.
        let case = &batched.cases[0];
        let sum = case.whole(VectorUnit::widest(), 0, &case.rows(0, 0..1));
        let right: Vec<u16> = sum.o(0).iter().map(|o| case.element.from_f32(o / if sum.l[0] == 0.0 { 1.0 } else { sum.l[0] })).collect();
        prop_assert_eq!(&whole.0[..case.layout.value()], &right[..]);
    }

    #[test]
    fn a_row_has_the_same_bits_alone_and_among_others(case in case().prop_filter("too short", Case::fits)) {
        let unit = VectorUnit::widest();
        let all = case.whole(unit, 0, &case.rows(0, 0..case.queries));
        for token in 0..case.queries {
            let alone = case.whole(unit, 0, &case.rows(0, token..token + 1));
            for row in 0..case.group {
                prop_assert_eq!(bits(&alone, row), bits(&all, token * case.group + row));
            }
        }
    }
}

#[test]
fn the_widest_scores_and_the_smallest_weights_are_handled() {
    let element = Element::Bf16;
    let layout = Layout::Heads { head_dim: 16 };
    let number = |value: f32| element.from_f32(value);
    // Scores of the two tokens differ by 16 × 100 × 100 × SCALE: the weight of the second is 0.
    let mut kv = vec![number(100.0); 16];
    kv.extend(vec![number(-100.0); 16]);
    kv.extend(vec![number(3.0); 16]);
    kv.extend(vec![number(5.0); 16]);
    kv.extend(kv.clone());
    let q = vec![number(100.0); 2 * 16];
    let case = Case { element, layout, group: 1, page_tokens: 2, pages: 1, queries: 1, window: 0, q, kv };
    for unit in VectorUnit::all() {
        let shape = Pages { element, key: 16, value: 16, stride: 16, tokens: 2, unit };
        let mut rows = Rows::default();
        rows.push(case.q[..16].iter().map(|bits| element.to_f32(*bits)), SCALE, (0, 2));
        rows.push(case.q[..16].iter().map(|bits| element.to_f32(*bits)), SCALE, (0, 0));
        let head = Head { keys: case.kv.as_ptr(), values: case.kv[32..].as_ptr() };
        // SAFETY: two keys and two values follow each address.
        let out = unsafe { shape.partials(head, 0, &rows, &mut Room::default()) };
        assert_eq!((out.l[0], out.o(0)[0]), (1.0, 3.0), "{unit:?}");
        assert_eq!((out.m[1], out.l[1], out.o(1)[0]), (f32::NEG_INFINITY, 0.0, 0.0), "{unit:?}: it sees nothing");
    }
}

#[test]
fn a_key_that_is_not_a_number_spoils_the_rows_that_see_it_and_no_others() {
    let element = Element::F16;
    for tokens in [1, 20, 40] {
        let mut kv = vec![element.from_f32(1.0); 2 * tokens * 16];
        kv[(tokens - 1) * 16 + 3] = 0x7e01;
        for unit in VectorUnit::all() {
            let shape = Pages { element, key: 16, value: 16, stride: 16, tokens, unit };
            let mut rows = Rows::default();
            rows.push([1.0; 16].into_iter(), SCALE, (0, tokens));
            rows.push([1.0; 16].into_iter(), SCALE, (0, tokens - 1));
            let head = Head { keys: kv.as_ptr(), values: kv[tokens * 16..].as_ptr() };
            // SAFETY: that many keys and values follow each address.
            let out = unsafe { shape.partials(head, 0, &rows, &mut Room::default()) };
            assert!(out.l[0].is_nan() && out.o(0).iter().all(|o| o.is_nan()), "{unit:?}, {tokens} tokens");
            assert!(!out.l[1].is_nan() && out.o(1).iter().all(|o| !o.is_nan()), "{unit:?}, {tokens} tokens");
        }
    }
}

#[test]
fn a_value_that_is_not_finite_spoils_the_rows_that_see_it_and_no_others() {
    let element = Element::F16;
    for (bits, tokens, before) in [(0x7e01, 40, 0), (0x7c00, 33, 3), (0x7e01, 7, 40)] {
        let mut kv = vec![element.from_f32(1.0); 2 * tokens * 16];
        kv[(tokens + tokens / 2) * 16 + 3] = bits;
        for unit in VectorUnit::all() {
            let shape = Pages { element, key: 16, value: 16, stride: 16, tokens, unit };
            let mut rows = Rows::default();
            // Enough rows before these to convert the page first, in some of the cases.
            (0..before).for_each(|_| rows.push([1.0; 16].into_iter(), SCALE, (0, tokens)));
            rows.push([1.0; 16].into_iter(), SCALE, (0, tokens));
            rows.push([1.0; 16].into_iter(), SCALE, (0, tokens / 2));
            rows.push([1.0; 16].into_iter(), SCALE, (tokens / 2 + 1, tokens));
            let head = Head { keys: kv.as_ptr(), values: kv[tokens * 16..].as_ptr() };
            // SAFETY: that many keys and values follow each address.
            let out = unsafe { shape.partials(head, 0, &rows, &mut Room::default()) };
            assert!(!out.o(before)[3].is_finite(), "{unit:?}, {tokens} tokens");
            for row in [before + 1, before + 2] {
                assert!(out.o(row).iter().all(|o| o.is_finite()), "{unit:?}, {tokens} tokens, row {row}");
            }
        }
    }
}

#[test]
fn a_page_that_must_not_be_missing_is_named_and_another_is_left_out() {
    let layout = Layout::Heads { head_dim: 16 };
    let element = Element::F16;
    let kv = (0..4 * layout.page(KV_HEADS, 2)).map(|at| element.from_f32(at as f32 / 100.0)).collect();
    let case = Case {
        element,
        layout,
        group: 1,
        page_tokens: 2,
        pages: 4,
        queries: 1,
        window: 0,
        q: vec![element.from_f32(1.0); 32],
        kv,
    };
    let batched = Batched::new(&[case]);
    let mut out = vec![0u16; batched.query.len()];
    let batch = batched.batch(out.as_mut_ptr().expose_provenance());
    let address = |(seq, page): (usize, usize)| {
        (seq, page, batched.cases[seq].kv[page * batched.cases[seq].page()..].as_ptr().expose_provenance())
    };
    let some: Vec<_> = batched.pages().into_iter().filter(|page| *page != (1, 2)).map(address).collect();
    let mut fold = Fold::new(&batch, |_| true);
    // SAFETY: the addresses are of pages of this shape.
    unsafe { fold.add(some.iter().copied()) };
    assert_eq!(fold.finish(|seq| seq == 0), Err((1, 2)));
    assert_eq!(fold.finish(|seq| seq == 1), Ok(()));
    let shares = fold.shares(1);
    assert_eq!(shares.keys().copied().collect::<Vec<_>>(), [0, 1, 3]);
    assert!((shares.values().sum::<f64>() - 1.0).abs() < 1e-6);
}
