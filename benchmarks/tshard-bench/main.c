/* tshard-bench: measures tshard. Run it under tshard-run, or alone as one rank. */
#include "bench.h"

#include "base/number.h"
#include "common/output.h"

#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const bench_command commands[] = {
    {"attention", "only attention, forward and backward", bench_attention},
    {"calibrate", "measures this machine for tshard-plan: writes its machine file", bench_calibrate},
    {"checkpoint", "saving and loading a model, beside cp of as many bytes", bench_checkpoint},
    {"collectives", "time and bandwidth of the collectives over a range of sizes", bench_collectives},
    {"data_parallel", "training steps with a copy of the model on each rank, by when gradients are summed",
     bench_data_parallel},
    {"dispatch", "what a call of the tape costs, on a chain of small sums", bench_dispatch},
    {"gpt", "only the matrix products of a training step of train_gpt", bench_gpt},
    {"kernels", "the kernels whose cost is memory, beside a plain copy", bench_kernels},
    {"linear", "training steps of a linear layer by column, by row and dense, beside its matrix products",
     bench_linear},
    {"mlp", "training steps of a column layer, GELU and a row layer, beside their matrix products", bench_mlp},
    {"redistribute", "changes of a matrix's layouts, beside a plain copy, and what planning them costs",
     bench_redistribute},
    {"support", "which collectives run on which types here", bench_support},
};
static const int command_count = (int)(sizeof commands / sizeof *commands);

bool bench_is_first_rank(void) {
    const char *const names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
    for (int i = 0; i < 4; i++) {
        const char *rank = getenv(names[i]);
        int number;
        if (rank && *rank) return !tshi_parse_int(rank, 1, INT_MAX, &number); /* nonsense is said by all */
    }
    return true;
}

void bench_say(const char *format, ...) {
    char text[1024];
    if (!bench_is_first_rank()) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "tshard-bench: %s\n", text);
}

int bench_failed(const tsh_world *world, const char *what) {
    if (world)
        fprintf(stderr, "tshard-bench: rank %d: %s: %s\n", tsh_world_rank(world), what, tsh_error_message());
    else
        fprintf(stderr, "tshard-bench: %s: %s\n", what, tsh_error_message());
    return 1;
}

static void print_help(FILE *to) {
    if (!bench_is_first_rank()) return;
    fputs("usage: tshard-run -n N tshard-bench COMMAND [options]\n"
          "       tshard-bench COMMAND [options]           as one rank\n"
          "\n"
          "Measures parts of tshard on this machine, each beside a bound.\n"
          "\n"
          "Commands (tshard-bench COMMAND --help lists the options):\n",
          to);
    for (int i = 0; i < command_count; i++) fprintf(to, "  %-14s %s\n", commands[i].name, commands[i].help);
    fputs("\n"
          "      --help     this text\n"
          "      --version  version\n",
          to);
}

static int run(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_help(stdout);
        return 0;
    }
    if (strcmp(name, "--version") == 0) {
        if (bench_is_first_rank()) printf("tshard-bench %s\n", tsh_version());
        return 0;
    }
    for (int i = 0; i < command_count; i++) {
        if (strcmp(name, commands[i].name) == 0) return commands[i].run(argc - 1, argv + 1);
    }
    if (argc > 1) bench_say("unknown command '%s'", name);
    print_help(stderr);
    return 2;
}

int main(int argc, char **argv) {
    output_begin();
    return output_end("tshard-bench", run(argc, argv));
}
