/* Polling for deaths. The kernel releases a process's lock however the process ends, and a child does not inherit
 * it. */
#include "dist/control/machine.h"

#include <fcntl.h>
#include <unistd.h>

#define MOST_LOOKS 32

bool tshi_deaths_has_ended(const tshi_deaths *deaths, int rank) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
    return deaths->file >= 0 && fcntl(deaths->file, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

void tshi_deaths_poll(tshi_deaths *deaths) {
    for (int k = 0; deaths->file >= 0 && k < deaths->count && k < MOST_LOOKS; k++) {
        int rank = deaths->ranks[deaths->next];
        deaths->next = (deaths->next + 1) % deaths->count;
        if (rank == deaths->own || !tshi_deaths_has_ended(deaths, rank)) continue;
        if (atomic_load(&deaths->page->record[rank].left)) continue;
        uint32_t state = tshi_page_state(deaths->page, rank);
        if (state != TSHI_DEAD && state != TSHI_STUCK) tshi_page_set_state(deaths->page, rank, state, TSHI_DEAD);
    }
}
