/* tshard-run --max-restarts on several nodes, all of them this machine: one launcher a node. */
#include "support/ports.h"
#include "tools/launched.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

enum { NODES = 3 };

static launched nodes[NODES];

static char *port(void) {
    static char text[16];
    if (!text[0]) snprintf(text, sizeof text, "%d", tshi_test_port());
    return text;
}

static void set_environment(void) {
    setenv("TSHARD_TOKEN", "one secret for all of them", 1);
    setenv("TSHARD_TIMEOUT", "60", 1);
    setenv("TSHARD_HEAP", "64M", 1);
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    unsetenv("SLURM_NODEID");
}

/* Two ranks of `sh -c script` on node `node` of n. */
static void start_node(int node, int n, char *restarts, char *script) {
    char count[32], number[32];
    snprintf(count, sizeof count, "--nnodes=%d", n);
    snprintf(number, sizeof number, "--node-rank=%d", node);
    nodes[node] = start(ARGUMENTS(count, number, "--master-addr=127.0.0.1", "--master-port", port(), "-n", "2",
                                  "--bind=none", "--grace=20", "--max-restarts", restarts, "sh", "-c", script));
}

static void start_nodes(int n, char *restarts, char *script) {
    set_environment();
    for (int i = 0; i < n; i++) start_node(i, n, restarts, script);
}

/* The launcher of the node ends with the code, and the last line that it says has the words. */
static void expect_end(int node, int code, const char *words) {
    int found = finish(&nodes[node]);
    char *err = contents(nodes[node].err), *all = strdup(err);
    cr_expect_eq(found, code, "node %d: %d, not %d: %s", node, found, code, all);
    cr_expect(strstr(last_line(err), words), "node %d: wanted '%s': %s", node, words, all);
    free(err);
    free(all);
}

static void expect_text(FILE *file, const char *words, int times) {
    char *text = contents(file);
    int found = 0;
    for (char *at = text; (at = strstr(at, words)); at++) found++;
    cr_expect_eq(found, times, "%d times '%s', not %d: %s", found, words, times, text);
    free(text);
}

/* Until each of n nodes has shown the line of two ranks. */
static void wait_for_ranks(int n, const char *line) {
    for (int i = 0; i < n; i++) wait_for_text(nodes[i].out, line, 2);
}

/* --- a rank fails ------------------------------------------------------------------------------------------------- */

/* Training with checkpoints: rank 3, which is node 1's, is killed once the first of them is there. */
static void resumes(int n) {
    char folder[] = "/tmp/tshard-test-restart-XXXXXX", script[1024], path[128];
    cr_assert(mkdtemp(folder));
    snprintf(script, sizeof script,
             "run='" TSHARD_BIN_DIR "/train_text --steps 40 --batch 6 --context 4 --embed 5 --hidden 17 --save %s'\n"
             "test $TSHARD_RESTART = 1 && exec $run --every 20 --resume %s\n"
             "test $RANK = 3 || exec $run --every 1\n"
             "$run --every 1 & until test -e %s/step-00000002; do sleep 0.01; done\n"
             "kill -9 $! $$",
             folder, folder, folder);
    start_nodes(n, "1", script);
    for (int i = 0; i < n; i++) {
        int code = finish(&nodes[i]);
        char *err = contents(nodes[i].err);
        cr_expect_eq(code, 0, "node %d: %d %s", i, code, err);
        free(err);
        expect_text(nodes[i].err, "starting all ranks again, 1 of 1 times", 1);
    }
    expect_text(nodes[0].out, "resumed after step", 1);
    snprintf(path, sizeof path, "%s/step-00000040", folder);
    cr_expect_eq(access(path, F_OK), 0, "%s is missing", path);
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", folder);
    cr_assert_eq(system(command), 0);
    assert_nothing_left(0.0);
}

Test(restarts, two_nodes_resume_from_a_checkpoint, .timeout = 120) {
    resumes(2);
}

Test(restarts, three_nodes_resume_from_a_checkpoint, .timeout = 120) {
    resumes(3);
}

/* All nodes show the words of the rank that failed, and end with its code. */
Test(restarts, used_up, .timeout = 120) {
    start_nodes(3, "1", "test $RANK = 3 && echo no more >&2 && exit 7; exec sleep 100");
    for (int i = 0; i < 3; i++) {
        expect_end(i, 7, ") exited with code 7; the others were stopped");
        expect_text(nodes[i].err, "tshard-run: rank 3 (pid ", 2);
        expect_text(nodes[i].err, "starting all ranks again, 1 of 1 times", 1);
        /* Node 1's screen shows its rank's output as it comes. */
        expect_text(nodes[i].err, "tshard-run:   no more\n", i == 1 ? 0 : 2);
        expect_text(nodes[i].err, "[3] no more\n", i == 1 ? 2 : 0);
    }
    assert_nothing_left(0.0);
}

