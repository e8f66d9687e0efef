/* Lists of cores and nodes as the kernel writes them, the node of this process, and the node that memory prefers. */
#define _GNU_SOURCE
#include "base/base.h"
#include "base/cpu.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

Test(cpu, lists, .timeout = 60) {
    cr_expect(tshi_list_has("0-3,8", 0) && tshi_list_has("0-3,8", 3) && tshi_list_has("0-3,8\n", 8));
    cr_expect(!tshi_list_has("0-3,8", 4) && !tshi_list_has("", 0) && !tshi_list_has("\n", 0));
    cr_expect(!tshi_list_has("0:1", 1), "a list ends where its set does");
    const char *list = "7-9,2";
    long first, last;
    cr_assert(tshi_list_item(&list, &first, &last));
    cr_expect(first == 7 && last == 9 && strcmp(list, ",2") == 0);
    for (const char *wrong = "-1"; *wrong; wrong = strcmp(wrong, "-1") == 0 ? "3-1" : "") {
        list = wrong;
        cr_expect_not(tshi_list_item(&list, &first, &last), "%s", wrong);
    }
}

static void put(const char *folder, const char *name, const char *text) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    cr_assert(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

Test(cpu, node_of_this_process, .timeout = 60) {
    char folder[] = "/tmp/tshard-nodes-XXXXXX", node[64], command[128];
    cr_assert(mkdtemp(folder));
    for (int i = 0; i < 3; i += 2) {
        snprintf(node, sizeof node, "%s/node%d", folder, i);
        cr_assert_eq(mkdir(node, 0700), 0);
    }
    cr_expect_eq(tshi_own_node(folder), -1, "without files");
    put(folder, "has_memory", "0,2\n");
    put(folder, "node0/cpulist", "16000-16003\n");
    put(folder, "node2/cpulist", "0-15999\n");
    cr_expect_eq(tshi_own_node(folder), 2);
    put(folder, "node0/cpulist", "0-15999\n");
    put(folder, "node2/cpulist", "\n");
    cr_expect_eq(tshi_own_node(folder), 0, "a node without cores");
    put(folder, "has_memory", "0\n");
    cr_expect_eq(tshi_own_node(folder), -1, "the only node");
    unsigned char mask[TSHI_MAX_CORES / 8];
    if (tshi_granted_cores(mask, sizeof mask) > 1) {
        int core = 0;
        char first[32], rest[32];
        while (!(mask[core / 8] >> core % 8 & 1)) core++;
        snprintf(first, sizeof first, "0-%d\n", core);
        snprintf(rest, sizeof rest, "%d-16000\n", core + 1);
        put(folder, "has_memory", "0,2\n");
        put(folder, "node0/cpulist", first);
        put(folder, "node2/cpulist", rest);
        cr_expect_eq(tshi_own_node(folder), -1, "cores of two nodes");
    }
    snprintf(command, sizeof command, "rm -r %s", folder);
    cr_assert_eq(system(command), 0);
}

/* The policy of the mapping at `memory`, as the kernel says it. */
static bool policy_of(const void *memory, char *policy) {
    FILE *file = fopen("/proc/self/numa_maps", "re");
    char line[4096];
    uintptr_t at;
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file)) {
        found = sscanf(line, "%" SCNxPTR " %63s", &at, policy) == 2 && at == (uintptr_t)memory;
    }
    if (file) fclose(file);
    return found;
}

Test(cpu, memory_prefers_a_node, .timeout = 60) {
    const size_t bytes = 4 * TSHI_HUGE_PAGE;
    char policy[64];
    for (int shared = 0; shared < 2; shared++) {
        int fd = shared ? memfd_create("test", MFD_CLOEXEC) : -1;
        cr_assert(!shared || (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0));
        char *memory = tshi_map_memory(fd, bytes);
        cr_assert(memory);
        memory[0] = 1;
        if (!policy_of(memory, policy)) cr_skip_test("the kernel has no memory nodes");
        cr_expect_str_eq(policy, "default");
        tshi_prefer_node(memory, bytes, -1);
        tshi_prefer_node(memory, bytes, 1023); /* is refused */
        cr_expect(policy_of(memory, policy) && strcmp(policy, "default") == 0, "%s", policy);
        tshi_prefer_node(memory, bytes, 0);
        cr_expect(policy_of(memory, policy) && strcmp(policy, "prefer:0") == 0, "shared %d: %s", shared, policy);
        munmap(memory, bytes);
        if (fd >= 0) close(fd);
    }
}
