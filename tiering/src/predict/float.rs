//! Exponential and logarithm of shares with the same bits on every machine, so that a recording replays to the same actions. The
//! results of C libraries differ between versions, so code of this crate that decides must not call them.

/// Return e^x with a relative error below 1e-5 down to -86; smaller results are effectively 0.
pub(crate) fn exp(x: f32) -> f32 {
    // Adding 1.5 × 2^23 rounds to an integer in the lowest bits. This needs no branch, so loops over pages vectorise.
    const ROUND: f32 = 12_582_912.0;
    let y = x.clamp(-86.0, 86.0) * core::f32::consts::LOG2_E;
    let rounded = y + ROUND;
    let t = (y - (rounded - ROUND)) * core::f32::consts::LN_2;
    let p = 1.0 + t * (1.0 + t * (0.5 + t * (1.0 / 6.0 + t * (1.0 / 24.0 + t * (1.0 / 120.0)))));
    f32::from_bits(p.to_bits().wrapping_add(rounded.to_bits() << 23))
}

/// Return the largest value; −∞ for an empty slice.
pub(super) fn largest(xs: &[f32]) -> f32 {
    let more = |a: f32, b: f32| if b > a { b } else { a };
    let mut most = [f32::NEG_INFINITY; 8];
    let chunks = xs.chunks_exact(8);
    let tail = chunks.remainder().iter().copied().fold(f32::NEG_INFINITY, more);
    for chunk in chunks {
        most.iter_mut().zip(chunk).for_each(|(most, x)| *most = more(*most, *x));
    }
    most.into_iter().fold(tail, more)
}

/// Return Σ exp(x − `shift`).
pub(super) fn exp_sum(xs: &[f32], shift: f32) -> f32 {
    // Exponentials first, then sixteen sums side by side: both loops vectorise, and the order does not depend on the compiler.
    const BLOCK: usize = 256;
    let (mut parts, mut sums) = ([0.0f32; BLOCK], [0.0f32; 16]);
    for block in xs.chunks(BLOCK) {
        let parts = &mut parts[..block.len().next_multiple_of(sums.len())];
        parts[block.len()..].fill(0.0);
        parts.iter_mut().zip(block).for_each(|(part, x)| *part = exp(x - shift));
        for chunk in parts.chunks_exact(sums.len()) {
            sums.iter_mut().zip(chunk).for_each(|(sum, part)| *sum += part);
        }
    }
    sums.iter().sum()
}

/// Return the natural logarithm. For a positive normal number the absolute error is below 1e-6 × (1 + |ln x|); anything smaller
/// gives -87.3.
pub(crate) fn ln(x: f32) -> f32 {
    const ROOT_HALF: u32 = 0x3f35_04f3;
    let bits = x.max(f32::MIN_POSITIVE).to_bits().wrapping_sub(ROOT_HALF);
    let (e, m) = ((bits as i32) >> 23, f32::from_bits((bits & 0x7f_ffff) + ROOT_HALF));
    let t = (m - 1.0) / (m + 1.0);
    let s = t * t;
    let artanh = t * (1.0 + s * (1.0 / 3.0 + s * (1.0 / 5.0 + s * (1.0 / 7.0 + s * (1.0 / 9.0)))));
    e as f32 * core::f32::consts::LN_2 + 2.0 * artanh
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Functions that the standard library forwards to the C library. Roots and roundings are exact everywhere.
    const NOT_THE_SAME: [&str; 23] = [
        "exp", "exp2", "exp_m1", "ln", "ln_1p", "log", "log2", "log10", "powf", "powi", "cbrt", "hypot", "sin", "cos",
        "tan", "sin_cos", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh",
    ];

    /// Return the code of a source file without its tests and comments.
    fn decides(path: &Path) -> String {
        let text = std::fs::read_to_string(path).expect("a source");
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
    }

    fn calls(code: &str) -> Vec<&'static str> {
        let called = |name: &&str| {
            [format!(".{name}("), format!("f32::{name}"), format!("f64::{name}")].iter().any(|call| {
                let after = |at: usize| code[at + call.len()..].chars().next();
                let is_name = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
                code.match_indices(call.as_str()).any(|(at, _)| call.ends_with('(') || !is_name(after(at)))
            })
        };
        NOT_THE_SAME.into_iter().filter(|name| called(name)).collect()
    }

    #[test]
    fn no_decision_hangs_on_the_c_library() {
        assert_eq!(calls("let y = x.ln() + f64::powf(x, 2.0) + x.exponent() + f32::expand(x);"), ["ln", "powf"]);
        let (mut folders, mut sources) = (vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")], 0);
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs") {
                    sources += 1;
                    let called = calls(&decides(&path));
                    assert!(
                        called.is_empty(),
                        "{} calls {called:?}: use `predict::float`, equal on all machines",
                        path.display()
                    );
                }
            }
        }
        assert!(sources > 100, "{sources} sources were read");
    }

    #[test]
    fn both_are_close_everywhere() {
        for i in -8600..8600 {
            let x = i as f32 / 100.0;
            let want = f64::from(x).exp();
            assert!((f64::from(exp(x)) - want).abs() <= 1e-5 * want, "exp({x}) = {}", exp(x));
        }
        for bits in (0x0080_0000..0x7f80_0000u32).step_by(99_991) {
            let x = f32::from_bits(bits);
            let want = f64::from(x).ln();
            assert!((f64::from(ln(x)) - want).abs() <= 1e-6 * (1.0 + want.abs()), "ln({x}) = {}", ln(x));
        }
        assert!(exp(f32::NEG_INFINITY) < 1e-37 && exp(-1000.0) < 1e-37 && exp(1000.0).is_finite());
        assert_eq!((largest(&[]), largest(&[-3.0, -1.0, -2.0])), (f32::NEG_INFINITY, -1.0));
        let xs: Vec<f32> = (0..11).map(|i| i as f32 / 3.0).collect();
        let want: f32 = xs.iter().map(|x| (x - 2.0).exp()).sum();
        assert!((exp_sum(&xs, 2.0) - want).abs() < 1e-4);
        assert_eq!(largest(&xs), 10.0 / 3.0);
        assert!(ln(0.0) < -87.0 && ln(-1.0) < -87.0);
    }
}