/* The failure of one node starts another node's ranks again, although they have ended well. */
Test(restarts, ranks_that_have_ended_well, .timeout = 120) {
    start_nodes(2, "1",
                "echo attempt $TSHARD_RESTART $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS; "
                "test $RANK$TSHARD_RESTART = 10 && { sleep 0.5; exit 3; }; exit 0");
    for (int i = 0; i < 2; i++) {
        cr_expect_eq(finish(&nodes[i]), 0);
        expect_text(nodes[i].out, "attempt 0 0 1\n", 2);
        expect_text(nodes[i].out, "attempt 1 1 1\n", 2);
        expect_text(nodes[i].err, "exited with code 3; the others have ended\n", 1);
    }
}

Test(restarts, both_nodes_fail_at_once, .timeout = 120) {
    start_nodes(2, "3",
                "f=/tmp/tshard-restarts-$MASTER_PORT-$TSHARD_RESTART; touch $f.$RANK\n"
                "until test -e $f.0 -a -e $f.1 -a -e $f.2 -a -e $f.3; do sleep 0.01; done\n"
                "test $TSHARD_RESTART = 3 || kill -9 $$");
    for (int i = 0; i < 2; i++) {
        cr_expect_eq(finish(&nodes[i]), 0);
        for (int k = 1; k <= 3; k++) {
            char line[64];
            snprintf(line, sizeof line, "starting all ranks again, %d of 3 times", k);
            expect_text(nodes[i].err, line, 1);
        }
        expect_text(nodes[i].err, ") was killed by signal 9 (Killed)", 3);
    }
    char pattern[64];
    snprintf(pattern, sizeof pattern, "rm /tmp/tshard-restarts-%s-*", port());
    cr_assert_eq(system(pattern), 0);
}

/* No attempt would end otherwise. */
Test(restarts, program_that_only_one_node_cannot_run, .timeout = 120) {
    set_environment();
    start_node(0, 2, "5", "exec sleep 100");
    nodes[1] = start(ARGUMENTS("--nnodes=2", "--node-rank=1", "--master-addr=127.0.0.1", "--master-port", port(), "-n",
                               "2", "--max-restarts", "5", "/nowhere/program"));
    expect_end(1, 127, "tshard-run: cannot run '/nowhere/program': No such file or directory");
    expect_end(0, 127, "(node 1) could not start its ranks, and says why");
    assert_nothing_left(0.0);
}

/* --- a launcher is lost ------------------------------------------------------------------------------------------- */

static void loses(int lost, bool supervisor) {
    char words[64];
    start_nodes(3, "5", "echo here; exec sleep 100");
    wait_for_ranks(3, "here\n");
    kill(supervisor ? child_of(nodes[lost].pid) : nodes[lost].pid, SIGKILL);
    snprintf(words, sizeof words, "(node %d) cannot be reached: its connection ended", lost);
    for (int i = 0; i < 3; i++) {
        if (i != lost) expect_end(i, 1, words);
        if (i != lost) expect_text(nodes[i].err, "again, ", 0);
    }
    finish(&nodes[lost]);
    assert_nothing_left(10.0);
}

Test(restarts, guard_of_another_node_is_killed, .timeout = 120) {
    loses(1, false);
}

Test(restarts, supervisor_of_another_node_is_killed, .timeout = 120) {
    loses(2, true);
}

Test(restarts, guard_of_node_0_is_killed, .timeout = 120) {
    loses(0, false);
}

Test(restarts, supervisor_of_node_0_is_killed, .timeout = 120) {
    loses(0, true);
}

/* A launcher that is stopped is silent: the others give it up, and it ends when it goes on. */
Test(restarts, launcher_that_is_stopped, .timeout = 120) {
    set_environment();
    setenv("TSHARD_TIMEOUT", "10", 1);
    for (int i = 0; i < 2; i++) start_node(i, 2, "5", "echo here; exec sleep 100");
    wait_for_ranks(2, "here\n");
    pid_t stopped = child_of(nodes[1].pid);
    kill(stopped, SIGSTOP);
    expect_end(0, 1, "(node 1) cannot be reached: nothing has come from it for ");
    kill(stopped, SIGCONT);
    expect_end(1, 1, "(node 0) cannot be reached: its connection ended");
    assert_nothing_left(0.0);
}

/* --- signals ------------------------------------------------------------------------------------------------------ */

static void interrupts(int node) {
    start_nodes(3, "5", "echo here; exec sleep 100");
    wait_for_ranks(3, "here\n");
    kill(nodes[node].pid, SIGINT);
    for (int i = 0; i < 3; i++) {
        expect_end(i, 130, "tshard-run: stopped by signal 2 (Interrupt)");
        expect_text(nodes[i].err, "again, ", 0);
    }
    assert_nothing_left(0.0);
}

Test(restarts, interrupt_of_node_0, .timeout = 120) {
    interrupts(0);
}

