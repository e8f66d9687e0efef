/* Boxes: the part of a global tensor that each rank of a mesh holds, and the parts that change rank when the tensor
 * moves to another placement. Pure functions of metadata, with the same answer on every rank. */
#ifndef TSHI_BOX_H
#define TSHI_BOX_H

#include "layout/layout.h"

/* The placement of a global tensor: the ranks of a mesh, members with the last axis fastest, and a layout for each
 * axis, never LOCAL. */
typedef struct tshi_placement {
    int axes;
    int size[TSH_MAX_AXES];
    const int64_t *weights[TSH_MAX_AXES]; /* of the axes, as tshi_parts */
    const tshi_cut_table *cuts;           /* of the layouts' cut points, or NULL */
    const int *ranks;                     /* rank of each member */
    tsh_layout layout[TSH_MAX_AXES];
    /* [members] arbitrary boxes, for one axis that is SHARD; NULL: boxes follow from the layouts */
    const tsh_box *boxes;
} tshi_placement;

static inline tshi_parts tshi_placement_parts(const tshi_placement *p, int axis) {
    return (tshi_parts){p->size[axis], p->weights[axis], p->cuts};
}

/* The placement of a mesh's tensors with these layouts; the mesh must outlive it. */
tshi_placement tshi_mesh_placement(const tsh_mesh *mesh, const tsh_layout layout[TSH_MAX_AXES]);

TSHI_TOOLS int64_t tshi_box_numel(int ndim, const tsh_box *box);
/* The intersection of both boxes; false when it is empty. */
TSHI_TOOLS bool tshi_box_intersect(int ndim, const tsh_box *a, const tsh_box *b, tsh_box *out);
/* The part of a box (none of its lengths is 0) that begins at its element `offset`, has at most `most` >= 1 elements
 * and is contiguous in the box's row-major order. The next part begins where this one ends. */
TSHI_TOOLS tsh_box tshi_box_cut(int ndim, const tsh_box *box, int64_t offset, int64_t most);

/* `box` becomes its part `i` of `parts`, cut along its longest dim. False for a part without elements. */
TSHI_TOOLS bool tshi_box_split(int ndim, tsh_box *box, int parts, int i);
/* Reduces this rank's box of a tensor with these layouts to its share among the ranks that hold the same box: the
 * shares of all ranks cover each element once. False for an empty share. */
bool tshi_box_share(const tsh_mesh *mesh, const tsh_layout *layout, int ndim, tsh_box *box);

/* The number of members. */
int tshi_placement_members(const tshi_placement *p);
/* The member on a rank, or -1. */
int tshi_placement_member(const tshi_placement *p, int rank);
int tshi_placement_rank(const tshi_placement *p, int member);
/* The box that a member holds of a tensor of this global shape. */
tsh_box tshi_placement_box(const tshi_placement *p, int ndim, const int64_t *shape, int member);

/* A box exchange: a redistribution of a tensor from the placement `from` to `to`.
 *
 * Members of `from` that differ only along REPLICATED axes, or that share units, hold the same values: one of them
 * sends each value, the receiver itself if it is one. Members that differ along PARTIAL axes, or that are SHARED_OWN,
 * hold terms, which the receiver adds in the order of the members. Among members of `to` that differ only along PARTIAL
 * axes, one holds each value, the first that already has it, else the first of all; the others hold zeros. Members that
 * differ only along REPLICATED axes hold the same terms. */
typedef struct tshi_exchange {
    int ndim;
    int64_t shape[TSH_MAX_DIMS];
    tshi_placement from, to;
} tshi_exchange;

/* A box of values that rank `from` sends to rank `to`, which may be the same rank. The receiver adds the terms of an
 * element in ascending order of `term`. */
typedef struct tshi_transfer {
    int from, to, term;
    tsh_box box;
} tshi_transfer;

/* The transfers to a rank, or from it, in an order on which any two ranks agree for their common transfers. Writes at
 * most `room` of them, and returns the number of all. */
int tshi_exchange_receives(const tshi_exchange *e, int rank, tshi_transfer *out, int room);
int tshi_exchange_sends(const tshi_exchange *e, int rank, tshi_transfer *out, int room);

/* The elements that a rank sends to other ranks. */
int64_t tshi_exchange_sent(const tshi_exchange *e, int rank);

/* True when reducing the terms of a sum first moves less, because `to` has replicas: the redistribution is then two
 * exchanges, from -> middle -> to, where `middle` is `from` with PARTIAL axes that shard a dim instead. */
bool tshi_exchange_reduces_first(const tshi_exchange *e, tshi_placement *middle);
/* The exchange of the gradient: from `to` to `from`, where PARTIAL counts as REPLICATED on both sides. */
void tshi_exchange_reverse(const tshi_exchange *e, tshi_exchange *out);

/* The cost of a route's step for this rank. */
typedef struct tshi_cost {
    const char *name;          /* "all_gather", ... */
    double elements;           /* that the rank sends, in a ring algorithm if the collective has one */
    const char *backward_name; /* the collective on the gradient */
    double backward_elements;
} tshi_cost;

/* The cost of a step from these layouts on mesh `from` to the step's layouts on mesh `to`; the meshes differ only for
 * an exchange. */
tshi_cost tshi_route_step_cost(const tsh_mesh *from, const tsh_mesh *to, const tsh_shape *shape,
                               const tsh_layout layout[TSH_MAX_AXES], const tshi_route_step *step);

#endif
