/* A thread's own descriptor table, on systems with and without the calls that make it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/control/descriptors.h"
#include "support/children.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

typedef struct seen {
    int kept[2], other;
    int closed; /* the process has closed its descriptors */
    bool own, kept_stay, other_stays, still_kept;
} seen;

static bool is_open(int fd) {
    return fcntl(fd, F_GETFD) >= 0;
}

static void *run_thread(void *argument) {
    seen *s = argument;
    char byte = 0;
    s->own = tshi_descriptors_own(s->kept, 2);
    s->kept_stay = is_open(s->kept[0]) && is_open(s->kept[1]);
    s->other_stays = is_open(s->other) || is_open(STDERR_FILENO);
    if (write(s->kept[1], &byte, 1) != 1) abort();

    while (!__atomic_load_n(&s->closed, __ATOMIC_ACQUIRE)) usleep(1000);
    s->still_kept = is_open(s->kept[0]) && is_open(s->kept[1]);
    return NULL;
}

/* Refuses one system call with an error. */
static bool refuse(unsigned number, unsigned error) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static int look(bool own) {
    seen s = {.other = open("/dev/null", O_RDONLY | O_CLOEXEC)};
    pthread_t thread;
    char byte;
    int ends[2];
    if (pipe(ends) != 0) return 2;
    /* Apart, with closed descriptors between, before and behind them. */
    s.kept[0] = fcntl(ends[0], F_DUPFD_CLOEXEC, 20);
    s.kept[1] = fcntl(ends[1], F_DUPFD_CLOEXEC, 30);
    if (pthread_create(&thread, NULL, run_thread, &s) != 0) return 3;
    if (read(ends[0], &byte, 1) != 1) return 4;
    if (!is_open(s.other) || !is_open(STDERR_FILENO) || !is_open(ends[1])) return 5;
    for (int fd = 3; fd < 64; fd++) close(fd);
    __atomic_store_n(&s.closed, 1, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    if (s.own != own) return 6;
    if (!s.kept_stay || s.other_stays == own) return 7;
    return s.still_kept == own ? 0 : 8;
}

static void try_without(bool close_range, unsigned error, bool unshare, bool own) {
    char words[128];
    pid_t child = tshi_test_fork();
    if (child == 0) {
        bool refused = (!close_range || refuse(SYS_close_range, error)) && (!unshare || refuse(SYS_unshare, EPERM));
        _exit(refused ? look(own) : 77);
    }
    tshi_test_reap(child, words, sizeof words);
    if (strstr(words, "left with 77")) cr_skip_test("system calls cannot be refused here");
    cr_assert_str_empty(words);
}

Test(descriptors, a_thread_has_a_table_of_its_own, .timeout = 60) {
    try_without(false, 0, false, true);
}

Test(descriptors, without_close_range, .timeout = 60) {
    try_without(true, ENOSYS, false, true);
    try_without(true, EPERM, false, true);
}

Test(descriptors, where_unshare_is_refused, .timeout = 60) {
    try_without(false, 0, true, true);
}

Test(descriptors, without_both_the_table_is_shared, .timeout = 60) {
    try_without(true, ENOSYS, true, false);
}
