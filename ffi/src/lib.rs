//! kvtide-ffi
