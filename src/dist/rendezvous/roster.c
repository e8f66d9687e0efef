/* The roster of a world: its ranks and the machines on which they are. */
#include "dist/rendezvous/rendezvous.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

void tshi_roster_free(tshi_roster *roster, const tsh_allocator *allocator) {
    tshi_free(allocator, roster->node);
    tshi_free(allocator, roster->host);
    *roster = (tshi_roster){0};
}

tsh_status tshi_roster_init(tshi_roster *roster, int size, int nodes, const tsh_allocator *allocator) {
    *roster = (tshi_roster){.size = size, .nodes = nodes};
    roster->node = tshi_calloc(allocator, (size_t)size, sizeof *roster->node);
    roster->host = tshi_calloc(allocator, (size_t)nodes, sizeof *roster->host);
    if (roster->node && roster->host) return TSH_OK;
    tshi_roster_free(roster, allocator);
    return TSH_ERR_MEMORY;
}

void tshi_roster_settings(const tshi_roster *roster, tshi_settings *settings) {
    /* For a world on one machine the launcher's local rank holds; otherwise it is counted here. */
    bool known = settings->local_known && settings->local_size == roster->size;
    int node = roster->node[roster->rank], before = 0, here = 0;
    for (int i = 0; i < roster->size; i++) {
        here += roster->node[i] == node;
        before += i < roster->rank && roster->node[i] == node;
    }
    settings->rank = roster->rank;
    if (!known) settings->local_rank = before;
    settings->local_size = here;
    memcpy(settings->key, roster->key, sizeof settings->key);
}

void tshi_roster_append(const tshi_roster *roster, int node, char *text, size_t size) {
    int here = 0, n = 0;
    for (int i = 0; i < roster->size; i++) here += roster->node[i] == node;
    tshi_append(text, size, "rank%s", here > 1 ? "s" : "");
    for (int i = 0; i < roster->size; i++) {
        if (roster->node[i] == node) tshi_append(text, size, "%s%d", n++ ? ", " : " ", i);
    }
}

const char *tshi_roster_hosts(const tshi_roster *roster, char *text, size_t size) {
    text[0] = '\0';
    for (int node = 0; node < roster->nodes && strlen(text) + 1 < size; node++) {
        tshi_append(text, size, "%s%s: ", node ? "; " : "", roster->host[node]);
        tshi_roster_append(roster, node, text, size);
    }
    return text;
}

tsh_status tshi_roster_of(const tshi_process *const *process, int size, const tsh_allocator *allocator,
                          tshi_roster *out) {
    const tshi_process **first = tshi_calloc(allocator, (size_t)size, sizeof *first);
    tsh_status status = first ? tshi_roster_init(out, size, size, allocator) : TSH_ERR_MEMORY;
    out->nodes = 0;
    for (int i = 0; status == TSH_OK && i < size; i++) {
        int node = 0;
        while (node < out->nodes && !tshi_process_same_machine(first[node], process[i])) node++;
        out->node[i] = node;
        if (node < out->nodes) continue;
        first[out->nodes] = process[i];
        snprintf(out->host[out->nodes++], TSHI_HOST_SIZE, "%s", process[i]->host);
    }
    tshi_free(allocator, first);
    if (status == TSH_OK && !tshi_random_bytes(out->key, sizeof out->key)) {
        status = tshi_fail_errno(errno, "rendezvous: random numbers");
        tshi_roster_free(out, allocator);
    }
    return status;
}
