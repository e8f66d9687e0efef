/* Names, devices and tensors. */
#include "fuzz.h"
#include "tensor/dlpack.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 4096 }; /* elements that are written or read */

static void names(fuzz *f, void (*function)(void)) {
    tsh_dtype dtype = (tsh_dtype)fuzz_index(f, TSH_DTYPE_COUNT);
    (void)function;
    if (!tsh_status_name((tsh_status)fuzz_index(f, TSH_STATUS_COUNT))[0]) fuzz_wrong(f, "status_name");
    if (!tsh_version()[0] || !tsh_dtype_name(dtype)[0] || !tsh_error_message()) fuzz_wrong(f, "a name is empty");
    if ((tsh_dtype_size(dtype) == 0) != ((int)dtype < 0 || dtype >= TSH_DTYPE_COUNT)) fuzz_wrong(f, "dtype_size");
}

static void split(fuzz *f, void (*function)(void)) {
    int64_t n = fuzz_index(f, 100), start = 0, length = 0, next = 0;
    int parts = fuzz_index(f, 9);
    (void)function;
    for (int i = 0; i < parts && i < 9; i++) {
        tsh_split(n, parts, i, &start, fuzz_chance(f, 5) ? NULL : &length);
        if (n >= 0 && start < next) fuzz_wrong(f, "split");
        next = start;
    }
    tsh_split(n, parts, fuzz_index(f, 9), &start, &length);
}

static void zigzag(fuzz *f, void (*function)(void)) {
    int64_t n = fuzz_below(f, 60), order[60], seen = 0;
    int parts = fuzz_index(f, 9);
    (void)function;
    tsh_zigzag(n, parts, fuzz_chance(f, 5) ? NULL : order);
    if (parts < 1) return;
    tsh_zigzag(n, parts, order);
    for (int64_t i = 0; i < n; i++) seen |= (int64_t)1 << order[i];
    if (seen != ((int64_t)1 << n) - 1) fuzz_wrong(f, "zigzag");
}

static void split_by_weight(fuzz *f, void (*function)(void)) {
    int64_t weights[9], n = fuzz_index(f, 100), start = 0, length = 0;
    int parts = 1 + fuzz_below(f, 9);
    (void)function;
    for (int i = 0; i < 9; i++) weights[i] = fuzz_index(f, 5);
    for (int i = 0; i < parts; i++) {
        tsh_split_by_weight(n, parts, fuzz_chance(f, 3) ? NULL : weights, i, &start,
                            fuzz_chance(f, 5) ? NULL : &length);
        if (start < 0 || length < 0 || (n >= 0 && start > n)) fuzz_wrong(f, "split_by_weight");
    }
    tsh_split_by_weight(n, parts, weights, fuzz_index(f, 9), &start, &length);
}

/* --- the device --------------------------------------------------------------------------------------------------- */

static tsh_device *device(fuzz *f) {
    return fuzz_chance(f, 4) ? NULL : tsh_world_device(f->world);
}

static void device_questions(fuzz *f, void (*function)(void)) {
    char text[96];
    tsh_device *d = device(f);
    (void)function;
    if (strlen(tsh_device_describe(d, text, 1 + (size_t)fuzz_below(f, 95))) >= sizeof text) fuzz_wrong(f, "describe");
    if (tsh_function_supports(d, "gelu", TSH_FLOAT32) != (d != NULL)) fuzz_wrong(f, "function_supports");
    if (tsh_device_kind_of(d) != (d ? TSH_CPU : TSH_DEVICE_DEFAULT)) fuzz_wrong(f, "device_kind_of");
    tsh_memory_stats stats = tsh_device_stats(d);
    tsh_memory_use report = tsh_device_memory(d);
    size_t live = 0, at_peak = 0;
    for (int p = 0; p < TSH_MEMORY_PURPOSE_COUNT; p++) {
        live += report.live[p];
        at_peak += report.at_peak[p];
        if (!tsh_memory_purpose_name((tsh_memory_purpose)p)[0]) fuzz_wrong(f, "a purpose has no name");
    }
    if (live != stats.bytes_in_use || at_peak != stats.bytes_peak) fuzz_wrong(f, "the purposes do not add up");
    if (stats.bytes_peak < stats.bytes_in_use) fuzz_wrong(f, "device_get_stats");
    if (fuzz_chance(f, 30)) tsh_device_reset_peak(d);
    if (tsh_device_stream(d)) fuzz_wrong(f, "a CPU has a stream");
    fuzz_said(f, "device_synchronize", tsh_device_synchronize(d), NULL);
}

