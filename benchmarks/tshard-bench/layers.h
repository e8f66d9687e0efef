/* Shared by the commands linear and mlp: steps of a stack of linear layers, measured beside the same matrix products
 * alone, and the report. */
#ifndef LAYERS_H
#define LAYERS_H

#include "bench.h"
#include "tshard/layers.h"

enum { LAYERS_MOST = 2, LAYERS_MOST_RESULTS = 4 };

/* One layer, or two with GELU between them. */
typedef struct layers_model {
    const char *shard; /* for the report */
    int64_t batch;
    tsh_dtype dtype;
    bool graph;          /* capture the step once, measure its replays */
    const char *weights; /* of the ranks, as in a mesh's text; NULL: equal parts */
    int count;
    struct {
        int64_t in, out;
        tsh_sharding shard;
    } layer[LAYERS_MOST];
} layers_model;

/* Times are seconds: medians over the steps of the slowest rank. Bytes are the largest of any rank. */
typedef struct layers_result {
    const char *shard;
    double forward, backward, step, communication, products;
    double flops; /* of the matrix products of a step, on the rank with the most */
    int64_t sent_bytes, weight_bytes, peak_bytes;
    int64_t weight_bytes_total; /* over all ranks */
    int64_t allocations;        /* of all ranks, in the measured steps */
    double host;                /* seconds that the host takes to queue a step; 0: it computes the step itself */
    double rate;                /* FLOP/s of the GPU's matrix units for the dtype, at the clock it ran; 0: not known */
    double clock;               /* Hz */
    int steps;
} layers_result;

/* What the columns are, for --help. */
#define LAYERS_HELP                                                                                                    \
    "In turn with the steps it measures only their matrix products, on every rank at once, without a tape and\n"       \
    "without communication; efficiency is the time of these products divided by that of forward and backward. A\n"     \
    "step also zeroes the gradients and resets the tape. Communication is the time inside collectives, including\n"    \
    "waits for other ranks, and the bytes that a ring would send from a rank. Allocations are those of all ranks\n"    \
    "in all measured steps. On a GPU (TSHARD_DEVICE=cuda) its own events are the clock; with --graph the step is\n"    \
    "captured and replayed, and all of its time counts as backward."

/* What a command says about itself. */
typedef struct layers_command {
    const char *bench, *title; /* the title's end; sizes and ranks are put before and behind */
    const bench_field *sizes;  /* for JSON */
    int size_count;
    tsh_dtype dtype;
} layers_command;

/* Measure the models one after another and tell. Returns the exit code. */
int layers_run(const layers_command *command, const bench_common *common, const layers_model *models, int n);

/* --- layers_measure.c --------------------------------------------------------------------------------------------- */

/* What the library has taken from malloc: hooks for its world. */
typedef struct layers_counter {
    int64_t calls;
} layers_counter;

typedef struct layers_place {
    tsh_world *world;
    bench_meter *meter;
    const layers_counter *counter;
    double seconds; /* to spend on a model */
    bool progress;  /* tell on stderr how far it is */
} layers_place;

/* Collective. On failure tsh_error_message() says why. */
tsh_status layers_measure(const layers_place *place, const layers_model *model, layers_result *out);

/* --- layers_report.c ---------------------------------------------------------------------------------------------- */

void layers_print_heading(const layers_command *command, tsh_world *world);
void layers_print_row(const layers_result *result);
void layers_print_end(tsh_world *world);
void layers_print_json(const layers_command *command, tsh_world *world, const layers_result *result);
bool layers_draw(const char *path, const layers_command *command, tsh_world *world, const layers_result *results,
                 int n);

#endif
