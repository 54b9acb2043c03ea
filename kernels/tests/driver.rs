//! The driver where there is none.

use kvtide_kernels::{Driver, Error};

/// Each in a process of its own would be cleaner; they all want the same answer, and a failure is not kept.
#[test]
fn a_machine_without_a_driver_gets_an_error_that_says_what_is_needed() {
    if std::env::var_os("KVTIDE_LIBCUDA").is_some() {
        return; // a driver was named
    }
    let threads: Vec<_> = (0..8).map(|_| std::thread::spawn(Driver::probe)).collect();
    for thread in threads {
        match thread.join().expect("no panic") {
            Ok(driver) => assert!(!driver.library().is_empty()),
            Err(e @ Error::NoDriver { .. }) => {
                let text = e.to_string();
                assert!(text.contains("libcuda.so.1") && text.contains("CUDA 12.0 or newer"), "{text}");
            }
            Err(e) => panic!("{e}"),
        }
    }
}
