/* Prints a global tensor: one rank receives the elements that are shown, and writes them. */
#include "dist/collectives/redistribute.h"
#include "dist/world.h"
#include "tensor/format.h"

#include <errno.h>
#include <string.h>

/* The elements that are shown are the corners of the tensor: boxes of one size, or one box, the whole. The root
 * receives them one after another. */
typedef struct printing {
    const tsh_tensor *tensor;
    int root;
    tshi_format format;
    tsh_box shown;        /* an array of the elements that are shown */
    int64_t corner_numel; /* elements of a corner */
    tsh_tensor *held;     /* on the root: a corner */
    char *corner, *whole; /* on the root: the same in host memory, and the elements that are shown, row-major */
    void *wide;           /* on the root: these as doubles, or as int64 */
} printing;

/* --- checks ------------------------------------------------------------------------------------------------------- */

static tsh_status check_print(const printing *p, const tsh_print_config *c) {
    const tsh_tensor *t = p->tensor;
    if (c->root < 0 || c->root >= t->mesh->members) {
        return tshi_fail(TSH_ERR_RANGE, "tensor_print: root %d of a mesh of %d ranks", c->root, t->mesh->members);
    }
    if (c->precision < 0 || c->threshold < 0 || c->edge_items < 0 || c->line_width < 0) {
        return tshi_fail(TSH_ERR_ARGUMENT, "tensor_print: a member of the configuration is negative");
    }
    if (!t->storage) return tshi_tensor_check(t, "tensor_print", "the tensor");
    tsh_status status = tshi_tensor_check_global(t, "tensor_print");
    return status == TSH_OK ? tshi_tensor_materialize(t) : status;
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
    size_t size = tsh_dtype_size(p->tensor->dtype), shown = (size_t)tshi_box_numel(p->format.ndim, &p->shown);
    if (mesh->member != p->root) return TSH_OK;
    p->corner = tshi_calloc(allocator, (size_t)p->corner_numel + 1, size);
    p->whole = tshi_calloc(allocator, shown + 1, size);
    p->wide = tshi_calloc(allocator, shown + 1, 2 * sizeof(double));
    if (!p->corner || !p->whole || !p->wide) return TSH_ERR_MEMORY;
    return tshi_tensor_buffer(mesh, p->tensor->dtype, p->corner_numel, &p->held);
}

static void print_close(printing *p) {
    const tsh_allocator *allocator = &p->tensor->mesh->world->allocator;
    tshi_tensor_release(p->held);
    tshi_free(allocator, p->corner);
    tshi_free(allocator, p->whole);
    tshi_free(allocator, p->wide);
}

/* --- moving ------------------------------------------------------------------------------------------------------- */

/* A corner of an array of that shape, which is the tensor or what is shown of it: bit d of `corner` says which end of
 * an abbreviated dim. False where that dim has one piece. */
static bool corner_box(const tshi_format *f, const int64_t *shape, unsigned corner, tsh_box *box) {
    for (int d = 0; d < f->ndim; d++) {
        bool last = corner >> d & 1, abbreviated = tshi_format_shown(f, d) < f->shape[d];
        if (last && !abbreviated) return false;
        box->length[d] = abbreviated ? f->edge : f->shape[d];
        box->start[d] = last ? shape[d] - box->length[d] : 0;
    }
    return true;
}

static tsh_status fetch_corner(const printing *p, const tsh_box *box) {
    const tsh_mesh *mesh = p->tensor->mesh;
    const tshi_placement to = {
        .axes = 1, .size = {1}, .ranks = &mesh->ranks[p->root], .layout = {TSH_SHARD_INIT(0)}, .boxes = box};
    tsh_status status = tshi_exchange_tensor(mesh->group, p->tensor, &to, p->held, false);
    if (status != TSH_OK || mesh->member != p->root) return status;
    return tsh_tensor_read(p->held, p->corner, p->corner_numel);
}

/* Collective. A rank whose exchange of one corner fails still takes part in the exchanges of the others, which its
 * peers wait for. Returns the last error. */
static tsh_status fetch_all(const printing *p) {
    tsh_status status = TSH_OK;
    for (unsigned c = 0; c < 1u << p->format.ndim; c++) {
        tsh_box box = {0}, there = {0};
        if (!corner_box(&p->format, p->format.shape, c, &box)) continue;
        corner_box(&p->format, p->shown.length, c, &there);
        tsh_status one = fetch_corner(p, &box);
        if (one != TSH_OK) status = one;
        if (p->corner && one == TSH_OK)
            tshi_copy_box(p->format.ndim, tsh_dtype_size(p->tensor->dtype), &there, p->corner, &there, p->whole,
                          &p->shown);
    }
    return status;
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
    tsh_box corner = {0};
    for (int d = 0; d < s->ndim; d++) p->shown.length[d] = tshi_format_shown(&p->format, d);
    corner_box(&p->format, s->global, 0, &corner);
    p->corner_numel = tshi_box_numel(s->ndim, &corner);
}

tsh_status tsh_tensor_print(const tsh_tensor *tensor, FILE *to, const tsh_print_config *config) {
    static const tsh_print_config defaults;
    if (!tensor) return tshi_fail(TSH_ERR_ARGUMENT, "tensor_print: tensor is NULL");
    const tsh_mesh *mesh = tensor->mesh;
    if (!config) config = &defaults;
    if (!tshi_mesh_has_me(mesh)) return TSH_OK;
    printing p = {.tensor = tensor, .root = config->root};
    tsh_status status = check_print(&p, config);
    set_format(&p, config);
    if (status == TSH_OK) status = print_open(&p);
    status = agree(&p, status);
    if (status == TSH_OK) status = fetch_all(&p);
    if (status == TSH_OK && mesh->member == p.root) status = write_shown(&p, to ? to : stdout);
    print_close(&p);
    return status;
}
