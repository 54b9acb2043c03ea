//! Any bytes as a request trace and as an attention trace: a consistent trace, or an error with the line or byte.
#![no_main]

use kvtide_fuzz::trace::{At, Attention, Requests};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    match Requests::read(bytes) {
        Ok(trace) => {
            assert_eq!(trace.iter().map(|request| request.blocks.len() as u64).sum::<u64>(), trace.uses());
            assert!(trace.iter().flat_map(|request| request.blocks).all(|&block| block < trace.distinct()));
        }
        Err(broken) => assert!(!broken.why.is_empty() && broken.at != At::Byte(0)),
    }
    match Attention::parse(bytes.to_vec()) {
        Ok(trace) => {
            let (mut shares, mut numbers) = (Vec::new(), Vec::new());
            for (step, plane) in [(0, 0), (trace.steps - 1, trace.planes - 1)] {
                trace.mass(step, plane, &mut shares);
                assert!(shares.len() == trace.pages_at(step) && shares.iter().all(|share| share.is_finite()));
                trace.queries(step, plane, step > 0, &mut numbers);
                assert_eq!(numbers.len(), trace.q_heads * trace.head_dim);
                trace.keys(plane, trace.kv_heads - 1, shares.len() - 1, &mut numbers);
                assert!(!numbers.is_empty() && numbers.iter().all(|key| key.is_finite()));
            }
        }
        Err(broken) => match broken.at {
            At::Byte(byte) => assert!(byte <= bytes.len().max(8) as u64 && !broken.why.is_empty()),
            at => panic!("unexpected position in an attention trace's error: {at}"),
        },
    }
});
