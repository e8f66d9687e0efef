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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
    if (wrong.receive_error == 0) return syscall(SYS_recvmsg, fd, message, flags);
    errno = wrong.receive_error;
    return -1;
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
                      " the memory of all: Operation not permitted");
}

Test(system_calls, memory_that_cannot_be_sent_fails_every_rank, .timeout = 120) {
    tshi_test_options options = {.ranks = 3, .bare = true, .world_timeout = "100", .timeout = 30};
    cr_assert_str_empty(tshi_test_run_with(&options, cannot_send, NULL, NULL, NULL));
}

static void cannot_receive(tshi_rank *r, void *arg) {
    tsh_world_config config = {.heap_bytes = HEAP};
    (void)arg;
    if (r->rank == 1) wrong.receive_error = EACCES;
    tsh_status status = tsh_world_init(&config, &r->world);
    if (r->rank == 0) return; /* it misses rank 1 */
    tshi_check_status(r, status, TSH_ERR_SYSTEM, "rank 1 receiving rank 0's answer: Permission denied");
}

Test(system_calls, an_answer_that_cannot_be_received_says_why, .timeout = 120) {
    /* Rank 0 sees at its deadline that rank 1 has not come. */
    tshi_test_options options = {.ranks = 2, .bare = true, .world_timeout = "5", .timeout = 30};
    cr_assert_str_empty(tshi_test_run_with(&options, cannot_receive, NULL, NULL, NULL));
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
