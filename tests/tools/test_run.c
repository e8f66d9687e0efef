/* The program tshard-run, started with real children. */
#include "tools/launched.h"

#include <poll.h>
#include <stdint.h>

/* --- codes -------------------------------------------------------------------------------------------------------- */

Test(run, all_ranks_end_well, .timeout = 120) {
    char line[256];
    cr_assert_eq(run_to_end(ARGUMENTS("-n", "3", "true"), line), 0);
    cr_assert_str_eq(line, "");
}

Test(run, code_of_the_rank_that_failed, .timeout = 120) {
    char line[256];
    int code = run_to_end(ARGUMENTS("-n", "3", "sh", "-c", "test $RANK = 1 && exit 7; exec sleep 60"), line);
    cr_assert_eq(code, 7);
    cr_assert_eq(strncmp(line, "tshard-run: rank 1 (pid ", 24), 0, "%s", line);
    cr_assert(strstr(line, ") exited with code 7; the others were stopped"), "%s", line);
}

Test(run, first_failure_by_time_is_named, .timeout = 120) {
    char line[256];
    /* Rank 2 fails first; the other ranks notice it and exit with codes of their own. */
    int code = run_to_end(ARGUMENTS("-n", "3", "sh", "-c",
                                    "f=/tmp/tshard-first-$TSHARD_TOKEN; test $RANK = 2 && echo $$ > $f && exit 5; "
                                    "until test -s $f && grep -q '^State:.Z' /proc/$(cat $f)/status; do sleep 0.01; "
                                    "done; exit $((10 + RANK))"),
                          line);
    glob_t found;
    if (glob("/tmp/tshard-first-*", 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++) unlink(found.gl_pathv[i]);
        globfree(&found);
    }
    cr_assert_eq(code, 5);
    cr_assert_eq(strncmp(line, "tshard-run: rank 2 (pid ", 24), 0, "%s", line);
    cr_assert(strstr(line, "; the others have ended"), "%s", line);
}

Test(run, code_after_a_killed_rank_is_128_and_the_signal, .timeout = 120) {
    char line[256];
    int code = run_to_end(ARGUMENTS("-n", "4", "sh", "-c", "test $RANK = 2 && kill -9 $$; exec sleep 60"), line);
    cr_assert_eq(code, 137);
    cr_assert_eq(strncmp(line, "tshard-run: rank 2 (pid ", 24), 0, "%s", line);
    cr_assert(strstr(line, ") was killed by signal 9 (Killed); the others were stopped"), "%s", line);
}

