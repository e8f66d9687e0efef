/* Which cores there are, and a rank's share of them. */
#define _GNU_SOURCE
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

/* The mask of a machine with more than 1024 cores wants a larger set: grow until it fits. */
static cpu_set_t *allowed_set(int *size) {
    for (int cores = CPU_SETSIZE; cores <= 1 << 20; cores *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)cores);
        if (!set) return NULL;
        if (sched_getaffinity(0, CPU_ALLOC_SIZE((size_t)cores), set) == 0) {
            *size = cores;
            return set;
        }
        CPU_FREE(set);
    }
    return NULL;
}

int *run_cores_allowed(int *count) {
    int size = 0, found = 0;
    int *out = NULL;
    core *cores = NULL;
    cpu_set_t *set = allowed_set(&size);
    if (!set) return NULL;
    size_t bytes = CPU_ALLOC_SIZE((size_t)size), total = (size_t)CPU_COUNT_S(bytes, set);
    cores = calloc(total + 1, sizeof *cores);
    out = calloc(total + 1, sizeof *out);
    if (!cores || !out) {
        free(out);
        out = NULL;
        goto done;
    }
    for (int id = 0; id < size && (size_t)found < total; id++) {
        if (!CPU_ISSET_S((size_t)id, bytes, set)) continue;
        cores[found++] = (core){id, read_topology(id, "physical_package_id"), read_topology(id, "core_id")};
    }
    qsort(cores, (size_t)found, sizeof *cores, compare_cores);
    for (int i = 0; i < found; i++) out[i] = cores[i].id;
    *count = found;
done:
    free(cores);
    CPU_FREE(set);
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
