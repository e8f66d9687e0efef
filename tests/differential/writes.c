/* What a program writes to between its calls: parameters, and values that backward may need. */
#include "differential/run.h"
#include "dist/world.h"

#include <string.h>

/* The copy of a parameter that this rank has: a LOCAL leaf has one for each. */
static int copy_of(const tshi_run *r, const tshi_owned *o) {
    return o->part == OWNED_LEAF ? tshi_rank_number(r->p, r->p->step[o->step].layout, TSH_KIND_LOCAL, r->part->rank)
                                 : 0;
}

/* One number for all elements; the world's random numbers go on as without. */
static tsh_status write_alike(const tshi_run *r, const tshi_owned *o, tsh_tensor *t, bool one_whole) {
    double value = tshi_rewritten_value(r->p, o, 0, 0);
    const tsh_init init = {.kind = TSH_INIT_CONSTANT, .a = value};
    uint64_t stream = r->part->world->next_stream;
    tsh_status status = one_whole && r->p->seed % 5 == 3 ? tsh_tensor_init(t, &init) : tsh_tensor_fill(t, value);
    r->part->world->next_stream = stream;
    return status;
}

/* As a whole, from one rank or from each, or this rank's part. */
static tsh_status rewrite(tshi_run *r, int k) {
    const tshi_owned *o = &r->owned[k];
    tsh_tensor *t = r->parameter[k], *host = NULL;
    tshi_dims whole = {.ndim = tsh_tensor_ndim(t)}, local = whole;
    tsh_layout layout[TSH_MAX_AXES] = {{0}};
    bool one_whole = true, terms = false;
    memcpy(whole.dim, tsh_tensor_shape(t), sizeof *whole.dim * (size_t)whole.ndim);
    for (int a = 0; a < r->p->axes; a++) {
        layout[a] = tshi_run_layout(r, t, a);
        one_whole = one_whole && layout[a].kind != TSH_KIND_LOCAL;
        terms = terms || layout[a].kind == TSH_KIND_PARTIAL;
    }
    int way = terms ? (int)(r->p->seed % 2) : (int)(r->p->seed % 3);
    if (!one_whole && terms) return TSH_OK;
    if (tshi_rewritten_alike(r->p, o)) return write_alike(r, o, t, one_whole);
    tshi_held box = tshi_held_of(r->p, layout, r->part->rank, &whole);
    bool part = !one_whole || way == 2;
    local = part ? box.shape : whole;
    tsh_tensor_config config = {.dtype = tsh_tensor_dtype(t), .ndim = local.ndim};
    memcpy(config.shape, local.dim, sizeof config.shape);
    tsh_status status = tsh_tensor_create(r->part->mesh, &config, &host);
    for (int64_t i = 0; status == TSH_OK && i < tshi_dims_numel(&local); i++)
        tshi_run_put(host, i,
                     tshi_rewritten_value(r->p, o, copy_of(r, o), part ? tshi_held_index(&box, &whole, i) : i));
    if (status == TSH_OK && part) status = tsh_tensor_write(t, tsh_tensor_data(host), tsh_tensor_local_numel(t));
    if (status == TSH_OK && !part && way == 0) status = tsh_tensor_write_whole(t, tsh_tensor_data(host));
    if (status == TSH_OK && !part && way == 1) status = tsh_tensor_scatter_whole(t, 0, tsh_tensor_data(host));
    tsh_tensor_release(host);
    return status;
}

tsh_status tshi_run_rewrite(tshi_run *r) {
    tsh_status status = TSH_OK;
    for (int k = 0; k < r->owned_count && status == TSH_OK; k++) status = rewrite(r, k);
    return tshi_run_note(r, status, "rewrite");
}

tsh_status tshi_run_spoil(tshi_run *r) {
    int spoil = r->p->spoil, k = spoil - SPOIL_VALUE;
    tsh_status status = TSH_OK;
    if (spoil >= 0 && spoil < r->owned_count)
        status = rewrite(r, spoil);
    else if (k >= 0 && k < r->p->steps && r->p->step[k].call > CALL_IDS && tsh_tensor_data(r->value[k]))
        status = tsh_tensor_fill(r->value[k], r->p->step[k].integer ? 0 : 3);
    if (k >= 0 && status == TSH_ERR_STATE) status = TSH_OK; /* a view of gathered values is not written to */
    return tshi_run_note(r, status, "rewrite");
}
