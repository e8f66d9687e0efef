/* Sampling of tokens on the host, with the same result at any number of ranks. Weights are integers, exp(logit -
 * largest logit) in fixed point, so that their sums are exact in any order. Ranks that share a vocabulary exchange
 * candidates and sums, never logits. */
#include "layers/layers.h"
#include "tshard/generate.h"

#include <math.h>
#include <string.h>

static const int64_t positions = (int64_t)1 << 40;

/* A call: this rank's rows, and the classes of the whole vocabulary. */
typedef struct sampling {
    tsh_tape *tape;
    const tsh_tensor *logits;
    tsh_sample_config config;
    int64_t rows, first_row, classes;
    unsigned axes;       /* the axes that shard the vocabulary */
    int bits;            /* the weight of the largest logit is 2^bits */
    const double *draws; /* [rows, 2], in [0, 1), multiples of 2^-24; NULL: greedy */
    int64_t most;        /* candidates of each row, in descending order */
    tshi_candidate *top; /* [rows, most] */
    int64_t *ids;        /* [rows], the result */
} sampling;

/* The classes that top_p keeps in a row: those with a weight above `weight`, whose sum is `above`, and the first `ties`
 * classes with exactly that weight. */
typedef struct cut {
    int64_t weight, above, ties;
} cut;

/* A rank's part of a row: its first class, the sum of its weights above the cut, and its ties. */
typedef struct share {
    int64_t start, above, ties;
} share;

static void *take_scratch(const sampling *s, int64_t count, size_t size) {
    return tshi_region_take(&s->tape->memory, &s->tape->world->allocator, (size_t)count, size);
}

/* Copies a tensor's elements to host memory of the step, as tsh_tensor_read. */
static tsh_status fetch_to_host(const sampling *s, const tsh_tensor *from, void **to) {
    *to = take_scratch(s, from->numel, tsh_dtype_size(from->dtype));
    return *to ? tsh_tensor_read(from, *to, from->numel) : TSH_ERR_MEMORY;
}

static int64_t weight_of(const sampling *s, double logit, double largest) {
    return (int64_t)(exp((logit - largest) / s->config.temperature) * (double)((int64_t)1 << s->bits));
}

/* --- computed alike on all ranks -------------------------------------------------------------------------------- */

static tsh_status fetch_top(sampling *s, int64_t most) {
    tsh_tensor *list = NULL;
    void *host = NULL;
    s->most = most < s->classes ? most : s->classes;
    tsh_status status = tshi_top_candidates(s->logits, 1, s->most, &list);
    if (status == TSH_OK) status = fetch_to_host(s, list, &host);
    s->top = host;
    tshi_tensor_release(list);
    for (int64_t b = 0; b < s->rows && status == TSH_OK; b++) {
        double largest = s->top[b * s->most].value;
        if (isfinite(largest)) continue;
        status = tshi_fail(TSH_ERR_RANGE, "the largest logit of sequence %lld is %g; it must be finite",
                           (long long)(s->first_row + b), largest);
    }
    return status;
}

/* Random numbers keyed by seed, stream, sequence and position, independent of the batch. */
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
        status = fetch_to_host(s, draws, &host);
    }
    s->draws = host;
    tshi_tensor_release(draws);
    return status;
}

/* An integer in [0, total). */
static int64_t draw_position(const sampling *s, int64_t b, int64_t total) {
    uint64_t random = (uint64_t)ldexp(s->draws[2 * b], 48) | (uint64_t)ldexp(s->draws[2 * b + 1], 24);
    return (int64_t)((unsigned __int128)random * (uint64_t)total >> 48);
}

/* --- among the largest -------------------------------------------------------------------------------------------- */

/* Draws from the row's candidates; a candidate counts while those before it sum to less than top_p. */
static void draw_candidate(const sampling *s, int64_t b, int64_t *weights) {
    const tshi_candidate *top = s->top + b * s->most;
    int64_t kept = 0, total = 0, sum = 0;
    for (int64_t j = 0; j < s->most; j++) total += weights[j] = weight_of(s, top[j].value, top->value);
    double enough = s->config.top_p > 0 ? s->config.top_p * (double)total : (double)total;
    while (kept < s->most && (kept == 0 || (double)sum < enough)) sum += weights[kept++];
    int64_t left = draw_position(s, b, sum);
    for (kept = 0; left >= weights[kept]; kept++) left -= weights[kept];
    s->ids[b] = top[kept].index;
}

