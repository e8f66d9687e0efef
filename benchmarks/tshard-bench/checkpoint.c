/* tshard-bench checkpoint: what it takes to save and load a model, beside cp of as many bytes, and what a save in the
 * background costs the steps beside it. */
#include "bench.h"
#include "tshard/tshard.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LAYERS = 4, STATES = 3, MOST_ROUNDS = 100, STEPS = 5 };

typedef struct setting {
    int64_t bytes, rounds, batch;
    const char *parent;
    bench_common common;
    tsh_world *world;
    bench_meter *meter;
    char folder[512], copy[560];

    tsh_mesh *mesh;
    tsh_tape *tape;
    tsh_parameters *list;
    tsh_linear *layers[LAYERS];
    tsh_optimizer *optimizer;
    tsh_tensor *x, *dy;
} setting;

/* --- the model ---------------------------------------------------------------------------------------------------- */

/* Column and row layers by turns. With AdamW's state tensors they have the bytes that are asked for, or a little
 * less. */
static tsh_status make_layers(setting *s) {
    int64_t width = (int64_t)sqrt((double)s->bytes / (STATES * LAYERS * sizeof(float)));
    tsh_status status = TSH_OK;
    for (int i = 0; i < LAYERS && status == TSH_OK; i++) {
        char name[16];
        const tsh_linear_config config = {
            .in_features = width, .out_features = width, .shard = i % 2 ? TSH_ROW : TSH_COLUMN};
        snprintf(name, sizeof name, "layer.%d", i);
        status = tsh_linear_create(tsh_world_group(s->world), &config, &s->layers[i]);
        if (status == TSH_OK) status = tsh_linear_register(s->layers[i], s->list, name);
    }
    const tsh_tensor_config batch = {.ndim = 2, .shape = {s->batch, width}};
    if (status == TSH_OK) status = tsh_tensor_create(tsh_world_mesh(s->world), &batch, &s->x);
    if (status == TSH_OK) status = tsh_tensor_create(tsh_world_mesh(s->world), &batch, &s->dy);
    if (status == TSH_OK) status = tsh_tensor_init(s->x, &(tsh_init){.kind = TSH_INIT_NORMAL, .b = 1});
    return status == TSH_OK ? tsh_tensor_init(s->dy, &(tsh_init){.kind = TSH_INIT_NORMAL, .b = 1}) : status;
}

static tsh_status open_model(setting *s) {
    tsh_status status = tsh_tape_create(s->world, &s->tape);
    if (status == TSH_OK) status = tsh_parameters_create(s->world, &s->list);
    if (status == TSH_OK) status = make_layers(s);
    if (status != TSH_OK) return status;
    return tsh_adamw_create(s->list, &(tsh_adamw_config){.lr = 1e-4}, &s->optimizer);
}

static void close_model(setting *s) {
    tsh_optimizer_destroy(s->optimizer);
    tsh_tensor_release(s->dy);
    tsh_tensor_release(s->x);
    for (int i = 0; i < LAYERS; i++) tsh_linear_destroy(s->layers[i]);
    tsh_parameters_destroy(s->list);
    tsh_tape_destroy(s->tape);
}

static tsh_status step(setting *s, double *seconds) {
    tsh_status status = tsh_barrier(tsh_world_group(s->world));
    double begin = bench_now();
    tsh_tensor *y = s->x;
    for (int i = 0; i < LAYERS; i++) y = tsh_linear_forward(s->tape, s->layers[i], y);
    if (status == TSH_OK) status = tsh_backward_with(s->tape, y, &(tsh_backward_config){.gradient = s->dy});
    if (status == TSH_OK) status = tsh_optimizer_step(s->optimizer);
    tsh_optimizer_zero_grad(s->optimizer);
    if (status == TSH_OK) status = tsh_tape_reset(s->tape);
    *seconds = bench_now() - begin;
    return status;
}

/* --- what the system counts --------------------------------------------------------------------------------------- */

/* The number behind `key` in a file of /proc, or 0. */
static double read_number(const char *path, const char *key) {
    char line[256];
    double number = 0;
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        if (!strncmp(line, key, strlen(key))) number = strtod(line + strlen(key), NULL);
    }
    if (file) fclose(file);
    return number;
}

/* The largest memory that this rank has had since the last call, in MiB. */
static double peak_memory(void) {
    double peak = read_number("/proc/self/status", "VmHWM:") / 1024;
    FILE *file = fopen("/proc/self/clear_refs", "w");
    if (file) {
        fputs("5", file);
        fclose(file);
    }
    return peak;
}

/* --- measuring ---------------------------------------------------------------------------------------------------- */

typedef struct results {
    double save[MOST_ROUNDS], load[MOST_ROUNDS], copy[MOST_ROUNDS];
    double bytes, read; /* of the slices of all ranks; that loading them has read */
    double save_memory, load_memory;
    double step[BENCH_MAX_SAMPLES], beside[BENCH_MAX_SAMPLES], stop[BENCH_MAX_SAMPLES];
    int steps, besides, stops;
} results;

