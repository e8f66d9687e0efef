/* Prints a global tensor: one rank receives the elements that are shown, and writes them. */
#include "dist/collectives/collectives.h"
#include "dist/world.h"
#include "tensor/format.h"
#include "tensor/runs.h"

#include <errno.h>
#include <string.h>

/* The elements that are shown are a tensor of their own, in which the indices of a dim follow each other: what a rank
 * has of it is a box as well. */
typedef struct printing {
    const tsh_tensor *tensor;
    int root;
    tshi_format format;
    tshi_placement placement;
    tsh_box shown;            /* all of it */
    int64_t *counts;          /* [members] elements that each member contributes */
    tsh_tensor *packed, *all; /* this rank's elements; on the root those of all members, one after another */
    char *host, *whole;       /* on the root: `all` in host memory, and the elements in their order */
    void *wide;               /* on the root: these as doubles, or as int64 */
    const void **terms;       /* [members] on the root: scratch */
} printing;

static int64_t total(const printing *p) {
    return tshi_sum(p->counts, p->tensor->mesh->members);
}

/* The number of shown indices of dim d before index i. */
static int64_t shown_before(const printing *p, int d, int64_t i) {
    int64_t hidden = p->format.shape[d] - p->shown.length[d], edge = p->format.edge;
    if (hidden == 0 || i <= edge) return i;
    return i >= edge + hidden ? i - hidden : edge;
}

static tsh_box box_of(const printing *p, int member) {
    int ndim = p->format.ndim;
    tsh_box box = tshi_placement_box(&p->placement, ndim, p->format.shape, member);
    for (int d = 0; d < ndim; d++) {
        int64_t start = shown_before(p, d, box.start[d]);
        box.length[d] = shown_before(p, d, box.start[d] + box.length[d]) - start;
        box.start[d] = start;
    }
    return box;
}

/* The member's index along axis a. */
static int index_along(const printing *p, int member, int a) {
    for (int b = p->placement.axes - 1; b > a; b--) member /= p->placement.size[b];
    return member % p->placement.size[a];
}

/* The members have the same index along each axis of that kind, or for `others` along each axis of another kind. */
static bool alike(const printing *p, tsh_layout_kind kind, bool others, int one, int other) {
    for (int a = 0; a < p->placement.axes; a++) {
        bool compared = (p->placement.layout[a].kind == kind) != others;
        if (compared && index_along(p, one, a) != index_along(p, other, a)) return false;
    }
    return true;
}

/* Replicas hold the same values: the members with the root's indices along REPLICATED axes contribute them, and of the
 * members that share a unit the first. */
static bool contributes(const printing *p, int member) {
    for (int a = 0; a < p->placement.axes; a++) {
        int index = index_along(p, member, a), first;
        tshi_layout_sharers(&p->placement.layout[a], p->placement.size[a], index, &first);
        if (first != index) return false;
    }
    return alike(p, TSH_KIND_REPLICATED, false, member, p->root);
}

static void count_elements(printing *p) {
    for (int i = 0; i < p->tensor->mesh->members; i++) {
        tsh_box box = box_of(p, i);
        p->counts[i] = contributes(p, i) ? tshi_box_numel(p->format.ndim, &box) : 0;
    }
}

/* --- checks ------------------------------------------------------------------------------------------------------- */

static tsh_status check_print(const printing *p, const tsh_print_config *c) {
    const tsh_tensor *t = p->tensor;
    char text[160];
    if (c->root < 0 || c->root >= t->mesh->members) {
        return tshi_fail(TSH_ERR_RANGE, "tensor_print: root %d of a mesh of %d ranks", c->root, t->mesh->members);
    }
    if (c->precision < 0 || c->threshold < 0 || c->edge_items < 0 || c->line_width < 0) {
        return tshi_fail(TSH_ERR_ARGUMENT, "tensor_print: a member of the configuration is negative");
    }
    if (!t->storage) return tshi_tensor_check(t, "tensor_print", "the tensor");
    for (int a = 0; a < t->mesh->axes; a++) {
        if (!tshi_layout_is_own(t->layout[a])) continue;
        return tshi_fail(TSH_ERR_LAYOUT, "tensor_print: %s is not part of a global tensor",
                         tsh_tensor_describe(t, text, sizeof text));
    }
    return tshi_tensor_materialize(t);
}

