/* kvtide.h: more KV cache than the GPU has memory, for engines in C, C++ and whatever can call C.
 *
 * An engine attaches to the daemon (kvt_attach), takes one channel per thread that makes calls and one lane per ordered
 * stream of work, and then, on one thread:
 *
 *     kvt_seq_create, kvt_reserve                        a sequence, and room for its first tokens
 *     kvt_lane_begin(lane, &step_seq, 1)                 a step
 *     for each plane:
 *         write the new tokens' KV                       kvt_lane_page_mut
 *         do kvt_lane_boundary(lane, plane, &pass)       what is readable now
 *            attend over pass.all or pass.ready          kvt_view_page, kvt_lane_page
 *         while (!pass.last)
 *     kvt_lane_end, kvt_commit                           the tokens are final
 *
 * RESULTS. Every call that can fail returns a kvt_status; 0 is success. kvt_strerror tells a code in a line, kvt_last_error
 * what was tried, on what, and why it failed, for the last failure of the calling thread. Out arguments are written only on
 * success. No call aborts or unwinds: an error of the library's own is KVT_EINTERNAL, after which the handle it happened on
 * can only be closed.
 *
 * THREADS. kvt_client: any thread, several at once. kvt_channel, kvt_lane: one thread at a time; it may change hands if the
 * program orders the two threads; a call that meets another one inside gets KVT_EBUSY. A sequence belongs to the channel that
 * created it, a pin to the channel that acquired it. Functions without a handle: any thread.
 *
 * HANDLES are checked: NULL, a closed handle and one of another type give KVT_EINVAL. They hold a number, not an address.
 * They may be closed in any order; tier 0 goes with the last one of its session.
 *
 * FORK. A child process does not have the session: every call on a handle of its parent gives KVT_EFORK there, closing
 * included, and tier 0 is not mapped. It may attach by itself.
 *
 * WAITS. A timeout is in microseconds; 0 means kvt_options.timeout_us; more than a day counts as a day. When the daemon dies,
 * calls return KVT_EDAEMON within their timeout, what is in tier 0 stays readable, and kvt_reattach finds another daemon.
 *
 * VERSIONS. Check kvt_abi_version() == KVT_ABI_VERSION. Structures with a struct_size may grow at their end: set it to
 * sizeof, and what is not used to zero.
 *
 * C11 and C++17. SPDX-License-Identifier: Apache-2.0 */
