/* Runs of a box's elements. */
#include "tensor/runs.h"

tshi_runs tshi_runs_of(int ndim, const tsh_box *box, const tsh_box *from, const tsh_box *to) {
    tshi_runs r = {.levels = 1, .count = {1}, .from = {1}, .to = {1}, .numel = tshi_box_numel(ndim, box)};
    int64_t from_stride = 1, to_stride = 1;
    if (r.numel == 0) r.count[0] = 0;
    for (int d = ndim - 1; d >= 0 && r.numel > 0; d--) {
        int64_t n = box->length[d];
        int top = r.levels - 1;
        r.from_start += (box->start[d] - from->start[d]) * from_stride;
        r.to_start += (box->start[d] - to->start[d]) * to_stride;
        if (from_stride == r.from[top] * r.count[top] && to_stride == r.to[top] * r.count[top]) {
            r.count[top] *= n;
        } else if (n > 1) {
            r.count[r.levels] = n;
            r.from[r.levels] = from_stride;
            r.to[r.levels++] = to_stride;
        }
        from_stride *= from->length[d];
        to_stride *= to->length[d];
    }
    return r;
}

void tshi_runs_at(const tshi_runs *r, int level, int64_t index, int64_t *from, int64_t *to) {
    *from = r->from_start;
    *to = r->to_start;
    for (int l = level; l < r->levels; l++) {
        int64_t i = index % r->count[l];
        index /= r->count[l];
        *from += i * r->from[l];
        *to += i * r->to[l];
    }
}

void tshi_runs_copy(tsh_device *device, size_t size, const tshi_runs *r, const void *from, void *to) {
    size_t bytes = (size_t)r->count[0] * size;
    int64_t rows = r->levels > 1 ? r->count[1] : 1, slabs = r->numel ? r->numel / (r->count[0] * rows) : 0;
    for (int64_t i = 0; i < slabs; i++) {
        int64_t a, b;
        tshi_runs_at(r, 2, i, &a, &b);
        const char *source = (const char *)from + (size_t)a * size;
        char *target = (char *)to + (size_t)b * size;
        if (rows == 1)
            device->ops->copy.within(device, bytes, source, target);
        else
            device->ops->copy.strided(device, rows, bytes, source, (size_t)r->from[1] * size, target,
                                      (size_t)r->to[1] * size);
    }
}
