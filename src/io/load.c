/* Loading: all parameters are checked before any rank reads elements. */
#include "io/load.h"

#include "base/hash.h"
#include "dist/world.h"
#include "io/problems.h"
#include "io/quantized.h"
#include "io/weights.h"
#include "tensor/runs.h"

#include <stdio.h>
#include <string.h>

/* --- shared with saving ------------------------------------------------------------------------------------------- */

tsh_status tshi_check_parameter(const char *what, const char *name, const tsh_tensor *t) {
    for (int a = 0; a < t->mesh->axes; a++) {
        if (t->layout[a].kind == TSH_KIND_REPLICATED || t->layout[a].kind == TSH_KIND_SHARD) continue;
        return tshi_fail(TSH_ERR_LAYOUT, "%s: '%.100s' (%s) must be REPLICATED or SHARD: redistribute it first", what,
                         name, TSHI_TENSOR_TEXT(t));
    }
    if (t->storage) return tshi_tensor_materialize(t);
    return tshi_fail(TSH_ERR_STATE, "%s: '%.100s' has lost its memory", what, name);
}

uint64_t tshi_parameters_fingerprint(const tsh_parameters *list, uint64_t fingerprint) {
    for (int i = 0; i < list->count; i++) {
        const tsh_tensor *t = list->items[i].tensor;
        fingerprint = tshi_fingerprint_text(fingerprint, list->items[i].name);
        fingerprint = tshi_fingerprint_add(fingerprint, (uint64_t)t->dtype << 8 | (uint64_t)t->shape.ndim);
        for (int d = 0; d < t->shape.ndim; d++) {
            fingerprint = tshi_fingerprint_add(fingerprint, (uint64_t)t->shape.global[d]);
        }
    }
    return fingerprint;
}

size_t tshi_io_elements(const tsh_parameters *list) {
    size_t most = 0;
    for (int i = 0; i < list->count; i++) {
        const tsh_tensor *t = list->items[i].tensor;
        size_t piece = TSHI_PIECE / tsh_dtype_size(t->dtype), n = (size_t)t->numel < piece ? (size_t)t->numel : piece;
        if (n > most) most = n;
    }
    return most;
}

/* Copies tiles first, because rows of a large matrix evict each other from the cache. */
static inline void transpose_sized(size_t size, int64_t rows, int64_t cols, const char *from, char *to,
                                   int64_t to_stride) {
    enum { TILE = 32 };
    char tile[TILE * TILE * 8];
    for (int64_t r0 = 0; r0 < rows; r0 += TILE) {
        int64_t height = r0 + TILE < rows ? TILE : rows - r0;
        for (int64_t c0 = 0; c0 < cols; c0 += TILE) {
            int64_t width = c0 + TILE < cols ? TILE : cols - c0;
            for (int64_t r = 0; r < height; r++) {
                memcpy(tile + (size_t)(r * TILE) * size, from + (size_t)((r0 + r) * cols + c0) * size,
                       (size_t)width * size);
            }
            for (int64_t c = 0; c < width; c++) {
                char *row = to + (size_t)((c0 + c) * to_stride + r0) * size;
                for (int64_t r = 0; r < height; r++) {
                    memcpy(row + (size_t)r * size, tile + (size_t)(r * TILE + c) * size, size);
                }
            }
        }
    }
}

void tshi_transpose(size_t size, int64_t rows, int64_t cols, const void *from, void *to, int64_t to_stride) {
    switch (size) {
    case 1: transpose_sized(1, rows, cols, from, to, to_stride); break;
    case 2: transpose_sized(2, rows, cols, from, to, to_stride); break;
    case 4: transpose_sized(4, rows, cols, from, to, to_stride); break;
    default: transpose_sized(8, rows, cols, from, to, to_stride); break;
    }
}

/* --- checks ------------------------------------------------------------------------------------------------------- */

/* A call of tsh_load. */
typedef struct model_load {
    tsh_parameters *list;
    tsh_world *world;
    const char *path;
    tsh_load_options options;
    tshi_links links;
    tshi_weights *weights;
    const tshi_weight **sources; /* for each link; NULL: the parameter keeps its values */
    tsh_tensor **groups;         /* for each link: what the parameter becomes if it stays quantized, or NULL */
    bool *taken;                 /* for each tensor: some parameter takes it */
    tshi_problems problems;
    char *raw, *converted; /* tshi_io_elements elements each */
} model_load;

