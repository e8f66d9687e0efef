/* Redistributions of global tensors with known answers, each on as many ranks as it names. */
#include "cases.h"
#include "support/box_cases.h"

#include <stdio.h>
#include <string.h>

#define MOST_GROUPS (2 * (TSH_MAX_AXES + 1) + 1)

/* What a rank has got, for the parent to compare. */
typedef struct result {
    long calls, bytes; /* of forward */
    int out_count, din_count;
    double out[TSHI_CASE_ELEMENTS], din[TSHI_CASE_ELEMENTS];
} result;

typedef struct kit {
    const tshi_box_case *c;
    tsh_mesh *from, *to; /* one mesh where both have the same ranks */
    tsh_tape *tape;
    tsh_tensor *x, *dy;
} kit;

/* --- what ranks have sent ----------------------------------------------------------------------------------------- */

static int add_group(tsh_group **groups, int count, tsh_group *group) {
    for (int i = 0; i < count; i++) {
        if (groups[i] == group) return count;
    }
    groups[count] = group;
    return count + 1;
}

static int add_mesh(tsh_group **groups, int count, const tsh_mesh *mesh) {
    if (!tsh_mesh_is_member(mesh)) return count;
    count = add_group(groups, count, tsh_mesh_members(mesh));
    for (int a = 0; a < tsh_mesh_axes(mesh); a++) count = add_group(groups, count, tsh_mesh_axis_group(mesh, a));
    return count;
}

/* The world's group and those of both meshes, each once. */
static int groups_of(const kit *k, tsh_group *groups[MOST_GROUPS]) {
    int count = add_group(groups, 0, tsh_world_group(tsh_mesh_world(k->from)));
    return add_mesh(groups, add_mesh(groups, count, k->from), k->to);
}

static void reset_counters(const kit *k) {
    tsh_group *groups[MOST_GROUPS];
    for (int i = groups_of(k, groups); i-- > 0;) tsh_group_reset_stats(groups[i]);
}

/* Bytes count in messages too, which are no collective calls. */
static void read_counters(const kit *k, result *out) {
    tsh_group *groups[MOST_GROUPS];
    for (int i = groups_of(k, groups); i-- > 0;) {
        tsh_communication_stats stats = tsh_group_stats(groups[i]);
        for (int op = 0; op < TSH_COLLECTIVE_COUNT; op++) {
            bool message = op == TSH_COLLECTIVE_SEND || op == TSH_COLLECTIVE_RECV;
            if (!message) out->calls += (long)stats.calls[op];
            if (op != TSH_COLLECTIVE_RECV) out->bytes += (long)stats.bytes[op];
        }
    }
}

/* --- a case on one rank ------------------------------------------------------------------------------------------- */

static tsh_mesh *make_mesh(tshi_rank *r, const tshi_placement *p) {
    char axes[1024] = "";
    tsh_mesh *mesh = NULL;
    for (int a = 0; a < p->axes; a++) {
        tshi_append(axes, sizeof axes, "%s%c=", a ? "," : "", 'a' + a);
        tshi_parts_append(tshi_placement_parts(p, a), axes, sizeof axes);
    }
    tshi_check_ok(r, tsh_mesh_create_on(r->world, p->ranks, tshi_placement_members(p), axes, &mesh));
    return mesh;
}

static bool same_mesh(const tshi_placement *a, const tshi_placement *b) {
    size_t sizes = sizeof *a->size * (size_t)a->axes, ranks = sizeof *a->ranks * (size_t)tshi_placement_members(a);
    for (int i = 0; a->axes == b->axes && i < a->axes; i++) {
        if (!tshi_parts_equal(tshi_placement_parts(a, i), tshi_placement_parts(b, i))) return false;
    }
    return a->axes == b->axes && !memcmp(a->size, b->size, sizes) && !memcmp(a->ranks, b->ranks, ranks);
}

/* This rank's part of a tensor, out of what the case says of it. */
static tsh_tensor *make_tensor(tshi_rank *r, const kit *k, const tsh_mesh *mesh, const tsh_layout *layout,
                               const tshi_case_parts *parts) {
    const tshi_exchange *e = &k->c->e;
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = e->ndim};
    tsh_tensor *t = NULL;
    memcpy(config.shape, e->shape, sizeof config.shape);
    memcpy(config.layout, layout, sizeof config.layout);
    if (!tshi_check_ok(r, tsh_tensor_create(mesh, &config, &t)) || !tsh_mesh_is_member(mesh)) return t;
    tshi_check_ok(r, tsh_tensor_write(t, parts->value[r->rank], parts->count[r->rank]));
    return t;
}

/* The values of this rank's part; -1 on a rank outside the mesh, where the part must be empty. */
static int read_values(tshi_rank *r, const tsh_tensor *t, double *to) {
    int64_t n = tsh_tensor_local_numel(t);
    if (!tshi_check(r, n <= TSHI_CASE_ELEMENTS, "%lld elements", (long long)n)) return -1;
    tshi_check_ok(r, tsh_tensor_read(t, to, n));
    if (tsh_mesh_is_member(tsh_tensor_mesh(t))) return (int)n;
    tshi_check(r, n == 0, "outside the mesh there are %lld elements", (long long)n);
    return -1;
}

