/* Which cores there are, and which of them a rank gets. */
#define _GNU_SOURCE
#include "base/cpu.h"
#include "run.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef TSHARD_HAVE_HWLOC
#include <hwloc.h>
#endif

/* --- the machine -------------------------------------------------------------------------------------------------- */

/* Without hwloc: cores by package, with the kernel's numbers. */
typedef struct known_core {
    int id, package, core;
} known_core;

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
    const known_core *a = left, *b = right;
    if (a->package != b->package) return a->package < b->package ? -1 : 1;
    if (a->core != b->core) return a->core < b->core ? -1 : 1;
    return (a->id > b->id) - (a->id < b->id);
}

static int node_of(int id) {
    char path[128];
    for (int node = 0; node < 1024; node++) {
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/node%d", id, node);
        if (access(path, F_OK) == 0) return node;
    }
    return 0;
}

static bool is_granted(const unsigned char *mask, int id) {
    return id < TSHI_MAX_CORES && mask[id / 8] >> id % 8 & 1;
}

static int ask_kernel(const unsigned char *mask, int total, run_core *out) {
    int found = 0;
    known_core *cores = calloc((size_t)total, sizeof *cores);
    if (!cores) return 0;
    for (int id = 0; id < TSHI_MAX_CORES && found < total; id++) {
        if (!is_granted(mask, id)) continue;
        cores[found++] = (known_core){id, read_topology(id, "physical_package_id"), read_topology(id, "core_id")};
    }
    qsort(cores, (size_t)found, sizeof *cores, compare_cores);
    for (int i = 0; i < found; i++) out[i] = (run_core){cores[i].id, node_of(cores[i].id)};
    free(cores);
    return found;
}

/* hwloc's order goes through packages, memory nodes, caches and cores, so that neighbours share the most. A machine
 * that is not this one (HWLOC_SYNTHETIC) has all of its cores. */
static int ask_hwloc(const unsigned char *mask, int total, run_core **out) {
    int found = 0;
#ifdef TSHARD_HAVE_HWLOC
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology) != 0) return 0;
    /* Where /sys is not mounted hwloc would print a line, though the kernel is asked then. */
    bool silenced = !getenv("HWLOC_HIDE_ERRORS") && setenv("HWLOC_HIDE_ERRORS", "2", 1) == 0;
    bool loaded = hwloc_topology_load(topology) == 0;
    if (silenced) unsetenv("HWLOC_HIDE_ERRORS");
    if (loaded) {
        const bool here = hwloc_topology_is_thissystem(topology);
        const int answer = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU), units = answer > 0 ? answer : 0;
        run_core *cores = units > total ? realloc(*out, (size_t)units * sizeof *cores) : *out;
        if (cores) *out = cores;
        for (int i = 0; cores && i < units && (!here || found < total); i++) {
            hwloc_obj_t unit = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PU, (unsigned)i);
            if (here && !is_granted(mask, (int)unit->os_index)) continue;
            int node = unit->nodeset ? hwloc_bitmap_first(unit->nodeset) : 0;
            cores[found++] = (run_core){(int)unit->os_index, node > 0 ? node : 0};
        }
        if (here && found < total) found = 0; /* it does not know all of the machine */
    }
    hwloc_topology_destroy(topology);
#else
    (void)mask, (void)total, (void)out;
#endif
    return found;
}

run_core *run_cores_allowed(int *count) {
    unsigned char mask[TSHI_MAX_CORES / 8];
    int total = tshi_granted_cores(mask, sizeof mask);
    run_core *cores = calloc((size_t)total, sizeof *cores);
    *count = cores ? ask_hwloc(mask, total, &cores) : 0;
    if (cores && *count == 0) *count = ask_kernel(mask, total, cores);
    return cores;
}

/* --- lists: "0-3:4,6" -------------------------------------------------------------------------------------------- */

