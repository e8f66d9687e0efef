/* A table of programs that use tshard wrongly. Each row is run in processes of its own, at the numbers of ranks that it
 * names; it ends by itself, and its output has the words that it expects. */
#ifndef MISUSE_H
#define MISUSE_H

#include <stdbool.h>
#include <tshard/tshard.h>

/* What a row's program begins with. */
typedef struct job {
    tsh_world *world;
    tsh_group *group;
    const tsh_mesh *mesh;
    tsh_tape *tape;
    int rank, size;
} job;

enum { ONE = 1, TWO = 2, BOTH = 3 };

typedef struct misuse {
    const char *name;
    int ranks;               /* ONE, TWO or BOTH */
    const char *environment; /* "A=1 B=2", or "" */
    const char *words;       /* in the output of one rank at least */
    void (*run)(job *j);     /* NULL: there is nothing after the world */
    bool bare;               /* the row makes its own world */
} misuse;

/* Rows, up to one without a name. */
extern const misuse settings_rows[], tensor_rows[], step_rows[], reference_rows[], layer_rows[], collective_rows[],
    file_rows[];

/* Prints the status with its message where it is a failure. */
void say(tsh_status status);
/* Prints the tape's failure, or that there is none. */
void say_step(const job *j);
/* A tensor of ones, which the tests do not release unless they are about that. */
tsh_tensor *ones(const job *j, tsh_dtype dtype, int ndim, int64_t rows, int64_t cols);
/* ones() that wants a gradient. */
tsh_tensor *leaf(const job *j, int64_t rows, int64_t cols);

#endif
