/* The shared layouts as C (and so CUDA) will declare them, checked against the numbers that Rust passes in as macros:
 * AT_x_y = offset of field y of x, SIZE_x = its size. Compiled only; see c_layout.rs. */
#include <stddef.h>
#include <stdint.h>

struct submission {
    uint16_t op, tag, lane, flags;
    uint32_t seq, block, first, count, list_len, reserved;
    uint64_t value, timeout_us, hash[2];
};

struct completion {
    uint16_t op, tag;
    int32_t status;
    uint32_t list_len, reserved;
    uint64_t value, pad[5];
};

struct job {
    uint16_t kind, plane, victim_plane, use_lane;
    uint32_t id, block, frame, src_frame, src_block, victim_block, slab, slot;
    uint64_t use_pos;
    uint32_t flags, digest;
    uint64_t pad;
};

struct job_done {
    uint32_t id;
    int32_t status;
    uint64_t bytes, elapsed_ns;
    uint32_t flags, digest;
    uint64_t pad[4];
};

struct plane_spec {
    uint32_t page_bytes;
    uint16_t kind, reserved;
    uint32_t window_tokens;
};

struct score_slot {
    _Alignas(64) uint64_t version;
    uint64_t words[127];
};

struct lane_line {
    _Alignas(128) uint64_t position;
    uint64_t begun, ended;
};

struct list_area {
    _Alignas(64) uint32_t words[512];
};

#define AT(type, field) _Static_assert(offsetof(struct type, field) == AT_##type##_##field, #type "." #field)
#define SIZE(type) _Static_assert(sizeof(struct type) == SIZE_##type, "size of " #type)

SIZE(submission);
AT(submission, op);
AT(submission, tag);
AT(submission, lane);
AT(submission, flags);
AT(submission, seq);
AT(submission, block);
AT(submission, first);
AT(submission, count);
AT(submission, list_len);
AT(submission, value);
AT(submission, timeout_us);
AT(submission, hash);
SIZE(completion);
AT(completion, op);
AT(completion, tag);
AT(completion, status);
AT(completion, list_len);
AT(completion, value);
SIZE(job);
AT(job, kind);
AT(job, plane);
AT(job, victim_plane);
AT(job, use_lane);
AT(job, id);
AT(job, block);
AT(job, frame);
AT(job, src_frame);
AT(job, src_block);
AT(job, victim_block);
AT(job, slab);
AT(job, slot);
AT(job, use_pos);
AT(job, flags);
AT(job, digest);
SIZE(job_done);
AT(job_done, id);
AT(job_done, status);
AT(job_done, bytes);
AT(job_done, elapsed_ns);
AT(job_done, flags);
AT(job_done, digest);
SIZE(plane_spec);
AT(plane_spec, page_bytes);
AT(plane_spec, kind);
AT(plane_spec, window_tokens);
SIZE(score_slot);
AT(score_slot, version);
AT(score_slot, words);
SIZE(lane_line);
AT(lane_line, position);
AT(lane_line, begun);
AT(lane_line, ended);
SIZE(list_area);
_Static_assert(NOT_PRESENT == 0 && TABLE_ENTRY_BYTES == sizeof(uint32_t), "page table entries");
_Static_assert(PLANE_FULL == 0 && PLANE_WINDOW == 1 && PLANE_STATE == 2, "plane kinds");
