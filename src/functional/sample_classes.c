/* Sampled classes: the classes of a batch and random others, from each rank's part. */
#include "functional/functional.h"

#include <stdlib.h>
#include <string.h>

static const char name[] = "sample_classes";

/* A call on this rank; the arrays live as long as the tape's step. */
typedef struct sampling {
    const tsh_mesh *mesh;
    tsh_device *device;
    tshi_parts parts;    /* of the classes, along the axis that shards them */
    int64_t classes;     /* of all ranks together */
    int64_t count;       /* to draw, of all ranks */
    int64_t rows, start; /* of this rank's part of the classes */
    int64_t targets, distinct;
    int64_t *target;  /* [targets] */
    int64_t *present; /* [distinct] the target's classes, ascending, each once */
    int64_t *drawn;   /* [rows at most] */
    float *number;    /* [rows] */
} sampling;

/* Part `index` of n items. */
static int64_t part_of(int64_t n, tshi_parts parts, int index, int64_t *length) {
    int64_t start;
    tshi_parts_split(parts, n, index, &start, length);
    return start;
}

/* The index of the first present class that is not below `class`. */
static int64_t present_before(const sampling *s, int64_t class) {
    int64_t low = 0, high = s->distinct;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (s->present[middle] < class)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int compare_classes(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

/* --- the classes to draw ------------------------------------------------------------------------------------------ */

static tsh_status find_present(sampling *s) {
    for (int64_t i = 0; i < s->targets; i++) {
        if (s->target[i] >= s->classes) {
            return tshi_fail(TSH_ERR_RANGE, "target %lld at index %lld is outside [0, %lld)", (long long)s->target[i],
                             (long long)i, (long long)s->classes);
        }
        if (s->target[i] >= 0) s->present[s->distinct++] = s->target[i];
    }
    int64_t all = s->distinct, kept = 0;
    qsort(s->present, (size_t)all, sizeof *s->present, compare_classes);
    for (int64_t i = 0; i < all; i++) {
        if (kept == 0 || s->present[i] != s->present[kept - 1]) s->present[kept++] = s->present[i];
    }
    s->distinct = kept;
    return TSH_OK;
}

/* The count splits like the classes: it grows if one part has more present classes than its share. */
static void grow_count(sampling *s) {
    for (int i = 0; i < s->parts.count; i++) {
        int64_t length, start = part_of(s->classes, s->parts, i, &length);
        int64_t here = present_before(s, start + length) - present_before(s, start);
        int64_t enough = tshi_parts_enough(s->parts, i, here);
        if (enough > s->count) s->count = enough;
    }
    if (s->count > s->classes) s->count = s->classes;
}

/* Replaces targets by indices of drawn classes: in each part, present classes come first. */
static void number_targets(const sampling *s) {
    for (int64_t t = 0; t < s->targets; t++) {
        if (s->target[t] < 0) continue;
        int64_t length, start = 0;
        int i = 0;
        for (; i < s->parts.count - 1; i++) {
            start = part_of(s->classes, s->parts, i, &length);
            if (s->target[t] < start + length) break;
        }
        start = part_of(s->classes, s->parts, i, &length);
        s->target[t] =
            part_of(s->count, s->parts, i, &length) + present_before(s, s->target[t]) - present_before(s, start);
    }
}

/* --- the classes with the smallest random numbers ----------------------------------------------------------------- */

enum { DIGITS = 4096 }; /* a number has 24 bits: two digits */

static int digit(float number, int which) {
    uint32_t bits = (uint32_t)(number * 0x1p24f);
    return (int)(which == 0 ? bits / DIGITS : bits % DIGITS);
}

/* The digit at which the `wanted` smallest numbers end, among those whose first digit is `first` (-1: all). *before:
 * how many have a smaller digit. */
static int find_digit(int64_t n, const float *number, int first, int64_t wanted, int64_t *before) {
    int64_t count[DIGITS] = {0};
    for (int64_t i = 0; i < n; i++) {
        if (number[i] >= 1 || (first >= 0 && digit(number[i], 0) != first)) continue;
        count[digit(number[i], first >= 0)]++;
    }
    int d = 0;
    for (*before = 0; d < DIGITS - 1 && *before + count[d] < wanted; d++) *before += count[d];
    return d;
}

/* out[0..wanted) = the indices of the smallest numbers below 1, ascending; among equal numbers the first indices. */
static void take_least(int64_t n, const float *number, int64_t wanted, int64_t *out) {
    int64_t before, more, taken = 0;
    if (wanted <= 0) return;
    int first = find_digit(n, number, -1, wanted, &before);
    int second = find_digit(n, number, first, wanted - before, &more);
    int64_t equal = wanted - before - more; /* to take of the numbers with exactly these digits */
    for (int64_t i = 0; i < n && taken < wanted; i++) {
        if (number[i] >= 1) continue;
        int high = digit(number[i], 0), low = digit(number[i], 1);
        bool below = high < first || (high == first && low < second);
        if (!below && (high != first || low != second || equal-- <= 0)) continue;
        out[taken++] = i;
    }
}

/* A random number for each class of this rank's part, from the seed, the stream and the class. */
static tsh_status draw_numbers(const sampling *s, const tsh_shape *shape, const tsh_layout *layout, uint64_t stream) {
    tsh_tensor *numbers = NULL;
    tsh_status status = tshi_tensor_new(s->mesh, TSH_FLOAT32, shape, layout, &numbers);
    if (status != TSH_OK) return status;
    tshi_tensor_draw(numbers, false, s->mesh->world->seed, stream, 0, 1);
    s->device->ops->copy.to_host(s->device, (size_t)s->rows * sizeof *s->number, tshi_data(numbers), s->number);
    tshi_tensor_release(numbers);
    return TSH_OK;
}

/* Fills s->drawn with n classes: those present in this part, then others. */
static void choose_rows(const sampling *s, int64_t n) {
    int64_t first = present_before(s, s->start), here = present_before(s, s->start + s->rows) - first;
    for (int64_t i = 0; i < here; i++) {
        s->drawn[i] = s->present[first + i] - s->start;
        s->number[s->drawn[i]] = 2;
    }
    take_least(s->rows, s->number, n - here, s->drawn + here);
}

/* --- the call ----------------------------------------------------------------------------------------------------- */

/* A new int64 tensor with these elements, owned by the tape. */
static tsh_tensor *sampled_tensor(tsh_tape *tape, const tsh_mesh *mesh, const tsh_shape *shape,
                                  const tsh_layout *layout, const int64_t *from) {
    tsh_tensor *out = NULL;
    tsh_status status = tshi_tensor_new(mesh, TSH_INT64, shape, layout, &out);
    if (tshi_tape_check(tape, status, name) != TSH_OK) return NULL;
    mesh->device->ops->copy.from_host(mesh->device, tsh_tensor_local_nbytes(out), from, tshi_data(out));
    status = tshi_tape_own(tape, out);
    return tshi_tape_check(tape, status, name) == TSH_OK ? out : NULL;
}

/* The layouts of the weight's rows, and the parts along the axis that shards them. */
static tsh_status find_layout(const tsh_tensor *weight, tsh_layout layout[TSH_MAX_AXES], tshi_parts *parts) {
    *parts = (tshi_parts){.count = 1};
    for (int a = 0; a < TSH_MAX_AXES; a++) layout[a] = TSH_REPLICATED;
    for (int a = 0; a < weight->mesh->axes; a++) {
        const tsh_layout *l = &weight->layout[a];
        bool splits = tshi_layout_splits(*l, 0);
        if ((splits && (parts->count > 1 || l->units || l->cuts)) || (!splits && l->kind != TSH_KIND_REPLICATED)) {
            return tshi_fail(
                TSH_ERR_LAYOUT,
                "the weight is %s: must be REPLICATED, or SHARD(0) along one axis, without units or cut points",
                TSHI_TENSOR_TEXT(weight));
        }
        if (!splits) continue;
        layout[a] = TSH_SHARD(0);
        *parts = tshi_axis_parts(&weight->mesh->axis[a]);
    }
    return TSH_OK;
}

static tsh_tensor *draw_classes(tsh_tape *tape, sampling *s, const tsh_tensor *target, tsh_layout *layout,
                                uint64_t stream, tsh_tensor **places) {
    const tsh_shape classes = {.ndim = 1, .local = {s->rows}, .global = {s->classes}};
    const tsh_layout *all = target->layout;
    s->device->ops->copy.to_host(s->device, (size_t)s->targets * sizeof *s->target, tshi_data(target), s->target);
    tsh_status status = find_present(s);
    if (status == TSH_OK) status = draw_numbers(s, &classes, layout, stream);
    if (tshi_tape_check(tape, status, name) != TSH_OK) return NULL;
    grow_count(s);
    tsh_shape drawn = {.ndim = 1, .global = {s->count}};
    status = tshi_shape_resolve(s->mesh, &drawn, layout);
    if (tshi_tape_check(tape, status, name) != TSH_OK) return NULL;
    choose_rows(s, drawn.local[0]);
    number_targets(s);
    if (places) *places = sampled_tensor(tape, s->mesh, &target->shape, all, s->target);
    return !places || *places ? sampled_tensor(tape, s->mesh, &drawn, layout, s->drawn) : NULL;
}

/* Gathers the target, and sets up the sampling; NULL on failure. */
static tsh_tensor *begin_sampling(tsh_tape *tape, tsh_tensor *weight, tsh_tensor *target, int64_t count,
                                  tsh_layout layout[TSH_MAX_AXES], sampling *s) {
    tsh_layout all[TSH_MAX_AXES];
    if (!tshi_tape_ready(tape, name, 2, (tsh_tensor *[]){weight, target})) return NULL;
    if (count < 1 || weight->shape.ndim < 1 || target->dtype != TSH_INT64 || target->mesh != weight->mesh) {
        return tshi_tape_fail(tape, TSH_ERR_ARGUMENT,
                              "sample_classes: the count must be at least 1, and is %lld; a weight [classes, ...] and "
                              "an int64 target on its mesh are required",
                              (long long)count);
    }
    *s = (sampling){.mesh = weight->mesh,
                    .device = weight->mesh->device,
                    .classes = weight->shape.global[0],
                    .count = count,
                    .rows = weight->shape.local[0],
                    .start = tshi_shape_start(weight->mesh, &weight->shape, weight->layout, 0)};
    tsh_status status = find_layout(weight, layout, &s->parts);
    if (tshi_tape_check(tape, status, name) != TSH_OK) return NULL;
    for (int a = 0; a < TSH_MAX_AXES; a++) all[a] = TSH_REPLICATED;
    return tshi_to_layouts(tape, name, target, all);
}

static bool take_memory(tsh_tape *tape, sampling *s) {
    const tsh_allocator *allocator = &s->device->allocator;
    size_t rows = (size_t)s->rows + 1, targets = (size_t)s->targets + 1;
    s->drawn = tshi_region_take(&tape->memory, allocator, rows, sizeof *s->drawn);
    s->number = tshi_region_take(&tape->memory, allocator, rows, sizeof *s->number);
    s->target = tshi_region_take(&tape->memory, allocator, targets, sizeof *s->target);
    s->present = tshi_region_take(&tape->memory, allocator, targets, sizeof *s->present);
    if (s->drawn && s->number && s->target && s->present) return true;
    tshi_tape_check(tape, TSH_ERR_MEMORY, name);
    return false;
}

tsh_tensor *tsh_sample_classes(tsh_tape *tape, tsh_tensor *weight, tsh_tensor *target, int64_t count,
                               tsh_tensor **places) {
    tsh_layout layout[TSH_MAX_AXES];
    sampling s = {0};
    if (places) *places = NULL;
    if (weight) weight = tshi_gradient_whole(weight); /* the whole parameter, if this is a slice of it */
    tsh_tensor *whole = begin_sampling(tape, weight, target, count, layout, &s);
    if (!whole) return NULL;
    uint64_t stream = tshi_world_stream(tape->world);
    s.targets = whole->numel;
    if (!take_memory(tape, &s)) return NULL;
    tsh_tensor *rows = draw_classes(tape, &s, whole, layout, stream, places);
    if (!rows && places) *places = NULL;
    return rows;
}