static void event_create(fuzz *f, void (*function)(void)) {
    tsh_event *event = NULL;
    (void)function;
    tsh_status status = tsh_event_create(device(f), fuzz_chance(f, 3) ? NULL : &event);
    fuzz_made(f, FUZZ_EVENT, "event_create", status, event, NULL);
    tsh_event_destroy(NULL);
}

static void event_use(fuzz *f, void (*function)(void)) {
    double seconds;
    (void)function;
    fuzz_said(f, "event_record", tsh_event_record(fuzz_pick(f, FUZZ_EVENT)), NULL);
    tsh_event *begin = fuzz_pick(f, FUZZ_EVENT), *end = fuzz_pick(f, FUZZ_EVENT);
    fuzz_said(f, "event_elapsed", tsh_event_elapsed(begin, end, fuzz_chance(f, 5) ? NULL : &seconds), NULL);
}

static void graph(fuzz *f, void (*function)(void)) {
    tsh_graph *made = NULL;
    (void)function;
    fuzz_said(f, "graph_capture_begin", tsh_graph_capture_begin(device(f)), NULL);
    fuzz_said(f, "graph_capture_end", tsh_graph_capture_end(device(f), fuzz_chance(f, 50) ? NULL : &made), made);
    fuzz_said(f, "graph_launch", tsh_graph_launch(made), NULL);
    tsh_graph_destroy(made);
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static int64_t size(fuzz *f) {
    static const int64_t odd[] = {0, 0, 1, -1, INT64_MAX, (int64_t)1 << 40};
    if (fuzz_chance(f, 6)) return odd[fuzz_below(f, fuzz_chance(f, 20) ? 6 : 3)];
    return fuzz_chance(f, 88) ? 4 : 1 + fuzz_below(f, 6);
}

/* Fills a tensor of ids with small numbers, mostly below 4. */
static void fill(fuzz *f, tsh_tensor *t) {
    int64_t numel = tsh_tensor_local_numel(t), ids[MOST];
    if (tsh_tensor_dtype(t) != TSH_INT64 || numel > MOST) {
        fuzz_said(f, "tensor_fill", tsh_tensor_fill(t, fuzz_number(f)), NULL);
        return;
    }
    int past = fuzz_chance(f, 10);
    for (int64_t i = 0; i < numel; i++) ids[i] = i * 7 % (4 + past);
    fuzz_said(f, "tensor_write", tsh_tensor_write(t, ids, numel), NULL);
}

void fuzz_make_tensor(fuzz *f, void (*function)(void)) {
    tsh_tensor_config config = {.dtype = fuzz_dtype(f), .ndim = fuzz_chance(f, 85) ? 2 : fuzz_index(f, 4)};
    const tsh_mesh *mesh = fuzz_mesh(f);
    tsh_tensor *t = NULL;
    (void)function;
    bool ids = true; /* are lacking */
    for (int i = 0; i < FUZZ_SLOTS; i++) ids = ids && tsh_tensor_dtype(f->slots[FUZZ_TENSOR][i].object) != TSH_INT64;
    if (ids && fuzz_chance(f, 50)) config.dtype = TSH_INT64;
    if (config.dtype == TSH_INT64 && fuzz_chance(f, 80)) config.ndim = 1;
    for (int d = 0; d < TSH_MAX_DIMS; d++) config.shape[d] = size(f);
    for (int a = 0; a < TSH_MAX_AXES; a++) config.layout[a] = fuzz_layout(f);
    bool bare = fuzz_chance(f, 2), no_out = fuzz_chance(f, 2), leaf = fuzz_chance(f, 70);
    tsh_status status = tsh_tensor_create(mesh, bare ? NULL : &config, no_out ? NULL : &t);
    fuzz_made(f, FUZZ_TENSOR, "tensor_create", status, t, mesh);
    if (!t) return;
    fill(f, t);
    if (leaf) fuzz_said(f, "tensor_require_grad", tsh_tensor_require_grad(t, true), NULL);
}

static void create_values(fuzz *f, void (*function)(void)) {
    tsh_tensor_config config = {.dtype = fuzz_dtype(f), .ndim = fuzz_chance(f, 85) ? 2 : fuzz_index(f, 4)};
    const tsh_mesh *mesh = fuzz_mesh(f);
    tsh_tensor *t = NULL, **out = fuzz_chance(f, 2) ? NULL : &t;
    double a = fuzz_number(f), b = fuzz_number(f);
    int way = fuzz_below(f, 4);
    (void)function;
    for (int d = 0; d < TSH_MAX_DIMS; d++) config.shape[d] = size(f);
    for (int i = 0; i < TSH_MAX_AXES; i++) config.layout[i] = fuzz_layout(f);
    tsh_status status = way == 0   ? tsh_tensor_create_full(mesh, &config, a, out)
                        : way == 1 ? tsh_tensor_create_arange(mesh, &config, a, b, out)
                        : way == 2 ? tsh_tensor_create_uniform(mesh, &config, a, b, out)
                                   : tsh_tensor_create_normal(mesh, &config, a, b, out);
    fuzz_made(f, FUZZ_TENSOR, "tensor_create with values", status, t, mesh);
    if (t && config.dtype == TSH_INT64) fill(f, t); /* ids stay in their range */
}

static bool lacks(const fuzz *f, fuzz_kind kind, int wanted) {
    int filled = 0;
    for (int i = kind == FUZZ_MESH; i < FUZZ_SLOTS; i++) filled += f->slots[kind][i].stamp != 0;
    return filled < wanted;
}

/* Each maker draws from a state of its own, because the number of draws of one maker may depend on the rank. */
void fuzz_furnish(fuzz *f) {
    static const int wanted[FUZZ_KINDS] = {
        [FUZZ_MESH] = 1,      [FUZZ_TAPE] = 1,   [FUZZ_LIST] = 1,     [FUZZ_LINEAR] = 2,
        [FUZZ_EMBEDDING] = 1, [FUZZ_TENSOR] = 8, [FUZZ_OPTIMIZER] = 1};
    uint64_t draw = f->draw, after = f->draw + 99999;
    for (const fuzz_call *c = fuzz_makers; c->name; c++) {
        for (int i = 0; i < 12 && lacks(f, (fuzz_kind)c->weight, wanted[c->weight]); i++) {
            f->draw = draw += 77;
            c->make(f, c->function);
        }
    }
    f->draw = after;
}

static void tensor_clone(fuzz *f, void (*function)(void)) {
    tsh_tensor *from = fuzz_tensor(f), *t = NULL;
    (void)function;
    tsh_status status = tsh_tensor_clone(from, fuzz_chance(f, 3) ? NULL : &t);
    fuzz_made(f, FUZZ_TENSOR, "tensor_clone", status, t, tsh_tensor_mesh(t));
}

/* Also of a tape's, which then lives on. */
static void tensor_retain(fuzz *f, void (*function)(void)) {
    tsh_tensor *t = tsh_tensor_retain(fuzz_tensor(f));
    (void)function;
    fuzz_put(f, FUZZ_TENSOR, t, tsh_tensor_mesh(t));
}

static void tensor_release(fuzz *f, void (*function)(void)) {
    (void)function;
    tsh_tensor_release(NULL);
    fuzz_empty(f, FUZZ_TENSOR, fuzz_below(f, FUZZ_SLOTS));
}

/* --- questions and elements --------------------------------------------------------------------------------------- */

static void tensor_questions(fuzz *f, void (*function)(void)) {
    char text[200];
    const tsh_tensor *t = fuzz_tensor(f);
    int64_t numel = 1;
    (void)function;
    for (int d = 0; d < tsh_tensor_ndim(t); d++) {
        numel *= tsh_tensor_local_shape(t)[d];
        if (tsh_tensor_local_shape(t)[d] > tsh_tensor_shape(t)[d]) fuzz_wrong(f, "a part larger than the whole");
    }
    if (t && numel != tsh_tensor_local_numel(t)) fuzz_wrong(f, "tensor_numel");
    if (tsh_tensor_local_nbytes(t) != (size_t)tsh_tensor_local_numel(t) * tsh_dtype_size(tsh_tensor_dtype(t)))
        fuzz_wrong(f, "nbytes");
    if (!tsh_tensor_mesh(t) != !t) fuzz_wrong(f, "tensor_mesh");
    tsh_box box = tsh_tensor_box(t);
    for (int d = 0; d < tsh_tensor_ndim(t); d++) {
        if (box.length[d] != tsh_tensor_local_shape(t)[d]) fuzz_wrong(f, "tensor_box");
    }
    tsh_layout layout = tsh_tensor_layout(t, fuzz_group(f));
    if ((unsigned)layout.kind > TSH_KIND_LOCAL) fuzz_wrong(f, "tensor_layout");
    size_t room = (size_t)fuzz_below(f, (int)sizeof text);
    tsh_tensor_describe(t, text, room);
    if (room && strlen(text) >= room) fuzz_wrong(f, "tensor_describe");
    tsh_tensor_data(t);
    tsh_tensor_grad(t);
}

static void tensor_write(fuzz *f, void (*function)(void)) {
    static const char zeros[MOST * 16];
    tsh_tensor *t = fuzz_tensor(f);
    int64_t numel = tsh_tensor_local_numel(t), count = fuzz_chance(f, 90) ? numel : fuzz_index(f, 9);
    (void)function;
    if (numel > MOST) return;
    fuzz_said(f, "tensor_write", tsh_tensor_write(t, fuzz_chance(f, 3) ? NULL : zeros, count), NULL);
}

static void tensor_read(fuzz *f, void (*function)(void)) {
    static _Thread_local char room[MOST * 16];
    tsh_tensor *t = fuzz_tensor(f);
    int64_t numel = tsh_tensor_local_numel(t), count = fuzz_chance(f, 90) ? numel : fuzz_index(f, 9);
    (void)function;
    if (numel > MOST) return;
    fuzz_said(f, "tensor_read", tsh_tensor_read(t, fuzz_chance(f, 3) ? NULL : room, count), NULL);
}

static void dlpack(fuzz *f, void (*function)(void)) {
    struct DLManagedTensor *array = NULL;
    tsh_tensor *copy = NULL;
    (void)function;
    tsh_tensor_clone(fuzz_tensor(f), &copy);
    tsh_status status = tsh_tensor_to_dlpack(copy, fuzz_chance(f, 3) ? NULL : &array);
    fuzz_said(f, "tensor_to_dlpack", status, array);
    tsh_tensor_release(copy);
    if (!array) return;
    if (fuzz_chance(f, 20)) array->tensor.strides = NULL;
    if (fuzz_chance(f, 5)) array->tensor.device.type = fuzz_index(f, 9);
    fuzz_said(f, "tensor_write_dlpack", tsh_tensor_write_dlpack(fuzz_tensor(f), array), NULL);
    array->deleter(array);
}

static void tensor_write_whole(fuzz *f, void (*function)(void)) {
    static const char zeros[MOST * 16];
    tsh_tensor *t = fuzz_tensor(f);
    int64_t whole = 1;
    (void)function;
    for (int d = 0; d < tsh_tensor_ndim(t); d++) {
        if (__builtin_mul_overflow(whole, tsh_tensor_shape(t)[d], &whole)) return;
    }
    if (whole > MOST) return;
    fuzz_said(f, "tensor_write_whole", tsh_tensor_write_whole(t, fuzz_chance(f, 3) ? NULL : zeros), NULL);
}

static tsh_status write_zeros(void *user, const tsh_box *box, void *values) {
    const tsh_tensor *t = user;
    size_t bytes = tsh_dtype_size(tsh_tensor_dtype(t));
    for (int d = 0; d < tsh_tensor_ndim(t); d++) bytes *= (size_t)box->length[d];
    memset(values, 0, bytes);
    return box->start[0] % 7 == 6 ? TSH_ERR_IO : TSH_OK;
}

static void tensor_write_boxes(fuzz *f, void (*function)(void)) {
    tsh_tensor *t = fuzz_tensor(f);
    (void)function;
    fuzz_said(f, "tensor_write_boxes", tsh_tensor_write_boxes(t, fuzz_chance(f, 3) ? NULL : write_zeros, t), NULL);
}

/* Of an int64 tensor only zeros are written: ids that every table has. */
static void move_whole(fuzz *f, void (*function)(void)) {
    static _Thread_local char room[MOST * 16], zeros[MOST * 16];
    tsh_tensor *t = fuzz_tensor(f);
    int64_t whole = 1;
    int root = fuzz_index(f, f->size), way = fuzz_below(f, 3);
    bool bare = fuzz_chance(f, 3);
    (void)function;
    for (int d = 0; d < tsh_tensor_ndim(t); d++) {
        if (__builtin_mul_overflow(whole, tsh_tensor_shape(t)[d], &whole)) return;
    }
    if (whole > MOST) return;
    tsh_status status = way == 0   ? tsh_tensor_read_whole(t, bare ? NULL : room)
                        : way == 1 ? tsh_tensor_gather_whole(t, root, bare ? NULL : room)
                                   : tsh_tensor_scatter_whole(t, root, bare ? NULL : zeros);
    fuzz_said(f, "a move of the whole", status, NULL);
}

/* Boxes of all of it on every rank, or of some rows on each. Of an int64 tensor only zeros are written, too. */
static void move_parts(fuzz *f, void (*function)(void)) {
    static _Thread_local char room[MOST * 16], zeros[MOST * 16];
    tsh_tensor *t = fuzz_tensor(f);
    tsh_group *group = tsh_world_group(f->world);
    tsh_box box = {.start = {0}};
    bool writes = fuzz_chance(f, 50), all = fuzz_chance(f, 50), bare = fuzz_chance(f, 3), off = fuzz_chance(f, 3);
    int64_t whole = 1;
    (void)function;
    for (int d = 0; d < tsh_tensor_ndim(t); d++) {
        box.length[d] = tsh_tensor_shape(t)[d];
        if (__builtin_mul_overflow(whole, tsh_tensor_shape(t)[d], &whole)) return;
    }
    if (whole > MOST) return;
    if (!all) tsh_split(box.length[0], f->size, tsh_world_rank(f->world), &box.start[0], &box.length[0]);
    if (off) box.start[0] -= 1;
    tsh_status status = writes ? tsh_tensor_write_parts(t, group, &box, bare ? NULL : zeros)
                               : tsh_tensor_read_parts(t, group, &box, bare ? NULL : room);
    fuzz_said(f, "a move of parts", status, NULL);
}

static void print(fuzz *f, void (*function)(void)) {
    tsh_tensor *t = fuzz_tensor(f);
    FILE *nowhere = fopen("/dev/null", "w");
    tsh_print_config config = {.root = fuzz_index(f, f->size),
                               .precision = fuzz_index(f, 20),
                               .threshold = fuzz_index(f, 100),
                               .edge_items = fuzz_index(f, 4),
                               .line_width = fuzz_index(f, 100)};
    (void)function;
    fuzz_said(f, "tensor_print", tsh_tensor_print(t, nowhere, fuzz_chance(f, 10) ? NULL : &config), NULL);
    if (nowhere) fclose(nowhere);
}

static void cuts(fuzz *f, void (*function)(void)) {
    const tsh_mesh *mesh = fuzz_mesh(f);
    const tsh_group *group = mesh ? tsh_mesh_axis_group(mesh, 0) : NULL;
    int64_t at[FUZZ_RANKS + 1] = {0};
    int parts = fuzz_chance(f, 80) && group ? tsh_group_size(group) : 1 + fuzz_below(f, FUZZ_RANKS);
    bool no_out = fuzz_chance(f, 3), twice = fuzz_chance(f, 10);
    uint64_t number = 0;
    tsh_tensor *t = NULL;
    (void)function;
    for (int i = 1; i <= parts; i++) at[i] = at[i - 1] + fuzz_index(f, 4);
    tsh_status status = tsh_cuts_create(mesh, parts, at, no_out ? NULL : &number);
    if (status == TSH_OK && number == 0) fuzz_wrong(f, "cuts_create");
    fuzz_said(f, "cuts_create", status, NULL);
    const tsh_tensor_config config = {
        .ndim = 1, .shape = {fuzz_chance(f, 90) ? at[parts] : 5}, .layout = {TSH_SHARD_CUTS(0, number)}};
    status = tsh_tensor_create(mesh, &config, &t);
    tsh_cuts_release(mesh, number);
    if (twice) tsh_cuts_release(mesh, number);
    fuzz_made(f, FUZZ_TENSOR, "tensor_create", status, t, mesh);
}

static void from_local(fuzz *f, void (*function)(void)) {
    tsh_tensor *local = fuzz_tensor(f), *t = NULL;
    tsh_layout layouts[TSH_MAX_AXES];
    bool given = fuzz_chance(f, 30), bare = fuzz_chance(f, 3), no_out = fuzz_chance(f, 3);
    (void)function;
    for (int a = 0; a < TSH_MAX_AXES; a++) layouts[a] = fuzz_layout(f);
    tsh_status status =
        tsh_from_local(local, bare ? NULL : layouts, given ? tsh_tensor_shape(local) : NULL, no_out ? NULL : &t);
    fuzz_made(f, FUZZ_TENSOR, "from_local", status, t, tsh_tensor_mesh(local));
}

static void tensor_fill(fuzz *f, void (*function)(void)) {
    tsh_tensor *t = fuzz_tensor(f);
    (void)function;
    if (tsh_tensor_dtype(t) == TSH_INT64) return; /* ids stay what they are */
    fuzz_said(f, "tensor_fill", tsh_tensor_fill(t, fuzz_number(f)), NULL);
}

static void tensor_item(fuzz *f, void (*function)(void)) {
    (void)function;
    tsh_tensor_item(fuzz_tensor(f));
}

static void gradients(fuzz *f, void (*function)(void)) {
    (void)function;
    fuzz_said(f, "tensor_require_grad", tsh_tensor_require_grad(fuzz_tensor(f), true), NULL);
    fuzz_said(f, "tensor_retain_grad", tsh_tensor_retain_grad(fuzz_tensor(f)), NULL);
    tsh_tensor_zero_grad(fuzz_tensor(f));
}

static void sparse_gradients(fuzz *f, void (*function)(void)) {
    int64_t count = 0;
    const int64_t *rows = NULL;
    (void)function;
    fuzz_said(f, "tensor_set_sparse_grad", tsh_tensor_set_sparse_grad(fuzz_tensor(f)), NULL);
    tsh_tensor_sparse_grad(fuzz_tensor(f), &count, fuzz_chance(f, 50) ? &rows : NULL);
}

static void tensor_init(fuzz *f, void (*function)(void)) {
    tsh_init init = {(tsh_init_kind)fuzz_index(f, 9), fuzz_number(f), fuzz_number(f), fuzz_number(f)};
    (void)function;
    fuzz_said(f, "tensor_init", tsh_tensor_init(fuzz_tensor(f), fuzz_chance(f, 3) ? NULL : &init), NULL);
}

const fuzz_call fuzz_tensor_calls[] = {
    {"tsh_status_name tsh_version tsh_dtype_size tsh_dtype_name tsh_error_message", names, NULL, 1},
    {"tsh_split", split, NULL, 1},
    {"tsh_zigzag", zigzag, NULL, 1},
    {"tsh_split_by_weight", split_by_weight, NULL, 1},
    {"tsh_device_describe tsh_device_kind_of tsh_device_stats tsh_device_memory tsh_memory_purpose_name "
     "tsh_device_reset_peak tsh_device_synchronize tsh_device_stream tsh_function_supports",
     device_questions, NULL, 1},
    {"tsh_event_create tsh_event_destroy", event_create, NULL, 1},
    {"tsh_event_record tsh_event_elapsed", event_use, NULL, 1},
    {"tsh_graph_capture_begin tsh_graph_capture_end tsh_graph_launch tsh_graph_destroy", graph, NULL, 1},
    {"tsh_tensor_create", fuzz_make_tensor, NULL, 12},
    {"tsh_tensor_create_full tsh_tensor_create_arange tsh_tensor_create_uniform tsh_tensor_create_normal",
     create_values, NULL, 3},
    {"tsh_tensor_clone", tensor_clone, NULL, 3},
    {"tsh_tensor_retain", tensor_retain, NULL, 3},
    {"tsh_tensor_release", tensor_release, NULL, 3},
    {"tsh_tensor_dtype tsh_tensor_ndim tsh_tensor_local_shape tsh_tensor_shape tsh_tensor_local_numel "
     "tsh_tensor_local_nbytes "
     "tsh_tensor_mesh tsh_tensor_box tsh_tensor_layout tsh_tensor_data tsh_tensor_describe tsh_tensor_grad",
     tensor_questions, NULL, 5},
    {"tsh_tensor_write", tensor_write, NULL, 3},
    {"tsh_tensor_read", tensor_read, NULL, 3},
    {"tsh_tensor_to_dlpack tsh_tensor_write_dlpack", dlpack, NULL, 3},
    {"tsh_tensor_write_whole", tensor_write_whole, NULL, 3},
    {"tsh_tensor_write_boxes", tensor_write_boxes, NULL, 3},
    {"tsh_tensor_read_whole tsh_tensor_gather_whole tsh_tensor_scatter_whole", move_whole, NULL, 4},
    {"tsh_tensor_write_parts tsh_tensor_read_parts", move_parts, NULL, 3},
    {"tsh_cuts_create tsh_cuts_release", cuts, NULL, 3},
    {"tsh_from_local", from_local, NULL, 3},
    {"tsh_tensor_print", print, NULL, 3},
    {"tsh_tensor_fill", tensor_fill, NULL, 3},
    {"tsh_tensor_item", tensor_item, NULL, 2},
    {"tsh_tensor_require_grad tsh_tensor_retain_grad tsh_tensor_zero_grad", gradients, NULL, 4},
    {"tsh_tensor_set_sparse_grad tsh_tensor_sparse_grad", sparse_gradients, NULL, 3},
    {"tsh_tensor_init", tensor_init, NULL, 3},
    {NULL, NULL, NULL, 0},
};