static tsh_checkpoint checkpoint_of(const setting *s, int64_t number) {
    return (tsh_checkpoint){.parameters = s->list, .optimizer = s->optimizer, .step = number};
}

/* A shell command on rank 0, while the others wait. */
static tsh_status on_first(const setting *s, const char *command, double *seconds) {
    double begin = bench_now();
    bool good = tsh_world_rank(s->world) != 0 || system(command) == 0;
    *seconds = bench_now() - begin;
    if (!good) tsh_world_fail(s->world, command);
    return tsh_barrier(tsh_world_group(s->world));
}

static tsh_status remove_all(const setting *s) {
    char command[600];
    double unused;
    snprintf(command, sizeof command, "rm -rf '%s'", s->folder);
    return on_first(s, command, &unused);
}

/* One save, one load and one cp. */
static tsh_status round_of(setting *s, results *r, int i) {
    char command[1200];
    tsh_checkpoint c = checkpoint_of(s, 1);
    tsh_status status = tsh_barrier(tsh_world_group(s->world));
    peak_memory();
    double before = read_number("/proc/self/status", "VmRSS:") / 1024, begin = bench_now();
    if (status == TSH_OK) status = tsh_checkpoint_save(s->folder, &c);
    r->save[i] = bench_now() - begin;
    r->save_memory = fmax(r->save_memory, peak_memory() - before);
    if (status == TSH_OK) status = tsh_barrier(tsh_world_group(s->world));
    double read = read_number("/proc/self/io", "rchar:");
    begin = bench_now();
    if (status == TSH_OK) status = tsh_checkpoint_load(s->folder, &c);
    r->load[i] = bench_now() - begin;
    r->read = read_number("/proc/self/io", "rchar:") - read;
    r->load_memory = fmax(r->load_memory, peak_memory() - before);
    snprintf(command, sizeof command, "cp -r '%s/step-00000001' '%s'", s->folder, s->copy);
    if (status == TSH_OK) status = on_first(s, command, &r->copy[i]);
    return status == TSH_OK ? remove_all(s) : status;
}

/* True on every rank until the folder of that step is there for each of them. */
static tsh_status is_saving(const setting *s, int64_t number, bool *saving) {
    int64_t latest;
    double any;
    tsh_status status = tsh_checkpoint_latest(s->folder, &latest);
    if (status == TSH_OK) status = bench_max(s->meter, latest < number, &any);
    *saving = status == TSH_OK && any > 0;
    return status;
}

/* By turns, steps alone and a save with the steps beside it: what else the machine does meets both. */
static tsh_status round_of_steps(setting *s, results *r, int64_t number) {
    tsh_checkpoint c = checkpoint_of(s, number);
    tsh_status status = TSH_OK;
    bool saving = true;
    for (int i = 0; i < STEPS && status == TSH_OK; i++) status = step(s, &r->step[r->steps++]);
    double begin = bench_now();
    c.background = true;
    c.keep = 1;
    if (status == TSH_OK) status = tsh_checkpoint_save(s->folder, &c);
    r->stop[r->stops++] = bench_now() - begin;
    while (status == TSH_OK && saving && r->besides < BENCH_MAX_SAMPLES) {
        status = step(s, &r->beside[r->besides]);
        if (status == TSH_OK) status = is_saving(s, number, &saving);
        if (saving) r->besides++; /* the last one is partly alone */
    }
    return status == TSH_OK ? tsh_checkpoint_wait(s->world) : status;
}

static tsh_status measure_steps(setting *s, results *r) {
    tsh_status status = TSH_OK;
    for (int64_t i = 1; i <= s->rounds && status == TSH_OK; i++) status = round_of_steps(s, r, i);
    if (r->besides == 0) r->besides = 1; /* saves that are over within a step */
    return status == TSH_OK ? remove_all(s) : status;
}

/* --- telling ------------------------------------------------------------------------------------------------------ */

static void row(bench_report *table, const char *what, double seconds, double bytes, double ratio, double memory) {
    const bench_field fields[] = {
        BENCH_TEXT_FIELD("what", what),
        BENCH_REAL_FIELD("ms", 1e3 * seconds),
        BENCH_REAL_FIELD("gbps", bytes / seconds / 1e9),
        BENCH_REAL_FIELD("ratio", ratio),
        BENCH_REAL_FIELD("memory_mib", memory),
    };
    bench_report_row(table, fields, (int)(sizeof fields / sizeof *fields));
}

