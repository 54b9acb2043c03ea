/* kvtide_wire.h: what an engine's process and the daemon share, as C sees it.
 *
 * Programs do not need it: libkvtide speaks the protocol. It is for tools that look into a session's shared memory, and for
 * asserting the layouts in a second language (tests/c/layout.c). Codes travel as integers of the widths given in the
 * structures; a code from another process may be none of an enumeration's values.
 *
 * SPDX-License-Identifier: Apache-2.0 */
