/* Movements of data along one axis: what the transition table is made of. */
#ifndef TSHI_MOVES_H
#define TSHI_MOVES_H

#include "dist/world.h"

typedef struct tshi_move {
    /* Brings `in` to `out`, which has memory and the right local shape, over the group. `from` and `to`: what they are
     * along the group's axis; in an exchange, ranks that share a unit for their own use hold terms of a sum.
     * work: NULL, or for a collective where to start it without waiting; *work stays NULL, and nothing has happened,
     * where the collective's result has to be unpacked afterwards. NULL: no data moves, `out` is a view of `in`. */
    tsh_status (*run)(tsh_group *group, const tsh_tensor *in, tsh_tensor *out, tsh_layout from, tsh_layout to,
                      tsh_work **work);
    bool in_place; /* out may be a view of in's memory */
    bool collective;
} tshi_move;

/* Copies [start, start + length) of whole along d to `part`, which holds just that, or `part` there. */
void tshi_part_copy(const tsh_tensor *whole, int d, int64_t start, int64_t length, void *part, bool out_of_whole);

extern const tshi_move tshi_moves[TSHI_MOVE_COUNT];

#endif
