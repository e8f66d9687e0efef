/* Which cores there are, and a rank's share of them. */
#define _GNU_SOURCE
#include "base/cpu.h"
#include "run.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct core {
    int id, package, core;
} core;

static int read_topology(int id, const char *name) {
    char path[128];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s", id, name);
    FILE *file = fopen(path, "re");
    int value = -1;
    if (file) {
        if (fscanf(file, "%d", &value) != 1) value = -1;
        fclose(file);
    }
    return value >= 0 ? value : 0;
}

static int compare_cores(const void *left, const void *right) {
    const core *a = left, *b = right;
    if (a->package != b->package) return a->package < b->package ? -1 : 1;
    if (a->core != b->core) return a->core < b->core ? -1 : 1;
    return (a->id > b->id) - (a->id < b->id);
}

int *run_cores_allowed(int *count) {
    unsigned char mask[TSHI_MAX_CORES / 8];
    int total = tshi_granted_cores(mask, sizeof mask), found = 0;
    core *cores = calloc((size_t)total, sizeof *cores);
    int *out = calloc((size_t)total, sizeof *out);
    for (int id = 0; cores && out && id < TSHI_MAX_CORES && found < total; id++) {
        if (!(mask[id / 8] >> id % 8 & 1)) continue;
        cores[found++] = (core){id, read_topology(id, "physical_package_id"), read_topology(id, "core_id")};
    }
    if (cores) qsort(cores, (size_t)found, sizeof *cores, compare_cores);
    for (int i = 0; i < found; i++) out[i] = cores[i].id;
    free(cores);
    *count = found;
    return out;
}

void run_cores_pin(const int *cores, int count, int index, int parts) {
    int first = count >= parts ? (int)((long)count * index / parts) : index % count;
    int past = count >= parts ? (int)((long)count * (index + 1) / parts) : first + 1;
    int largest = 0;
    for (int i = 0; i < count; i++) largest = cores[i] > largest ? cores[i] : largest;
    cpu_set_t *set = CPU_ALLOC((size_t)largest + 1);
    if (!set) return;
    size_t bytes = CPU_ALLOC_SIZE((size_t)largest + 1);
    CPU_ZERO_S(bytes, set);
    for (int i = first; i < past; i++) CPU_SET_S((size_t)cores[i], bytes, set);
    sched_setaffinity(0, bytes, set); /* a refusal leaves the rank where it may run: no reason to fail */
    CPU_FREE(set);
}
