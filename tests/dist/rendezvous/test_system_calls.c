/* A rendezvous with rare results of system calls: connections never end, a message cannot be sent or received.
 * Functions of this file replace those of the system in the library that is linked into it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "support/ports.h"
#include "support/ranks.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HEAP ((size_t)8 << 20)

/* The failures of this process. */
static struct {
    bool endless;   /* there is always one more connection, of another user, which has hung up */
    int sends_left; /* messages with a descriptor before one fails with send_error */
    int send_error;
    int receive_error;
    int receives_left; /* answers before this process is killed, where it is not 0 */
    int map_error;     /* of shared memory */
    bool memory_ends;  /* after the second answer only `allocations_left` succeed */
    int allocations_left;
    int answers;
    bool resolver_hangs; /* for names of hosts */
} wrong;

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags) {
    int ends[2];
    if (!wrong.endless) return (int)syscall(SYS_accept4, fd, address, length, flags);
    if (socketpair(AF_UNIX, SOCK_STREAM | flags, 0, ends) != 0) return -1;
    close(ends[1]);
    return ends[0];
}

int getsockopt(int fd, int level, int option, void *value, socklen_t *size) {
    int result = (int)syscall(SYS_getsockopt, fd, level, option, value, size);
    if (wrong.endless && option == SO_PEERCRED) ((struct ucred *)value)->uid = getuid() + 1;
    return result;
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    bool fails = wrong.send_error != 0 && message->msg_controllen > 0 && wrong.sends_left-- == 0;
    if (!fails) return syscall(SYS_sendmsg, fd, message, flags);
    errno = wrong.send_error;
    return -1;
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
    if (wrong.receives_left && --wrong.receives_left == 0) raise(SIGKILL);
    wrong.answers++;
    if (wrong.receive_error == 0) return syscall(SYS_recvmsg, fd, message, flags);
    errno = wrong.receive_error;
    return -1;
}

void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset) {
    if (wrong.map_error == 0 || fd < 0) return (void *)syscall(SYS_mmap, address, size, protection, flags, fd, offset);
    errno = wrong.map_error;
    return MAP_FAILED;
}

static void *allocate(void *user, size_t size) {
    (void)user;
    bool fails = wrong.memory_ends && wrong.answers >= 2 && wrong.allocations_left-- <= 0;
    return fails ? NULL : malloc(size);
}

typedef int resolver(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **found);

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    bool numeric = hints && (hints->ai_flags & AI_NUMERICHOST);
    if (wrong.resolver_hangs && host && !numeric) sleep(60);
    return ((resolver *)dlsym(RTLD_NEXT, "getaddrinfo"))(host, service, hints, found);
}

/* --- connections without end -------------------------------------------------------------------------------------- */

/* The connection of rank 1, which is never taken, keeps the listener readable. */
static void besieged(tshi_rank *r, void *arg) {
    const char *method = arg;
    tsh_world_config config = {.init_method = method, .heap_bytes = HEAP};
    wrong.endless = r->rank == 0;
    tsh_status status = tsh_world_init(&config, &r->world);
    tshi_check(r, status == TSH_ERR_TIMEOUT, "%s: %s \"%s\"", method, tsh_status_name(status), tsh_error_message());
    if (r->rank == 0) tshi_check(r, strstr(tsh_error_message(), "1/2 joined"), "%s", tsh_error_message());
}

Test(system_calls, connections_without_end_do_not_stop_the_clock, .timeout = 120) {
    char tcp[64];
    snprintf(tcp, sizeof tcp, "tcp://127.0.0.1:%d", tshi_test_port());
    char *const methods[] = {"env://", tcp};
    for (int i = 0; i < 2; i++) {
        tshi_test_options options = {.ranks = 2, .bare = true, .world_timeout = "1"};
        cr_assert_str_empty(tshi_test_run_with(&options, besieged, methods[i], NULL, NULL));
    }
}

/* --- messages that do not go through ------------------------------------------------------------------------------ */

/* Rank 0 can send the memory to one rank, and not to the other: every rank gets the error, long before its deadline. */
static void cannot_send(tshi_rank *r, void *arg) {
    tsh_world_config config = {.heap_bytes = HEAP};
    (void)arg;
    if (r->rank == 0) wrong.sends_left = 1;
    if (r->rank == 0) wrong.send_error = EPERM;
    tshi_check_status(r, tsh_world_init(&config, &r->world), TSH_ERR_SYSTEM,
                      " the shared memory: Operation not permitted");
}

Test(system_calls, memory_that_cannot_be_sent_fails_every_rank, .timeout = 120) {
    tshi_test_options options = {.ranks = 3, .bare = true, .world_timeout = "100", .timeout = 30};
    cr_assert_str_empty(tshi_test_run_with(&options, cannot_send, NULL, NULL, NULL));
}

