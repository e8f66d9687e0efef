/* Attention with an online softmax, and rotary position embedding. */
#include "device/cpu/isa/pieces.h"
#include "device/cpu/isa/vector_math.h"

#include <float.h>

#define PAIRS  64 /* pairs in a rotary tile */

#define LOG2_E 1.44269504088896340736
#define LN_2   0.69314718055994530942

/* Block sizes: copies of a block's keys fit L1 several times over, and so do as many rows. The rows whose sums are
 * kept while all keys go by fit L2. */
#define BLOCK_ELEMENTS 4096
#define MAX_KEYS       128
#define ROWS_OF_BLOCK  64
#define ROWS_AT_ONCE   512
#define ROWS_AHEAD     8
#define CACHED_AHEAD   32
#define FEW_QUERIES    32 /* with so few queries, the heads that share a KV head are processed together */

#define ROW_PART       128 /* elements converted at a time */

/* Register tiles of a product: TILE_ROWS rows of TILE_VECTORS vectors. */
#define TILE_ROWS 6
#if TSHI_VECTOR_REGISTERS == 32
#define TILE_VECTORS 4
#else
#define TILE_VECTORS 2
#endif

/* A block of query rows: row `first` + r is query (first + r) % queries of head `head` + (first + r) / queries. */
typedef struct attention_rows {
    int64_t batch, kv_head, head, first, count;
} attention_rows;

/* Offsets of the parts of the scratch memory, in elements. */
typedef struct attention_scratch {
    void *memory;
    int64_t width; /* row length: dim, padded to whole vectors */
    int64_t keys;  /* keys in a block */
    int64_t queries_at, maxima_at, key_rows_at, key_columns_at, scores_at, size;
    int64_t sums_at;                                                                        /* forward only */
    int64_t value_columns_at, dscores_at, dy_at, delta_at, dq_at, dk_at, dv_at, factors_at; /* backward only */
} attention_scratch;

static int64_t take(attention_scratch *area, int64_t elements) {
    int64_t at = area->size;
    area->size += (elements + 15) / 16 * 16;
    return at;
}

static attention_scratch scratch_of(const tshi_attention *a, void *scratch, int64_t rows, int64_t block) {
    attention_scratch area = {.memory = scratch, .width = a->dim > 0 ? (a->dim + 15) / 16 * 16 : 16};
    int64_t keys = BLOCK_ELEMENTS / area.width / 16 * 16;
    area.keys = keys < 16 ? 16 : keys > MAX_KEYS ? MAX_KEYS : keys;
    area.queries_at = take(&area, rows * area.width);
    area.maxima_at = take(&area, rows);
    area.key_rows_at = take(&area, area.keys * area.width);
    area.key_columns_at = take(&area, area.keys * area.width);
    area.scores_at = take(&area, block * area.keys);
    return area;
}

static int64_t heads_at_once(const tshi_attention *a) {
    return a->queries < FEW_QUERIES ? a->sharers : 1;
}

static attention_scratch forward_scratch(const tshi_attention *a, void *scratch) {
    int64_t rows = heads_at_once(a) * a->queries;
    rows = rows < ROWS_AT_ONCE ? rows : ROWS_AT_ONCE;
    attention_scratch area = scratch_of(a, scratch, rows, TILE_ROWS);
    area.sums_at = take(&area, rows * (area.width + 16));
    return area;
}

static attention_scratch backward_scratch(const tshi_attention *a, void *scratch) {
    attention_scratch area = scratch_of(a, scratch, a->queries, ROWS_OF_BLOCK);
    area.value_columns_at = take(&area, area.keys * area.width);
    area.dscores_at = take(&area, ROWS_OF_BLOCK * area.keys);
    area.dy_at = take(&area, a->queries * area.width);
    area.delta_at = take(&area, a->queries);
    area.dq_at = take(&area, a->queries * area.width);
    area.dk_at = take(&area, a->keys * area.width);
    area.dv_at = take(&area, a->keys * area.width);
    area.factors_at = take(&area, area.keys > area.width ? area.keys : area.width);
    return area;
}

static int64_t scratch_size(const tshi_attention *a, bool backward) {
    return backward ? backward_scratch(a, NULL).size : forward_scratch(a, NULL).size;
}

/* This rank's first query head that reads KV head `kv_head`. */
static int64_t first_sharer(const tshi_attention *a, int64_t kv_head) {
    int64_t head = kv_head * a->sharers - a->shift;
    return head < 0 ? 0 : head < a->heads ? head : a->heads;
}

/* How many keys query i of batch b attends to: they are the first ones. */
static int64_t seen(const tshi_attention *a, int64_t b, int64_t i) {
    int64_t n = a->lengths ? a->lengths[b] : a->keys, reach = i + a->keys - a->queries - a->queries_after + 1;
    if (a->causal && reach < n) n = reach;
    return n > 0 ? n : 0;
}

