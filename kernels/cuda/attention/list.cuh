// The pages that a block of the decode kernels computes: those of a chunk of a sequence, or by passes those of a list of items.
// A lane has one of them.
#pragma once

namespace kvt {

// One page of a warp's list of up to 32, which is in shared memory, because attention needs the registers.
struct Listed {
    u32 seq, page;
    i32 frame, first, limit;

    // First tile of the page with a token that some row sees.
    KVT_DEVICE u32 tile_first(u32 page_tokens) const {
        return static_cast<u32>(max(first - static_cast<i32>(page * page_tokens), 0)) / TILE;
    }
    KVT_DEVICE u32 tile_end(u32 page_tokens) const {
        i32 left = min(limit - static_cast<i32>(page * page_tokens), static_cast<i32>(page_tokens));
        return static_cast<u32>(max(left, 0) + static_cast<i32>(TILE) - 1) / TILE;
    }
};

// Returns what a block computes by passes, from its place in the grid: `chunk` is its part of the list.
KVT_DEVICE Unit unit_of_block(const AttentionParams& p) {
    Unit unit;
    unit.seq = 0;
    unit.chunk = blockIdx.y;
    unit.head = blockIdx.x / p.tiles;
    unit.tile = blockIdx.x % p.tiles;
    unit.chunks = 0;
    unit.missing = false;
    return unit;
}

// Reads an item of the list into `mine`. Returns a bit for each lane whose page is to be computed. With `stamps` it marks the page
// with the launch's epoch.
template <int ROWS>
KVT_DEVICE u32 list_item(const AttentionParams& p, const Unit& unit, u32 item, bool failed, bool stamps, Listed& mine) {
    mine.seq = mine.page = 0;
    mine.frame = -1;
    mine.first = mine.limit = 0;
    if (!failed && kvt_lane() < p.items_per_warp && item < p.item_count) {
        uint2 listed = reinterpret_cast<const uint2*>(p.items)[item];
        mine.seq = listed.x;
        mine.page = listed.y;
        if (mine.seq < p.seqs && mine.page < p.pages_max) {
            mine.frame = entry_of(p, mine.seq, mine.page);
            Span s = span_of(p, mine.seq, unit.tile * ROWS, ROWS);
            mine.first = s.first;
            mine.limit = s.limit;
            if (mine.frame >= 0 && stamps) {
                reinterpret_cast<u32*>(p.stamps)[static_cast<u64>(mine.seq) * p.pages_max + mine.page] = p.epoch;
            }
        }
    }
    return __ballot_sync(FULL, mine.frame >= 0 && mine.tile_first(p.page_tokens) < mine.tile_end(p.page_tokens));
}

// Reads a page of the unit's chunk into `mine`, and sets the unit's `chunks` and `missing`. Returns a bit for each lane whose page is to be computed, none
// if a page of the chunk is not readable. `early` is the lane's entry of a sequence that is read from its start.
template <class T, int D, int ROWS>
KVT_DEVICE u32 list_chunk(const AttentionParams& p, Unit& unit, i32 early, bool failed, Listed& mine) {
    const Span s = span_of(p, unit.seq, unit.tile * ROWS, ROWS);
    const Chunks range = chunks_of(p, s);
    unit.chunks = failed || range.count == TOO_MANY ? 0 : range.count;
    if (unit.chunks == 0 && unit.chunk == 0) {
        write_unread<T, D>(p, task_of<ROWS>(p, unit.seq, unit.head, unit.tile), !failed && range.count == 0);
    }
    mine.seq = unit.seq;
    mine.page = (range.first + unit.chunk) * p.chunk_pages + kvt_lane();
    mine.frame = -1;
    mine.first = s.first;
    mine.limit = s.limit;
    const bool inside = unit.chunk < unit.chunks && kvt_lane() < p.chunk_pages &&
                        mine.page * p.page_tokens < static_cast<u32>(s.limit) &&
                        (mine.page + 1) * p.page_tokens > static_cast<u32>(s.first);
    if (inside) {
        mine.frame = range.first == 0 ? early : entry_of(p, mine.seq, mine.page);
    }
    unit.missing = __any_sync(FULL, inside && mine.frame < 0);
    const u32 pages = __ballot_sync(FULL, inside);
    return unit.missing ? 0 : pages;
}

}  // namespace kvt
