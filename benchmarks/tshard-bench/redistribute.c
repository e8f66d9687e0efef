/* tshard-bench redistribute: a float32 matrix that changes its layouts, beside a plain copy of as many bytes as a rank
 * gets, and the cost of planning. */
#include "bench.h"
#include "timing.h"

#include "dist/core/redistribute.h"

#include <stdlib.h>
#include <string.h>

enum { COLS = 4096, MOST_ROUNDS = 512 };

typedef struct change {
    const char *name;
    int axes; /* of two the second has what the first leaves */
    tsh_layout from[2], to[2];
} change;

static const change changes[] = {
    {"S0 -> S1", 1, {TSH_SHARD_INIT(0)}, {TSH_SHARD_INIT(1)}},
    {"S0 -> R", 1, {TSH_SHARD_INIT(0)}, {TSH_REPLICATED_INIT}},
    {"(S0,S1) -> (S1,S0)", 2, {TSH_SHARD_INIT(0), TSH_SHARD_INIT(1)}, {TSH_SHARD_INIT(1), TSH_SHARD_INIT(0)}},
};

typedef struct redistribution {
    tsh_group *group;
    tshi_exchange e;
    tsh_box held, wanted;
    tsh_tensor *in, *out;
} redistribution;

/* --- one change of layouts ---------------------------------------------------------------------------------------- */

static tshi_placement placement(const change *c, int ranks, const tsh_layout *layout) {
    tshi_placement p = {.axes = c->axes, .size = {ranks, 1}, .layout = {layout[0], layout[1]}};
    if (c->axes == 2) {
        p.size[0] = 2;
        p.size[1] = ranks / 2;
    }
    return p;
}

static tsh_status create_part(tsh_group *group, const tsh_box *box, tsh_tensor **out) {
    const tsh_tensor_config config = {.dtype = TSH_FLOAT32,
                                      .ndim = 2,
                                      .shape = {box->length[0], box->length[1]},
                                      .layout = {TSH_LOCAL, TSH_LOCAL, TSH_LOCAL, TSH_LOCAL}};
    return tsh_tensor_create(tsh_group_mesh(group), &config, out);
}

static tsh_status open_change(redistribution *r, tsh_group *group, const change *c, int64_t rows) {
    int ranks = tsh_group_size(group), rank = tsh_group_rank(group);
    *r = (redistribution){.group = group, .e = {.ndim = 2, .shape = {rows, COLS}}};
    r->e.from = placement(c, ranks, c->from);
    r->e.to = placement(c, ranks, c->to);
    r->held = tshi_placement_box(&r->e.from, 2, r->e.shape, rank);
    r->wanted = tshi_placement_box(&r->e.to, 2, r->e.shape, rank);
    tsh_status status = create_part(group, &r->held, &r->in);
    return status == TSH_OK ? create_part(group, &r->wanted, &r->out) : status;
}

static void close_change(redistribution *r) {
    tsh_tensor_release(r->in);
    tsh_tensor_release(r->out);
}

static float value_at(const tsh_box *box, int64_t i) {
    int64_t row = box->start[0] + i / box->length[1], col = box->start[1] + i % box->length[1];
    return (float)((row * COLS + col) % 1000003);
}

/* Elements that are not what they should be after one exchange. */
static tsh_status check(const redistribution *r, bench_meter *meter, int64_t *wrong) {
    float *in = tsh_tensor_data(r->in), *out = tsh_tensor_data(r->out);
    double here = 0, all = 0;
    for (int64_t i = 0; i < tsh_tensor_local_numel(r->in); i++) in[i] = value_at(&r->held, i);
    tsh_status status = tshi_exchange_run(r->group, &r->e, r->in, r->out);
    for (int64_t i = 0; i < tsh_tensor_local_numel(r->out); i++) here += out[i] != value_at(&r->wanted, i);
    if (status == TSH_OK) status = bench_sum(meter, here, &all);
    *wrong = (int64_t)all;
    return status;
}