static tsh_status sample_top_k(sampling *s) {
    tsh_status status = fetch_top(s, s->config.top_k);
    int64_t *weights = status == TSH_OK ? take_scratch(s, s->most, sizeof *weights) : NULL;
    for (int64_t b = 0; b < s->rows && weights; b++) draw_candidate(s, b, weights);
    return status == TSH_OK && !weights ? TSH_ERR_MEMORY : status;
}

/* --- over the whole vocabulary ------------------------------------------------------------------------------------ */

/* The weights of this rank's classes, [rows, its classes]. */
static tsh_status make_weights(const sampling *s, int64_t **out) {
    const tsh_tensor *x = s->logits;
    tsh_tensor *wide = NULL;
    void *host = NULL;
    int64_t n = x->shape.local[1];
    tsh_status status = tshi_tensor_scratch(x->mesh, TSH_FLOAT64, x->numel, &wide);
    if (status == TSH_OK) {
        tshi_device_of(x)->ops->copy.convert(tshi_device_of(x), x->numel, x->dtype, tshi_data(x), TSH_FLOAT64,
                                             tshi_data(wide));
        status = fetch_to_host(s, wide, &host);
    }
    tshi_tensor_release(wide);
    *out = status == TSH_OK ? take_scratch(s, x->numel, sizeof **out) : NULL;
    if (!*out) return status == TSH_OK ? TSH_ERR_MEMORY : status;
    const double *logits = host;
    for (int64_t i = 0; i < x->numel; i++) (*out)[i] = weight_of(s, logits[i], s->top[i / n * s->most].value);
    return TSH_OK;
}

/* Sums values[0..n) over the ranks that share the vocabulary, in place. */
static tsh_status sum_over_ranks(const sampling *s, int64_t n, int64_t *values) {
    tsh_tensor *t = NULL;
    if (!s->axes) return TSH_OK;
    tsh_status status = tshi_tensor_scratch(s->logits->mesh, TSH_INT64, n, &t);
    if (status == TSH_OK) status = tsh_tensor_write(t, values, n);
    if (status == TSH_OK) status = tshi_statistics_reduce(s->axes, t, TSH_REDUCE_SUM);
    if (status == TSH_OK) status = tsh_tensor_read(t, values, n);
    tshi_tensor_release(t);
    return status;
}

enum { DIGIT = 8, BINS = 1 << DIGIT, DIGITS = 7 }; /* a weight has up to 53 bits */

/* A histogram of the weights by the digit at `shift`, for weights whose higher digits are the cut's. */
static void fill_bins(int64_t n, const int64_t *weights, const cut *c, int shift, int64_t *bins) {
    memset(bins, 0, BINS * sizeof *bins);
    for (int64_t i = 0; i < n; i++) {
        if ((weights[i] ^ c->weight) >> shift < BINS) bins[weights[i] >> shift & (BINS - 1)] += weights[i];
    }
}

/* Finds the cut's next digit: the largest for which the weights at or above the cut sum to `enough`. */
static void refine_cut(cut *c, int shift, int64_t enough, const int64_t *bins) {
    int digit = BINS - 1;
    for (; digit > 0 && c->above + bins[digit] < enough; digit--) c->above += bins[digit];
    c->weight |= (int64_t)digit << shift;
    c->ties = shift == 0 && c->weight > 0 ? (enough - c->above + c->weight - 1) / c->weight : 0;
}

/* The least sum that reaches top_p of the total, which is rounded when it becomes a double. */
static int64_t enough_of(const sampling *s, const int64_t *bins) {
    int64_t all = 0;
    for (int i = 0; i < BINS; i++) all += bins[i];
    double enough = ceil(s->config.top_p * (double)all);
    return enough < (double)all ? (int64_t)enough : all;
}

/* Finds, digit by digit, the weight at which the largest weights reach top_p. */
static tsh_status find_cuts(const sampling *s, const int64_t *weights, cut *cuts) {
    int64_t n = s->logits->shape.local[1];
    int64_t *bins = take_scratch(s, s->rows * BINS, sizeof *bins),
            *enough = bins ? take_scratch(s, s->rows, sizeof *enough) : NULL;
    tsh_status status = enough ? TSH_OK : TSH_ERR_MEMORY;
    for (int shift = DIGIT * (DIGITS - 1); shift >= 0 && status == TSH_OK; shift -= DIGIT) {
        for (int64_t b = 0; b < s->rows; b++) fill_bins(n, weights + b * n, &cuts[b], shift, bins + b * BINS);
        status = sum_over_ranks(s, s->rows * BINS, bins);
        for (int64_t b = 0; b < s->rows && status == TSH_OK; b++) {
            if (shift == DIGIT * (DIGITS - 1)) enough[b] = enough_of(s, bins + b * BINS);
            refine_cut(&cuts[b], shift, enough[b], bins + b * BINS);
        }
    }
    return status;
}