static bool is_float(tsh_dtype dtype) {
    return dtype == TSH_FLOAT32 || dtype == TSH_FLOAT64 || dtype == TSH_BFLOAT16 || dtype == TSH_FLOAT16;
}

/* True between float dtypes, and where `to` holds every value of an integer dtype. */
static bool converts(tsh_dtype from, tsh_dtype to) {
    if (from == to || (is_float(from) && is_float(to))) return true;
    return (from == TSH_UINT8 && (to == TSH_INT32 || to == TSH_INT64)) || (from == TSH_INT32 && to == TSH_INT64);
}

/* The tensor of the file as the parameter's elements: bytes for groups of its format. */
static tshi_weight source_of(const tsh_tensor *t, const tshi_weight *source, tshi_gguf_tensor *bytes) {
    if (!t->quant || !source->tensor || source->tensor->format != t->quant) return *source;
    *bytes = tshi_gguf_as_bytes(source->tensor);
    return (tshi_weight){&bytes->entry, NULL, bytes};
}

static void check_source(model_load *l, const tshi_parameter *p, const tshi_link *link, const tshi_weight *source) {
    const tsh_tensor *t = p->tensor;
    tshi_gguf_tensor bytes;
    const tshi_weight as_stored = source_of(t, source, &bytes);
    const tshi_safetensors_entry *e = as_stored.entry;
    const char *wrong = tshi_link_check(link, t, e->ndim, e->shape);
    if (!wrong && !converts(e->dtype, t->dtype)) wrong = "has a dtype that cannot be converted";
    if (!wrong) return;
    tshi_problem(&l->problems, "'%.80s' %s: %s %s here, %s %s there", e->name, wrong, tsh_dtype_name(t->dtype),
                 TSHI_DIMS_TEXT(t->shape.ndim, t->shape.global), e->type, TSHI_DIMS_TEXT(e->ndim, e->shape));
}

/* Finds the sources of a parameter's links. */
static void check_loaded(model_load *l, int first, int count) {
    const tshi_link *links = &l->links.items[first];
    const tshi_parameter *p = &l->list->items[links->parameter];
    const char *wrong = tshi_links_check(links, count, p->tensor);
    int missing = 0;
    if (wrong) tshi_problem(&l->problems, "'%.80s' %s", p->name, wrong);
    for (int i = first; i < first + count; i++) {
        l->sources[i] = tshi_weights_find(l->weights, l->links.items[i].tensor);
        if (!l->sources[i]) {
            missing++;
            continue;
        }
        l->taken[l->sources[i] - l->weights->items] = true;
        if (!wrong) check_source(l, p, &l->links.items[i], l->sources[i]);
    }
    if (missing == 0 || (missing == count && l->options.allow_missing)) return;
    for (int i = first; i < first + count; i++) {
        if (!l->sources[i]) tshi_problem(&l->problems, "'%.80s' is missing", l->links.items[i].tensor);
    }
}

static bool may_stay(const model_load *l, const char *name) {
    const char *const *pattern = l->options.ignored;
    while (pattern && *pattern && !tshi_name_matches(*pattern, name)) pattern++;
    return l->options.allow_unexpected || (pattern && *pattern);
}

static tsh_status check_all(model_load *l) {
    for (int i = 0, n; i < l->links.count; i += n) {
        n = tshi_links_of(&l->links, i);
        check_loaded(l, i, n);
    }
    for (int i = 0; i < l->weights->count; i++) {
        const char *name = l->weights->items[i].entry->name;
        if (!l->taken[i] && !may_stay(l, name)) tshi_problem(&l->problems, "'%.80s' is unexpected", name);
    }
    return tshi_problems_report(&l->problems);
}

/* The format in which the parameter of links [first, first + count) stays as in the file, or NULL. */
static const tshi_quant_format *format_kept(const model_load *l, int first, int count) {
    const tshi_link *link = &l->links.items[first];
    const tshi_weight *source = l->sources[first];
    if (!l->options.keep_quantized || count != 1 || link->length || link->transpose || !source) return NULL;
    const tsh_tensor *weight = l->list->items[link->parameter].tensor;
    return tshi_may_stay_quantized(weight, source->tensor) ? source->tensor->format : NULL;
}

