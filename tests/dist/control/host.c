/* host NODE NODES RANKS ADDRESS PORT TIMEOUT: one machine of several, for test_hosts.sh. Prints each change of a rank's
 * state on its page with the time of the monotonic clock, and obeys the lines of its input: "kill RANK", "fail RANK",
 * "end", which kills its ranks. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "support/clock.h"
#include "support/machines.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void print_changes(const tshi_test_machines *m, int node, uint32_t *seen) {
    static const char *const names[] = {"alive", "failed", "stuck", "dead"};
    for (int i = 0; i < m->machines * m->ranks; i++) {
        uint32_t state = tshi_page_state(m->page[node], i);
        if (state == seen[i]) continue;
        seen[i] = state;
        printf("%.4f rank %d %s %s\n", tshi_now(), i, names[state], m->page[node]->record[i].reason);
    }
}

/* False at the end of the input, and for "end". */
static bool obey_line(tshi_test_machines *m) {
    char line[64];
    int rank;
    if (!fgets(line, sizeof line, stdin) || !strncmp(line, "end", 3)) return false;
    printf("%.4f %s", tshi_now(), line);
    if (sscanf(line, "%*s %d", &rank) != 1 || rank < 0 || rank >= m->machines * m->ranks || m->pid[rank] <= 0)
        return true;
    if (!strncmp(line, "kill", 4)) tshi_test_machines_kill(m, rank);
    if (!strncmp(line, "fail", 4)) tshi_test_order_do(m, rank, TSHI_ORDER_FAIL, 0);
    return true;
}

int main(int argc, char **argv) {
    if (argc != 7) return EXIT_FAILURE;
    tshi_test_machines m = {.raw = -1, .machines = atoi(argv[2]), .ranks = atoi(argv[3]), .address = argv[4]};
    const int node = atoi(argv[1]);
    m.port = atoi(argv[5]);
    m.timeout = atof(argv[6]);
    uint32_t seen[TSHI_TEST_MACHINES * 8] = {0};
    if (node >= m.machines || m.machines > TSHI_TEST_MACHINES || m.ranks > 8) return EXIT_FAILURE;
    setvbuf(stdin, NULL, _IONBF, 0);
    setvbuf(stdout, NULL, _IOLBF, 0);
    tshi_test_machines_prepare(&m);
    for (int i = 0; i < m.ranks; i++) tshi_test_machines_fork(&m, node * m.ranks + i);
    for (int i = 0; i < m.ranks; i++) tshi_test_order_do(&m, node * m.ranks + i, TSHI_ORDER_NONE, 0);
    printf("%.4f connected\n", tshi_now());
    for (bool open = true; open;) {
        struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
        if (poll(&input, 1, 1) > 0) open = obey_line(&m);
        print_changes(&m, node, seen);
    }
    tshi_test_machines_end(&m);
    return EXIT_SUCCESS;
}