static share share_of(const sampling *s, const int64_t *weights, const cut *c) {
    const tsh_tensor *x = s->logits;
    share own = {tshi_shape_start(x->mesh, &x->shape, x->layout, 1), 0, 0};
    for (int64_t i = 0; i < x->shape.local[1]; i++) {
        if (weights[i] > c->weight) own.above += weights[i];
        own.ties += weights[i] == c->weight;
    }
    return own;
}

/* Gathers the shares of all ranks for all rows, [*ranks, rows]. */
static tsh_status gather_shares(const sampling *s, const share *own, share **all, int64_t *ranks) {
    const tsh_mesh *mesh = s->logits->mesh;
    const int64_t words = s->rows * (int64_t)(sizeof(share) / sizeof(int64_t));
    tsh_tensor *list = NULL, *more = NULL;
    void *host = NULL;
    *ranks = 1;
    tsh_status status = tshi_tensor_scratch(mesh, TSH_INT64, words, &list);
    if (status == TSH_OK) status = tsh_tensor_write(list, own, words);
    for (int a = 0; a < mesh->axes && status == TSH_OK; a++) {
        if (!(s->axes >> a & 1u)) continue;
        *ranks *= mesh->axis[a].size;
        status = tshi_tensor_scratch(mesh, TSH_INT64, words * *ranks, &more);
        if (status == TSH_OK) status = tsh_all_gather_into_tensor(mesh->axis[a].group, list, more, NULL);
        tshi_tensor_release(list);
        list = more;
        more = NULL;
    }
    if (status == TSH_OK) status = fetch_to_host(s, list, &host);
    *all = host;
    tshi_tensor_release(list);
    return status;
}

/* This rank's class at which the sum of the weights above the cut passes `left`, or with `tie` the tie number
 * `left`. */
static int64_t find_class(int64_t n, const int64_t *weights, const cut *c, bool tie, int64_t left) {
    for (int64_t i = 0; i < n; i++) {
        if (tie ? weights[i] != c->weight : weights[i] <= c->weight) continue;
        left -= tie ? 1 : weights[i];
        if (left < 0) return i;
    }
    return 0;
}

/* Draws in class order, first among the classes above the cut, then the ties: the rank with the class contributes it to
 * a sum, all others contribute 0. */
static tsh_status draw_classes(const sampling *s, const int64_t *weights, const cut *cuts, const share *own,
                               const share *all, int64_t ranks) {
    int64_t n = s->logits->shape.local[1];
    for (int64_t b = 0; b < s->rows; b++) {
        const cut *c = &cuts[b];
        share before = {0, 0, 0};
        int64_t above = 0;
        for (int64_t r = 0; r < ranks; r++) {
            const share *part = &all[r * s->rows + b];
            above += part->above;
            if (part->start >= own[b].start) continue;
            before.above += part->above;
            before.ties += part->ties;
        }
        int64_t left = draw_position(s, b, above + c->ties * c->weight);
        bool tie = left >= above;
        left = tie ? (left - above) / c->weight - before.ties : left - before.above;
        bool here = left >= 0 && left < (tie ? own[b].ties : own[b].above);
        s->ids[b] = here ? own[b].start + find_class(n, weights + b * n, c, tie, left) : 0;
    }
    return sum_over_ranks(s, s->rows, s->ids);
}

static tsh_status sample_all(sampling *s) {
    const tsh_tensor *x = s->logits;
    int64_t *weights = NULL, n = x->shape.local[1], ranks;
    share *own = take_scratch(s, s->rows, sizeof *own), *all = NULL;
    cut *cuts = own ? take_scratch(s, s->rows, sizeof *cuts) : NULL;
    tsh_status status = cuts ? fetch_top(s, 1) : TSH_ERR_MEMORY;
    if (status == TSH_OK) status = make_weights(s, &weights);
    for (int64_t b = 0; b < s->rows && status == TSH_OK; b++) cuts[b] = (cut){0, 0, 0};
    if (status == TSH_OK && s->config.top_p > 0 && s->config.top_p < 1) status = find_cuts(s, weights, cuts);
    for (int64_t b = 0; b < s->rows && status == TSH_OK; b++) own[b] = share_of(s, weights + b * n, &cuts[b]);
    if (status == TSH_OK) status = gather_shares(s, own, &all, &ranks);
    return status == TSH_OK ? draw_classes(s, weights, cuts, own, all, ranks) : status;
}

