/* tshard-bench support: which collective runs on which type in this world, as a Markdown table. */
#include "bench.h"

#include <string.h>

static const char *const reductions[TSH_REDUCE_OP_COUNT] = {"sum", "prod", "min", "max", "avg", "band", "bor", "bxor"};

static bool reduces(tsh_collective op) {
    return op == TSH_OP_ALL_REDUCE || op == TSH_OP_REDUCE_SCATTER || op == TSH_OP_REDUCE;
}

/* "sum prod", "yes" or "no". */
static void answer(const tsh_group *group, tsh_collective op, tsh_dtype dtype) {
    bool any = false;
    int n = reduces(op) ? TSH_REDUCE_OP_COUNT : 1;
    for (int k = 0; k < n; k++) {
        if (!tsh_group_supports(group, op, dtype, (tsh_reduce_op)k)) continue;
        printf("%s%s", any ? " " : " | ", reduces(op) ? reductions[k] : "yes");
        any = true;
    }
    if (!any) printf(" | no");
}

static void print_table(const tsh_group *group) {
    const char *const *dtypes = bench_dtype_names();
    printf("| %s |", tsh_group_backend(group));
    for (int i = 0; dtypes[i]; i++) printf(" %s |", dtypes[i]);
    printf("\n|---|");
    for (int i = 0; dtypes[i]; i++) printf("---|");
    for (int op = 0; op < TSH_COLLECTIVE_COUNT; op++) {
        printf("\n| %s", tsh_collective_name((tsh_collective)op));
        for (int i = 0; dtypes[i]; i++) answer(group, (tsh_collective)op, (tsh_dtype)i);
        printf(" |");
    }
    printf("\n");
}

int bench_support(int argc, char **argv) {
    bench_common common;
    int code = bench_options_parse("support",
                                   "Prints a table of collectives, element types and reductions that the world's "
                                   "backend supports, in Markdown.",
                                   NULL, 0, &common, argc, argv);
    if (code >= 0) return code;
    tsh_world *world = NULL;
    if (tsh_world_init(NULL, &world) != TSH_OK) return bench_failed(NULL, "world_init");
    if (tsh_world_rank(world) == 0) print_table(tsh_world_group(world));
    tsh_world_destroy(world);
    return 0;
}
