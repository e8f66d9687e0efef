/* tshard-run on several nodes, all of them this machine: the real program, one launcher a node. */
#define _GNU_SOURCE
#include "support/ports.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define LAUNCHER TSHARD_BIN_DIR "/tshard-run"

enum { TEXT_SIZE = 1 << 16 };

typedef struct launched {
    pid_t pid;
    FILE *out, *err;
} launched;

/* argv after the launcher's name, ended by NULL. */
static launched start(char *const argv[]) {
    launched job = {.out = tmpfile(), .err = tmpfile()};
    cr_assert(job.out && job.err);
    fflush(NULL);
    job.pid = fork();
    cr_assert_geq(job.pid, 0);
    if (job.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(open("/dev/null", O_RDONLY), 0);
        dup2(fileno(job.out), 1);
        dup2(fileno(job.err), 2);
        execv(LAUNCHER, argv);
        _exit(99);
    }
    return job;
}

#define ARGUMENTS(...)                                                                                                 \
    (char *[]) {                                                                                                       \
        (char[]){"tshard-run"}, __VA_ARGS__, NULL                                                                      \
    }

/* Its exit code, and what it wrote (out and err: TEXT_SIZE bytes). */
static int finish(launched *job, char *out, char *err) {
    FILE *files[] = {job->out, job->err};
    char *texts[] = {out, err};
    int status;
    cr_assert_eq(waitpid(job->pid, &status, 0), job->pid);
    for (int i = 0; i < 2; i++) {
        rewind(files[i]);
        size_t n = fread(texts[i], 1, TEXT_SIZE - 1, files[i]);
        texts[i][n] = '\0';
        fclose(files[i]);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static char out[TEXT_SIZE], err[TEXT_SIZE];

static int run(char *const argv[]) {
    launched job = start(argv);
    return finish(&job, out, err);
}

static char *port(void) {
    static char text[16];
    if (!text[0]) snprintf(text, sizeof text, "%d", tshi_test_port());
    return text;
}

static void environment_alike(void) {
    setenv("TSHARD_TOKEN", "one secret for both", 1);
    setenv("TSHARD_HEAP", "64M", 1);
    setenv("TSHARD_TIMEOUT", "15", 1);
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    unsetenv("SLURM_NODEID");
}

/* Four ranks of two launchers are one world. */
static void two_nodes(char *first, char *second, char *rest) {
    environment_alike();
    char *program = TSHARD_BIN_DIR "/tshard-bench";
    launched nodes[2];
    char *const ranks[2] = {first, second};
    for (int i = 0; i < 2; i++) {
        nodes[i] = start(ARGUMENTS("--nnodes=2", ranks[i], rest, "--nproc_per_node=2", "--master_port", port(),
                                   "--bind", "none", program, "collectives", "--op", "all_reduce", "--min-bytes", "64",
                                   "--max-bytes", "64", "--json"));
    }
    for (int i = 0; i < 2; i++) {
        int code = finish(&nodes[i], out, err);
        cr_assert_eq(code, 0, "node %d: %d %s", i, code, err);
        if (i == 0) cr_assert(strstr(out, "\"ranks\":4") || strstr(out, "\"ranks\": 4"), "%s", out);
        if (i == 0) cr_assert(strstr(out, "[0] "), "%s", out);
    }
}

Test(nodes, two_on_this_machine, .timeout = 120) {
    two_nodes("--node_rank=0", "--node-rank=1", "--master-addr=127.0.0.1");
    /* An address that only the rendezvous shows to be this machine's. */
    char host[300] = "--master_addr=", name[256] = "";
    cr_assert_eq(gethostname(name, sizeof name - 1), 0);
    snprintf(host, sizeof host, "--master_addr=%s", name);
    if (getenv("TSHARD_TEST_NO_NAME") == NULL) {
        char command[300];
        snprintf(command, sizeof command, "getent hosts %.200s > /dev/null", name);
        if (system(command) != 0) return; /* a machine that does not know its own name */
        two_nodes("--node-rank=0", "--node-rank=1", host);
    }
}

Test(nodes, numbers_go_on, .timeout = 120) {
    environment_alike();
    char *script = "echo =$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $MASTER_ADDR "
                   "$MASTER_PORT $TSHARD_TOKEN";
    cr_assert_eq(run(ARGUMENTS("-n", "2", "--nnodes", "3", "--node-rank", "1", "--master-addr", "h", "--no-prefix",
                               "sh", "-c", script)),
                 0);
    cr_assert(strstr(out, "=2 6 0 2 1 3 h 29500 one secret for both\n"), "%s", out);
    cr_assert(strstr(out, "=3 6 1 2 1 3 h 29500 one secret for both\n"), "%s", out);
    setenv("SLURM_NODEID", "2", 1);
    cr_assert_eq(run(ARGUMENTS("-n", "1", "--nnodes", "3", "--rdzv_endpoint=[fe80::1]:77", "sh", "-c", script)), 0);
    cr_assert(strstr(out, "[2] =2 3 0 1 2 3 fe80::1 77 "), "%s", out);
    unsetenv("SLURM_NODEID");
    /* A node finds itself; the first is the master. */
    cr_assert_eq(run(ARGUMENTS("-n", "2", "--nodes", "198.51.100.1,127.0.0.1,198.51.100.2", "sh", "-c", script)), 0);
    cr_assert(strstr(out, "[3] =3 6 1 2 1 3 198.51.100.1 29500"), "%s", out);
    cr_assert_eq(run(ARGUMENTS("-n", "1", "--nodes", "198.51.100.1,127.0.0.1", "--port", "4711", "--monitor", "5", "sh",
                               "-c", script)),
                 0);
    cr_assert(strstr(out, "[1] =1 2 0 1 1 2 198.51.100.1 4711"), "%s", out);
    cr_assert_eq(run(ARGUMENTS("-n", "1", "--standalone", "sh", "-c", script)), 0);
    cr_assert(strstr(out, "[0] =0 1 0 1 0 1 127.0.0.1 "), "%s", out);
    cr_assert(strstr(out, "one secret for both"), "ranks that join have the same secret: %s", out);
    unsetenv("TSHARD_TOKEN");
    cr_assert_eq(run(ARGUMENTS("-n", "1", "--standalone", "sh", "-c", script)), 0);
    cr_assert_null(strstr(out, "one secret"), "one node has a secret of its own: %s", out);
}

Test(nodes, host_files, .timeout = 120) {
    char path[64], *script = "echo =$RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR";
    environment_alike();
    snprintf(path, sizeof path, "/tmp/tshard-test-hosts-%d", (int)getpid());
    FILE *file = fopen(path, "w");
    fputs("# the job's machines\n198.51.100.1 slots=3\n\n  127.0.0.1:2  # this one\n198.51.100.9\n", file);
    fclose(file);
    cr_assert_eq(run(ARGUMENTS("--hostfile", path, "-n", "4", "sh", "-c", script)), 0, "%s", err);
    cr_assert(strstr(out, "[3] =3 9 2 1 198.51.100.1\n") && strstr(out, "[4] =4 9 2 1 198.51.100.1\n"), "%s", out);
    cr_assert_eq(run(ARGUMENTS("--hostfile", path, "sh", "-c", script)), 2);
    cr_assert(strstr(err, "-n N, the number of ranks, is missing"), "%s", err);
    file = fopen(path, "w");
    fputs("a slots=2\nb slot=2\n", file);
    fclose(file);
    cr_assert_eq(run(ARGUMENTS("--hostfile", path, "sh", "-c", script)), 2);
    cr_assert(strstr(err, "line 2"), "%s", err);
    static const char *const bad[] = {"a slots=4294967298", "a slots=+2",   "a slots=2x", "a slots= 2",
                                      "a slots=0",          "a:4294967298", "a:-1",       "a slots=1 slots=2",
                                      "a:2 slots=2"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        file = fopen(path, "w");
        fprintf(file, "%s\n", bad[i]);
        fclose(file);
        cr_expect_eq(run(ARGUMENTS("--hostfile", path, "--node-rank", "0", "true")), 2, "%s", bad[i]);
        cr_expect(strstr(err, "line 1: a name, and perhaps slots=N, 1 to 1024, is wanted"), "%s: %s", bad[i], err);
    }
    unlink(path);
    cr_assert_eq(run(ARGUMENTS("--hostfile", path, "true")), 2);
    cr_assert(strstr(err, "No such file"), "%s", err);
}

Test(nodes, wrong_use, .timeout = 120) {
    environment_alike();
    static const struct {
        char *argv[12];
        const char *words;
    } cases[] = {
        {{"tshard-run", "-n", "1", "--nnodes", "2", "--master-addr", "h", "true"}, "--node-rank is missing"},
        {{"tshard-run", "-n", "1", "--nnodes", "2", "--node-rank", "0", "true"}, "--master-addr is missing"},
        {{"tshard-run", "-n", "1", "--nnodes", "2", "--node-rank", "2", "--master-addr", "h", "true"},
         "--node-rank is 2, of 2 nodes"},
        {{"tshard-run", "-n", "1", "--nnodes", "1:4", "true"}, "--nnodes wants a number of nodes"},
        {{"tshard-run", "-n", "1", "--nodes", "a,,b", "true"}, "--nodes wants names"},
        {{"tshard-run", "-n", "1", "--nodes", "198.51.100.1,198.51.100.2", "true"},
         "none of the 2 nodes is this machine"},
        {{"tshard-run", "-n", "1", "--nodes", "127.0.0.1,127.0.0.2", "true"}, "2 of the nodes are this machine"},
        {{"tshard-run", "-n", "1", "--nnodes", "3", "--nodes", "a,b", "true"}, "--nnodes says 3, but 2 nodes"},
        {{"tshard-run", "-n", "1", "--redirects", "3", "true"}, "--redirects needs --log-dir"},
        {{"tshard-run", "-n", "1", "--redirects", "4", "true"}, "--redirects wants 0, 1, 2 or 3"},
        {{"tshard-run", "-n", "1", "--max-restarts", "x", "true"}, "--max-restarts wants a number"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_expect_eq(run(cases[i].argv), 2);
        cr_expect(strstr(err, cases[i].words), "wanted '%s', got '%s'", cases[i].words, err);
    }
}

/* Between nodes a secret that cannot be passed on is an error: the job does not run without. */
Test(nodes, a_token_that_does_not_fit, .timeout = 120) {
    char token[257];
    environment_alike();
    memset(token, 'x', sizeof token);
    token[256] = '\0';
    setenv("TSHARD_TOKEN", token, 1);
    cr_assert_neq(run(ARGUMENTS("-n", "1", "--nnodes", "2", "--node-rank", "0", "--master-addr", "h", "true")), 0);
    cr_assert(strstr(err, "TSHARD_TOKEN has 256 characters; it must have at most 255"), "%s", err);
}

/* Rank 1 fails while rank 0 leads the rendezvous, and is killed there. */
Test(nodes, a_killed_rendezvous_leaves_no_file, .timeout = 120) {
    char method[96], *path = method + strlen("file://");
    char *script = "test $RANK = 0 && exec " TSHARD_BIN_DIR "/tshard-bench collectives --op all_reduce; "
                   "until test -s ${TSHARD_INIT#file://}; do sleep 0.01; done; exit 7";
    environment_alike();
    snprintf(method, sizeof method, "file:///tmp/tshard-test-killed-%d", (int)getpid());
    setenv("TSHARD_INIT", method, 1);
    setenv("TSHARD_TIMEOUT", "50", 1);
    cr_assert_eq(run(ARGUMENTS("-n", "2", "sh", "-c", script)), 7, "%s", err);
    cr_assert_neq(access(path, F_OK), 0, "%s is left", path);
}

static void read_file(const char *folder, const char *name, char text[256]) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    cr_assert(file, "%s is missing", path);
    text[fread(text, 1, 255, file)] = '\0';
    fclose(file);
}

Test(nodes, logs_and_restarts, .timeout = 120) {
    char folder[64], text[256], command[128];
    environment_alike();
    snprintf(folder, sizeof folder, "/tmp/tshard-test-logs-%d", (int)getpid());
    char *script = "echo out $RANK $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS; echo err $RANK >&2; "
                   "test $TORCHELASTIC_RESTART_COUNT = 1 || { test $RANK = 3 && sleep 0.2 && exit 5; exit 0; }";
    launched nodes[2];
    char *const ranks[2] = {"--node-rank=0", "--node-rank=1"};
    for (int i = 0; i < 2; i++) {
        nodes[i] = start(ARGUMENTS("-n", "2", "--nnodes", "2", ranks[i], "--master-addr", "127.0.0.1", "--master-port",
                                   port(), "--log_dir", folder, "-r", "1", "--max_restarts", "2", "--monitor_interval",
                                   "5", "sh", "-c", script));
    }
    for (int i = 0; i < 2; i++) cr_assert_eq(finish(&nodes[i], out, err), 0, "%s", err); /* node 1's stay */
    read_file(folder, "attempt_0/node_1/rank_2/stdout.log", text);
    cr_assert_str_eq(text, "out 2 0 2\n");
    read_file(folder, "attempt_1/node_1/rank_3/stdout.log", text);
    cr_assert_str_eq(text, "out 3 1 2\n");
    read_file(folder, "attempt_0/node_1/rank_3/stderr.log", text);
    cr_assert_str_eq(text, "err 3\n");
    cr_assert_null(strstr(out, "out"), "stdout went to its files alone: %s", out);
    cr_assert(strstr(err, "[3] err 3\n"), "stderr to both: %s", err);
    cr_assert(strstr(err, "exited with code 5") && strstr(err, "starting all ranks again, 1 of 2 times"), "%s", err);
    snprintf(command, sizeof command, "rm -r %s", folder);
    cr_assert_eq(system(command), 0);
}

/* The last lines name the rank that failed first, its host, how it failed, and its last output. */
Test(nodes, last_line_names_the_first_failure, .timeout = 120) {
    environment_alike();
    char host[256] = "", wanted[512];
    gethostname(host, sizeof host - 1);
    char *script = "f=/tmp/tshard-last-$PPID; "
                   "test $RANK = 2 && { i=0; while [ $i -lt 30 ]; do echo line $i >&2; i=$((i+1)); done; echo $$ > $f; "
                   "kill -9 $$; }; "
                   "until test -s $f && grep -q '^State:.Z' /proc/$(cat $f)/status; do sleep 0.01; done; rm $f; "
                   "i=0; while [ $i -lt 10 ]; do echo noise $i >&2; i=$((i+1)); done; exit 3";
    int code = run(
        ARGUMENTS("-n", "2", "--nnodes", "2", "--node-rank", "1", "--master-addr", "127.0.0.1", "sh", "-c", script));
    cr_assert_eq(code, 137);
    char *words = strstr(err, "tshard-run: the last that rank 2 wrote to stderr:\n");
    cr_assert(words, "%s", err);
    cr_assert(strstr(words, "tshard-run:   line 20\n") && strstr(words, "tshard-run:   line 29\n"), "%s", words);
    cr_assert_null(strstr(words, "line 19\n"));
    snprintf(wanted, sizeof wanted, " on %s) was killed by signal 9 (Killed); the others have ended\n", host);
    char *last = strstr(words, "tshard-run: rank 2 (pid ");
    cr_assert(last && strstr(last, wanted), "%s", words);
    cr_assert_eq(strchr(last, '\n')[1], '\0', "nothing comes after it: %s", last);
}

/* A rank of one node is killed in the middle of a call: the ranks of both nodes start again, and find each other a
 * second time. */
Test(nodes, restarts_of_two_launchers, .timeout = 120) {
    environment_alike();
    char script[1024];
    snprintf(script, sizeof script,
             "bench='%s/tshard-bench collectives --min-bytes 64 --max-bytes 64 --json --seconds'\n"
             "test $TORCHELASTIC_RESTART_COUNT = 1 && exec $bench 0.1\n"
             "test $RANK = 3 || exec $bench 30\n"
             /* The memory that all share is there once all have met. */
             "$bench 30 & until grep -q memfd:tshard /proc/$!/maps; do sleep 0.1; done\n"
             "sleep 0.3; kill -9 $!; exit 9",
             TSHARD_BIN_DIR);
    launched nodes[2];
    char *const ranks[2] = {"--node-rank=0", "--node-rank=1"};
    for (int i = 0; i < 2; i++) {
        nodes[i] =
            start(ARGUMENTS("--nnodes=2", ranks[i], "--master-addr=127.0.0.1", "--nproc-per-node=2", "--master-port",
                            port(), "--bind", "none", "--max-restarts", "1", "sh", "-c", script));
    }
    for (int i = 0; i < 2; i++) {
        int code = finish(&nodes[i], out, err);
        cr_assert_eq(code, 0, "node %d: %d %s", i, code, err);
        cr_assert(strstr(err, "starting all ranks again, 1 of 1 times"), "node %d: %s", i, err);
        cr_assert(strstr(err, "rank 3"), "the rank that failed: %s", err);
        if (i == 0) cr_assert(strstr(out, "\"ranks\":4") || strstr(out, "\"ranks\": 4"), "%s", out);
    }
}
