/* tshard-run: starts the ranks of a program that belong on this machine. */
#include "run.h"

int main(int argc, char **argv) {
    static run_options options; /* too large for the stack of a small system */
    run_signals signals;
    run_signals_open(&signals);
    int code = run_options_parse(argc, argv, &options);
    return code >= 0 ? code : run_guard(&options, &signals);
}
