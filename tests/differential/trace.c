#include "differential/trace.h"
#include "support/tensors.h"
#include "support/values.h"

#include <stdlib.h>
#include <string.h>

void tshi_trace_clear(tshi_trace *t) {
    t->count = 0;
    t->used = 0;
    t->status = TSH_OK;
    t->pass = t->step = -1;
    t->words[0] = '\0';
}

void tshi_trace_free(tshi_trace *t) {
    free(t->entries);
    free(t->numbers);
    *t = (tshi_trace){0};
}

static tshi_entry *new_entry(tshi_trace *t, const tshi_entry *what) {
    if (t->count == t->capacity) {
        t->capacity = 2 * t->capacity + 64;
        t->entries = realloc(t->entries, sizeof *t->entries * (size_t)t->capacity);
        if (!t->entries) abort();
    }
    t->entries[t->count] = *what;
    return &t->entries[t->count++];
}

static double *new_numbers(tshi_trace *t, tshi_entry *e, int64_t count) {
    size_t need = t->used + (size_t)count;
    if (need > t->room) {
        t->room = 2 * need + 1024;
        t->numbers = realloc(t->numbers, sizeof *t->numbers * t->room);
        if (!t->numbers) abort();
    }
    e->count = count;
    e->at = t->used;
    t->used = need;
    return t->numbers + e->at;
}

static tshi_dims dims_of(int ndim, const int64_t *sizes) {
    tshi_dims d = {.ndim = ndim};
    memcpy(d.dim, sizes, sizeof *sizes * (size_t)ndim);
    return d;
}

static void widen(const tsh_tensor *tensor, int64_t count, double *to) {
    for (int64_t i = 0; i < count; i++) to[i] = tshi_test_element(tensor, i);
}

tshi_entry *tshi_trace_tensor(tshi_trace *t, const tshi_entry *what, const tsh_tensor *tensor) {
    tshi_entry *e = new_entry(t, what);
    e->present = tensor != NULL;
    if (!tensor) return e;
    const tsh_mesh *mesh = tsh_tensor_mesh(tensor);
    e->shape = dims_of(tsh_tensor_ndim(tensor), tsh_tensor_local_shape(tensor));
    e->whole = dims_of(tsh_tensor_ndim(tensor), tsh_tensor_shape(tensor));
    for (int a = 0; a < tsh_mesh_axes(mesh); a++)
        e->layout[a] = tsh_tensor_layout(tensor, tsh_mesh_axis_group(mesh, a));
    int64_t count = tsh_tensor_local_numel(tensor);
    e->present = tsh_tensor_data(tensor) != NULL; /* a view of a sharded parameter is there in calls alone */
    if (e->present) widen(tensor, count, new_numbers(t, e, count));
    return e;
}

void tshi_trace_gradient(tshi_trace *t, const tshi_entry *what, const tsh_tensor *parameter) {
    int64_t count = 0, cols = tsh_tensor_ndim(parameter) == 2 ? tsh_tensor_local_shape(parameter)[1] : 0;
    const int64_t *rows = NULL;
    const tsh_tensor *sparse = tsh_tensor_sparse_grad(parameter, &count, &rows);
    tsh_tensor *all = NULL;
    if (!sparse || tsh_tensor_clone(parameter, &all) != TSH_OK || tsh_tensor_fill(all, 0) != TSH_OK) {
        tshi_trace_tensor(t, what, tsh_tensor_grad(parameter));
    } else {
        for (int64_t e = 0; e < count * cols; e++)
            tshi_put(tsh_tensor_dtype(all), tsh_tensor_data(all), rows[e / cols] * cols + e % cols,
                     (tshi_number){tshi_test_element(sparse, e), 0});
        tshi_trace_tensor(t, what, all);
    }
    tsh_tensor_release(all);
}

void tshi_trace_copy(tshi_trace *t, const tshi_entry *what, const tshi_trace *from, const tshi_entry *e) {
    tshi_entry *copy = new_entry(t, e);
    copy->kind = what->kind;
    copy->index = what->index;
    copy->pass = what->pass;
    copy->objective = what->objective;
    copy->alias = what->alias;
    double *numbers = new_numbers(t, copy, e->count);
    if (e->count > 0) memcpy(numbers, from->numbers + e->at, sizeof *numbers * (size_t)e->count);
}

void tshi_trace_number(tshi_trace *t, const tshi_entry *what, double number) {
    tshi_entry *e = new_entry(t, what);
    e->present = true;
    *new_numbers(t, e, 1) = number;
}

const tshi_entry *tshi_trace_value(const tshi_trace *t, int pass, int k) {
    for (int i = 0; i < t->count; i++) {
        const tshi_entry *e = &t->entries[i];
        if (e->kind == ENTRY_VALUE && e->pass == pass && e->index == k) return e;
    }
    return NULL;
}
