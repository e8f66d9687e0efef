/* tshard-bench calibrate gives each kernel operands that hold all that it reads and writes: here each ends where memory
 * ends, so that what lies behind it cannot be touched. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "calibrate.h"
#include "support/children.h"
#include "support/ranks.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LARGEST = 64 }; /* of 16 rows alone */

/* In the place of tshard-bench's own: what calibrate_kernels.c calls. */
const int calibrate_dtypes[] = {TSH_FLOAT32, TSH_BFLOAT16, -1};

static char *operand(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (bytes + page - 1) / page * page;
    char *from = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (from == MAP_FAILED || mprotect(from + room, page, PROT_NONE) != 0) abort();
    return from + room - bytes;
}

void calibrate_place(calibration *c, int n, const size_t *bytes, void **out) {
    (void)c;
    for (int i = 0; i < n; i++) out[i] = operand(bytes[i]);
}

tsh_status calibrate_measure(calibration *c, bench_work *work, void *context, double *seconds) {
    (void)c;
    *seconds = 1;
    return (tsh_status)work(context, 1);
}

static void run_kernels(int *tables) {
    const tsh_world_config config = {.world_size = 1, .blas_threads = 1};
    machine m = {.ranks = 1};
    calibration c = {.m = &m, .largest = LARGEST};
    if (tsh_world_init(&config, &c.world) != TSH_OK) abort();
    c.device = tsh_world_device(c.world);
    if (calibrate_kernels(&c) == TSH_OK) *tables = m.count[MACHINE_KERNELS];
    machine_free(&m);
    tsh_world_destroy(c.world);
}

Test(calibrate, kernels_stay_within_their_operands, .timeout = 120) {
    char ended[128];
    int *tables = tshi_test_shared(sizeof *tables);
    pid_t child = tshi_test_fork();
    if (child == 0) {
        run_kernels(tables);
        _exit(0);
    }
    tshi_test_reap(child, ended, sizeof ended);
    cr_expect_str_empty(ended);
    cr_expect(*tables > 50, "%d kernels were called", *tables);
}
