/* Sampling of tokens, on the host: the same at any number of ranks. Weights are whole numbers, exp of the distance to the
 * largest logit with a fixed number of bits, so that their sums are exact in any order. Candidates and sums alone pass
 * between ranks that share a vocabulary, never the logits. */
#include "layers/layers.h"
#include "tshard/generate.h"

#include <math.h>
#include <string.h>

enum { FIRST_CANDIDATES = 256 }; /* of a nucleus, then four times as many until they suffice */
static const int64_t positions = (int64_t)1 << 40;

/* A call: rows are those of this rank, classes the whole vocabulary. */
typedef struct sampling {
    tsh_tape *tape;
    const tsh_tensor *logits;
    tsh_sample_config config;
    int64_t rows, first_row, classes;
    unsigned axes;       /* that shard the vocabulary */
    int bits;            /* the weight of the largest logit is 2^bits */
    const double *draws; /* [rows, 2], in [0, 1), multiples of 2^-24; NULL: greedy */
    int64_t most;        /* candidates of each row, in descending order */
    tshi_candidate *top; /* [rows, most] */
    int64_t *ids;        /* [rows], the result */
} sampling;

/* A rank's part of a row: its first class, and the sum of its weights. */
typedef struct share {
    int64_t start, sum;
} share;

static void *take(const sampling *s, int64_t count, size_t size) {
    return tshi_region_take(&s->tape->memory, &s->tape->world->allocator, (size_t)count, size);
}

/* Elements in the device's memory become elements on the host, as tsh_tensor_read, in memory of the step. */
static tsh_status fetch(const sampling *s, const tsh_tensor *from, void **to) {
    *to = take(s, from->numel, tsh_dtype_size(from->dtype));
    return *to ? tsh_tensor_read(from, *to, from->numel) : TSH_ERR_MEMORY;
}

static int64_t weight_of(const sampling *s, double logit, double largest) {
    return (int64_t)ldexp(exp((logit - largest) / s->config.temperature), s->bits);
}

/* --- what is the same on all ranks ---------------------------------------------------------------------------------- */

static tsh_status fetch_top(sampling *s, int64_t most) {
    tsh_tensor *list = NULL;
    void *host = NULL;
    s->most = most < s->classes ? most : s->classes;
    tsh_status status = tshi_top_candidates(s->logits, 1, s->most, &list);
    if (status == TSH_OK) status = fetch(s, list, &host);
    s->top = host;
    tsh_tensor_release(list);
    for (int64_t b = 0; b < s->rows && status == TSH_OK; b++) {
        double largest = s->top[b * s->most].value;
        if (isfinite(largest)) continue;
        status = tshi_fail(TSH_ERR_RANGE, "the largest logit of sequence %lld is %g; a finite one is wanted",
                           (long long)(s->first_row + b), largest);
    }
    return status;
}

/* Random numbers by seed, stream, sequence and position, whatever the batch. */
static tsh_status make_draws(sampling *s) {
    const tsh_tensor *x = s->logits;
    tsh_device *device = tshi_device_of(x);
    tsh_tensor *draws = NULL;
    void *host = NULL;
    tshi_block block = {s->rows, 2, 1, s->first_row, 2 * s->config.position, 2 * positions};
    tsh_status status = tshi_tensor_scratch(x->mesh, TSH_FLOAT64, 2 * s->rows, &draws);
    if (status == TSH_OK) {
        device->ops->random[TSH_FLOAT64].uniform(device, &block, s->config.seed, s->config.stream, 0, 1,
                                                 tshi_data(draws));
        status = fetch(s, draws, &host);
    }
    s->draws = host;
    tsh_tensor_release(draws);
    return status;
}

/* A whole number in [0, total). */
static int64_t draw(const sampling *s, int64_t b, int64_t total) {
    uint64_t random = (uint64_t)ldexp(s->draws[2 * b], 48) | (uint64_t)ldexp(s->draws[2 * b + 1], 24);
    return (int64_t)((unsigned __int128)random * (uint64_t)total >> 48);
}

