/* A simulation with a surrogate beside it: the heat equation on the ranks of MPI, each with its block of a square, and
 * a small network that learns on two of these ranks how the field changes.
 *
 *   mpirun -n 4 heat            prints the error of the surrogate on a field that it has not seen
 *   mpirun -n 4 heat --alone    the solver without tshard: the same field, bit for bit
 *
 * The program owns MPI; tshard's world is made of its communicator. Fields go from the solver's blocks to the network's
 * strips of rows, and predictions back, as boxes of the whole: solver.c knows nothing of tshard, surrogate.c nothing of
 * the solver. Any number of ranks works. */
#include "command_line.h"
#include "heat.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: mpirun -n RANKS heat [options]\n"
    "\n"
    "Solves the heat equation on a square with MPI. Beside the solver, two of the ranks train a network to predict\n"
    "how a field changes over some steps of the solver.\n"
    "\n"
    "  --size N       points along each side (51)\n"
    "  --every N      solver steps between two fields that the network sees (5)\n"
    "  --fields N     number of fields to learn from (20)\n"
    "  --training N   training steps for each field (20)\n"
    "  --alone        run only the solver\n"
    "  --json         print one JSON object instead of text: error, of the network's field relative to the solver's;\n"
    "                 unchanged, the error of predicting no change; field, a hash of the solver's bits; ranks\n"
    "  --help         this text\n";

int options_parse(int argc, char **argv, bool speaks, options *out) {
    *out = (options){.size = 51, .every = 5, .fields = 20, .training = 20};
    const option_row rows[] = {{"size", OPTION_COUNT, &out->size, 8, 10000},
                               {"every", OPTION_COUNT, &out->every, 1, 1e6},
                               {"fields", OPTION_COUNT, &out->fields, 1, 1e6},
                               {"training", OPTION_COUNT, &out->training, 1, 1e6},
                               {"alone", OPTION_FLAG, &out->alone, 0, 0},
                               {"json", OPTION_FLAG, &out->json, 0, 0},
                               {NULL, OPTION_FLAG, NULL, 0, 0}};
    return command_line_parse("heat", help, rows, argc, argv, speaks);
}

/* --- the coupling ------------------------------------------------------------------------------------------------- */

/* This rank's block at three times. */
typedef struct blocks {
    tsh_box box;
    double *before, *now, *predicted;
    int64_t n;
} blocks;

static tsh_status blocks_create(blocks *b, const solver *s) {
    b->box = (tsh_box){.start = {s->row, s->column}, .length = {s->rows, s->columns}};
    b->n = s->rows * s->columns;
    b->before = malloc((size_t)(3 * b->n + 1) * sizeof *b->before);
    if (!b->before) return TSH_ERR_MEMORY;
    b->now = b->before + b->n;
    b->predicted = b->now + b->n;
    solver_block(s, b->now);
    return TSH_OK;
}

static void advance(blocks *b, solver *s, int64_t steps) {
    memcpy(b->before, b->now, (size_t)b->n * sizeof *b->now);
    solver_step(s, steps);
    solver_block(s, b->now);
}

/* |field - now| / |now| over all ranks, by MPI's own sum: it runs between tshard's calls. */
static double error_of(const solver *s, const blocks *b, const double *field) {
    double sums[2] = {0, 0};
    for (int64_t i = 0; i < b->n; i++) {
        sums[0] += (field[i] - b->now[i]) * (field[i] - b->now[i]);
        sums[1] += b->now[i] * b->now[i];
    }
    MPI_Allreduce(MPI_IN_PLACE, sums, 2, MPI_DOUBLE, MPI_SUM, s->grid);
    return sqrt(sums[0] / sums[1]);
}

/* The network learns from one field to the next as the solver makes them, and predicts the one after the last. */
static tsh_status couple(surrogate *network, solver *s, const options *o, double errors[2]) {
    blocks b = {{{0}, {0}}, NULL, NULL, NULL, 0};
    tsh_status status = blocks_create(&b, s);
    if (status == TSH_OK) status = surrogate_look(network, &b.box, b.now);
    for (int64_t i = 0; status == TSH_OK && i < o->fields; i++) {
        advance(&b, s, o->every);
        status = surrogate_learn(network, &b.box, b.now, o->training);
        if (status == TSH_OK) status = surrogate_look(network, &b.box, b.now);
    }
    if (status == TSH_OK) status = surrogate_predict(network, &b.box, b.now, b.predicted);
    if (status == TSH_OK) {
        advance(&b, s, o->every);
        errors[0] = error_of(s, &b, b.predicted);
        errors[1] = error_of(s, &b, b.before);
    }
    free(b.before);
    return status;
}

static tsh_status run_coupled(solver *s, const options *o, double errors[2]) {
    tsh_world *world = NULL;
    surrogate network;
    tsh_status status = tsh_world_init_mpi(s->grid, NULL, &world);
    if (status != TSH_OK) return status;
    status = surrogate_create(&network, world, o->size);
    if (status == TSH_OK) status = couple(&network, s, o, errors);
    if (status != TSH_OK) tsh_world_fail(world, tsh_error_message()); /* the other ranks do not wait for this one */
    surrogate_destroy(&network);
    tsh_world_destroy(world);
    return status;
}

/* ------------------------------------------------------------------------------------------------------------------ */

static void report(const options *o, int ranks, const double errors[2], uint64_t hash) {
    if (o->json && o->alone) {
        printf("{\"field\": \"%016" PRIx64 "\", \"ranks\": %d}\n", hash, ranks);
    } else if (o->json) {
        printf("{\"error\": %.6g, \"unchanged\": %.6g, \"field\": \"%016" PRIx64 "\", \"ranks\": %d}\n", errors[0],
               errors[1], hash, ranks);
    } else {
        if (!o->alone) {
            printf("error of the network's field: %.4f (of the field before: %.4f)\n", errors[0], errors[1]);
        }
        printf("the solver's field: %016" PRIx64 "\n", hash);
    }
}

int main(int argc, char **argv) {
    int rank, ranks, level;
    double errors[2] = {0, 0};
    options o;
    solver s;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SINGLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int code = options_parse(argc, argv, rank == 0, &o);
    if (code < 0) {
        tsh_status status = TSH_OK;
        solver_create(&s, MPI_COMM_WORLD, o.size);
        if (o.alone)
            solver_step(&s, (o.fields + 1) * o.every);
        else
            status = run_coupled(&s, &o, errors);
        if (status != TSH_OK) fprintf(stderr, "heat: rank %d: %s\n", rank, tsh_error_message());
        uint64_t hash = status == TSH_OK ? solver_hash(&s) : 0;
        if (status == TSH_OK && rank == 0) report(&o, ranks, errors, hash);
        solver_destroy(&s);
        code = status == TSH_OK ? EXIT_SUCCESS : EXIT_FAILURE;
    }
    bool written = fflush(stdout) == 0 && !ferror(stdout);
    MPI_Finalize();
    return written ? code : EXIT_FAILURE;
}
