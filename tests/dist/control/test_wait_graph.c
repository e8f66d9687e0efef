/* Rows of waits, driven in the order in which ranks of different speed publish and look. */
#include "dist/control/wait_graph.h"
#include "dist/world.h"

#include <criterion/criterion.h>
#include <stdlib.h>

/* Two ranks of one process. */
typedef struct pair {
    tsh_world world[2];
    tshi_waits waits[2];
    void *rows;
} pair;

static void open_pair(pair *p) {
    *p = (pair){.rows = calloc(1, tshi_waits_bytes(2))};
    cr_assert_not_null(p->rows);
    for (int i = 0; i < 2; i++) {
        p->world[i].rank = i;
        p->world[i].size = 2;
        p->world[i].allocator = tshi_allocator_resolve(NULL);
        cr_assert_eq(tshi_waits_open(&p->world[i], &p->waits[i], p->rows), TSH_OK);
    }
}

static void close_pair(pair *p) {
    for (int i = 0; i < 2; i++) tshi_waits_close(&p->world[i], &p->waits[i]);
    free(p->rows);
}

/* The rank sees that the other one has not done what has that number. True for a cycle. */
static bool look(pair *p, int rank, uint64_t awaited) {
    char text[256];
    tshi_waits *waits = &p->waits[rank];
    tshi_waits_begin(waits, awaited);
    tshi_waits_add(waits, 1 - rank);
    tshi_waits_say(waits, "call", true);
    tshi_waits_publish(waits);
    return tshi_waits_cycle(waits, text, sizeof text);
}

Test(wait_graph, ranks_that_stand_in_a_cycle_find_it) {
    pair p;
    open_pair(&p);
    bool found = false;
    for (int i = 0; i < 4; i++) {
        found = look(&p, 0, 7) || found;
        found = look(&p, 1, 9) || found;
    }
    cr_expect(found);
    close_pair(&p);
}

/* A call of several steps is one wait of the program. Rank 0 waits for rank 1's step 1, and stops before it can see
 * that rank 1 has made that step; rank 1 truly waits for rank 0's step 2. */
Test(wait_graph, a_rank_that_has_gone_on_to_a_next_step_waits_anew) {
    pair p;
    open_pair(&p);
    cr_expect(!look(&p, 0, 1));
    cr_expect(!look(&p, 1, 0));
    cr_expect(!look(&p, 1, 0));
    cr_expect(!look(&p, 0, 1));
    cr_expect(!look(&p, 0, 1));
    for (int i = 0; i < 40; i++) cr_expect(!look(&p, 1, 2), "look %d", i);
    close_pair(&p);
}
