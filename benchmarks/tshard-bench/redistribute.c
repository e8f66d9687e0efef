/* tshard-bench redistribute: a float32 matrix that changes its layouts, beside a plain copy of as many bytes as a rank
 * gets, and the cost of planning. */
#include "bench.h"
#include "timing.h"

#include "dist/collectives/redistribute.h"
#include "tshard/autograd.h"

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
    const change *c;
    tsh_group *group; /* of all ranks */
    tsh_mesh *mesh;
    tsh_tape *tape;
    tsh_tensor *in, *out; /* the tape's, until its reset */
} redistribution;

/* --- one change of layouts ---------------------------------------------------------------------------------------- */

static tsh_status open_change(redistribution *r, tsh_world *world, const change *c, int64_t rows) {
    const tsh_tensor_config config = {
        .dtype = TSH_FLOAT32, .ndim = 2, .shape = {rows, COLS}, .layout = {c->from[0], c->from[1]}};
    *r = (redistribution){.c = c, .group = tsh_world_group(world)};
    tsh_status status = tsh_mesh_create(world, c->axes == 2 ? "x=2,y=-1" : "x=-1", &r->mesh);
    if (status == TSH_OK) status = tsh_tape_create(world, &r->tape);
    if (status == TSH_OK) tsh_tape_set_recording(r->tape, false);
    return status == TSH_OK ? tsh_tensor_create(r->mesh, &config, &r->in) : status;
}

static void close_change(redistribution *r) {
    tsh_tape_destroy(r->tape);
    tsh_tensor_release(r->in);
    tsh_mesh_destroy(r->mesh);
}

static tsh_status run(redistribution *r) {
    r->out = tsh_redistribute(r->tape, r->in, NULL, r->c->to);
    return tsh_tape_status(r->tape);
}

static float value_at(const tsh_box *box, int64_t i) {
    int64_t row = box->start[0] + i / box->length[1], col = box->start[1] + i % box->length[1];
    return (float)((row * COLS + col) % 1000003);
}

/* By this rank, in collectives on the mesh and along its axes. */
static double bytes_sent(const redistribution *r) {
    double sum = 0;
    for (int op = 0; op < TSH_COLLECTIVE_COUNT; op++) {
        sum += (double)tsh_group_stats(r->mesh->group).bytes[op];
        for (int a = 0; a < r->mesh->axes; a++) {
            tsh_group *group = tsh_mesh_axis_group(r->mesh, a);
            if (group != r->mesh->group) sum += (double)tsh_group_stats(group).bytes[op];
        }
    }
    return sum;
}

/* What one redistribution does: *wrong elements are not what they should be, *moved bytes are sent, *must bytes go to
 * ranks that do not hold them. */
static tsh_status check(redistribution *r, bench_meter *meter, int64_t *wrong, double *moved, double *must) {
    const tsh_box held = tsh_tensor_box(r->in);
    float *in = tsh_tensor_data(r->in);
    double before = bytes_sent(r), here = 0, all = 0;
    tsh_box both;
    for (int64_t i = 0; i < tsh_tensor_local_numel(r->in); i++) in[i] = value_at(&held, i);
    tsh_status status = run(r);
    if (status != TSH_OK) return status;
    double sent = bytes_sent(r) - before;
    const tsh_box wanted = tsh_tensor_box(r->out);
    const float *out = tsh_tensor_data(r->out);
    for (int64_t i = 0; i < tsh_tensor_local_numel(r->out); i++) here += out[i] != value_at(&wanted, i);
    bool any = tshi_box_intersect(2, &held, &wanted, &both);
    double missing = (double)(tshi_box_numel(2, &wanted) - (any ? tshi_box_numel(2, &both) : 0));
    status = bench_sum(meter, here, &all);
    if (status == TSH_OK) status = bench_sum(meter, 4 * missing, must);
    if (status == TSH_OK) status = bench_sum(meter, sent, moved);
    *wrong = (int64_t)all;
    return status == TSH_OK ? tsh_tape_reset(r->tape) : status;
}