/* What happens to rank 1 between its coming and its first call; its peers are told, long before their deadline. */
typedef struct ending {
    void (*prepare)(void);
    const char *own, *told; /* rank 1's message, and what its peers are told */
} ending;

static void comes_and_fails(tshi_rank *r, void *arg) {
    const ending *c = arg;
    tsh_world_config config = {.heap_bytes = HEAP};
    if (r->rank == 1) c->prepare();
    tsh_status status = tsh_world_init(&config, &r->world);
    if (r->rank == 1)
        tshi_check(r, status != TSH_OK && strstr(tsh_error_message(), c->own), "\"%s\"", tsh_error_message());
    else
        tshi_check_status(r, status, TSH_ERR_PEER, c->told);
}

static void expect_all_told(const ending *c) {
    tshi_outcome outcomes[3];
    tshi_test_options options = {.ranks = 3, .bare = true, .world_timeout = "1000", .timeout = 60};
    tshi_test_run_with(&options, comes_and_fails, (void *)(uintptr_t)c, outcomes, NULL);
    for (int i = 0; i < 3; i++) {
        if (i == 1 && !c->own)
            cr_expect_eq(outcomes[i].signal, SIGKILL);
        else
            cr_expect_str_empty(outcomes[i].words);
    }
}

static void fail_to_receive(void) {
    wrong.receive_error = EACCES;
}

Test(system_calls, an_answer_that_cannot_be_received_is_told_to_all, .timeout = 120) {
    expect_all_told(&(ending){fail_to_receive, "rank 1 receiving rank 0's answer: Permission denied",
                              "rank 1: rendezvous: rank 1 receiving rank 0's answer: Permission denied"});
}

static void die_at_the_first(void) {
    wrong.receives_left = 1; /* answers: the memory, and that every rank has it */
}

static void die_at_the_second(void) {
    wrong.receives_left = 2;
}

Test(system_calls, a_rank_that_dies_before_it_shares_memory_is_missed_at_once, .timeout = 120) {
    expect_all_told(&(ending){die_at_the_first, NULL, "rank 1 ended before it had joined the shared memory"});
    expect_all_told(&(ending){die_at_the_second, NULL, "rank 1 died"});
}

static void fail_to_map(void) {
    wrong.map_error = ENOMEM;
}

Test(system_calls, memory_that_one_rank_cannot_map_fails_every_rank, .timeout = 120) {
    expect_all_told(&(ending){fail_to_map, "world_init: mapping the ", "rank 1: world_init: mapping the "});
}

/* *result: the world of all began. */
static void runs_out_of_memory(tshi_rank *r, void *arg) {
    tsh_world_config config = {.heap_bytes = HEAP, .allocator = {.alloc = allocate}};
    wrong.answers = 0; /* Criterion receives, too */
    wrong.memory_ends = r->rank == 1;
    wrong.allocations_left = *(const int *)arg;
    tsh_status status = tsh_world_init(&config, &r->world);
    *(bool *)r->result = status == TSH_OK;
    if (r->rank == 1)
        tshi_check(r, status == TSH_OK || strstr(tsh_error_message(), "emory"), "\"%s\"", tsh_error_message());
    else if (status != TSH_OK)
        tshi_check_status(r, status, TSH_ERR_PEER, "rank 1: ");
    tsh_world_destroy(r->world);
}

Test(system_calls, a_rank_that_fails_after_it_has_joined_says_why, .timeout = 120) {
    bool began[2] = {false, false};
    int allocations = 0;
    for (; !began[1] && allocations < 200; allocations++) {
        tshi_test_options options = {
            .ranks = 2, .bare = true, .world_timeout = "1000", .timeout = 10, .result_bytes = sizeof(bool)};
        const char *words = tshi_test_run_with(&options, runs_out_of_memory, &allocations, NULL, began);
        cr_assert_str_empty(words, "%d allocations: %s", allocations, words);
        cr_assert_eq(began[0], began[1], "%d allocations", allocations);
    }
    cr_assert(allocations > 5 && allocations < 200, "%d allocations", allocations);
}

/* --- a resolver that does not answer ------------------------------------------------------------------------------ */

static void unresolved(tshi_rank *r, void *arg) {
    tsh_world_config config = {.init_method = arg, .heap_bytes = HEAP};
    wrong.resolver_hangs = true;
    tsh_status status = tsh_world_init(&config, &r->world);
    tshi_check(r, status == TSH_ERR_TIMEOUT, "%s \"%s\"", tsh_status_name(status), tsh_error_message());
    tshi_check(r, strstr(tsh_error_message(), "no address for master.test: the resolver does not answer"), "%s",
               tsh_error_message());
}

Test(system_calls, a_resolver_that_does_not_answer_does_not_stop_the_clock, .timeout = 30) {
    tshi_test_options options = {.ranks = 2, .bare = true, .world_timeout = "1"};
    cr_assert_str_empty(tshi_test_run_with(&options, unresolved, (char[]){"tcp://master.test:29500"}, NULL, NULL));
}
