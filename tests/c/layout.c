/* The layouts that two processes share, asserted a second time by hand and in a second language.
 * The check is that it compiles. */
#include <stddef.h>

#include "kvtide_wire.h"

#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), "size of " #type)
#define ALIGN(type, bytes) _Static_assert(_Alignof(type) == (bytes), "alignment of " #type)
#define AT(type, member, offset) _Static_assert(offsetof(type, member) == (offset), #type "." #member)

SIZE(kvt_wire_submission, 64);
ALIGN(kvt_wire_submission, 64);
AT(kvt_wire_submission, op, 0);
AT(kvt_wire_submission, tag, 2);
AT(kvt_wire_submission, lane, 4);
AT(kvt_wire_submission, flags, 6);
AT(kvt_wire_submission, seq, 8);
AT(kvt_wire_submission, block, 12);
AT(kvt_wire_submission, first, 16);
AT(kvt_wire_submission, count, 20);
AT(kvt_wire_submission, list_len, 24);
AT(kvt_wire_submission, reserved, 28);
AT(kvt_wire_submission, value, 32);
AT(kvt_wire_submission, timeout_us, 40);
AT(kvt_wire_submission, hash, 48);

SIZE(kvt_wire_completion, 64);
ALIGN(kvt_wire_completion, 64);
AT(kvt_wire_completion, op, 0);
AT(kvt_wire_completion, tag, 2);
AT(kvt_wire_completion, status, 4);
AT(kvt_wire_completion, list_len, 8);
AT(kvt_wire_completion, reserved, 12);
AT(kvt_wire_completion, value, 16);
AT(kvt_wire_completion, pad, 24);

SIZE(kvt_wire_job, 64);
ALIGN(kvt_wire_job, 64);
AT(kvt_wire_job, kind, 0);
AT(kvt_wire_job, plane, 2);
AT(kvt_wire_job, victim_plane, 4);
AT(kvt_wire_job, use_lane, 6);
AT(kvt_wire_job, id, 8);
AT(kvt_wire_job, block, 12);
AT(kvt_wire_job, frame, 16);
AT(kvt_wire_job, src_frame, 20);
AT(kvt_wire_job, src_block, 24);
AT(kvt_wire_job, victim_block, 28);
AT(kvt_wire_job, slab, 32);
AT(kvt_wire_job, slot, 36);
AT(kvt_wire_job, use_pos, 40);
AT(kvt_wire_job, flags, 48);
AT(kvt_wire_job, digest, 52);
AT(kvt_wire_job, pad, 56);

SIZE(kvt_wire_job_done, 64);
ALIGN(kvt_wire_job_done, 64);
AT(kvt_wire_job_done, id, 0);
AT(kvt_wire_job_done, status, 4);
AT(kvt_wire_job_done, bytes, 8);
AT(kvt_wire_job_done, elapsed_ns, 16);
AT(kvt_wire_job_done, flags, 24);
AT(kvt_wire_job_done, digest, 28);
AT(kvt_wire_job_done, pad, 32);

SIZE(kvt_wire_plane_spec, 12);
ALIGN(kvt_wire_plane_spec, 4);
AT(kvt_wire_plane_spec, page_bytes, 0);
AT(kvt_wire_plane_spec, kind, 4);
AT(kvt_wire_plane_spec, reserved, 6);
AT(kvt_wire_plane_spec, window_tokens, 8);

_Static_assert(KVT_WIRE_ENTRY_BYTES == 64, "an entry is a cache line");
_Static_assert(KVT_WIRE_LIST_WORDS == 512, "list area of a tag");
_Static_assert(KVT_WIRE_NONE_U32 == UINT32_MAX, "none");
_Static_assert(KVT_WIRE_NONE_U16 == UINT16_MAX, "none");

/* The codes in messages. */
_Static_assert(KVT_WIRE_OP_NOP == 0 && KVT_WIRE_OP_RESERVE == 3 && KVT_WIRE_OP_DECLARE == 19, "operation codes");
_Static_assert(KVT_WIRE_JOB_KIND_MAP == 0 && KVT_WIRE_JOB_KIND_CANCEL == 7, "job codes");
_Static_assert(KVT_WIRE_STATUS_OK == 0 && KVT_WIRE_STATUS_DAEMON == 10 && KVT_WIRE_STATUS_CORRUPT == 22 && KVT_WIRE_STATUS_DEVICE == 23, "statuses");
_Static_assert(KVT_WIRE_SAMPLED == 1, "job flags");
_Static_assert(KVT_WIRE_LEVEL_PUBLISHED == 0 && KVT_WIRE_LEVEL_STORED == 1 && KVT_WIRE_LEVEL_DURABLE == 2, "levels");

int main(void) { return 0; }
