//! Tier 0 and the host slabs as memory: allocation, maps, copies.