static tsh_status report(const setting *s, results *r) {
    bench_report table = {.json = s->common.json, .silent = tsh_world_rank(s->world) != 0};
    int rounds = (int)s->rounds;
    double save, load, copy, step_alone, beside, stop, read;
    tsh_status status = bench_slowest_median(s->meter, r->save, rounds, &save);
    if (status == TSH_OK) status = bench_slowest_median(s->meter, r->load, rounds, &load);
    if (status == TSH_OK) status = bench_slowest_median(s->meter, r->copy, rounds, &copy);
    if (status == TSH_OK) status = bench_slowest_median(s->meter, r->step, r->steps, &step_alone);
    if (status == TSH_OK) status = bench_slowest_median(s->meter, r->beside, r->besides, &beside);
    if (status == TSH_OK) status = bench_slowest_median(s->meter, r->stop, r->stops, &stop);
    if (status == TSH_OK) status = bench_max(s->meter, r->save_memory, &r->save_memory);
    if (status == TSH_OK) status = bench_max(s->meter, r->load_memory, &r->load_memory);
    if (status == TSH_OK) status = bench_sum(s->meter, r->read, &read);
    if (status != TSH_OK) return status;
    if (!table.silent && !table.json) {
        printf(
            "checkpoint: %.4g MiB of parameters and AdamW's states over %d ranks, in %s\n"
            "ratio: the time of cp divided by that of save and load; bytes read divided by those of the slices; steps\n"
            "beside a save divided by steps without one. memory_mib: the memory of a rank beyond the model.\n\n",
            r->bytes / (1 << 20), tsh_world_size(s->world), s->parent);
    }
    row(&table, "cp", copy, r->bytes, 1, 0);
    row(&table, "save", save, r->bytes, copy / save, r->save_memory);
    row(&table, "load", load, r->bytes, copy / load, r->load_memory);
    row(&table, "load: bytes read", load, read, read / r->bytes, 0);
    row(&table, "step", step_alone, 0, 1, 0);
    row(&table, "step beside a save", beside, 0, beside / step_alone, 0);
    row(&table, "save in the background: copy", stop, r->bytes, copy / stop, 0);
    return TSH_OK;
}

static tsh_status run(setting *s, results *r) {
    tsh_status status = open_model(s);
    for (int i = 0; i < 2 && status == TSH_OK; i++) status = step(s, &r->step[0]); /* all memory has been used */
    for (int i = 0; i < tsh_parameters_count(s->list); i++) {
        r->bytes += STATES * (double)tsh_tensor_local_nbytes(tsh_parameters_tensor(s->list, i));
    }
    if (status == TSH_OK) status = bench_sum(s->meter, r->bytes, &r->bytes);
    for (int i = 0; i < s->rounds && status == TSH_OK; i++) status = round_of(s, r, i);
    if (status == TSH_OK) status = measure_steps(s, r);
    return status == TSH_OK ? report(s, r) : status;
}

/* Rank 0's process number makes the folder's name. */
static tsh_status name_folder(setting *s) {
    double number = tsh_world_rank(s->world) == 0 ? (double)getpid() : 0;
    tsh_status status = bench_max(s->meter, number, &number);
    snprintf(s->folder, sizeof s->folder, "%s/tshard-bench-%.0f", s->parent, number);
    snprintf(s->copy, sizeof s->copy, "%s/copy", s->folder);
    return status;
}

int bench_checkpoint(int argc, char **argv) {
    setting s = {0};
    const bench_option options[] = {
        {"bytes", BENCH_SIZE, "1G", "size of the parameters and AdamW's states on all ranks", &s.bytes, NULL},
        {"folder", BENCH_TEXT, "/dev/shm", "where to save; in memory, as by default, no disk is measured",
         (void *)&s.parent, NULL},
        {"rounds", BENCH_COUNT, "5", "how often to save, load and cp in turn (at most 100)", &s.rounds, NULL},
        {"batch", BENCH_COUNT, "64", "rows of a training step", &s.batch, NULL},
    };
    int code = bench_options_parse("checkpoint",
                                   "Measures saving and loading a model beside cp of as many bytes, the bytes that a\n"
                                   "load reads, the memory of a rank, and training steps while a save runs in the\n"
                                   "background.",
                                   options, (int)(sizeof options / sizeof *options), &s.common, argc, argv);
    if (code >= 0) return code;
    if (s.rounds > MOST_ROUNDS || strchr(s.parent, '\'') || strlen(s.parent) > 400 || s.common.plot) {
        bench_say("checkpoint: --rounds wants at most %d, --folder a short name without ', and there is no plot",
                  MOST_ROUNDS);
        return 2;
    }
    results *r = calloc(1, sizeof *r);
    if (!r || tsh_world_init(NULL, &s.world) != TSH_OK) {
        code = bench_failed(NULL, "world_init");
    } else {
        tsh_status status = bench_meter_create(s.world, s.common.seconds, &s.meter);
        if (status == TSH_OK) status = name_folder(&s);
        if (status == TSH_OK) status = run(&s, r);
        code = status == TSH_OK ? 0 : bench_failed(s.world, "a checkpoint");
        close_model(&s);
    }
    bench_meter_destroy(s.meter);
    tsh_world_destroy(s.world);
    free(r);
    return code;
}