static tsh_status agree(const printing *p, tsh_status status) {
    char text[TSHI_LINE], described[TSHI_LINE - 72];
    snprintf(text, sizeof text, "tensor_print %s on %d, edge %lld",
             tshi_tensor_describe_whole(p->tensor, described, sizeof described), p->root, (long long)p->format.edge);
    return tshi_group_agree(p->tensor->mesh->group, text, status);
}

/* Memory for everything, so that no rank fails when all have agreed. */
static tsh_status print_open(printing *p) {
    const tsh_mesh *mesh = p->tensor->mesh;
    const tsh_allocator *allocator = &mesh->world->allocator;
    size_t size = tsh_dtype_size(p->tensor->dtype), members = (size_t)mesh->members;
    p->counts = tshi_calloc(allocator, members, sizeof *p->counts);
    if (!p->counts) return TSH_ERR_MEMORY;
    count_elements(p);
    tsh_status status = tshi_tensor_buffer(mesh, p->tensor->dtype, p->counts[mesh->member], &p->packed);
    if (status != TSH_OK || mesh->member != p->root) return status;
    p->host = tshi_calloc(allocator, (size_t)total(p) + 1, size);
    p->whole = tshi_calloc(allocator, (size_t)tshi_box_numel(p->format.ndim, &p->shown) + 1, size);
    p->wide = tshi_calloc(allocator, (size_t)tshi_box_numel(p->format.ndim, &p->shown) + 1, 2 * sizeof(double));
    p->terms = tshi_calloc(allocator, members, sizeof *p->terms);
    if (!p->host || !p->whole || !p->wide || !p->terms) return TSH_ERR_MEMORY;
    return tshi_tensor_buffer(mesh, p->tensor->dtype, total(p), &p->all);
}

static void print_close(printing *p) {
    const tsh_allocator *allocator = &p->tensor->mesh->world->allocator;
    tshi_tensor_release(p->packed);
    tshi_tensor_release(p->all);
    tshi_free(allocator, p->counts);
    tshi_free(allocator, p->host);
    tshi_free(allocator, p->whole);
    tshi_free(allocator, p->wide);
    tshi_free(allocator, p->terms);
}

/* --- moving ------------------------------------------------------------------------------------------------------- */

/* One corner of the whole: bit d of `corner` says which end of an abbreviated dim. False where that dim has one
 * piece. */
static bool corner_box(const printing *p, unsigned corner, tsh_box *box) {
    for (int d = 0; d < p->format.ndim; d++) {
        bool last = corner >> d & 1, abbreviated = p->shown.length[d] < p->format.shape[d];
        if (last && !abbreviated) return false;
        box->length[d] = abbreviated ? p->format.edge : p->format.shape[d];
        box->start[d] = last ? p->format.shape[d] - box->length[d] : 0;
    }
    return true;
}

/* In the numbers of a corner's indices, what this rank packs begins as many indices later as are hidden before it. */
static void pack(const printing *p) {
    const tsh_tensor *t = p->tensor;
    int ndim = p->format.ndim;
    tsh_box held = tsh_tensor_box(t), corner = {0}, part;
    for (unsigned c = 0; c < 1u << ndim; c++) {
        if (!corner_box(p, c, &corner) || !tshi_box_intersect(ndim, &corner, &held, &part)) continue;
        tsh_box packed = box_of(p, t->mesh->member);
        for (int d = 0; d < ndim; d++) packed.start[d] += c >> d & 1 ? p->format.shape[d] - p->shown.length[d] : 0;
        tshi_runs runs = tshi_runs_of(ndim, &part, &held, &packed);
        tshi_runs_copy(tshi_device_of(t), tsh_dtype_size(t->dtype), &runs, tshi_data(t), tshi_data(p->packed));
    }
}

/* Adds the terms of `member`, which has the first one, in place. */
static void add_terms(const printing *p, int member) {
    tsh_device *host = p->tensor->mesh->world->host;
    size_t size = tsh_dtype_size(p->tensor->dtype);
    int count = 0;
    for (int i = 0; i < p->tensor->mesh->members; i++) {
        if (!contributes(p, i) || !alike(p, TSH_KIND_PARTIAL, true, member, i)) continue;
        p->terms[count++] = p->host + (size_t)tshi_sum(p->counts, i) * size;
    }
    void *sum = p->host + (size_t)tshi_sum(p->counts, member) * size;
    if (count > 1) {
        host->ops->reduce(host, p->tensor->dtype, TSHI_SUM, p->counts[member], count, p->terms, 1, &sum);
    }
}

