#include "dist/control/standings.h"

/* A turn that ends while it is read is read again. */
void tshi_standings_read(tshi_page *page, tshi_standings *out) {
    do {
        out->turn = atomic_load(&page->turn);
        uint64_t port = atomic_load(&page->port);
        out->port = port >> 32 == (uint64_t)out->turn / TSHI_PHASES + 1 ? (uint32_t)port : 0;
        for (int i = 0; i < page->size; i++) {
            out->rank[i].standing = atomic_load(&page->record[i].standing);
            out->rank[i].unused = 0;
            out->rank[i].completed = atomic_load(&page->record[i].completed);
        }
        uint32_t round = out->turn / TSHI_PHASES;
        bool brought = atomic_load(&page->newcomers_round) == round + 1 && tshi_is_member(out->rank[0].standing, round);
        out->newcomers = page->newcomers;
        if (!brought) out->newcomers.count = 0;
    } while (atomic_load(&page->turn) != out->turn);
}

static void come(tshi_rank_record *r, uint32_t turn, uint32_t round, int64_t step) {
    uint32_t now = atomic_load(&r->standing);
    if (turn != tshi_turn(round, TSHI_GATHERING) || now == TSHI_LOST || tshi_is_member(now, round)) return;
    atomic_store(&r->completed, step);
    atomic_compare_exchange_strong(&r->standing, &now, tshi_come_to(round));
}

void tshi_standings_change(tshi_page *page, int rank, tshi_standing_change change, uint32_t round, int64_t step) {
    uint32_t turn = atomic_load(&page->turn), building = tshi_turn(round, TSHI_BUILDING), came = tshi_come_to(round);
    if (change == TSHI_COME) come(&page->record[rank], turn, round, step);
    if (change == TSHI_BUILT && turn == building)
        atomic_compare_exchange_strong(&page->record[rank].standing, &came, tshi_built_in(round));
    if (change == TSHI_FAILED_TO_BUILD)
        atomic_compare_exchange_strong(&page->turn, &building, tshi_turn(round + 1, TSHI_GATHERING));
}
