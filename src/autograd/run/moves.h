/* The data movements of the transition table, along one axis. */
#ifndef TSHI_MOVES_H
#define TSHI_MOVES_H

#include "dist/world.h"

typedef struct tshi_move {
    /* Moves `in` to `out`, which has memory and the right local shape, over the group. `from` and `to`: the layouts
     * along the group's axis; SHARED_OWN ranks hold terms of a sum. work: NULL, or where to store the collective
     * started without waiting; *work stays NULL, and nothing is done, if the result must be unpacked afterwards. A NULL
     * function: no data moves, `out` is a view of `in`. */
    tsh_status (*run)(tsh_group *group, const tsh_tensor *in, tsh_tensor *out, tsh_layout from, tsh_layout to,
                      tsh_work **work);
    bool in_place; /* out may be a view of in's memory */
    bool collective;
} tshi_move;

/* Copies elements [start, start + length) of `whole` along dim d to `part`, or back from `part`. */
void tshi_part_copy(const tsh_tensor *whole, int d, int64_t start, int64_t length, void *part, bool out_of_whole);

extern const tshi_move tshi_moves[TSHI_MOVE_COUNT];

#endif