static void unpack(printing *p) {
    size_t size = tsh_dtype_size(p->tensor->dtype);
    for (int i = 0; i < p->tensor->mesh->members; i++) {
        if (p->counts[i] == 0 || !alike(p, TSH_KIND_PARTIAL, false, i, 0)) continue; /* no first term */
        tsh_box box = box_of(p, i);
        add_terms(p, i);
        tshi_copy_box(p->format.ndim, size, &box, p->host + (size_t)tshi_sum(p->counts, i) * size, &box, p->whole,
                      &p->shown);
    }
}

/* The elements that are shown as the text takes them: a complex one is two numbers. */
static void widen(printing *p) {
    tsh_device *host = p->tensor->mesh->world->host;
    tsh_dtype from = p->tensor->dtype, to = TSH_FLOAT64;
    int64_t n = tshi_box_numel(p->format.ndim, &p->shown);
    if (from == TSH_INT32 || from == TSH_INT64 || from == TSH_UINT8) to = TSH_INT64;
    if (tshi_dtype_is_complex(from)) {
        p->format.complex = true;
        from = from == TSH_COMPLEX64 ? TSH_FLOAT32 : TSH_FLOAT64;
        n *= 2;
    }
    host->ops->copy.convert(host, n, from, p->whole, to, p->wide);
    if (to == TSH_INT64)
        p->format.integers = p->wide;
    else
        p->format.floats = p->wide;
}

static tsh_status write_shown(printing *p, FILE *to) {
    tsh_status status = tsh_tensor_read(p->all, p->host, total(p));
    if (status != TSH_OK) return status;
    unpack(p);
    widen(p);
    errno = 0;
    tshi_format_write(&p->format, to);
    fputc('\n', to);
    if (fflush(to) == 0 && !ferror(to)) return TSH_OK;
    return tshi_fail(TSH_ERR_IO, "tensor_print: %s", errno ? strerror(errno) : "writing to the file failed");
}

/* With more digits 0.1 in 16 bits is 0.09998. */
static int default_precision(tsh_dtype dtype) {
    return dtype == TSH_BFLOAT16 || dtype == TSH_FLOAT16 ? 3 : 6;
}

static void set_format(printing *p, const tsh_print_config *c) {
    const tsh_shape *s = &p->tensor->shape;
    int64_t threshold = c->threshold ? c->threshold : 1000, edge = c->edge_items ? c->edge_items : 3;
    p->format = (tshi_format){.ndim = s->ndim,
                              .shape = s->global,
                              .edge = tshi_shape_numel(s) > threshold ? edge : 0,
                              .precision = c->precision > 17 ? 17
                                           : c->precision    ? c->precision
                                                             : default_precision(p->tensor->dtype),
                              .width = c->line_width ? c->line_width : 75};
    for (int d = 0; d < s->ndim; d++) p->shown.length[d] = tshi_format_shown(&p->format, d);
}

tsh_status tsh_tensor_print(const tsh_tensor *tensor, FILE *to, const tsh_print_config *config) {
    static const tsh_print_config defaults;
    if (!tensor) return tshi_fail(TSH_ERR_ARGUMENT, "tensor_print: tensor is NULL");
    const tsh_mesh *mesh = tensor->mesh;
    if (!config) config = &defaults;
    if (!tshi_mesh_has_me(mesh)) return TSH_OK;
    printing p = {.tensor = tensor, .root = config->root, .placement = tshi_tensor_placement(tensor)};
    tsh_status status = check_print(&p, config);
    set_format(&p, config);
    if (status == TSH_OK) status = print_open(&p);
    status = agree(&p, status);
    if (status == TSH_OK) {
        pack(&p);
        status = tsh_gather_to_root(mesh->group, p.packed, p.all, p.counts, p.root);
    }
    if (status == TSH_OK && mesh->member == p.root) status = write_shown(&p, to ? to : stdout);
    print_close(&p);
    return status;
}