/* --- among candidates ----------------------------------------------------------------------------------------------- */

/* Draws from the row's candidates, as far as those before them have less than top_p of `total`. False where there are
 * more that would have to be there. */
static bool draw_candidate(const sampling *s, int64_t b, double total) {
    const tshi_candidate *top = s->top + b * s->most;
    int64_t kept = 0, sum = 0;
    double enough = s->config.top_p > 0 ? s->config.top_p * total : total;
    while (kept < s->most && (kept == 0 || (double)sum < enough)) sum += weight_of(s, top[kept++].value, top->value);
    if (kept == s->most && s->most < s->classes && s->config.top_k == 0 && (double)sum < enough) return false;
    int64_t left = draw(s, b, sum);
    for (int64_t j = 0; j < kept; j++) {
        left -= weight_of(s, top[j].value, top->value);
        s->ids[b] = top[j].index;
        if (left < 0) break;
    }
    return true;
}

static tsh_status sample_top_k(sampling *s) {
    tsh_status status = fetch_top(s, s->config.top_k);
    for (int64_t b = 0; b < s->rows && status == TSH_OK; b++) {
        const tshi_candidate *top = s->top + b * s->most;
        int64_t total = 0;
        for (int64_t j = 0; j < s->most; j++) total += weight_of(s, top[j].value, top->value);
        draw_candidate(s, b, (double)total);
    }
    return status;
}

/* --- over the whole vocabulary -------------------------------------------------------------------------------------- */

/* This rank's logits on the host, [rows, its classes]. */
static tsh_status fetch_logits(const sampling *s, double **out) {
    const tsh_tensor *x = s->logits;
    tsh_tensor *wide = NULL;
    void *host = NULL;
    tsh_status status = tshi_tensor_scratch(x->mesh, TSH_FLOAT64, x->numel, &wide);
    if (status == TSH_OK) {
        tshi_device_of(x)->ops->copy.convert(tshi_device_of(x), x->numel, x->dtype, tshi_data(x), TSH_FLOAT64,
                                             tshi_data(wide));
        status = fetch(s, wide, &host);
    }
    *out = host;
    tsh_tensor_release(wide);
    return status;
}

/* The shares of all ranks in all rows, [*ranks, rows]. */
static tsh_status gather_shares(const sampling *s, const share *own, share **all, int64_t *ranks) {
    const tsh_mesh *mesh = s->logits->mesh;
    tsh_tensor *list = NULL, *more = NULL;
    void *host = NULL;
    *ranks = 1;
    tsh_status status = tshi_tensor_scratch(mesh, TSH_INT64, 2 * s->rows, &list);
    if (status == TSH_OK) status = tsh_tensor_write(list, own, 2 * s->rows);
    for (int a = 0; a < mesh->axes && status == TSH_OK; a++) {
        if (!(s->axes >> a & 1u)) continue;
        *ranks *= mesh->axis[a].size;
        status = tshi_tensor_scratch(mesh, TSH_INT64, 2 * s->rows * *ranks, &more);
        if (status == TSH_OK) status = tsh_all_gather_into_tensor(mesh->axis[a].group, more, list, NULL);
        tsh_tensor_release(list);
        list = more;
        more = NULL;
    }
    if (status == TSH_OK) status = fetch(s, list, &host);
    *all = host;
    tsh_tensor_release(list);
    return status;
}

/* The class of this rank's slice where the sum of the row's weights passes `left`, which is below its share; -1 else. */
static int64_t find_class(const sampling *s, int64_t b, const double *logits, const share *own, int64_t left) {
    int64_t n = s->logits->shape.local[1];
    if (left < 0 || left >= own->sum) return -1;
    for (int64_t i = 0; i < n; i++) {
        left -= weight_of(s, logits[b * n + i], s->top[b * s->most].value);
        if (left < 0) return own->start + i;
    }
    return -1;
}