/* Exchanges and copies by turns, and the medians of the slowest rank's times. */
static tsh_status measure(const redistribution *r, bench_meter *meter, double seconds, double *exchange, double *copy) {
    double exchanges[MOST_ROUNDS], copies[MOST_ROUNDS], begin, spent = 0;
    size_t bytes = tsh_tensor_local_nbytes(r->out);
    int n = 0;
    tsh_status status = TSH_OK;
    void *from = malloc(bytes), *to = malloc(bytes);
    if (!from || !to) status = TSH_ERR_MEMORY;
    if (status == TSH_OK) memset(from, 1, bytes);
    for (int round = -2; status == TSH_OK && n < MOST_ROUNDS && (n < 5 || spent < seconds); round++) {
        double took[2] = {0, 0};
        if (status == TSH_OK) status = tsh_barrier(r->group);
        begin = bench_now();
        if (status == TSH_OK) status = tshi_exchange_run(r->group, &r->e, r->in, r->out);
        took[0] = bench_now() - begin;
        if (status == TSH_OK) status = tsh_barrier(r->group);
        begin = bench_now();
        memcpy(to, from, bytes);
        if (status == TSH_OK) status = tsh_barrier(r->group); /* as an exchange ends */
        took[1] = bench_now() - begin;
        if (status == TSH_OK) status = bench_max(meter, took[0] + took[1], &begin);
        spent += begin;
        if (round < 0) continue; /* warm-up */
        exchanges[n] = took[0];
        copies[n++] = took[1];
    }
    free(from);
    free(to);
    if (status == TSH_OK) status = bench_slowest_median(meter, exchanges, n, exchange);
    return status == TSH_OK ? bench_slowest_median(meter, copies, n, copy) : status;
}

/* Bytes that this rank gets and does not hold. */
static double missing(const redistribution *r) {
    tsh_box both;
    bool any = tshi_box_intersect(2, &r->held, &r->wanted, &both);
    return 4 * (double)(tshi_box_numel(2, &r->wanted) - (any ? tshi_box_numel(2, &both) : 0));
}

static tsh_status run_change(bench_meter *meter, bench_report *report, tsh_group *group, const change *c, int64_t rows,
                             double seconds, int64_t *wrong) {
    redistribution r;
    double exchange = 0, copy = 0, moved = 0, must = 0;
    tsh_status status = open_change(&r, group, c, rows);
    uint64_t before = tsh_group_stats(group).bytes[TSH_COLLECTIVE_ALL_TO_ALL];
    if (status == TSH_OK) status = check(&r, meter, wrong);
    uint64_t after = tsh_group_stats(group).bytes[TSH_COLLECTIVE_ALL_TO_ALL];
    if (status == TSH_OK) status = bench_sum(meter, (double)(after - before), &moved);
    if (status == TSH_OK) status = bench_sum(meter, missing(&r), &must);
    if (status == TSH_OK) status = measure(&r, meter, seconds, &exchange, &copy);
    if (status == TSH_OK) {
        const bench_field fields[] = {
            BENCH_TEXT_FIELD("bench", "redistribute"),
            BENCH_TEXT_FIELD("change", c->name),
            BENCH_COUNT_FIELD("ranks", tsh_group_size(group)),
            BENCH_COUNT_FIELD("bytes", rows * COLS * 4),
            BENCH_REAL_FIELD("time_ms", 1e3 * exchange),
            BENCH_REAL_FIELD("memcpy_ms", 1e3 * copy),
            BENCH_REAL_FIELD("ratio", exchange / copy),
            BENCH_REAL_FIELD("moved_by_must", must > 0 ? moved / must : 1),
            BENCH_COUNT_FIELD("wrong", *wrong),
        };
        bench_report_row(report, fields, (int)(sizeof fields / sizeof *fields));
    }
    close_change(&r);
    return status;
}

/* --- planning ----------------------------------------------------------------------------------------------------- */

typedef struct planned {
    const char *name;
    tshi_placement from, to;
} planned;

#define MESH2 .axes = 2, .size = {2, 2}
#define MESH3 .axes = 3, .size = {8, 8, 16}
#define S(d)  TSH_SHARD_INIT(d)
#define R     TSH_REPLICATED_INIT