/* The script: rank R does what its place says, the others exit with 0. */
Test(run, goes_on_with_fewer_ranks, .timeout = 120) {
    static const struct {
        const char *least, *script, *last;
        int code;
    } cases[] = {
        {"2", "test $RANK = 1 && kill -9 $$; sleep 0.3",
         "was killed by signal 9 (Killed); the job goes on with 2 ranks", 0},
        {"2", "test $RANK = 0 && exit 5; sleep 0.3", "exited with code 5; the job goes on with 2 ranks", 0},
        {"1", "test $RANK = 2 || exit $((RANK + 5)); test $TSHARD_MIN_RANKS = 1", "the job goes on with 1 rank", 0},
        {"3", "test $RANK = 1 && exit 6; sleep 60", "exited with code 6; the others were stopped", 6},
        {"2", "test $RANK = 1 && kill -STOP $$; sleep 0.3",
         "was killed by signal 9 (Killed); the job goes on with 2 ranks", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[256];
        int code = run_to_end(ARGUMENTS("-n", "3", "--min-ranks", (char *)(uintptr_t)cases[i].least, "sh", "-c",
                                        (char *)(uintptr_t)cases[i].script),
                              line);
        cr_assert_eq(code, cases[i].code, "%zu: code %d", i, code);
        cr_assert(strstr(line, cases[i].last), "%zu: %s", i, line);
    }
}

Test(run, one_rank_has_no_others, .timeout = 120) {
    char line[256];
    cr_assert_eq(run_to_end(ARGUMENTS("-n", "1", "sh", "-c", "exit 3"), line), 3);
    cr_assert(strstr(line, ") exited with code 3") && !strstr(line, "others"), "%s", line);
}

Test(run, rank_that_ignores_term_is_killed_after_the_grace, .timeout = 120) {
    char line[256];
    double begin = tshi_now();
    int code = run_to_end(ARGUMENTS("-n", "2", "--grace", "0.5", "sh", "-c",
                                    "test $RANK = 1 && exit 4; trap '' TERM; while :; do sleep 1; done"),
                          line);
    cr_assert_eq(code, 4);
    cr_assert_geq(tshi_now() - begin, 1.4); /* a second to notice, then the grace */
}

Test(run, program_that_cannot_be_run, .timeout = 120) {
    char line[256];
    cr_assert_eq(run_to_end(ARGUMENTS("-n", "2", "/nowhere/program"), line), 127);
    cr_assert_str_eq(line, "tshard-run: cannot run '/nowhere/program': No such file or directory");
    cr_assert_eq(run_to_end(ARGUMENTS("-n", "2", "/etc/passwd"), line), 126);
    cr_assert_str_eq(line, "tshard-run: cannot run '/etc/passwd': Permission denied");
}

Test(run, options_of_torchrun_that_change_nothing, .timeout = 120) {
    char line[256];
    cr_expect_eq(run_to_end(ARGUMENTS("--nproc-per-node", "2", "--rdzv-endpoint", "localhost:0", "--rdzv-backend",
                                      "c10d", "--rdzv-conf", "timeout=3", "true"),
                            line),
                 0, "%s", line);
    cr_expect_eq(run_to_end(ARGUMENTS("--standalone", "--nproc_per_node", "2", "--local-addr", "127.0.0.1",
                                      "--start-method=spawn", "sh", "-c", "test $MASTER_PORT -gt 0"),
                            line),
                 0, "%s", line);
}

/* The launcher needs more descriptors than its ranks. */
Test(run, ranks_have_the_limits_of_the_launcher, .timeout = 120) {
    struct rlimit limit;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 256;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    char line[256];
    cr_expect_eq(run_to_end(ARGUMENTS("-n", "2", "sh", "-c", "test $(ulimit -n) = 256"), line), 0, "%s", line);
}

Test(run, wrong_use, .timeout = 120) {
    const struct {
        char *argv[8];
        const char *words;
    } cases[] = {
        {{"tshard-run", "-n", "0", "true"}, "-n wants a number of ranks from 1 to 1024, not '0'"},
        {{"tshard-run", "-n", "2x", "true"}, "-n wants a number of ranks from 1 to 1024, not '2x'"},
        {{"tshard-run", "-n", " 2", "true"}, "-n wants a number of ranks from 1 to 1024, not ' 2'"},
        {{"tshard-run", "-n", "+1", "true"}, "-n wants a number of ranks from 1 to 1024, not '+1'"},
        {{"tshard-run", "-n", "4294967298", "true"}, "-n wants a number of ranks from 1 to 1024, not '4294967298'"},
        {{"tshard-run", "-n", "", "true"}, "-n wants a value that is not empty"},
        {{"tshard-run", "-n", "2", "--log-dir", "", "true"}, "--log-dir wants a value that is not empty"},
        {{"tshard-run", "-n", "2", "--master-addr", "", "true"}, "--master-addr wants a value that is not empty"},
        {{"tshard-run", "-n", "2", "--grace", "nan", "true"}, "--grace wants seconds, 0 or more, not 'nan'"},
        {{"tshard-run", "-n", "2", "--grace", " 1", "true"}, "--grace wants seconds, 0 or more, not ' 1'"},
        {{"tshard-run", "-n", "2", "--grace", "0x1", "true"}, "--grace wants seconds, 0 or more, not '0x1'"},
        {{"tshard-run", "-n", "2", "--nnodes", "1: 1", "true"}, "--nnodes wants a number of nodes from 1 to 1024"},
        {{"tshard-run", "-n", "2", "--hostfile", "/dev/zero", "true"}, "--hostfile /dev/zero, line 1: a name"},
        {{"tshard-run", "-n", "2", "--hostfile", "/tmp", "true"}, "--hostfile /tmp: Is a directory"},
        {{"tshard-run", "-n", "2", "--rdzv-endpoint", "[::1", "true"}, "--rdzv-endpoint wants HOST, HOST:PORT"},
        {{"tshard-run", "-n", "2", "--rdzv-endpoint", "h:+80", "true"}, "not 'h:+80'"},
        {{"tshard-run", "true"}, "-n N, the number of ranks, is missing"},
        {{"tshard-run", "-n", "2"}, "the PROGRAM to run is missing"},
        {{"tshard-run", "-n"}, "-n wants a value"},
        {{"tshard-run", "-n", "2", "--what", "true"}, "unknown option '--what'"},
        {{"tshard-run", "-np", "2x", "true"}, "-n wants a number of ranks from 1 to 1024, not '2x'"},
        {{"tshard-run", "-np"}, "-n wants a value"},
        {{"tshard-run", "-n", "2", "-host", "a,b", "true"}, "'-host' is an option of another launcher: --nodes A,B"},
        {{"tshard-run", "-n", "2", "--bind-to=core", "true"},
         "'--bind-to=core' is an option of another launcher: --bind"},
        {{"tshard-run", "-N", "2", "true"}, "'-N' is an option of another launcher: -n N is the number of ranks"},
        {{"tshard-run", "-n", "2", "--bind", "sockets", "true"}, "--bind wants cores, numa, none or a list"},
        {{"tshard-run", "-n", "2", "--bind", "0:", "true"}, "--bind wants cores, numa, none or a list"},
        {{"tshard-run", "-n", "2", "--bind", "3-1", "true"}, "--bind wants cores, numa, none or a list"},
        {{"tshard-run", "-n", "2", "--bind", "0:1:0", "true"}, "--bind 0:1:0 has 3 sets, for 2 ranks"},
        {{"tshard-run", "-n", "2", "--bind", "16000", "true"}, "--bind 16000: rank 0 may use none of these cores"},
        {{"tshard-run", "-n", "2", "--grace", "-1", "true"}, "--grace wants seconds, 0 or more, not '-1'"},
        {{"tshard-run", "-n", "2", "--master-port", "70000", "true"}, "--master-port wants a port from 1 to 65535"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[256];
        cr_expect_eq(run_to_end(cases[i].argv, line), 2);
        cr_expect(strstr(line, cases[i].words), "wanted '%s', got '%s'", cases[i].words, line);
    }
}

Test(run, help_and_version, .timeout = 120) {
    launched job = start(ARGUMENTS("--help"));
    cr_assert_eq(finish(&job), 0);
    char *text = contents(job.out);
    cr_assert(strstr(text, "usage: tshard-run -n N") && strstr(text, "--bind") && strstr(text, "--grace"));
    free(text);
    job = start(ARGUMENTS("--version"));
    cr_assert_eq(finish(&job), 0);
    text = contents(job.out);
    cr_assert_eq(strncmp(text, "tshard-run 0.", 13), 0, "%s", text);
    free(text);
}

/* --- what a rank is given ----------------------------------------------------------------------------------------- */

Test(run, environment, .timeout = 120) {
    launched job = start(ARGUMENTS("-n", "2", "--master-port", "4711", "sh", "-c",
                                   "echo =$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR "
                                   "$MASTER_PORT ${#TSHARD_TOKEN}; echo token $TSHARD_TOKEN"));
    cr_assert_eq(finish(&job), 0);
    char *text = contents(job.out);
    cr_assert(strstr(text, "[0] =0 0 2 2 0 127.0.0.1 4711 32\n"), "%s", text);
    cr_assert(strstr(text, "[1] =1 1 2 2 0 127.0.0.1 4711 32\n"), "%s", text);
    char *first = strstr(text, "[0] token "), *second = strstr(text, "[1] token ");
    cr_assert(first && second && strncmp(first + 10, second + 10, 32) == 0, "one job, one token: %s", text);
    char token[33];
    snprintf(token, sizeof token, "%s", first + 10);
    free(text);
    job = start(ARGUMENTS("-n", "1", "sh", "-c", "echo $TSHARD_TOKEN"));
    cr_assert_eq(finish(&job), 0);
    text = contents(job.out);
    cr_assert_null(strstr(text, token), "another job, another token");
    free(text);
}

Test(run, number_of_ranks_as_mpirun_and_torchrun_write_it, .timeout = 120) {
    char *const spellings[] = {"-np", "-n", "--ranks", "--nproc-per-node", "--nproc_per_node"};
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        launched job = start(ARGUMENTS(spellings[i], "2", "sh", "-c", "echo $WORLD_SIZE $1", "-np", "-np"));
        cr_expect_eq(finish(&job), 0);
        char *text = contents(job.out);
        cr_expect(strstr(text, "[0] 2 -np\n") && strstr(text, "[1] 2 -np\n"), "%s: %s", spellings[i], text);
        free(text);
    }
}

Test(run, signals_are_as_the_launcher_found_them, .timeout = 120) {
    launched job = start(ARGUMENTS("-n", "1", "grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"));
    cr_assert_eq(finish(&job), 0);
    char *text = contents(job.out);
    cr_assert_str_eq(text, "[0] SigBlk:\t0000000000000000\n[0] SigIgn:\t0000000000000000\n");
    free(text);
}

Test(run, ranks_are_bound_to_cores_of_their_own, .timeout = 120) {
    launched job = start(ARGUMENTS("-n", "2", "--bind", "cores", "grep", "Cpus_allowed:", "/proc/self/status"));
    cr_assert_eq(finish(&job), 0);
    char *text = contents(job.out);
    char *zero = strstr(text, "[0] Cpus_allowed:\t"), *one = strstr(text, "[1] Cpus_allowed:\t");
    cr_assert(zero && one, "%s", text);
    if (sysconf(_SC_NPROCESSORS_ONLN) >= 2) {
        /* Masks of up to 32 cores are one hexadecimal word; more have commas, and then strings must differ. */
        cr_assert_neq(strncmp(zero + 18, one + 18, strcspn(zero + 18, "\n") + 1), 0, "%s", text);
    }
    free(text);
}

/* --- output ------------------------------------------------------------------------------------------------------- */

Test(run, both_outputs_keep_their_place, .timeout = 120) {
    launched job = start(ARGUMENTS("-n", "2", "sh", "-c", "echo out; echo err $RANK >&2; printf partial"));
    cr_assert_eq(finish(&job), 0);
    char *out = contents(job.out), *err = contents(job.err);
    cr_assert(strstr(out, "[0] out\n") && strstr(out, "[1] out\n"), "%s", out);
    cr_assert(strstr(out, "[0] partial\n") && strstr(out, "[1] partial\n"), "%s", out);
    cr_assert(strstr(err, "[0] err 0\n") && strstr(err, "[1] err 1\n") && strlen(err) == 20, "%s", err);
    free(out);
    free(err);
}

/* An error that all ranks have in common is shown once, and not again at the end; what a rank repeats is shown. */
Test(run, one_error_is_shown_once, .timeout = 120) {
    launched job =
        start(ARGUMENTS("-n", "4", "sh", "-c", "echo rank 2: wrong >&2; test $RANK = 2 || exec sleep 60; exit 3"));
    cr_assert_eq(finish(&job), 3);
    char *err = contents(job.err), *first = strstr(err, "rank 2: wrong\n");
    cr_assert(first && !strstr(first + 1, "rank 2: wrong"), "%s", err);
    cr_assert(strstr(err, "exited with code 3") && !strstr(err, "the last that"), "%s", err);
    free(err);
    job = start(ARGUMENTS("-n", "2", "sh", "-c", "test $RANK = 1 || exec sleep 60; echo a >&2; echo a >&2; exit 3"));
    cr_assert_eq(finish(&job), 3);
    err = contents(job.err);
    cr_assert(strstr(err, "[1] a\n[1] a\n"), "%s", err);
    free(err);
}

Test(run, no_prefix_passes_bytes_on_as_they_are, .timeout = 120) {
    launched job = start(ARGUMENTS("-n", "1", "--no-prefix", "printf", "a\\r\\nb\\n\\nc"));
    cr_assert_eq(finish(&job), 0);
    char *out = contents(job.out);
    cr_assert_str_eq(out, "a\r\nb\n\nc");
    free(out);
}

/* Every rank writes lines in three pieces. Each line must come out whole and in its rank's order. */
Test(run, many_lines_from_many_ranks_are_whole, .timeout = 120) {
    enum { RANKS = 4, LINES = 3000 };
    launched job = start(ARGUMENTS("-n", "4", "--bind", "none", "sh", "-c",
                                   "i=0; while [ $i -lt 3000 ]; do printf \"rank $RANK \"; printf \"line $i \"; "
                                   "printf 'abcdefghijklmnopqrstuvwxyz\\n'; i=$((i+1)); done"));
    cr_assert_eq(finish(&job), 0);
    char *text = contents(job.out), *rest = text;
    int next[RANKS] = {0};
    for (char *line; (line = strsep(&rest, "\n")) && *line;) {
        int prefix = -1, rank = -1, number = -1, used = 0;
        int fields = sscanf(line, "[%d] rank %d line %d abcdefghijklmnopqrstuvwxyz%n", &prefix, &rank, &number, &used);
        cr_assert(fields == 3 && used == (int)strlen(line), "'%s'", line);
        cr_assert(prefix == rank && rank >= 0 && rank < RANKS && number == next[rank], "'%s'", line);
        next[rank]++;
    }
    for (int rank = 0; rank < RANKS; rank++) cr_assert_eq(next[rank], LINES);
    free(text);
}

Test(run, long_lines_are_whole, .timeout = 120) {
    launched job = start(ARGUMENTS("-n", "2", "sh", "-c", "head -c 300000 /dev/zero | tr '\\0' $RANK; echo; echo end"));
    cr_assert_eq(finish(&job), 0);
    char *text = contents(job.out), *rest = text;
    int whole = 0;
    for (char *line; (line = strsep(&rest, "\n"));) {
        if (strlen(line) < 1000) continue;
        cr_assert_eq(strlen(line), 300004);
        const char digit[2] = {line[1], '\0'};
        cr_assert_eq(strspn(line + 4, digit), 300000);
        whole++;
    }
    cr_assert_eq(whole, 2);
    free(text);
}

Test(run, stdin_goes_to_rank_0, .timeout = 120) {
    FILE *out = popen("printf 'one\\ntwo\\n' | " LAUNCHER " -n 2 sh -c 'cat; echo end'", "r");
    cr_assert_not_null(out);
    char text[256] = "";
    size_t n = fread(text, 1, sizeof text - 1, out);
    text[n] = '\0';
    cr_assert_eq(pclose(out), 0);
    cr_assert(strstr(text, "[0] one\n[0] two\n[0] end\n") || strstr(text, "[0] one\n[0] two\n[1] end\n"), "%s", text);
    cr_assert_null(strstr(text, "[1] one"));
}

/* A reader that goes away ends the job as it would have ended the program. */
Test(run, broken_pipe_ends_the_job, .timeout = 120) {
    int pipe_fds[2];
    cr_assert_eq(pipe2(pipe_fds, O_CLOEXEC), 0);
    launched job = {.terminal = -1};
    job.pid = fork();
    if (job.pid == 0) {
        child_begins();
        dup2(pipe_fds[1], 1);
        dup2(open("/dev/null", O_WRONLY), 2);
        execv(LAUNCHER, ARGUMENTS("-n", "2", "yes"));
        _exit(99);
    }
    close(pipe_fds[1]);
    close(pipe_fds[0]);
    cr_assert_eq(finish(&job), 128 + SIGPIPE);
}

/* --- signals ------------------------------------------------------------------------------------------------------ */

static void forwards_and_stops(int number) {
    char script[256];
    snprintf(script, sizeof script, "trap 'echo got it; exit 0' %d; echo ready; while :; do sleep 0.05; done", number);
    launched job = start(ARGUMENTS("-n", "2", "sh", "-c", script));
    wait_for_text(job.out, "ready", 2);
    kill(job.pid, number);
    cr_assert_eq(finish(&job), 0, "ranks that end well make a job that ends well");
    wait_for_text(job.out, "got it", 2);
    assert_nothing_left(0.0);
}

Test(run, signals_reach_the_ranks, .timeout = 120) {
    forwards_and_stops(SIGINT);
    forwards_and_stops(SIGTERM);
    forwards_and_stops(SIGHUP);
}

Test(run, user_signals_reach_the_ranks_and_stop_nothing, .timeout = 120) {
    launched job = start(ARGUMENTS("-n", "2", "sh", "-c",
                                   "trap 'echo one' USR1; trap 'echo two; exit 0' USR2; echo ready; "
                                   "while :; do sleep 0.05; done"));
    wait_for_text(job.out, "ready", 2);
    kill(job.pid, SIGUSR1);
    wait_for_text(job.out, "one", 2);
    kill(job.pid, SIGUSR2);
    cr_assert_eq(finish(&job), 0);
    wait_for_text(job.out, "two", 2);
}

/* Rank 0 has no handler, as a program has none before it has made its world; of rank 1 a child of its shell has one. */
Test(run, user_signals_end_no_rank, .timeout = 120) {
    launched job = start(ARGUMENTS("-n", "2", "sh", "-c",
                                   "test $RANK = 0 && echo ready && exec sleep 1000; "
                                   "sh -c 'trap \"echo rang\" USR1; echo ready; while :; do sleep 0.02; done'; echo"));
    wait_for_text(job.out, "ready", 2);
    kill(job.pid, SIGUSR1);
    wait_for_text(job.out, "rang", 1);
    kill(job.pid, SIGTERM);
    cr_assert_eq(finish(&job), 143);
    char *err = contents(job.err);
    cr_assert_str_eq(err, "tshard-run: stopped by signal 15 (Terminated)\n");
    free(err);
}

Test(run, interrupted_job_says_so, .timeout = 120) {
    launched job = start(ARGUMENTS("-n", "2", "sh", "-c", "echo ready; exec sleep 60"));
    wait_for_text(job.out, "ready", 2);
    kill(job.pid, SIGINT);
    cr_assert_eq(finish(&job), 130);
    char *err = contents(job.err);
    cr_assert_str_eq(err, "tshard-run: stopped by signal 2 (Interrupt)\n");
    free(err);
    assert_nothing_left(0.0);
}

Test(run, second_interrupt_kills_at_once, .timeout = 120) {
    launched job = start(ARGUMENTS("-n", "2", "--grace", "60", "sh", "-c",
                                   "trap 'echo no' INT; echo ready; while :; do sleep 0.05; done"));
    wait_for_text(job.out, "ready", 2);
    kill(job.pid, SIGINT);
    wait_for_text(job.out, "no", 2);
    kill(job.pid, SIGINT);
    cr_assert_eq(finish(&job), 130); /* long before the grace is over */
    assert_nothing_left(0.0);
}

Test(run, reader_that_stops_does_not_keep_the_job, .timeout = 120) {
    int fds[2];
    cr_assert_eq(pipe2(fds, O_CLOEXEC), 0);
    launched job = {.terminal = -1};
    char *marked = strdup(mark());
    job.pid = fork();
    if (job.pid == 0) {
        child_begins();
        putenv(marked);
        dup2(fds[1], 1);
        dup2(open("/dev/null", O_WRONLY), 2);
        execv(LAUNCHER, ARGUMENTS("-n", "2", "--grace", "0.2", "yes"));
        _exit(99);
    }
    struct pollfd pipe_end = {.fd = fds[1], .events = POLLOUT};
    while (poll(&pipe_end, 1, 0) > 0) tshi_nap(0.005); /* there is no reader: it fills */
    kill(job.pid, SIGTERM);
    cr_assert_eq(finish(&job), 143);
    assert_nothing_left(0.0);
    free(marked);
}

/* --- nothing is left ---------------------------------------------------------------------------------------------- */

/* A rank with a child, and a grandchild that has left its process group and its parent. */
static const char family[] = "setsid sh -c 'sleep 1000 & echo ready; sleep 1000' & sleep 1000 & echo ready; ";

static void *family_and(const char *rest, char text[512]) {
    snprintf(text, 512, "%s%s", family, rest);
    return text;
}

/* The job's exit code. Its ranks end, by that command, when all of their families are there. */
static int run_families(const char *end) {
    char script[512], rest[128], path[] = "/tmp/tshard-family-XXXXXX";
    close(mkstemp(path));
    snprintf(rest, sizeof rest, "while test -e %s; do sleep 0.01; done; %s", path, end);
    launched job = start(ARGUMENTS("-n", "2", "sh", "-c", family_and(rest, script)));
    wait_for_text(job.out, "ready", 4);
    unlink(path);
    int code = finish(&job);
    assert_nothing_left(0.0);
    return code;
}

Test(run, grandchildren_end_with_the_job, .timeout = 120) {
    cr_assert_eq(run_families("exit 0"), 0);
    cr_assert_eq(run_families("kill -9 $$"), 137);
}

Test(run, killing_the_launcher_leaves_nothing, .timeout = 120) {
    char script[512];
    launched job = start(ARGUMENTS("-n", "3", "sh", "-c", family_and("trap '' TERM INT; wait", script)));
    wait_for_text(job.out, "ready", 6);
    cr_assert_geq(processes_left(), 3 * 4 + 2);
    kill(job.pid, SIGKILL);
    cr_assert_eq(finish(&job), -SIGKILL);
    assert_nothing_left(60);
}

Test(run, killing_the_supervisor_leaves_nothing, .timeout = 120) {
    char script[512];
    launched job = start(ARGUMENTS("-n", "2", "sh", "-c", family_and("wait", script)));
    wait_for_text(job.out, "ready", 4);
    kill(child_of(job.pid), SIGKILL);
    cr_assert_eq(finish(&job), 137);
    assert_nothing_left(0.0);
    char *err = contents(job.err);
    cr_assert(strstr(err, "killed by signal 9 (Killed); all ranks were stopped"), "%s", err);
    free(err);
}

Test(run, killing_both_leaves_no_rank, .timeout = 120) {
    launched job = start(ARGUMENTS("-n", "2", "sh", "-c", "trap '' TERM; echo ready; exec sleep 1000"));
    wait_for_text(job.out, "ready", 2);
    pid_t supervisor = child_of(job.pid);
    kill(supervisor, SIGSTOP); /* stopped, so that it cannot act before it is killed */
    kill(job.pid, SIGKILL);
    kill(supervisor, SIGKILL);
    cr_assert_eq(finish(&job), -SIGKILL);
    assert_nothing_left(60);
}

/* The shell is the rank, and what it has started is not its parent's to end. */
Test(run, killing_both_leaves_nothing_that_a_shell_has_started, .timeout = 120) {
    launched job = start(ARGUMENTS("-n", "2", "sh", "-c", "sh -c 'echo ready; sleep 1000; echo no'; echo no"));
    wait_for_text(job.out, "ready", 2);
    pid_t supervisor = child_of(job.pid);
    kill(supervisor, SIGSTOP);
    kill(job.pid, SIGKILL);
    kill(supervisor, SIGKILL);
    cr_assert_eq(finish(&job), -SIGKILL);
    assert_nothing_left(20);
}

/* --- on a terminal ------------------------------------------------------------------------------------------------ */

Test(run, terminal_shows_progress_as_it_comes, .timeout = 120) {
    char text[4096] = "";
    launched job = start_on_terminal(
        ARGUMENTS("-n", "1", "sh", "-c", "printf 'step 1\\r' >&2; read x; printf 'step 2\\r' >&2; read x; echo done"));
    read_terminal_until(job.terminal, "[0] step 1\r", text, sizeof text);
    cr_assert_eq(write(job.terminal, "\n", 1), 1);
    read_terminal_until(job.terminal, "[0] step 2\r", text, sizeof text);
    cr_assert_eq(write(job.terminal, "\n", 1), 1);
    read_terminal_until(job.terminal, "[0] done", text, sizeof text);
    cr_assert_eq(finish(&job), 0);
}

Test(run, terminal_shows_a_prompt_and_rank_0_gets_the_answer, .timeout = 120) {
    char text[4096] = "";
    launched job = start_on_terminal(ARGUMENTS(
        "-n", "2", "sh", "-c", "test $RANK = 1 && exit 0; printf 'name? '; read name; echo \"it is <$name>\""));
    read_terminal_until(job.terminal, "[0] name? ", text, sizeof text);
    cr_assert_eq(write(job.terminal, "Ada\n", 4), 4);
    read_terminal_until(job.terminal, "it is <Ada>", text, sizeof text);
    cr_assert_eq(finish(&job), 0);
}

Test(run, terminal_never_mixes_lines, .timeout = 120) {
    char text[4096] = "", path[] = "/tmp/tshard-mixes-XXXXXX", script[512];
    close(mkstemp(path));
    snprintf(script, sizeof script,
             "test $RANK = 1 && while test -e %s; do sleep 0.02; done && echo whole && exit; printf half; read x; "
             "echo way",
             path);
    launched job = start_on_terminal(ARGUMENTS("-n", "2", "sh", "-c", script));
    read_terminal_until(job.terminal, "[0] half", text, sizeof text);
    unlink(path);
    read_terminal_until(job.terminal, "[0] half\r\n[1] whole\r\n", text, sizeof text);
    cr_assert_eq(write(job.terminal, "\n", 1), 1);
    read_terminal_until(job.terminal, "[1] whole\r\n", text, sizeof text);
    read_terminal_until(job.terminal, "[0] way\r\n", text, sizeof text);
    cr_assert_eq(finish(&job), 0);
}

Test(run, interrupt_key_stops_the_job, .timeout = 120) {
    char text[4096] = "";
    launched job = start_on_terminal(ARGUMENTS("-n", "2", "sh", "-c", "echo ready $RANK; exec sleep 60"));
    read_terminal_until(job.terminal, "ready 0", text, sizeof text);
    read_terminal_until(job.terminal, "ready 1", text, sizeof text);
    cr_assert_eq(write(job.terminal, "\x03", 1), 1);
    read_terminal_until(job.terminal, "tshard-run: stopped by signal 2 (Interrupt)", text, sizeof text);
    cr_assert_eq(finish(&job), 130);
    assert_nothing_left(0.0);
}
