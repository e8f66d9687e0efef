/* Drawing, and the slots. */
#include "fuzz.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* --- drawing: splitmix64 ------------------------------------------------------------------------------------------ */

uint64_t fuzz_bits(fuzz *f) {
    uint64_t z = f->draw += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

int fuzz_below(fuzz *f, int n) {
    return n > 0 ? (int)(fuzz_bits(f) % (uint64_t)n) : 0;
}

bool fuzz_chance(fuzz *f, int percent) {
    return fuzz_below(f, 100) < percent;
}

int fuzz_index(fuzz *f, int n) {
    static const int far[] = {-1, INT_MIN, INT_MAX, -2, 1000};
    if (fuzz_chance(f, 4)) return fuzz_chance(f, 30) ? n : far[fuzz_below(f, 5)];
    return fuzz_below(f, n);
}

int fuzz_dim(fuzz *f) {
    return fuzz_chance(f, 20) ? -1 : fuzz_index(f, fuzz_chance(f, 80) ? 2 : 3);
}

tsh_dtype fuzz_dtype(fuzz *f) {
    if (fuzz_chance(f, 85)) return TSH_FLOAT32;
    if (fuzz_chance(f, 40)) return TSH_FLOAT64;
    return fuzz_chance(f, 60) ? TSH_INT64 : (tsh_dtype)fuzz_index(f, TSH_DTYPE_COUNT);
}

tsh_layout fuzz_layout(fuzz *f) {
    int draw = fuzz_below(f, 100);
    if (draw < 50) return TSH_REPLICATED;
    if (draw < 80) return TSH_SHARD(fuzz_dim(f));
    if (draw < 86) return TSH_PARTIAL;
    if (draw < 98) return TSH_LOCAL;
    tsh_layout layout = {.kind = (tsh_layout_kind)fuzz_index(f, 9), .dim = fuzz_dim(f)};
    if (!fuzz_index(f, 4)) layout.order = fuzz_index(f, 5);
    if (!fuzz_index(f, 4)) layout.units = fuzz_index(f, 6);
    if (layout.units && !fuzz_index(f, 2)) layout.blocks = layout.units * fuzz_index(f, 4);
    if (!fuzz_index(f, 8)) layout.sharing = (tsh_sharing)fuzz_index(f, 5);
    return layout;
}

tsh_reduce_op fuzz_reduce(fuzz *f) {
    return fuzz_chance(f, 60) ? TSH_REDUCE_SUM : (tsh_reduce_op)fuzz_index(f, TSH_REDUCE_OP_COUNT);
}

double fuzz_number(fuzz *f) {
    static const double odd[] = {0, -1, 1e300, 1e-300, NAN, INFINITY, -INFINITY};
    return fuzz_chance(f, 10) ? odd[fuzz_below(f, 7)] : (double)fuzz_below(f, 1000) / 500;
}

/* --- results of calls --------------------------------------------------------------------------------------------- */

void fuzz_wrong(fuzz *f, const char *format, ...) {
    va_list arguments;
    if (f->wrong[0]) return;
    va_start(arguments, format);
    vsnprintf(f->wrong, sizeof f->wrong, format, arguments);
    va_end(arguments);
}

void fuzz_said(fuzz *f, const char *name, tsh_status status, const void *out) {
    if (status == TSH_OK) return;
    f->status = status;
    if ((int)status < 0 || status >= TSH_STATUS_COUNT) fuzz_wrong(f, "%s: %d is no status", name, (int)status);
    if (!tsh_error_message()[0]) fuzz_wrong(f, "%s: %s without words", name, tsh_status_name(status));
    if (out) fuzz_wrong(f, "%s: %s, and out is not NULL", name, tsh_status_name(status));
    if (status == TSH_ERR_PEER || status == TSH_ERR_MISMATCH || status == TSH_ERR_TIMEOUT || status == TSH_ERR_STATE)
        f->severe = true;
}

/* A call may return its argument, which the tape does not own: it must not go when the tape is reset. */
static bool held_elsewhere(const fuzz *f, const tsh_tensor *value) {
    for (int i = 0; i < FUZZ_SLOTS; i++) {
        const tsh_tensor *t = f->slots[FUZZ_TENSOR][i].object;
        if (t == value || tsh_tensor_grad(t) == value) return true;
        if (tsh_linear_weight(f->slots[FUZZ_LINEAR][i].object) == value) return true;
        if (tsh_embedding_weight(f->slots[FUZZ_EMBEDDING][i].object) == value) return true;
    }
    return false;
}

void fuzz_value(fuzz *f, tsh_tape *tape, tsh_tensor *value) {
    if (!tape) {
        if (value) fuzz_wrong(f, "a value without a tape");
        return;
    }
    if (value) {
        if (!held_elsewhere(f, value)) fuzz_put(f, FUZZ_VALUE, value, tape);
        return;
    }
    f->failed = true;
    f->status = tsh_tape_status(tape);
    if (f->status == TSH_OK) fuzz_wrong(f, "NULL, and the tape has not failed");
    if (!tsh_tape_message(tape)[0]) fuzz_wrong(f, "the tape has failed without words");
}

/* --- picking ------------------------------------------------------------------------------------------------------ */

/* A call that only this rank makes may change it. Meshes and groups do not change, and tapes are renewed. */
static void *take(fuzz *f, fuzz_kind kind, fuzz_slot *slot) {
    bool changes = kind >= FUZZ_LIST && kind <= FUZZ_DATA_PARALLEL;
    if (f->deviates && (changes || kind == FUZZ_TENSOR)) slot->stamp = f->stamp;
    return slot->object;
}

static fuzz_slot *pick_slot(fuzz *f, fuzz_kind kind) {
    int start = fuzz_below(f, FUZZ_SLOTS);
    if (fuzz_chance(f, 2)) return NULL;
    for (int i = 0; i < FUZZ_SLOTS; i++) {
        fuzz_slot *slot = &f->slots[kind][(start + i) % FUZZ_SLOTS];
        if (slot->stamp) return slot;
    }
    return NULL;
}

void *fuzz_pick(fuzz *f, fuzz_kind kind) {
    fuzz_slot *slot = pick_slot(f, kind);
    return slot ? take(f, kind, slot) : NULL;
}

static bool whole(const fuzz *f, const tsh_mesh *mesh) {
    int ranks = 1;
    for (int a = 0; a < tsh_mesh_axes(mesh); a++) ranks *= tsh_group_size(tsh_mesh_axis_group(mesh, a));
    return mesh && ranks == f->size;
}

/* An object on a mesh of some ranks differs from those of the other ranks: calls on it would not match. */
const tsh_mesh *fuzz_mesh(fuzz *f) {
    int draw = fuzz_below(f, 100), slot = fuzz_below(f, 4);
    const tsh_mesh *mesh = f->slots[FUZZ_MESH][slot].object;
    if (draw < 2) return NULL;
    if (draw < 3) return tsh_world_mesh(fuzz_pick(f, FUZZ_WORLD));
    if (draw < 15) mesh = tsh_group_mesh(f->slots[FUZZ_GROUP][slot].object);
    for (int i = 1; draw >= 40 && !whole(f, mesh) && i < FUZZ_SLOTS; i++) mesh = f->slots[FUZZ_MESH][i].object;
    return whole(f, mesh) ? mesh : f->slots[FUZZ_MESH][0].object;
}

tsh_group *fuzz_group(fuzz *f) {
    if (fuzz_chance(f, 70)) {
        const tsh_mesh *mesh = fuzz_mesh(f);
        return tsh_mesh_axis_group(mesh, fuzz_below(f, tsh_mesh_axes(mesh)));
    }
    return fuzz_pick(f, FUZZ_GROUP);
}

tsh_tensor *fuzz_tensor(fuzz *f) {
    int draw = fuzz_below(f, 100);
    tsh_tensor *value = draw < 45 ? fuzz_pick(f, FUZZ_VALUE) : NULL;
    if (value || draw == 0) return value;
    if (draw < 92) return fuzz_pick(f, FUZZ_TENSOR);
    if (draw < 96) return tsh_linear_weight(fuzz_pick(f, FUZZ_LINEAR));
    if (draw < 98) return tsh_embedding_weight(fuzz_pick(f, FUZZ_EMBEDDING));
    return tsh_tensor_grad(fuzz_pick(f, FUZZ_TENSOR));
}

static bool alike(const tsh_tensor *a, const tsh_tensor *b) {
    if (tsh_tensor_dtype(a) != tsh_tensor_dtype(b) || tsh_tensor_ndim(a) != tsh_tensor_ndim(b)) return false;
    if (tsh_tensor_mesh(a) != tsh_tensor_mesh(b)) return false;
    for (int d = 0; d < tsh_tensor_ndim(a); d++) {
        if (tsh_tensor_shape(a)[d] != tsh_tensor_shape(b)[d]) return false;
    }
    return true;
}

tsh_tensor *fuzz_tensor_like(fuzz *f, const tsh_tensor *other) {
    if (fuzz_chance(f, 10)) return fuzz_tensor(f);
    fuzz_kind kind = fuzz_chance(f, 50) ? FUZZ_TENSOR : FUZZ_VALUE;
    int start = fuzz_below(f, FUZZ_SLOTS);
    for (int i = 0; other && i < FUZZ_SLOTS; i++) {
        fuzz_slot *slot = &f->slots[kind][(start + i) % FUZZ_SLOTS];
        if (slot->object && alike(slot->object, other)) return take(f, kind, slot);
    }
    return fuzz_tensor(f);
}

tsh_tensor *fuzz_ids(fuzz *f) {
    int start = fuzz_below(f, FUZZ_SLOTS);
    bool other = fuzz_chance(f, 10);
    for (int i = 0; !other && i < FUZZ_SLOTS; i++) {
        fuzz_slot *slot = &f->slots[FUZZ_TENSOR][(start + i) % FUZZ_SLOTS];
        if (slot->object && tsh_tensor_dtype(slot->object) == TSH_INT64) return take(f, FUZZ_TENSOR, slot);
    }
    return fuzz_tensor(f);
}

/* --- filling and emptying ----------------------------------------------------------------------------------------- */

static void destroy(fuzz_kind kind, void *object) {
    switch (kind) {
    case FUZZ_MESH: tsh_mesh_destroy(object); break;
    case FUZZ_GROUP: tsh_group_destroy(object); break;
    case FUZZ_TENSOR: tsh_tensor_release(object); break;
    case FUZZ_TAPE: tsh_tape_destroy(object); break;
    case FUZZ_WORK: tsh_work_release(object); break;
    case FUZZ_LIST: tsh_parameters_destroy(object); break;
    case FUZZ_LINEAR: tsh_linear_destroy(object); break;
    case FUZZ_EMBEDDING: tsh_embedding_destroy(object); break;
    case FUZZ_OPTIMIZER: tsh_optimizer_destroy(object); break;
    case FUZZ_DATA_PARALLEL: tsh_data_parallel_destroy(object); break;
    case FUZZ_EVENT: tsh_event_destroy(object); break;
    case FUZZ_WORLD: tsh_world_destroy(object); break;
    case FUZZ_VALUE:
    case FUZZ_KINDS: break;
    }
}

static void forget_values(fuzz *f, const void *tape) {
    for (int i = 0; i < FUZZ_SLOTS; i++) {
        fuzz_slot *value = &f->slots[FUZZ_VALUE][i];
        if (value->parent == tape) *value = (fuzz_slot){0};
    }
}

static void empty_kind(fuzz *f, fuzz_kind kind, int first) {
    for (int i = first; i < FUZZ_SLOTS; i++) fuzz_empty(f, kind, i);
}

/* The kinds of objects that use a group or a mesh: their slots are emptied on every rank, members or not. */
void fuzz_empty_above(fuzz *f) {
    static const fuzz_kind kinds[] = {FUZZ_WORK,   FUZZ_DATA_PARALLEL, FUZZ_OPTIMIZER, FUZZ_LIST,
                                      FUZZ_LINEAR, FUZZ_EMBEDDING,     FUZZ_TENSOR};
    for (int i = 0; i < FUZZ_SLOTS; i++) fuzz_renew_tape(f, i);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) empty_kind(f, kinds[i], 0);
}

