/* Movements of data along one axis: what the transition table is made of. */
#ifndef TSHI_MOVES_H
#define TSHI_MOVES_H

#include "dist/world.h"

/* Bring `in` to `out`, which has memory and the right local shape, over the group. in_dim: the dim along which `in` is
 * a shard; out_dim: the dim along which `out` is one (where the movement has such a side). May run with out viewing
 * in's memory if in_place. Collective where its name is. */
typedef struct tshi_move {
    tsh_status (*run)(tsh_group *group, const tsh_tensor *in, tsh_tensor *out, int in_dim, int out_dim);
    bool in_place;
} tshi_move;

extern const tshi_move tshi_moves[TSHI_MOVE_COUNT];

#endif