/* Redistributions and copies by turns, and the medians of the slowest rank's times. */
static tsh_status measure(redistribution *r, bench_meter *meter, size_t bytes, double seconds, double *time,
                          double *copy) {
    double times[MOST_ROUNDS], copies[MOST_ROUNDS], begin, spent = 0;
    int n = 0;
    void *from = malloc(bytes), *to = malloc(bytes);
    tsh_status status = from && to ? TSH_OK : TSH_ERR_MEMORY;
    if (status == TSH_OK) memset(from, 1, bytes);
    for (int round = -2; status == TSH_OK && n < MOST_ROUNDS && (n < 5 || spent < seconds); round++) {
        double took[2];
        status = tsh_barrier(r->group);
        begin = bench_now();
        if (status == TSH_OK) status = run(r);
        if (status == TSH_OK) status = tsh_barrier(r->group);
        took[0] = bench_now() - begin;
        if (status == TSH_OK) status = tsh_tape_reset(r->tape);
        if (status == TSH_OK) status = tsh_barrier(r->group);
        begin = bench_now();
        memcpy(to, from, bytes);
        if (status == TSH_OK) status = tsh_barrier(r->group);
        took[1] = bench_now() - begin;
        if (status == TSH_OK) status = bench_max(meter, took[0] + took[1], &begin);
        spent += begin;
        if (round < 0) continue; /* warm-up */
        times[n] = took[0];
        copies[n++] = took[1];
    }
    free(from);
    free(to);
    if (status == TSH_OK) status = bench_slowest_median(meter, times, n, time);
    return status == TSH_OK ? bench_slowest_median(meter, copies, n, copy) : status;
}

static tsh_status run_change(bench_meter *meter, bench_report *report, tsh_world *world, const change *c, int64_t rows,
                             double seconds, int64_t *wrong) {
    redistribution r;
    double time = 0, copy = 0, moved = 0, must = 0;
    int ranks = tsh_world_size(world);
    size_t part = (size_t)rows * COLS * 4 / (size_t)(c->to[0].kind == TSH_KIND_REPLICATED ? 1 : ranks);
    tsh_status status = open_change(&r, world, c, rows);
    if (status == TSH_OK) status = check(&r, meter, wrong, &moved, &must);
    if (status == TSH_OK) status = measure(&r, meter, part, seconds, &time, &copy);
    if (status == TSH_OK) {
        const bench_field fields[] = {
            BENCH_TEXT_FIELD("bench", "redistribute"),
            BENCH_COUNT_FIELD("ranks", ranks),
            BENCH_COUNT_FIELD("bytes", rows * COLS * 4),
            BENCH_REAL_FIELD("time_ms", 1e3 * time),
            BENCH_REAL_FIELD("memcpy_ms", 1e3 * copy),
            BENCH_REAL_FIELD("ratio", time / copy),
            BENCH_REAL_FIELD("moved_by_must", must > 0 ? moved / must : 1),
            BENCH_COUNT_FIELD("wrong", *wrong),
            BENCH_TEXT_FIELD("change", c->name),
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

enum { MOST_MEMBERS = 8 * 8 * 16 }; /* of the meshes below */

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
    int ranks[MOST_MEMBERS];
    tshi_exchange e = {.ndim = 3, .shape = {1024, 1024, 64}, .from = p->from, .to = p->to};
    for (int i = 0; i < MOST_MEMBERS; i++) ranks[i] = i;
    e.from.ranks = e.to.ranks = ranks;
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
        BENCH_REAL_FIELD("first_us", 1e6 * timing_median(first, ROUNDS)),
        BENCH_REAL_FIELD("cached_us", 1e6 * timing_median(again, ROUNDS)),
        BENCH_TEXT_FIELD("plan", p->name),
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
        status = run_change(meter, &moved, world, &changes[i], rows, common->seconds, &wrong);
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
    const bench_option options[] = {{"bytes", BENCH_SIZE, "64M", "size of the whole matrix", &bytes, NULL}};
    int code = bench_options_parse(
        "redistribute",
        "Measures redistributions of a float32 matrix over the ranks. Beside it, each rank copies as many bytes as\n"
        "it receives, all at once. moved_by_must is the number of bytes sent divided by the bytes that ranks did not\n"
        "hold. Then come the costs of making a plan and of finding it again.",
        options, 1, &common, argc, argv);
    if (code >= 0) return code;
    tsh_world *world = NULL;
    if (tsh_world_init(NULL, &world) != TSH_OK) return bench_failed(NULL, "world_init");
    code = run_all(world, &common, bytes / (COLS * 4) > 0 ? bytes / (COLS * 4) : 1);
    tsh_world_destroy(world);
    return code;
}