int run_cores_sets(const char *list) {
    int sets = 1;
    for (long first, last;; list++) {
        if (!tshi_list_item(&list, &first, &last) || last >= TSHI_MAX_CORES) return 0;
        if (*list == '\0') return sets;
        if (*list != ',' && *list != ':') return 0;
        sets += *list == ':';
    }
}

/* --- choosing ----------------------------------------------------------------------------------------------------- */

/* Things first to past - 1 of `count` are those of part `index` of `parts`; in turn, when there are fewer things. */
static void share(int count, int index, int parts, int *first, int *past) {
    *first = count >= parts ? (int)((long)count * index / parts) : index % count;
    *past = count >= parts ? (int)((long)count * (index + 1) / parts) : *first + 1;
}

/* With fewer nodes than ranks, ranks side by side have one node. */
static int choose_nodes(const run_core *cores, int count, int index, int parts, bool *chosen) {
    int nodes = 0, first, past, number = 0;
    for (int i = 0; i < count; i++) nodes += i == 0 || cores[i].node != cores[i - 1].node;
    if (nodes >= parts) {
        share(nodes, index, parts, &first, &past);
    } else {
        first = (int)((long)nodes * index / parts);
        past = first + 1;
    }
    for (int i = 0, node = -1; i < count; i++) {
        node += i == 0 || cores[i].node != cores[i - 1].node;
        chosen[i] = node >= first && node < past;
        number += chosen[i];
    }
    return number;
}

int run_cores_choose(const run_options *o, const run_core *cores, int count, int index, bool *chosen) {
    int of_set = 0, seen = 0, first, past, number = 0, set = 0;
    if (o->bind == RUN_BIND_NODES) return choose_nodes(cores, count, index, o->ranks, chosen);
    const char *list = o->bind == RUN_BIND_LIST ? o->bind_list : NULL;
    const bool own = list && run_cores_sets(list) > 1; /* a set a rank */
    for (; own && set < index; set++) list = strchr(list, ':') + 1;
    for (int i = 0; i < count; i++) of_set += !list || tshi_list_has(list, cores[i].id);
    if (of_set == 0) return 0;
    share(of_set, own ? 0 : index, own ? 1 : o->ranks, &first, &past);
    for (int i = 0; i < count; i++) {
        chosen[i] = (!list || tshi_list_has(list, cores[i].id)) && seen >= first && seen < past;
        seen += !list || tshi_list_has(list, cores[i].id);
        number += chosen[i];
    }
    return number;
}

void run_cores_pin(const run_core *cores, int count, const bool *chosen) {
    int largest = 0;
    for (int i = 0; i < count; i++) largest = cores[i].id > largest ? cores[i].id : largest;
    cpu_set_t *set = CPU_ALLOC((size_t)largest + 1);
    if (!set) return;
    size_t bytes = CPU_ALLOC_SIZE((size_t)largest + 1);
    CPU_ZERO_S(bytes, set);
    for (int i = 0; i < count; i++) {
        if (chosen[i]) CPU_SET_S((size_t)cores[i].id, bytes, set);
    }
    sched_setaffinity(0, bytes, set); /* a refusal leaves the rank where it may run: no reason to fail */
    CPU_FREE(set);
}

void run_cores_say(int rank, const run_core *cores, int count, const bool *chosen) {
    char text[512] = "", nodes[128] = "";
    size_t used = 0, of_nodes = 0;
    for (int i = 0, node = -1; i < count; i++) {
        if (!chosen[i]) continue;
        if (used < sizeof text - 16) {
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%d", used ? "," : "", cores[i].id);
        }
        if (cores[i].node != node && of_nodes < sizeof nodes - 16) {
            const char *comma = of_nodes ? "," : "";
            of_nodes += (size_t)snprintf(nodes + of_nodes, sizeof nodes - of_nodes, "%s%d", comma, cores[i].node);
        }
        node = cores[i].node;
    }
    run_say("rank %d: cores %s of memory node %s", rank, text, nodes);
}
