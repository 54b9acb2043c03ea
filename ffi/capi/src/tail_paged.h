/// Return the address of the page of `block` in `plane` in the lane's table, or NULL if it is not in tier 0. Makes no call.
///
/// The result is valid between `kvt_lane_begin` and `kvt_lane_end`, and changes only within `kvt_lane_begin` and
/// `kvt_lane_boundary`. Arguments are not checked: `block` must come from `kvt_client_get_seq_blocks`, `plane` must be below
/// `view->planes_count`.
///
/// Thread safety: any thread that is ordered with these calls.
static inline void *kvt_view_page(const kvt_lane_view *view, uint32_t block, uint32_t plane) {
    const uint32_t entry = view->table[(size_t)block * view->planes_count + plane];
    const kvt_plane_layout *layout = &view->planes[plane];
    if (entry == 0) return NULL;
    const uint32_t frame = entry - 1 - layout->first_frame;
    if (frame < layout->frames) return layout->base + (size_t)frame * layout->stride;
    return (void *)(uintptr_t)((const uint64_t *)(uintptr_t)layout->mapped_pages)[frame - layout->frames]; /* a mapped frame */
}