/* --- public ------------------------------------------------------------------------------------------------------- */

static tsh_status check_sampling(const tsh_tensor *x, const tsh_sample_config *c) {
    if (x->shape.ndim != 2 || x->shape.global[1] < 1) {
        return tshi_fail(TSH_ERR_SHAPE, "logits are %s, must be [sequences, classes]", TSHI_TENSOR_TEXT(x));
    }
    if (tshi_layouts_have_local(x->mesh->axes, x->layout)) {
        return tshi_fail(TSH_ERR_LAYOUT,
                         "logits are %s: they must not be LOCAL, for ranks could draw different classes",
                         TSHI_TENSOR_TEXT(x));
    }
    if (!(c->temperature >= 0 && isfinite(c->temperature)) || !(c->top_p >= 0 && c->top_p <= 1) || c->top_k < 0 ||
        c->position < 0 || c->position >= positions) {
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "temperature=%g, top_k=%lld, top_p=%g, position=%lld: all must be at least 0, top_p at most "
                         "1, position below 2^40",
                         c->temperature, (long long)c->top_k, c->top_p, (long long)c->position);
    }
    return tshi_check_computes(x->mesh->device, x->dtype, "the logits");
}

/* The largest number of bits for which 2^bits times the number of classes is below 2^63. */
static int weight_bits(int64_t classes) {
    int bits = 52;
    while (bits > 20 && classes > (int64_t)1 << (62 - bits)) bits--;
    return bits;
}

static tsh_status run_sampling(sampling *s) {
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
    return tshi_tensor_create(logits->mesh, &config, out);
}

/* Brings the logits to layouts without terms and without shared units. */
static tsh_tensor *whole_values(tsh_tape *tape, tsh_tensor *logits) {
    tsh_layout layout[TSH_MAX_AXES];
    memcpy(layout, logits->layout, sizeof layout);
    for (int a = 0; a < logits->mesh->axes; a++) {
        if (layout[a].kind == TSH_KIND_PARTIAL) layout[a] = TSH_REPLICATED;
        if (layout[a].kind == TSH_KIND_SHARD && layout[a].dim == 1 && layout[a].units) layout[a] = TSH_SHARD(1);
    }
    bool recording = tsh_tape_set_recording(tape, false);
    tsh_tensor *whole = tshi_to_layouts(tape, "sample", logits, layout);
    tsh_tape_set_recording(tape, recording);
    return whole;
}

tsh_tensor *tsh_sample(tsh_tape *tape, tsh_tensor *logits, const tsh_sample_config *config) {
    sampling s = {.tape = tape};
    tsh_tensor *ids = NULL;
    if (config) s.config = *config;
    if (!tshi_tape_ready(tape, "sample", 1, &logits)) return NULL;
    tsh_status status = check_sampling(logits, &s.config);
    if (tshi_tape_check(tape, status, "sample") != TSH_OK) return NULL;
    logits = whole_values(tape, logits);
    if (!logits) return NULL;
    s.logits = logits;
    s.rows = logits->shape.local[0];
    s.first_row = tshi_shape_start(logits->mesh, &logits->shape, logits->layout, 0);
    s.classes = logits->shape.global[1];
    s.axes = tshi_axes_splitting(logits, 1);
    s.bits = weight_bits(s.classes);
    s.ids = take_scratch(&s, s.rows, sizeof *s.ids);
    status = tshi_tensor_materialize(logits); /* recomputation may have moved it to the host */
    if (status == TSH_OK) status = s.ids ? make_ids(logits, &ids) : TSH_ERR_MEMORY;
    if (status == TSH_OK) status = tshi_tape_own(tape, ids);
    if (status == TSH_OK && tshi_mesh_has_me(logits->mesh)) status = run_sampling(&s);
    if (status == TSH_OK) status = tsh_tensor_write(ids, s.ids, ids->numel);
    return tshi_tape_check(tape, status, "sample") == TSH_OK ? ids : NULL;
}
