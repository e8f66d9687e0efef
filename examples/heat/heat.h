/* Parts of the example heat: options, the solver, which uses only MPI, and the surrogate, which uses tshard. */
#ifndef HEAT_H
#define HEAT_H

#include "tshard/mpi.h"
#include "tshard/tshard.h"

#include <mpi.h>

typedef struct options {
    int64_t size;     /* points along each side */
    int64_t every;    /* solver steps from a field to the next that the surrogate sees */
    int64_t fields;   /* that the surrogate learns from */
    int64_t training; /* training steps for each */
    bool alone;       /* no surrogate */
    bool json;
} options;

/* -1 to go on, or the exit code. Only a rank that `speaks` prints. */
int options_parse(int argc, char **argv, bool speaks, options *out);

/* --- solver.c ----------------------------------------------------------------------------------------------------- */

/* A rank's block of the grid: rows x columns of the whole from (row, column) on, stored with a halo of one point. */
typedef struct solver {
    MPI_Comm grid; /* two-dimensional */
    MPI_Datatype side;
    int up, down, left, right;
    int64_t size, row, column, rows, columns;
    double *now, *next;
} solver;

void solver_create(solver *s, MPI_Comm comm, int64_t size);
void solver_destroy(solver *s);
/* Makes this many steps of explicit Euler. */
void solver_step(solver *s, int64_t steps);
/* The block without its halo, row-major, into `values`. */
void solver_block(const solver *s, double *values);
/* On rank 0 a hash of the bits of the whole field. */
uint64_t solver_hash(const solver *s);

/* --- surrogate.c -------------------------------------------------------------------------------------------------- */

enum { RADIUS = 3, PATCH = (2 * RADIUS + 1) * (2 * RADIUS + 1), HIDDEN = 64 };

/* A small network on two ranks of the world: the patch around a point -> how far the point is some solver steps
 * later. */
typedef struct surrogate {
    tsh_world *world;
    tsh_mesh *mesh;
    int64_t size;
    tsh_tensor *field;              /* float64 [size, size], in strips of rows */
    tsh_tensor *patches, *increase; /* float32 [size, size, PATCH] and [size, size, 1], in the same strips */
    tsh_linear *first, *second;
    tsh_tape *tape;
    tsh_parameters *parameters;
    tsh_optimizer *optimizer;
    double *strip; /* of this rank, with a halo of RADIUS points */
    float *rows;   /* of this rank, for patches */
} surrogate;

tsh_status surrogate_create(surrogate *s, tsh_world *world, int64_t size);
void surrogate_destroy(surrogate *s);
/* Takes patches from the field that the blocks of all ranks form. */
tsh_status surrogate_look(surrogate *s, const tsh_box *box, const double *block);
/* Makes this many training steps: from the patches to the field that the blocks form now. */
tsh_status surrogate_learn(surrogate *s, const tsh_box *box, const double *block, int64_t steps);
/* The surrogate's prediction of the field in this rank's block. */
tsh_status surrogate_predict(surrogate *s, const tsh_box *box, const double *block, double *out);

#endif