/* Memory for parameters whose memory depends on the files: of their own, or for groups. */
static tsh_status give_memory(model_load *l) {
    tsh_status status = TSH_OK;
    for (int i = 0, n; status == TSH_OK && i < l->links.count; i += n) {
        n = tshi_links_of(&l->links, i);
        const tshi_parameter *p = &l->list->items[l->links.items[i].parameter];
        const tshi_quant_format *format = format_kept(l, i, n);
        status = format ? tshi_quantized_create(p->tensor, format, &l->groups[i])
                        : tshi_check_parameter("load", p->name, p->tensor);
    }
    return status;
}

static tsh_status take_groups(model_load *l) {
    tsh_status status = TSH_OK;
    for (int i = 0; status == TSH_OK && i < l->links.count; i++) {
        if (!l->groups[i]) continue;
        tsh_tensor *weight = l->list->items[l->links.items[i].parameter].tensor;
        status = tshi_quantized_take(weight, l->sources[i]->tensor->format, l->groups[i]);
    }
    return status;
}

/* Checks everything before any element is read. */
static tsh_status prepare_load(model_load *l) {
    const tsh_allocator *allocator = &l->world->allocator;
    tsh_status status = TSH_OK;
    for (int i = 0; status == TSH_OK && i < l->list->count; i++) {
        const tshi_parameter *p = &l->list->items[i];
        if (!l->options.keep_quantized || !p->tensor->may_quantize)
            status = tshi_check_parameter("load", p->name, p->tensor);
    }
    if (status == TSH_OK) status = tshi_patterns_check(l->options.ignored);
    if (status == TSH_OK) status = tshi_links_make(l->list, l->options.rules, l->options.rule_count, &l->links);
    if (status == TSH_OK) status = tshi_weights_open(allocator, l->path, &l->weights);
    if (status != TSH_OK) return status;
    l->sources = tshi_calloc(allocator, (size_t)l->links.count, sizeof(void *));
    l->groups = tshi_calloc(allocator, (size_t)l->links.count, sizeof(void *));
    l->taken = tshi_calloc(allocator, (size_t)l->weights->count, sizeof *l->taken);
    size_t most = tshi_io_elements(l->list);
    l->raw = tshi_calloc(allocator, most, 8);
    l->converted = tshi_calloc(allocator, most, 8);
    if (!l->sources || !l->groups || !l->taken || !l->raw || !l->converted) return TSH_ERR_MEMORY;
    status = check_all(l);
    return status == TSH_OK ? give_memory(l) : status;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* Reads the link's elements within `box`, a part of the parameter, into the box's host memory. */
static tsh_status read_link(model_load *l, int number, const tsh_tensor *t, const tsh_box *box, char *to) {
    const tshi_link *link = &l->links.items[number];
    tshi_gguf_tensor bytes;
    const tshi_weight source = source_of(t, l->sources[number], &bytes);
    tsh_device *host = l->world->host;
    tsh_dtype dtype = source.entry->dtype;
    size_t size = tsh_dtype_size(t->dtype);
    int ndim = t->shape.ndim;
    tsh_box piece, place;
    if (!tshi_link_box(link, ndim, box, &piece, &place)) return TSH_OK;
    int64_t n = tshi_box_numel(ndim, &piece);
    bool straight = !link->transpose && n == tshi_box_numel(ndim, box);
    char *raw = straight && dtype == t->dtype ? to : l->raw, *elements = raw;
    tsh_status status = tshi_weights_read_box(l->weights, &source, &place, raw);
    if (status != TSH_OK) return status;
    if (dtype != t->dtype) {
        elements = straight ? to : l->converted;
        host->ops->copy.convert(host, n, dtype, raw, t->dtype, elements);
    }
    if (link->transpose) {
        int r = ndim - 2, c = ndim - 1; /* the dims that are the tensor's */
        int64_t row = piece.start[r] - box->start[r], column = piece.start[c] - box->start[c];
        if (link->squeeze) row += (piece.start[0] - box->start[0]) * box->length[r];
        to += (size_t)(row * box->length[c] + column) * size;
        tshi_transpose(size, place.length[0], place.length[1], elements, to, box->length[c]);
    } else if (!straight) {
        tshi_runs runs = tshi_runs_of(ndim, &piece, &piece, box);
        tshi_runs_copy(host, size, &runs, elements, to);
    }
    return TSH_OK;
}

/* Reads a parameter from the sources of its links. */
static tsh_status read_parameter(model_load *l, int first, int count) {
    tsh_tensor *t = l->list->items[l->links.items[first].parameter].tensor;
    tshi_pieces p = tshi_pieces_to_write(t);
    while (tshi_pieces_next(&p)) {
        for (int i = first; i < first + count && p.status == TSH_OK; i++)
            p.status = read_link(l, i, t, &p.box, p.values);
    }
    return p.status;
}

static tsh_status read_all(model_load *l) {
    tsh_status status = TSH_OK;
    for (int i = 0, n; status == TSH_OK && i < l->links.count; i += n) {
        n = tshi_links_of(&l->links, i);
        if (l->sources[i]) status = read_parameter(l, i, n);
    }
    return status;
}

/* --- the call ----------------------------------------------------------------------------------------------------- */

/* The text that ranks compare: their parameters, links, what stays quantized, and file headers. */
static void describe_load(const model_load *l, char *text, size_t size) {
    uint64_t mine = tshi_parameters_fingerprint(l->list, TSHI_FINGERPRINT);
    mine = tshi_fingerprint_add(mine, l->options.keep_quantized);
    uint64_t files = l->weights ? tshi_weights_fingerprint(l->weights) : TSHI_FINGERPRINT;
    for (int i = 0; i < l->links.count; i++) {
        const tshi_link *k = &l->links.items[i];
        mine = tshi_fingerprint_text(mine, k->tensor);
        mine = tshi_fingerprint_add(mine, l->groups && l->groups[i]);
        mine = tshi_fingerprint_add(mine, (uint64_t)k->dim << 2 | (uint64_t)k->squeeze << 1 | k->transpose);
        mine = tshi_fingerprint_add(mine, (uint64_t)k->length);
        mine = tshi_fingerprint_add(mine, (uint64_t)k->parameter_start);
        mine = tshi_fingerprint_add(mine, (uint64_t)k->tensor_start);
    }
    snprintf(text, size, "load of %d parameters (%08x) from files (%08x)", l->list->count, (unsigned)mine,
             (unsigned)files);
}

static void end_load(model_load *l, uint64_t *bytes_read) {
    const tsh_allocator *allocator = &l->world->allocator;
    if (bytes_read && l->weights) *bytes_read += tshi_weights_bytes_read(l->weights);
    tshi_weights_close(l->weights);
    for (int i = 0; l->groups && i < l->links.count; i++) tshi_tensor_release(l->groups[i]);
    tshi_links_free(&l->links);
    tshi_free(allocator, l->sources);
    tshi_free(allocator, l->groups);
    tshi_free(allocator, l->taken);
    tshi_free(allocator, l->raw);
    tshi_free(allocator, l->converted);
}

tsh_status tshi_load(tsh_parameters *list, const char *path, const tsh_load_options *options, uint64_t *bytes_read) {
    char text[TSHI_LINE];
    if (bytes_read) *bytes_read = 0;
    if (!list) return tshi_fail(TSH_ERR_ARGUMENT, "load: a list of parameters is required");
    model_load l = {.list = list, .world = list->world, .path = path ? path : ""};
    l.problems = (tshi_problems){.world = l.world, .call = "load", .path = l.path};
    if (options) l.options = *options;
    tsh_status status = path ? prepare_load(&l) : tshi_fail(TSH_ERR_ARGUMENT, "load: a path is required");
    describe_load(&l, text, sizeof text);
    status = tshi_group_agree(l.world->group, text, status);
    if (status == TSH_OK) {
        status = take_groups(&l);
        if (status == TSH_OK) status = read_all(&l);
        status = tshi_group_agree(l.world->group, "load: elements", status);
    }
    end_load(&l, bytes_read);
    return status;
}

tsh_status tsh_load(tsh_parameters *list, const char *path, const tsh_load_options *options) {
    return tshi_load(list, path, options, NULL);
}