/* How many of the n keys from `key` on the query attends to. */
static int64_t seen_of_block(const tshi_attention *a, int64_t b, int64_t i, int64_t key, int64_t n) {
    int64_t see = seen(a, b, i) - key;
    return see < 0 ? 0 : see < n ? see : n;
}

static int64_t head_of_row(const tshi_attention *a, const attention_rows *rows, int64_t r) {
    return rows->head + (rows->first + r) / a->queries;
}

/* The offset of a row in q and y. */
static int64_t element_of_row(const tshi_attention *a, const attention_rows *rows, int64_t r) {
    int64_t i = (rows->first + r) % a->queries;
    return ((rows->batch * a->queries + i) * a->heads + head_of_row(a, rows, r)) * a->dim;
}

static int64_t statistic_of_row(const tshi_attention *a, const attention_rows *rows, int64_t r) {
    return (rows->batch * a->heads + head_of_row(a, rows, r)) * a->queries + (rows->first + r) % a->queries;
}

/* The global index of the row's probability of key 0, for dropout. */
static int64_t row_element(const tshi_attention *a, const attention_rows *rows, int64_t r) {
    int64_t head = (rows->batch + a->batch_start) * a->heads_whole + a->head_start + head_of_row(a, rows, r);
    int64_t queries = a->queries_before + a->queries + a->queries_after;
    return (head * queries + a->queries_before + (rows->first + r) % a->queries) * a->keys;
}

/* --- masks by positions and documents ----------------------------------------------------------------------------- */

static bool has_tokens(const tshi_attention *a) {
    return a->tokens.query_position || a->tokens.query_document;
}

static int64_t query_position(const tshi_attention *a, int64_t b, int64_t i) {
    const tshi_tokens *t = &a->tokens;
    if (t->query_position) return t->query_position[t->batched ? b * a->queries + i : i];
    return a->causal ? i + a->keys - a->queries - a->queries_after : INT64_MAX;
}

static int64_t query_document(const tshi_attention *a, int64_t b, int64_t i) {
    const tshi_tokens *t = &a->tokens;
    return t->query_document ? t->query_document[t->batched ? b * a->queries + i : i] : 0;
}

/* The positions, or documents, of the keys from `key` on; NULL where there are none. */
static const int64_t *keys_from(const tshi_attention *a, const int64_t *numbers, int64_t b, int64_t key) {
    return numbers ? numbers + (a->tokens.batched ? b * a->keys : 0) + key : NULL;
}

/* What lies between the least and the most of some tokens' positions and documents. */
typedef struct span {
    int64_t first, last, first_document, last_document;
} span;

static span span_none(void) {
    return (span){INT64_MAX, INT64_MIN, INT64_MAX, INT64_MIN};
}

static void span_add(span *s, int64_t position, int64_t document) {
    s->first = position < s->first ? position : s->first;
    s->last = position > s->last ? position : s->last;
    s->first_document = document < s->first_document ? document : s->first_document;
    s->last_document = document > s->last_document ? document : s->last_document;
}

static span span_of_keys(const tshi_attention *a, int64_t b, int64_t key, int64_t n) {
    const int64_t *position = keys_from(a, a->tokens.key_position, b, key);
    const int64_t *document = keys_from(a, a->tokens.key_document, b, key);
    span s = span_none();
    for (int64_t j = 0; j < n; j++) span_add(&s, position ? position[j] : key + j, document ? document[j] : 0);
    return s;
}

static span span_of_rows(const tshi_attention *a, const attention_rows *rows, int64_t r, int64_t count) {
    span s = span_none();
    for (int64_t end = r + count; r < end; r++) {
        int64_t i = (rows->first + r) % a->queries;
        span_add(&s, query_position(a, rows->batch, i), query_document(a, rows->batch, i));
    }
    return s;
}

/* How much of a block of keys the queries attend to; between spans, SOME may turn out to be nothing. */
typedef enum attended { ATTENDS_NOTHING, ATTENDS_SOME, ATTENDS_ALL } attended;

static attended attended_by(const span *queries, const span *keys) {
    const int64_t document = keys->first_document;
    if (keys->first > queries->last || keys->first_document > queries->last_document ||
        keys->last_document < queries->first_document)
        return ATTENDS_NOTHING;
    bool alike =
        keys->last_document == document && queries->first_document == document && queries->last_document == document;
    return alike && keys->last <= queries->first ? ATTENDS_ALL : ATTENDS_SOME;
}

static attended attended_by_rows(const tshi_attention *a, const attention_rows *rows, int64_t r, int64_t count,
                                 const span *keys) {
    span s = span_of_rows(a, rows, r, count);
    return attended_by(&s, keys);
}

/* see[i] = how many of the n keys from `key` on row r + i attends to, or where keys are masked one by one, how many are
 * to be computed. Returns the largest. */