/* The rank that has the class says so, all others contribute 0. */
static tsh_status sum_ids(const sampling *s) {
    const tsh_mesh *mesh = s->logits->mesh;
    tsh_tensor *ids = NULL;
    tsh_status status = tshi_tensor_scratch(mesh, TSH_INT64, s->rows, &ids);
    if (status == TSH_OK) status = tsh_tensor_write(ids, s->ids, s->rows);
    if (status == TSH_OK) status = tshi_statistics_reduce(s->axes, ids, TSH_SUM);
    if (status == TSH_OK) status = tsh_tensor_read(ids, s->ids, s->rows);
    tsh_tensor_release(ids);
    return status;
}

/* Draws by the order of the classes. `before` and `total` are over all ranks' shares of a row. */
static tsh_status draw_classes(const sampling *s, const double *logits, const share *own, const share *all,
                               int64_t ranks) {
    for (int64_t b = 0; b < s->rows; b++) {
        int64_t before = 0, total = 0;
        for (int64_t r = 0; r < ranks; r++) {
            const share *part = &all[r * s->rows + b];
            total += part->sum;
            if (part->start < own[b].start) before += part->sum;
        }
        int64_t found = find_class(s, b, logits, &own[b], draw(s, b, total) - before);
        s->ids[b] = found < 0 ? 0 : found;
    }
    return sum_ids(s);
}

/* Candidates until all rows have enough; each row's ranks have the same, and go on together. */
static tsh_status draw_nucleus(sampling *s, const share *all, int64_t ranks) {
    for (;;) {
        bool enough = true;
        for (int64_t b = 0; b < s->rows; b++) {
            int64_t total = 0;
            for (int64_t r = 0; r < ranks; r++) total += all[r * s->rows + b].sum;
            enough = draw_candidate(s, b, (double)total) && enough;
        }
        if (enough) return TSH_OK;
        tsh_status status = fetch_top(s, 4 * s->most);
        if (status != TSH_OK) return status;
    }
}

static tsh_status sample_all(sampling *s) {
    const tsh_tensor *x = s->logits;
    bool nucleus = s->config.top_p > 0 && s->config.top_p < 1;
    double *logits = NULL;
    share *own = take(s, s->rows, sizeof *own), *all = NULL;
    int64_t n = x->shape.local[1], ranks;
    tsh_status status = own ? fetch_top(s, nucleus ? FIRST_CANDIDATES : 1) : TSH_ERR_MEMORY;
    if (status == TSH_OK) status = fetch_logits(s, &logits);
    for (int64_t b = 0; b < s->rows && status == TSH_OK; b++) {
        own[b] = (share){tshi_shape_start(x->mesh, &x->shape, x->layout, 1), 0};
        for (int64_t i = 0; i < n; i++) own[b].sum += weight_of(s, logits[b * n + i], s->top[b * s->most].value);
    }
    if (status == TSH_OK) status = gather_shares(s, own, &all, &ranks);
    if (status != TSH_OK) return status;
    return nucleus ? draw_nucleus(s, all, ranks) : draw_classes(s, logits, own, all, ranks);
}

/* --- public ------------------------------------------------------------------------------------------------------- */