Test(restarts, interrupt_of_another_node, .timeout = 120) {
    interrupts(2);
}

/* The ranks get the signal, and time to end well: the signal that each launcher gets itself is not a second one. */
Test(restarts, interrupt_of_all_nodes_at_once, .timeout = 120) {
    start_nodes(3, "5", "trap 'sleep 0.5; echo saved; exit 0' INT; echo here; while :; do sleep 0.05; done");
    wait_for_ranks(3, "here\n");
    for (int i = 0; i < 3; i++) kill(nodes[i].pid, SIGINT);
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(finish(&nodes[i]), 0);
        expect_text(nodes[i].out, "saved\n", 2);
        expect_text(nodes[i].err, "tshard-run", 0);
    }
}

/* A second signal kills at once, on all nodes: the grace is longer than this test may take. */
Test(restarts, second_interrupt_kills, .timeout = 120) {
    start_nodes(2, "5", "trap 'echo asked' INT TERM; echo here; while :; do sleep 0.05; done");
    wait_for_ranks(2, "here\n");
    double begin = tshi_now();
    kill(nodes[1].pid, SIGINT);
    wait_for_ranks(2, "asked\n");
    kill(nodes[1].pid, SIGINT);
    for (int i = 0; i < 2; i++) expect_end(i, 130, "tshard-run: stopped by signal 2 (Interrupt)");
    cr_expect_lt(tshi_now() - begin, 15.0);
    assert_nothing_left(0.0);
}

/* The ranks of node 1 have ended well; its launcher waits for those of node 0. */
Test(restarts, interrupt_of_a_node_that_waits, .timeout = 120) {
    start_nodes(2, "5", "echo here; test $GROUP_RANK = 0 || exit 0; exec sleep 100");
    wait_for_ranks(2, "here\n");
    pid_t supervisor = child_of(nodes[1].pid);
    while (first_child(supervisor)) tshi_nap(0.01);
    kill(nodes[1].pid, SIGTERM);
    for (int i = 0; i < 2; i++) expect_end(i, 143, "tshard-run: stopped by signal 15 (Terminated)");
}

/* --- finding each other ------------------------------------------------------------------------------------------- */

/* A connection to the port at which node 0's launcher listens. */
static int connect_as_stranger(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port()))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (double end = tshi_now() + 60; tshi_now() < end; tshi_nap(0.01)) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, (void *)&address, sizeof address) == 0) return fd;
        close(fd);
    }
    cr_assert_fail("the launcher of node 0 does not listen");
    return -1;
}

/* A program without the token is refused, and so is a launcher with another one; the job goes on. */
Test(restarts, strangers_and_a_late_launcher, .timeout = 120) {
    const char nonsense[] = "GET / HTTP/1.1\r\n\r\n";
    char *script = "echo here; test $TSHARD_RESTART = 1 || exit 1";
    set_environment();
    start_node(0, 2, "1", script);
    int strangers[2] = {connect_as_stranger(), connect_as_stranger()}; /* one of them says nothing */
    cr_assert_eq(send(strangers[0], nonsense, strlen(nonsense), MSG_NOSIGNAL), (ssize_t)strlen(nonsense));
    wait_for_text(nodes[0].err, "refused a connection: the peer is not a node of a tshard world", 1);
    setenv("TSHARD_TOKEN", "another secret than the others have", 1);
    setenv("TSHARD_TIMEOUT", "1", 1);
    start_node(1, 2, "1", script);
    expect_end(1, 1, "another job is there: its token, its group_name or its number of restarts is not ours");
    expect_text(nodes[0].out, "here", 0);
    set_environment();
    start_node(1, 2, "1", script);
    for (int i = 0; i < 2; i++) {
        cr_expect_eq(finish(&nodes[i]), 0);
        expect_text(nodes[i].out, "here\n", 4);
    }
    for (int i = 0; i < 2; i++) close(strangers[i]);
}

Test(restarts, launcher_that_does_not_come, .timeout = 120) {
    set_environment();
    setenv("TSHARD_TIMEOUT", "1", 1);
    start_node(0, 2, "1", "echo here");
    expect_end(0, 1, "--max-restarts: the 2 nodes have not found each other: rendezvous: ");
    expect_text(nodes[0].err, "1/2 joined, missing node 1. Start tshard-run on all of them", 1);
    expect_text(nodes[0].out, "here", 0);
    start_node(1, 2, "1", "echo here");
    expect_end(1, 1,
               "--max-restarts: the 2 nodes have not found each other: rendezvous: node 1 found no node 0 at 127.");
}

Test(restarts, interrupt_while_launchers_are_missing, .timeout = 120) {
    set_environment();
    start_node(0, 2, "1", "echo here");
    close(connect_as_stranger());
    kill(nodes[0].pid, SIGINT);
    expect_end(0, 130, "tshard-run: stopped by signal 2 (Interrupt)");
    expect_text(nodes[0].out, "here", 0);
}
