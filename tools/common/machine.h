/* The machine file: what a machine's ranks compute and move a second, as tshard-bench calibrate measures it or a person
 * writes it for a cluster. docs/planning.md describes it. Rates are per rank, while all ranks of a node work. */
#ifndef TOOLS_MACHINE_H
#define TOOLS_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { MACHINE_AXES = 3, MACHINE_POINTS = 32, MACHINE_NAME = 64 };

/* The lists of the file, each of tables of one kind of work. */
typedef enum machine_work {
    MACHINE_PRODUCTS,  /* what: forward, dx, dw; sizes m, n, k; GFLOP/s */
    MACHINE_ATTENTION, /* what: forward, backward; sizes queries, dim; GFLOP/s */
    MACHINE_KERNELS,   /* what: a family of kernels; size bytes that a call reads and writes; GB/s */
    MACHINE_WORKS
} machine_work;

typedef struct machine_table {
    char what[MACHINE_NAME], dtype[MACHINE_NAME]; /* empty: any */
    double working_set;                           /* bytes of the tensors that its calls worked through; 0: any */
    int points[MACHINE_AXES];
    double at[MACHINE_AXES][MACHINE_POINTS]; /* ascending */
    double *rate;                            /* row-major over the points */
} machine_table;

/* A collective takes rounds latency + factor bytes / bandwidth (step_time.c). */
typedef struct machine_network {
    char axis[MACHINE_NAME], kind[MACHINE_NAME]; /* empty: any */
    int ranks;                                   /* of a group; 0: any */
    double latency_us, bus_gb_per_s;
    bool overlaps; /* ranks compute while it carries data */
} machine_network;

typedef struct machine {
    char name[256];
    int ranks;      /* that were measured at once; 0: written by hand */
    double call_us; /* of the host for a function of the tape, one way */
    int count[MACHINE_WORKS], networks;
    machine_table *table[MACHINE_WORKS];
    machine_network *network;
} machine;

/* Reads a file. False, with the reason in `why`, when it cannot be read or is no machine file. */
bool machine_read(const char *path, machine *out, char *why, size_t size);
void machine_write(FILE *to, const machine *m);
void machine_free(machine *m);

/* A table of `points` along each size, for the caller to fill, and a network: both with zeros in them. NULL without
 * memory; the next call for the same machine may move it. */
machine_table *machine_add_table(machine *m, machine_work work, const int points[MACHINE_AXES]);
machine_network *machine_add_network(machine *m);
int machine_axes(machine_work work);

/* Operations or bytes a second of a work of these sizes, in a step that works through the tensors of `working_set`
 * bytes: between the points of a table, and between tables of two working sets, the logarithm is interpolated in the
 * logarithms of the sizes, beyond them the rate stays. The tables that name both `what` and dtype come before those
 * that name less. 0 where there is none. */
double machine_rate(const machine *m, machine_work work, const char *what, const char *dtype,
                    const double at[MACHINE_AXES], double working_set);
/* The network that names most of the three and contradicts none, or NULL. */
const machine_network *machine_find_network(const machine *m, const char *axis, const char *kind, int ranks);

#endif
