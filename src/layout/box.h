/* Boxes: the part of a global tensor that each rank of a mesh holds, and the parts that change rank when the tensor
 * moves to another placement. Pure functions of metadata, with the same answer on every rank. */
#ifndef TSHI_BOX_H
#define TSHI_BOX_H

#include "layout/layout.h"

/* Where a global tensor is: the ranks of a mesh, member after member with the last axis fastest, and a layout for each
 * axis (a global tensor is not LOCAL). */
typedef struct tshi_placement {
    int axes;
    int size[TSH_MAX_AXES];
    const int *ranks; /* of each member */
    tsh_layout layout[TSH_MAX_AXES];
    const tsh_box *boxes; /* [members] any boxes, with one axis that is SHARD; NULL: the layouts say the boxes */
} tshi_placement;

/* Where the tensors of a mesh with these layouts are; the mesh must outlive it. */
tshi_placement tshi_mesh_placement(const tsh_mesh *mesh, const tsh_layout layout[TSH_MAX_AXES]);

TSHI_TOOLS int64_t tshi_box_numel(int ndim, const tsh_box *box);
/* The elements that both boxes have; false when they have none in common. */
TSHI_TOOLS bool tshi_box_intersect(int ndim, const tsh_box *a, const tsh_box *b, tsh_box *out);
/* The part of a box (none of its lengths is 0) that begins at its element `offset`, has at most `most` >= 1 elements
 * and is contiguous in the box's row-major order. The next part begins where this one ends. */
TSHI_TOOLS tsh_box tshi_box_cut(int ndim, const tsh_box *box, int64_t offset, int64_t most);

/* `box` becomes its part `i` of `parts`, cut along its longest dim. False for a part without elements. */
TSHI_TOOLS bool tshi_box_split(int ndim, tsh_box *box, int parts, int i);
/* `box`, this rank's of a tensor with these layouts, becomes its share among the ranks that hold the same box: the
 * shares of all ranks cover each element once. False for a share without elements. */
bool tshi_box_share(const tsh_mesh *mesh, const tsh_layout *layout, int ndim, tsh_box *box);

/* Number of members. */
int tshi_placement_members(const tshi_placement *p);
/* The member that a rank is, or -1. */
int tshi_placement_member(const tshi_placement *p, int rank);
int tshi_placement_rank(const tshi_placement *p, int member);
/* What a member holds of a tensor of this global shape. */
tsh_box tshi_placement_box(const tshi_placement *p, int ndim, const int64_t *shape, int member);

/* A redistribution: the whole tensor, which `from` holds, becomes what `to` says.
 *
 * Members of `from` that differ only along REPLICATED axes, or that share units, hold the same values: one of them
 * sends each value, the receiver itself where it is one of them. Members that differ along PARTIAL axes, or that share
 * units for their own use, hold terms, which the receiver adds in the order of the members. Of the members of `to` that
 * differ only along PARTIAL axes, the first that has the value already, or else the first, holds it, and the others
 * hold zeros. Members that differ only along REPLICATED axes hold the same terms. */
typedef struct tshi_exchange {
    int ndim;
    int64_t shape[TSH_MAX_DIMS];
    tshi_placement from, to;
} tshi_exchange;

/* A box of values that rank `from` contributes to what rank `to` holds; they may be one rank. `term` numbers the terms
 * of a sum: the receiver adds the terms of one element in ascending order. */
typedef struct tshi_transfer {
    int from, to, term;
    tsh_box box;
} tshi_transfer;

/* The transfers to a rank, or from it, in an order that is the same for any two ranks' common transfers. Writes the
 * first `room` of them and returns how many there are. */
int tshi_exchange_receives(const tshi_exchange *e, int rank, tshi_transfer *out, int room);
int tshi_exchange_sends(const tshi_exchange *e, int rank, tshi_transfer *out, int room);

/* The elements that a rank sends to other ranks. */
int64_t tshi_exchange_sent(const tshi_exchange *e, int rank);

/* True where the terms of a sum are reduced before they move, because the members of `to` together want more values
 * than the whole has: `middle` is then `from` with the PARTIAL axes sharding a dim instead, and the redistribution is
 * two exchanges, from -> middle -> to. */
bool tshi_exchange_reduces_first(const tshi_exchange *e, tshi_placement *middle);
/* The redistribution of the gradient: back, with PARTIAL counting as REPLICATED on both sides. */
void tshi_exchange_reverse(const tshi_exchange *e, tshi_exchange *out);

/* What a step of a route costs this rank. */
typedef struct tshi_cost {
    const char *name;          /* "all_gather", ... */
    double elements;           /* that the rank sends, by a ring algorithm where the collective has one */
    const char *backward_name; /* the collective that the gradient takes */
    double backward_elements;
} tshi_cost;

/* The cost of a step from these layouts on mesh `from` to the step's layouts on mesh `to`; the meshes differ only for
 * an exchange. */
tshi_cost tshi_route_step_cost(const tsh_mesh *from, const tsh_mesh *to, const tsh_shape *shape,
                               const tsh_layout layout[TSH_MAX_AXES], const tshi_route_step *step);

#endif
