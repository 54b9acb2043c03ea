//! kvtide-sim
