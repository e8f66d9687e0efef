/* tshard-run: starts the ranks of a program that belong on this machine. */
#include "plan.h"
#include "run.h"

static int plan(const run_options *options) {
    static plan_result result;
    int code = plan_run(options->planned, options->command, &result);
    if (code == 0 && options->json) plan_print_json(&result);
    if (code == 0 && !options->json) plan_print(&result);
    plan_free(&result);
    int flushed = run_flush_stdout();
    return code ? code : flushed;
}

int main(int argc, char **argv) {
    static run_options options; /* too large for the stack of a small system */
    run_signals signals;
    run_signals_open(&signals);
    int code = run_options_parse(argc, argv, &options);
    if (code >= 0) return code;
    return options.planned ? plan(&options) : run_guard(&options, &signals);
}