static const planned plans[] = {
    {"2x2 (S0,S1) -> (S1,S0)", {MESH2, .layout = {S(0), S(1)}}, {MESH2, .layout = {S(1), S(0)}}},
    {"2x2 (S0,S0) -> (S1,S1)", {MESH2, .layout = {S(0), S(0)}}, {MESH2, .layout = {S(1), S(1)}}},
    {"8x8x16 (S0,S1,S2) -> (S2,S0,S1)", {MESH3, .layout = {S(0), S(1), S(2)}}, {MESH3, .layout = {S(2), S(0), S(1)}}},
    {"8x8x16 (S0,S0,S0) -> (R,R,R)", {MESH3, .layout = {S(0), S(0), S(0)}}, {MESH3, .layout = {R, R, R}}},
    {"8x8x16 (R,R,R) -> (S0,S1,S2)", {MESH3, .layout = {R, R, R}}, {MESH3, .layout = {S(0), S(1), S(2)}}},
    {"8x8x16 (S0,S1,S2) -> (S0,S1,S2)", {MESH3, .layout = {S(0), S(1), S(2)}}, {MESH3, .layout = {S(0), S(1), S(2)}}},
};

/* Medians of a look-up that makes the plan, and of one that finds it. */
static void run_plan(tsh_world *world, bench_report *report, const planned *p) {
    enum { ROUNDS = 21, CALLS = 1000 };
    double first[ROUNDS], again[ROUNDS];
    tshi_exchange e = {.ndim = 3, .shape = {1024, 1024, 64}, .from = p->from, .to = p->to};
    for (int i = 0; i < ROUNDS; i++) {
        e.shape[0]++;
        double begin = bench_now();
        tshi_exchange_plan_find(world, &e);
        first[i] = bench_now() - begin;
        begin = bench_now();
        for (int call = 0; call < CALLS; call++) tshi_exchange_plan_find(world, &e);
        again[i] = (bench_now() - begin) / CALLS;
    }
    const bench_field fields[] = {
        BENCH_TEXT_FIELD("bench", "redistribute"),
        BENCH_TEXT_FIELD("plan", p->name),
        BENCH_REAL_FIELD("first_us", 1e6 * timing_median(first, ROUNDS)),
        BENCH_REAL_FIELD("cached_us", 1e6 * timing_median(again, ROUNDS)),
    };
    bench_report_row(report, fields, (int)(sizeof fields / sizeof *fields));
}

/* --- the command -------------------------------------------------------------------------------------------------- */

static int run_all(tsh_world *world, const bench_common *common, int64_t rows) {
    const bool silent = tsh_world_rank(world) != 0;
    bench_report moved = {.json = common->json, .silent = silent}, made = moved;
    bench_meter *meter = NULL;
    int64_t wrong = 0, all = 0;
    tsh_status status = bench_meter_create(world, common->seconds, &meter);
    for (size_t i = 0; status == TSH_OK && i < sizeof changes / sizeof *changes; i++) {
        if (tsh_world_size(world) < 2 || tsh_world_size(world) % changes[i].axes) continue;
        status = run_change(meter, &moved, tsh_world_group(world), &changes[i], rows, common->seconds, &wrong);
        all += wrong;
    }
    for (size_t i = 0; status == TSH_OK && !silent && i < sizeof plans / sizeof *plans; i++) {
        run_plan(world, &made, &plans[i]);
    }
    bench_meter_destroy(meter);
    if (status != TSH_OK) return bench_failed(world, "redistribute");
    return all ? 1 : 0;
}

int bench_redistribute(int argc, char **argv) {
    int64_t bytes;
    bench_common common;
    const bench_option options[] = {{"bytes", BENCH_SIZE, "64M", "of the whole matrix", &bytes, NULL}};
    int code = bench_options_parse(
        "redistribute",
        "Measures redistributions of a float32 matrix over the ranks it is started with, beside a memcpy on each rank "
        "at once of\nas many bytes as the rank gets; moved_by_must: bytes that were sent, by bytes that ranks did not "
        "hold. Then what planning costs:\nthe first time, and when the plan is found again.",
        options, 1, &common, argc, argv);
    if (code >= 0) return code;
    tsh_world *world = NULL;
    if (tsh_world_init(NULL, &world) != TSH_OK) return bench_failed(NULL, "world_init");
    code = run_all(world, &common, bytes / (COLS * 4) > 0 ? bytes / (COLS * 4) : 1);
    tsh_world_destroy(world);
    return code;
}
