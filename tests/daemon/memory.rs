//! Host memory: allocated before engines can attach, granted, and returned to the pool.

use crate::raw::{Raw, hello};
use crate::roles::park_four_blocks;
use crate::{daemon, options, until_status};
use kvtide_bench::private_daemon::{Options, PrivateDaemon};
use kvtide_wire::hello::Hello;
use kvtide_wire::os::numa;
use serde_json::Value;

fn host(status: &Value, field: &str) -> u64 {
    status["host"][field].as_u64().unwrap()
}

#[test]
fn the_whole_tier_is_there_before_anybody_attaches_and_after_all_have_left() {
    let mut daemon = daemon("");
    let status = daemon.status().unwrap();
    let capacity = host(&status, "capacity_bytes");
    assert_eq!((host(&status, "pooled_bytes"), host(&status, "granted_bytes")), (capacity, 0));
    let mut raw = Raw::attach(daemon.socket());
    park_four_blocks(&mut raw, 0);
    let status = daemon.status().unwrap();
    let (pooled, granted) = (host(&status, "pooled_bytes"), host(&status, "granted_bytes"));
    assert!(granted > 0 && pooled + granted <= capacity, "{pooled} bytes in the pool, {granted} granted");
    drop(raw);
    until_status(&mut daemon, "all memory is in the pool again", |status| host(status, "pooled_bytes") == capacity);
    assert!(daemon.log().contains("GiB allocated in"), "{}", daemon.log());
}

#[test]
fn a_tier_that_is_taken_slab_by_slab_is_empty_at_first() {
    let mut daemon = daemon("[tiers.host]\nprefault = false\n");
    assert_eq!(host(&daemon.status().unwrap(), "pooled_bytes"), 0);
    let mut raw = Raw::attach(daemon.socket());
    park_four_blocks(&mut raw, 0);
    let status = daemon.status().unwrap();
    assert!(host(&status, "granted_bytes") > 0 && host(&status, "pooled_bytes") == 0);
}

#[test]
fn an_engine_may_name_any_numa_node_and_slabs_elsewhere_count_only_on_a_machine_with_several() {
    let mut daemon = daemon("");
    // No machine of this test has a node 1023.
    let mut raw = Raw::attach_as(daemon.socket(), &Hello { numa_node: Some(1023), ..hello() }).unwrap();
    park_four_blocks(&mut raw, 0);
    let status = daemon.status().unwrap();
    assert!(host(&status, "granted_bytes") > 0);
    let has_several = numa::usable(std::path::Path::new("/")).len() > 1;
    assert_eq!(host(&status, "slabs_elsewhere") > 0, has_several, "{status}");
    assert_eq!(daemon.log().contains("NUMA"), has_several, "{}", daemon.log());
    let all = host(&status, "granted_bytes") + host(&status, "pooled_bytes");
    assert!(host(&status, "huge_bytes") <= all, "{status}");
}

#[test]
fn memory_that_is_not_free_is_refused_at_start_and_not_taken_until_something_is_killed() {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
    let kib: u64 = total.trim().trim_end_matches(" kB").parse().unwrap();
    // The machine's total memory always exceeds its available memory. The limit of a container may be lower still.
    let all = (kib << 10) & !((1 << 20) - 1);
    let error = PrivateDaemon::start(&Options { host_bytes: Some(all), ..options("") }).unwrap_err().to_string();
    assert!(error.contains("tiers.host.capacity"), "{error}");
    assert!(error.contains("are available; reduce") || error.contains("exceeds the"), "{error}");
}