static void forward_and_backward(tshi_rank *r, const kit *k) {
    result *out = r->result;
    reset_counters(k);
    tsh_tensor *y = tsh_redistribute(k->tape, k->x, k->to, k->c->e.to.layout);
    if (!tshi_check(r, y, "%s", tsh_tape_message(k->tape))) return;
    read_counters(k, out);
    out->out_count = read_values(r, y, out->out);
    if (y == k->x) y = tsh_scale(k->tape, y, 1); /* backward begins at what the tape has recorded */
    tsh_backward_config config = {.gradient = k->dy};
    if (!tshi_check_ok(r, tsh_backward_with(k->tape, y, &config))) return;
    out->din_count = read_values(r, tsh_tensor_grad(k->x), out->din);
}

static bool open_kit(tshi_rank *r, kit *k) {
    const tshi_exchange *e = &k->c->e;
    tsh_layout gradient[TSH_MAX_AXES];
    k->from = make_mesh(r, &e->from);
    k->to = same_mesh(&e->from, &e->to) ? k->from : make_mesh(r, &e->to);
    if (!k->from || !k->to || !tshi_check_ok(r, tsh_tape_create(r->world, &k->tape))) return false;
    for (int a = 0; a < TSH_MAX_AXES; a++) {
        gradient[a] = e->to.layout[a].kind == TSH_KIND_PARTIAL ? TSH_REPLICATED : e->to.layout[a];
    }
    k->x = make_tensor(r, k, k->from, e->from.layout, &k->c->in);
    k->dy = make_tensor(r, k, k->to, gradient, &k->c->dout);
    return k->x && k->dy && tshi_check_ok(r, tsh_tensor_require_grad(k->x, true));
}

static void rank_main(tshi_rank *r, void *arg) {
    kit k = {.c = arg};
    if (open_kit(r, &k)) forward_and_backward(r, &k);
    tsh_tape_destroy(k.tape);
    tsh_tensor_release(k.x);
    tsh_tensor_release(k.dy);
    if (!r->failed) tsh_barrier(tsh_world_group(r->world)); /* no rank leaves while its peers still work */
    if (k.to != k.from) tsh_mesh_destroy(k.to);
    tsh_mesh_destroy(k.from);
}

/* --- a case ------------------------------------------------------------------------------------------------------- */

static bool compare(const tshi_box_case *c, const result *got, char words[TSHI_CASE_WORDS]) {
    static tshi_case_parts out, din;
    long calls = 0, bytes = 0;
    tshi_case_parts_clear(&out);
    tshi_case_parts_clear(&din);
    for (int r = 0; r < c->world; r++) {
        if (got[r].calls > calls) calls = got[r].calls;
        bytes += got[r].bytes;
        out.count[r] = got[r].out_count;
        din.count[r] = got[r].din_count;
        memcpy(out.value[r], got[r].out, sizeof got[r].out);
        memcpy(din.value[r], got[r].din, sizeof got[r].din);
    }
    if (!tshi_box_case_out(c, &out, words) || !tshi_box_case_din(c, &din, words)) return false;
    if (c->calls >= 0 && calls > c->calls) {
        snprintf(words, TSHI_CASE_WORDS, "%ld collective calls, at most %ld wanted", calls, c->calls);
        return false;
    }
    if (c->bytes >= 0 && bytes != c->bytes) {
        snprintf(words, TSHI_CASE_WORDS, "%ld bytes sent, %ld wanted", bytes, c->bytes);
        return false;
    }
    return true;
}

static bool run_case(const char *file, tshi_box_case *c) {
    static result got[TSHI_CASE_RANKS];
    char words[TSHI_CASE_WORDS] = "";
    tshi_test_options options = {.ranks = c->world,
                                 .timeout = 30,
                                 .heap_bytes = (size_t)64 << 20,
                                 .result_bytes = sizeof *got,
                                 .own_memory = true};
    const char *failure = tshi_test_run_with(&options, rank_main, c, NULL, got);
    bool passed = !failure[0] && compare(c, got, words);
    if (failure[0]) snprintf(words, sizeof words, "%s", failure);
    printf("%-26s %-28s %5d  %-8s %9s  %s%s%s\n", file, c->name, c->world, tsh_dtype_name(TSH_FLOAT64),
           passed ? "0.0e+00" : "-", passed ? "passed" : "FAILED", passed ? "" : ": ", words);
    return passed;
}

/* No list: on any number of ranks. */
static bool is_listed(const int *ranks, int count) {
    for (int i = 0; ranks && ranks[i]; i++) {
        if (ranks[i] == count) return true;
    }
    return !ranks;
}

void cv_redistributions(const char *path, const char *file, const int *ranks, cv_totals *t) {
    static tshi_box_case c;
    tshi_box_cases cases;
    tshi_box_cases_open(&cases, path);
    while (!cases.error[0] && tshi_box_cases_next(&cases, &c)) {
        if (!is_listed(ranks, c.world)) continue;
        if (run_case(file, &c)) {
            t->passed++;
        } else {
            t->failed++;
        }
    }
    if (cases.error[0]) {
        printf("%-26s %-28s %5s  %-8s %9s  FAILED: %s\n", file, "-", "-", "-", "-", cases.error);
        t->failed++;
    }
    tshi_box_cases_close(&cases);
}
