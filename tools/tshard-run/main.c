/* tshard-run: starts the ranks of a program that belong on this machine. */
#include "common/output.h"
#include "plan.h"
#include "plan_search.h"
#include "run.h"

static int plan_once(const run_options *options, const machine *m) {
    static plan_result result;
    int code = plan_run(options->planned, options->command, &result);
    if (code == 0 && options->json) plan_print_json(&result, m);
    if (code == 0 && !options->json) plan_print(&result, m);
    plan_free(&result);
    int flushed = run_flush_stdout();
    return code ? code : flushed;
}

static int plan(const run_options *options) {
    char why[768];
    machine m;
    const machine *known = options->machine ? &m : NULL;
    if (known && !machine_read(options->machine, &m, why, sizeof why)) {
        run_say("--machine: %s", why);
        return RUN_USAGE_EXIT;
    }
    int code = options->search.options
                   ? search_run(&options->search, options->planned, known, options->json, options->command)
                   : plan_once(options, known);
    if (known) machine_free(&m);
    return code;
}

int main(int argc, char **argv) {
    static run_options options; /* too large for the stack of a small system */
    run_signals signals;
    output_begin();
    run_signals_open(&signals);
    int code = run_options_parse(argc, argv, &options);
    if (code >= 0) return code;
    return options.planned ? plan(&options) : run_guard(&options, &signals);
}
