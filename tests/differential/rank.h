/* A program on a rank of a mesh, and on the one rank that holds the truth. */
#ifndef TSHI_TEST_RANK_H
#define TSHI_TEST_RANK_H

#include "differential/bench.h"
#include "differential/trace.h"

/* Where the ranks of a run wait for each other, outside the library. */
typedef struct tshi_gate tshi_gate;
/* Wait until all have come; whether one of them has failed. */
bool tshi_gate_pass(tshi_gate *gate, int rank, bool failed);

typedef struct tshi_part {
    const tshi_program *p;
    tsh_world *world;
    const tsh_mesh *mesh;
    int rank;
    tshi_gate *gate;
    bool careful; /* wait at each step, so that a failure comes to all at the same one */
    tshi_trace *trace;
} tshi_part;

/* false: the world is of no more use. */
bool tshi_part_run(const tshi_part *part);

/* The program with one tensor for each value, or one for each rank that has its own (LOCAL). The ranks' traces say
 * which layouts the values have; truths [ranks] are written as theirs. */
void tshi_truth_run(const tshi_program *p, tsh_world *world, const tsh_mesh *mesh, const tshi_trace *ranks,
                    tshi_trace *truths, tshi_verdict *v);

#endif
