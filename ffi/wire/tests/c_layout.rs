//! The shared layouts, declared a second time in C and compared by a C compiler: kernels and engines in C read the same memory.
#![cfg(not(loom))]

use kvtide_wire::entry::{Completion, Job, JobDone, Submission};
use kvtide_wire::geometry::{PlaneKind, PlaneSpec};
use kvtide_wire::layout::LaneLine;
use kvtide_wire::lists::ListArea;
use kvtide_wire::score::ScoreSlot;
use kvtide_wire::table;
use std::mem::offset_of;
use std::process::Command;

macro_rules! layout {
    ($list:ident, $c:ident = $rust:ty, $($field:ident)*) => {
        $list.push(format!("-DSIZE_{}={}", stringify!($c), size_of::<$rust>()));
        $($list.push(format!("-DAT_{}_{}={}", stringify!($c), stringify!($field), offset_of!($rust, $field)));)*
    };
}

fn macros() -> Vec<String> {
    let mut list = Vec::new();
    layout!(list, submission = Submission, op tag lane flags seq block first count list_len value timeout_us hash);
    layout!(list, completion = Completion, op tag status list_len value);
    layout!(list, job = Job, kind plane victim_plane use_lane id block frame src_frame src_block victim_block slab slot use_pos flags digest);
    layout!(list, job_done = JobDone, id status bytes elapsed_ns flags digest);
    layout!(list, plane_spec = PlaneSpec, page_bytes kind window_tokens);
    layout!(list, score_slot = ScoreSlot, version words);
    layout!(list, lane_line = LaneLine, position begun ended);
    layout!(list, list_area = ListArea,);
    list.push(format!("-DNOT_PRESENT={}", table::NOT_PRESENT));
    list.push(format!("-DTABLE_ENTRY_BYTES={}", table::ENTRY_BYTES));
    for (name, kind) in [("FULL", PlaneKind::FULL), ("WINDOW", PlaneKind::WINDOW), ("STATE", PlaneKind::STATE)] {
        list.push(format!("-DPLANE_{name}={kind}"));
    }
    list
}

fn compile(macros: &[String]) -> (bool, String) {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/layout.c");
    let output = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", source])
        .args(macros)
        .output()
        .expect("a C compiler is a prerequisite of this repository's tests");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn c_declares_the_same_layouts() {
    let (same, errors) = compile(&macros());
    assert!(same, "{errors}");
}

#[test]
fn a_field_in_another_place_is_seen() {
    let mut moved = macros();
    let at = moved.iter().position(|m| m.starts_with("-DAT_job_use_pos=")).expect("it is there");
    moved[at] = "-DAT_job_use_pos=48".into();
    let (same, errors) = compile(&moved);
    assert!(!same && errors.contains("job.use_pos"), "{errors}");
}
