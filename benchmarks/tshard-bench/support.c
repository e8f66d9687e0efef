/* tshard-bench support: which collective runs on which type over which backend, as a Markdown table. */
#include "bench.h"

#include <ctype.h>
#include <string.h>

enum {
    DTYPES = TSH_DTYPE_COUNT,
    OPS = TSH_COLLECTIVE_COUNT,
    REDUCTIONS = TSH_REDUCE_OP_COUNT,
    BACKENDS = 5,
    MOST_COLUMNS = 2 * BACKENDS
};

typedef struct column {
    const char *backend;
    tsh_device_kind device;
} column;

/* Element types for which all answers are the same. */
typedef struct class {
    int dtype[DTYPES], n;
} class;

typedef struct table {
    column columns[MOST_COLUMNS];
    class classes[DTYPES];
    int column_count, class_count;
} table;

static bool reduces(tsh_collective op) {
    return op == TSH_COLLECTIVE_ALL_REDUCE || op == TSH_COLLECTIVE_REDUCE_SCATTER || op == TSH_COLLECTIVE_REDUCE;
}

/* A bit for each reduction; of what does not reduce all or none. */
static unsigned answer(const column *c, int op, int dtype) {
    unsigned bits = 0;
    for (int k = 0; k < REDUCTIONS; k++) {
        bool yes = tsh_backend_supports(c->backend, c->device, (tsh_collective)op, (tsh_dtype)dtype, (tsh_reduce_op)k);
        bits |= (unsigned)yes << k;
    }
    return bits;
}

static bool any(const column *c) {
    for (int k = 0; k < OPS * DTYPES; k++) {
        if (answer(c, k / DTYPES, k % DTYPES)) return true;
    }
    return false;
}

static bool alike(const table *t, int a, int b) {
    for (int i = 0; i < t->column_count; i++) {
        for (int op = 0; op < OPS; op++) {
            if (answer(&t->columns[i], op, a) != answer(&t->columns[i], op, b)) return false;
        }
    }
    return true;
}

static void fill(table *t) {
    static const char *const backends[BACKENDS] = {"self", "local", "ucx", "mpi", "nccl"};
    for (int i = 0; i < MOST_COLUMNS; i++) {
        column c = {backends[i % BACKENDS], i < BACKENDS ? TSH_CPU : TSH_CUDA};
        if (any(&c)) t->columns[t->column_count++] = c;
    }
    for (int dtype = 0, k; dtype < DTYPES; dtype++) {
        for (k = 0; k < t->class_count && !alike(t, t->classes[k].dtype[0], dtype); k++) continue;
        if (k == t->class_count) t->class_count++;
        t->classes[k].dtype[t->classes[k].n++] = dtype;
    }
}

static char letter(const class *c) {
    return (char)toupper((unsigned char)*bench_dtype_names()[c->dtype[0]]);
}

static void print_reductions(unsigned bits) {
    static const char *const names[REDUCTIONS] = {"sum", "prod", "min", "max", "avg", "band", "bor", "bxor"};
    const char *space = "";
    for (int k = 0; k < REDUCTIONS; k++) {
        if (!(bits >> k & 1)) continue;
        printf("%s%s", space, names[k]);
        space = " ";
    }
}

/* "F I C", "yes" where there are no elements. Reductions are spelled out where they are not those of the legend. */
static void print_cell(const table *t, const column *c, int op) {
    bool some = false;
    for (int k = 0; k < t->class_count; k++) {
        unsigned bits = answer(c, op, t->classes[k].dtype[0]);
        if (!bits) continue;
        if (op == TSH_COLLECTIVE_BARRIER) {
            printf(" yes |");
            return;
        }
        printf(" %c", letter(&t->classes[k]));
        some = true;
        if (!reduces((tsh_collective)op) ||
            bits == answer(t->columns, TSH_COLLECTIVE_ALL_REDUCE, t->classes[k].dtype[0])) {
            continue;
        }
        printf(" (");
        print_reductions(bits);
        printf(")");
    }
    printf(some ? " |" : " no |");
}

static void print_table(const table *t) {
    printf("| |");
    for (int i = 0; i < t->column_count; i++) {
        printf(" `%s`%s |", t->columns[i].backend, t->columns[i].device == TSH_CUDA ? " on CUDA" : "");
    }
    printf("\n|---|");
    for (int i = 0; i < t->column_count; i++) printf("---|");
    for (int op = 0; op < OPS; op++) {
        printf("\n| %s |", tsh_collective_name((tsh_collective)op));
        for (int i = 0; i < t->column_count; i++) print_cell(t, &t->columns[i], op);
    }
    printf("\n\n");
    for (int k = 0; k < t->class_count; k++) {
        const class *c = &t->classes[k];
        printf("- %c:", letter(c));
        for (int i = 0; i < c->n; i++) printf(" %s", bench_dtype_names()[c->dtype[i]]);
        printf("; reduced by ");
        print_reductions(answer(t->columns, TSH_COLLECTIVE_ALL_REDUCE, c->dtype[0]));
        printf("\n");
    }
}

int bench_support(int argc, char **argv) {
    bench_common common;
    table t = {0};
    int code = bench_options_parse("support",
                                   "Prints a table of the collectives, element types and reductions that the backends "
                                   "of this build support, in Markdown.",
                                   NULL, 0, &common, argc, argv);
    if (code >= 0) return code;
    fill(&t);
    if (bench_is_first_rank()) print_table(&t);
    return 0;
}
