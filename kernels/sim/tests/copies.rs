//! Copies that a GPU's driver refuses, or that it carries out in an order of its own.

mod common;

use common::{Cuda, INVALID_VALUE};

const PAGE: usize = 4096;

/// Two pages of host memory, registered one by one.
fn two_registrations(cuda: &Cuda, pages: &mut [u64]) -> u64 {
    let first = pages.as_ptr().addr().next_multiple_of(PAGE) - pages.as_ptr().addr();
    let (one, rest) = pages[first / 8..].split_at_mut(PAGE / 8);
    let from = cuda.register(one);
    assert_eq!(cuda.register(&mut rest[..PAGE / 8]), from + PAGE as u64, "adjacent");
    from
}

#[test]
fn a_copy_across_two_registrations_is_refused() {
    let cuda = Cuda::new(&["kvt_sim_total"]);
    let mut pages = vec![7_u64; 3 * PAGE / 8];
    let (from, to, stream) = (two_registrations(&cuda, &mut pages), cuda.allocate(2 * PAGE), cuda.stream());
    assert_eq!(cuda.copy(to, from, 2 * PAGE, stream), INVALID_VALUE);
    assert_eq!(cuda.batch(&[(to, from, 2 * PAGE)], stream), INVALID_VALUE);
    assert_eq!(cuda.copy(from + 8, to, PAGE, stream), INVALID_VALUE);
    let each = [0, PAGE as u64].map(|at| (to + at, from + at, PAGE));
    assert_eq!(cuda.batch(&each, stream), 0);
    assert_eq!(cuda.finish(stream), 0);
    assert_eq!(cuda.get::<u64>(to, 2 * PAGE / 8), [7; 2 * PAGE / 8]);
}

#[test]
fn copies_of_a_batch_that_write_the_same_bytes_are_refused() {
    let cuda = Cuda::new(&["kvt_sim_total"]);
    let (from, to, stream) = (cuda.allocate(PAGE), cuda.allocate(PAGE), cuda.stream());
    assert_eq!(cuda.batch(&[(to + 64, from, 64), (to, from, 65)], stream), INVALID_VALUE);
    assert_eq!(cuda.batch(&[(to + 64, from, 64), (from + 63, to, 64)], stream), INVALID_VALUE, "read and written");
    assert_eq!(cuda.copy(to + 63, to, 64, stream), INVALID_VALUE);
    assert_eq!(cuda.batch(&[(to + 64, from, 64), (to, from, 64), (from + 64, to + 128, 64)], stream), 0);
    assert_eq!(cuda.finish(stream), 0);
}