static tsh_status check_sampling(const tsh_tensor *x, const tsh_sample_config *c) {
    char text[160];
    if (x->shape.ndim != 2 || x->shape.global[1] < 1) {
        return tshi_fail(TSH_ERR_SHAPE, "logits are %s; [sequences, classes] wanted",
                         tsh_tensor_describe(x, text, sizeof text));
    }
    if (tshi_layouts_have_local(x->mesh->axes, x->layout)) {
        return tshi_fail(TSH_ERR_LAYOUT, "logits are %s: LOCAL ones could differ between ranks",
                         tsh_tensor_describe(x, text, sizeof text));
    }
    if (!(c->temperature >= 0 && isfinite(c->temperature)) || !(c->top_p >= 0 && c->top_p <= 1) || c->top_k < 0 ||
        c->position < 0 || c->position >= positions) {
        return tshi_fail(
            TSH_ERR_ARGUMENT,
            "temperature=%g, top_k=%lld, top_p=%g, position=%lld: at least 0, top_p at most 1, position below 2^40",
            c->temperature, (long long)c->top_k, c->top_p, (long long)c->position);
    }
    return tshi_check_computes(x->mesh->device, x->dtype, "the logits");
}

/* 2^bits times the number of classes stays below 2^63. */
static int weight_bits(int64_t classes) {
    int bits = 52;
    while (bits > 20 && classes > (int64_t)1 << (62 - bits)) bits--;
    return bits;
}

static tsh_status run(sampling *s) {
    if (s->config.temperature > 0) {
        tsh_status status = make_draws(s);
        if (status != TSH_OK) return status;
        return s->config.top_k > 0 ? sample_top_k(s) : sample_all(s);
    }
    tsh_status status = fetch_top(s, 1);
    for (int64_t b = 0; b < s->rows && status == TSH_OK; b++) s->ids[b] = s->top[b].index;
    return status;
}

static tsh_status make_ids(const tsh_tensor *logits, tsh_tensor **out) {
    tsh_tensor_config config = {.dtype = TSH_INT64, .ndim = 1, .shape = {logits->shape.global[0]}};
    for (int a = 0; a < logits->mesh->axes; a++) {
        tsh_layout l = logits->layout[a];
        if (l.kind == TSH_KIND_SHARD && l.dim == 0) config.layout[a] = l;
    }
    return tsh_tensor_create(logits->mesh, &config, out);
}

/* Terms are added up, and the logits stay as they are otherwise. */
static tsh_tensor *whole_values(tsh_tape *tape, tsh_tensor *logits) {
    tsh_layout layout[TSH_MAX_AXES];
    memcpy(layout, logits->layout, sizeof layout);
    for (int a = 0; a < logits->mesh->axes; a++) {
        if (layout[a].kind == TSH_KIND_PARTIAL) layout[a] = TSH_REPLICATED;
    }
    bool recording = tsh_tape_set_recording(tape, false);
    tsh_tensor *whole = tshi_bring(tape, "sample", logits, layout, false);
    tsh_tape_set_recording(tape, recording);
    return whole;
}

tsh_tensor *tsh_sample(tsh_tape *tape, tsh_tensor *logits, const tsh_sample_config *config) {
    sampling s = {.tape = tape};
    tsh_tensor *ids = NULL;
    if (config) s.config = *config;
    if (!tshi_tape_ready(tape, "sample", 1, &logits)) return NULL;
    tsh_status status = check_sampling(logits, &s.config);
    if (status != TSH_OK) return tshi_tape_fail_as(tape, status, "sample");
    logits = whole_values(tape, logits);
    if (!logits) return NULL;
    s.logits = logits;
    s.rows = logits->shape.local[0];
    s.first_row = tshi_shape_start(logits->mesh, &logits->shape, logits->layout, 0);
    s.classes = logits->shape.global[1];
    s.axes = tshi_sharding_axes(logits, 1);
    s.bits = weight_bits(s.classes);
    s.ids = take(&s, s.rows, sizeof *s.ids);
    status = s.ids ? make_ids(logits, &ids) : TSH_ERR_MEMORY;
    if (status == TSH_OK) status = tshi_tape_own(tape, ids);
    if (status == TSH_OK && tshi_mesh_has_me(logits->mesh)) status = run(&s);
    if (status == TSH_OK) status = tsh_tensor_write(ids, s.ids, ids->numel);
    return status == TSH_OK ? ids : tshi_tape_fail_as(tape, status, "sample");
}