static int64_t seen_of_rows(const tshi_attention *a, const attention_rows *rows, int64_t r, int64_t count, int64_t key,
                            int64_t n, attended of_tokens, int64_t *see) {
    int64_t most = 0;
    for (int64_t i = 0; i < count; i++) {
        see[i] = has_tokens(a) ? (of_tokens == ATTENDS_NOTHING ? 0 : n)
                               : seen_of_block(a, rows->batch, (rows->first + r + i) % a->queries, key, n);
        most = see[i] > most ? see[i] : most;
    }
    return most;
}

/* How many of a block's keys each query is to be computed with; with tokens the same for all queries of a tile. */
static void see_block(const tshi_attention *a, const attention_rows *rows, int64_t first, int64_t count, int64_t key,
                      int64_t n, const span *keys, int64_t *see) {
    for (int64_t r = 0; r < count; r += TILE_ROWS) {
        int64_t some = count - r < TILE_ROWS ? count - r : TILE_ROWS;
        attended by = has_tokens(a) ? attended_by_rows(a, rows, first + r, some, keys) : ATTENDS_ALL;
        seen_of_rows(a, rows, first + r, some, key, n, by, see + r);
    }
}

/* Prefetches n elements at `at`: a head's rows are strided, which the hardware prefetcher does not follow. They may
 * lie past the tensor's end. */
TSHI_INLINE void prefetch_row(tsh_dtype stored, const void *tensor, int64_t at, int64_t n) {
    const int64_t size = (int64_t)tsh_dtype_size(stored);
    const uintptr_t first = (uintptr_t)tensor + (uintptr_t)(at * size);
    for (int64_t byte = 0; byte < n * size; byte += 64) __builtin_prefetch((const void *)(first + (uintptr_t)byte));
}

/* The angles by which pairs [first, first + n) rotate from one position to the next. */
static void frequencies(const tshi_rotary *r, int64_t first, int n, double *frequency) {
    const double step = -2.0 / (double)r->dims, log_theta = log(r->theta);
    const double often = r->original / 6.283185307179586, range = 1 / (r->high - r->low);
    for (int i = 0; i < n; i++) frequency[i] = exp((double)(first + i) * step * log_theta);
    for (int i = 0; i < n; i++) {
        double s = (often * frequency[i] - r->low) * range;
        s = s < 0 ? 0 : s > 1 ? 1 : s;
        frequency[i] *= (1 - s) / r->factor + s;
    }
}

/* --- by type and vector ------------------------------------------------------------------------------------------- */

/* 2^r for |r| <= 1/2 by a minimax polynomial (relative error 2e-9 before rounding). */
#define INTEGER int32_t
#define WORD    uint32_t
#define POWER_COEFFICIENTS                                                                                             \
    { 1.0f, 0.6931472f, 0.24022646f, 0.055503286f, 0.009618489f, 0.0013399931f, 0.00015345812f }
#define POWER_DEGREE 6
#define POWER_LOWEST -126.0f
#define POWER_ROUND  0x1.8p23f
#define POWER_SHIFT  23
#define POWER_ONE    0x3F800000u

#include "device/cpu/isa/float32.inc"

#include "device/cpu/isa/attention_blocks.inc"

#undef INTEGER
#undef WORD
#undef POWER_COEFFICIENTS
#undef POWER_DEGREE
#undef POWER_LOWEST
#undef POWER_ROUND
#undef POWER_SHIFT
#undef POWER_ONE
/* Relative error 3e-18. */
#define INTEGER int64_t
#define WORD    uint64_t
#define POWER_COEFFICIENTS                                                                                             \
    {                                                                                                                  \
        1.0, 0.6931471805599453, 0.24022650695910155, 0.055504108664819925, 0.009618129107588335,                      \
            0.001333355814678995, 0.00015403530462514614, 1.5252733489960805e-05, 1.321543308959463e-06,               \
            1.0178198033328528e-07, 7.074105626245659e-09, 4.4352809446103363e-10                                      \
    }
#define POWER_DEGREE 11
#define POWER_LOWEST -1022.0
#define POWER_ROUND  0x1.8p52
#define POWER_SHIFT  52
#define POWER_ONE    0x3FF0000000000000u

#include "device/cpu/isa/float64.inc"

#include "device/cpu/isa/attention_blocks.inc"

#define KERNELS "device/cpu/isa/rotary_loops.inc"
#include "device/cpu/isa/each_real.inc"

#define KERNELS "device/cpu/isa/attention.inc"
#include "device/cpu/isa/each_dtype.inc"

const tshi_isa_attention TSHI_ISA(tshi_cpu_attention)[TSH_DTYPE_COUNT] = {
    [TSH_FLOAT32] = {rotary_f32, scratch_size, forward_f32, backward_f32},
    [TSH_FLOAT64] = {rotary_f64, scratch_size, forward_f64, backward_f64},
    [TSH_BFLOAT16] = {rotary_bf16, scratch_size, forward_bf16, backward_bf16},
    [TSH_FLOAT16] = {rotary_f16, scratch_size, forward_f16, backward_f16},
};