void fuzz_renew_tape(fuzz *f, int index) {
    fuzz_slot *slot = &f->slots[FUZZ_TAPE][index];
    if (!slot->object) return;
    forget_values(f, slot->object);
    tsh_tape_destroy(slot->object);
    if (tsh_tape_create(f->world, (tsh_tape **)&slot->object) != TSH_OK) fuzz_wrong(f, "%s", tsh_error_message());
}

void fuzz_empty(fuzz *f, fuzz_kind kind, int index) {
    fuzz_slot *slot = &f->slots[kind][index];
    void *object = slot->object;
    bool carries = kind == FUZZ_MESH || kind == FUZZ_GROUP || kind == FUZZ_WORLD;
    if (index == 0 && carries && kind != FUZZ_WORLD) return;
    if (slot->stamp && carries) fuzz_empty_above(f);
    if (object && kind == FUZZ_TAPE) forget_values(f, object);
    *slot = (fuzz_slot){0};
    destroy(kind, object);
}

void fuzz_put(fuzz *f, fuzz_kind kind, void *object, const void *parent) {
    static const int room[FUZZ_KINDS] = {[FUZZ_MESH] = 4,      [FUZZ_GROUP] = 4,          [FUZZ_TENSOR] = FUZZ_SLOTS,
                                         [FUZZ_TAPE] = 2,      [FUZZ_VALUE] = FUZZ_SLOTS, [FUZZ_WORK] = 5,
                                         [FUZZ_LIST] = 2,      [FUZZ_LINEAR] = 3,         [FUZZ_EMBEDDING] = 2,
                                         [FUZZ_OPTIMIZER] = 2, [FUZZ_DATA_PARALLEL] = 1,  [FUZZ_EVENT] = 2,
                                         [FUZZ_WORLD] = 1};
    int first = kind == FUZZ_MESH || kind == FUZZ_GROUP;
    int index = first + fuzz_below(f, room[kind] - first);
    /* Emptying a slot may release what the new object stands on; that goes first. */
    fuzz_empty(f, kind, index);
    f->slots[kind][index] = (fuzz_slot){object, f->stamp, parent};
}

void fuzz_made(fuzz *f, fuzz_kind kind, const char *name, tsh_status status, void *object, const void *parent) {
    fuzz_said(f, name, status, status != TSH_OK ? object : NULL);
    fuzz_put(f, kind, object, parent);
}

void fuzz_empty_all(fuzz *f) {
    static const fuzz_kind order[] = {FUZZ_WORK,      FUZZ_DATA_PARALLEL, FUZZ_OPTIMIZER, FUZZ_LIST,   FUZZ_LINEAR,
                                      FUZZ_EMBEDDING, FUZZ_TAPE,          FUZZ_VALUE,     FUZZ_TENSOR, FUZZ_EVENT,
                                      FUZZ_GROUP,     FUZZ_MESH,          FUZZ_WORLD};
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) empty_kind(f, order[i], 0);
}
