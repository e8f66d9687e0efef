/* Meshes, shapes, layouts, transitions and routes as metadata: pure functions without memory or communication, which
 * return the same on every rank for the same arguments. */
#ifndef TSHI_LAYOUT_H
#define TSHI_LAYOUT_H

#include "base/cuts.h"
#include "tshard/layout.h"

/* --- meshes and shapes -------------------------------------------------------------------------------------------- */

#define TSHI_AXIS_NAME 16

/* The parts of a dim along an axis: their number, and their weights, at least one above 0; NULL: the balanced split. Of
 * an axis, the weights have no common divisor and are not all equal. Layouts may name cut points of a table instead. */
typedef struct tshi_parts {
    int count;
    const int64_t *weights;     /* [count] */
    const tshi_cut_table *cuts; /* or NULL */
} tshi_parts;

/* Part `index` of n units by the weights: *length units from *start on. */
void tshi_parts_split(tshi_parts parts, int64_t n, int index, int64_t *start, int64_t *length);
static inline int64_t tshi_parts_weight(tshi_parts parts, int index) {
    return parts.weights ? parts.weights[index] : 1;
}
/* The part of the sum of the weights; for index -1, a rank outside the mesh, the mean. */
double tshi_parts_share(tshi_parts parts, int index);
/* The number of parts with a weight. */
int tshi_parts_holders(tshi_parts parts);
bool tshi_parts_equal(tshi_parts a, tshi_parts b);
/* Divides weights, none below 0 and one above, by their greatest common divisor; NULL if they are then equal. */
const int64_t *tshi_weights_simplify(int64_t *weights, int count);
/* A number of units that is enough for part `index` to hold `wanted` of them. */
int64_t tshi_parts_enough(tshi_parts parts, int index, int64_t wanted);

/* One axis of a mesh: its name, its size, the weights of its ranks (as tshi_parts), this rank's index along it, and the
 * group of ranks along it. src/layout only compares the group's pointer. The index is -1 on a rank outside the mesh. */
typedef struct tshi_axis {
    char name[TSHI_AXIS_NAME];
    int size;
    const int64_t *weights;
    const tshi_cut_table *cuts; /* the world's */
    int index;
    tsh_group *group;
} tshi_axis;

static inline tshi_parts tshi_axis_parts(const tshi_axis *axis) {
    return (tshi_parts){axis->size, axis->weights, axis->cuts};
}

struct tsh_mesh {
    uint64_t number; /* unique in its world, also among destroyed meshes */
    int axes;
    tshi_axis axis[TSH_MAX_AXES];
    int members;
    int member;       /* this rank's number among the members; -1 on a rank outside the mesh */
    const int *ranks; /* the members' world ranks, the last axis fastest */
    /* Not used in src/layout: the group of all members, the device and the world. */
    tsh_group *group;
    bool owns_group;
    struct tsh_device *device;
    struct tsh_world *world;
    int64_t *weights; /* memory of the axes' weights, or NULL */
};

/* This rank is a member of the mesh; tensors of the mesh are empty on other ranks. */
static inline bool tshi_mesh_has_me(const tsh_mesh *mesh) {
    return mesh->member >= 0;
}

/* The kind is valid. The dim is checked when the tensor is known. */
bool tshi_layout_exists(tsh_layout layout);
/* The layout splits dim d, in any units. */
static inline bool tshi_layout_splits(tsh_layout layout, int d) {
    return layout.kind == TSH_KIND_SHARD && layout.dim == d;
}
/* The layout may make parts of dim d: it splits d, or the dim before, with ranks that share a unit by parts of d. */
static inline bool tshi_layout_reaches(tsh_layout l, int d) {
    return l.kind == TSH_KIND_SHARD && (l.dim == d || (l.sharing == TSH_SHARED_NEXT && l.dim + 1 == d));
}
/* Both layouts may make parts of one dim, which then depend on the axis that splits first. */
bool tshi_layouts_meet(tsh_layout a, tsh_layout b);
/* Each rank uses the tensor in its own way: its gradient is the sum of the ranks' terms. */
static inline bool tshi_layout_is_own(tsh_layout layout) {
    return layout.kind == TSH_KIND_LOCAL || (layout.kind == TSH_KIND_SHARD && layout.sharing == TSH_SHARED_OWN);
}
/* Equal except for the split order. */
static inline bool tshi_layout_alike(tsh_layout a, tsh_layout b) {
    return a.kind == b.kind &&
           (a.kind != TSH_KIND_SHARD || (a.dim == b.dim && a.units == b.units && a.blocks == b.blocks &&
                                         a.sharing == b.sharing && a.cuts == b.cuts));
}
static inline bool tshi_layout_equal(tsh_layout a, tsh_layout b) {
    return tshi_layout_alike(a, b) && (a.kind != TSH_KIND_SHARD || a.order == b.order);
}
static inline bool tshi_layouts_equal(int axes, const tsh_layout *a, const tsh_layout *b) {
    int i = 0;
    while (i < axes && tshi_layout_equal(a[i], b[i])) i++;
    return i == axes;
}
/* LOCAL along every axis. */
extern const tsh_layout tshi_all_local[TSH_MAX_AXES];
/* The layout along some axis is LOCAL. */
static inline bool tshi_layouts_have_local(int axes, const tsh_layout *layout) {
    int a = 0;
    while (a < axes && layout[a].kind != TSH_KIND_LOCAL) a++;
    return a < axes;
}
/* Axis a splits before axis b if both may split one dim. */
bool tshi_splits_before(const tsh_layout *layout, int a, int b);
/* The axes in split order. */
void tshi_split_sequence(int axes, const tsh_layout *layout, int sequence[TSH_MAX_AXES]);
/* Makes equal layouts equal structs: an axis gets order 0 if it and those that meet it split in the order of the axes,
 * otherwise its position among them. */
void tshi_layouts_normalize(int axes, tsh_layout *layout);
/* Reduces the items [*start, *start + *length) of a dim of size n, whole units, to part `index` of `parts` under a
 * SHARD layout. */
void tshi_layout_split(const tsh_layout *layout, int64_t n, tshi_parts parts, int index, int64_t *start,
                       int64_t *length);
/* Reduces a box of a tensor of this global shape to part `index`. Every split of a tensor over ranks follows from it. */
void tshi_layout_narrow(const tsh_layout *layout, const int64_t *shape, tshi_parts parts, int index, tsh_box *box);
/* The layout has no cut points, or those of `parts`, which end at n. */
bool tshi_layout_cuts_fit(const tsh_layout *layout, int64_t n, tshi_parts parts);
/* How many of the ranks along an axis hold the same unit as rank `index` (at least 1, itself), and the first of them.
 * Ranks hold the same if they have the same first; between them may be ranks of weight 0, which hold nothing. */
int tshi_layout_sharers(const tsh_layout *layout, tshi_parts parts, int index, int *first);
/* Along every axis, this rank is the first of the ranks that share its unit. */
bool tshi_layouts_hold_first(const tsh_mesh *mesh, const tsh_layout *layout);
/* A SHARD layout of a dim of size n that no other axis splits, with its units or cut points dropped if they change no
 * box. */
tsh_layout tshi_layout_plain(tsh_layout layout, int64_t n, tshi_parts parts);
/* Checks the units and cut points of all axes' layouts, `sequence` being the split order, and drops those that change
 * no box; a dim of size 0 keeps its units. */
tsh_status tshi_units_resolve(const tsh_mesh *mesh, const tsh_shape *shape, const int *sequence,
                              tsh_layout layout[TSH_MAX_AXES]);
/* The layout that splits a part, `length` items of a dim of size n, as `layout` splits the dim. */
tsh_layout tshi_layout_of_part(tsh_layout layout, int64_t n, int64_t length);
#define TSHI_LAYOUT_NAME 128
/* Write "SHARD(0)", with a split order "SHARD(0,1)", with units "SHARD(0, 2 units)", with cut points
 * "SHARD(0, cut at 0,3,5)", into text; return text. `parts` are those of the layout's axis. */
char *tshi_layout_name(tsh_layout layout, tshi_parts parts, char *text, size_t size);
/* Write "[8,16]" into text; return text. */
TSHI_TOOLS char *tshi_dims_name(int ndim, const int64_t *dims, char *text, size_t size);
/* Append the size of an axis, "2", or its weights, "3:1", to text; return text. */
char *tshi_parts_append(tshi_parts parts, char *text, size_t size);
/* Write "data=2,model=3:1 of ranks 0,1,2,3" into text, always terminated; return text. */
char *tshi_mesh_name(const tsh_mesh *mesh, char *text, size_t size);
/* These texts as arguments of a message, in memory of the enclosing block. */
#define TSHI_LAYOUT_TEXT(layout, axis)                                                                                 \
    tshi_layout_name((layout), tshi_axis_parts(axis), (char[TSHI_LAYOUT_NAME]){""}, TSHI_LAYOUT_NAME)
#define TSHI_DIMS_TEXT(ndim, dims) tshi_dims_name((ndim), (dims), (char[128]){""}, 128)
#define TSHI_MESH_TEXT(mesh)       tshi_mesh_name((mesh), (char[TSHI_LINE]){""}, TSHI_LINE)
/* The number of the mesh's axis whose group is `group`, or -1. */
int tshi_mesh_axis(const tsh_mesh *mesh, const tsh_group *group);

/* Set the local shape from the global one: each SHARD axis takes its slice, in split order; all sizes are 0 on a rank
 * outside the mesh. Resolves negative dims in `layout`, normalizes the layouts, and drops units and cut points that
 * change no box. TSH_ERR_SHAPE for a dim that does not exist, for units that do not divide a dim and for cut points of
 * another size or number of parts, TSH_ERR_LAYOUT for units that another axis cuts and for cut points of an axis that
 * is not the first to split the dim, TSH_ERR_ARGUMENT for cut points that do not exist. */
tsh_status tshi_shape_resolve(const tsh_mesh *mesh, tsh_shape *shape, tsh_layout layout[TSH_MAX_AXES]);
/* tshi_shape_resolve after `axis` has a new layout: if that cuts the units of other axes, these drop their units and
 * cut points. */
tsh_status tshi_shape_settle(const tsh_mesh *mesh, int axis, tsh_shape *shape, tsh_layout layout[TSH_MAX_AXES]);
/* The global shapes are equal. */
bool tshi_shapes_equal(const tsh_shape *a, const tsh_shape *b);
/* The number of elements of the whole tensor. */
int64_t tshi_shape_numel(const tsh_shape *shape);
/* The global index at which this rank's slice of dim d starts (0 when no axis shards d). */
int64_t tshi_shape_start(const tsh_mesh *mesh, const tsh_shape *shape, const tsh_layout layout[TSH_MAX_AXES], int d);

/* --- transitions -------------------------------------------------------------------------------------------------- */

/* The communication of a transition along its axis. */
typedef enum tshi_move_kind {
    TSHI_MOVE_NOTHING,
    TSHI_MOVE_ALL_REDUCE,
    TSHI_MOVE_ALL_GATHER,
    TSHI_MOVE_SLICE,
    TSHI_MOVE_REDUCE_SCATTER,
    TSHI_MOVE_ALL_TO_ALL,
    TSHI_MOVE_ZERO_PAD,
    TSHI_MOVE_FIRST_KEEPS,
    TSHI_MOVE_COUNT
} tshi_move_kind;

/* A row of the table of transitions (tshard/autograd.h). */
typedef struct tshi_transition {
    tsh_layout_kind from, to;
    tshi_move_kind forward, backward;
    bool automatic; /* layout rules may insert it: it neither delays a sum nor assumes equal values */
} tshi_transition;

/* The row from one layout to a different one, or NULL. `automatic`: only rows that layout rules may insert. */
const tshi_transition *tshi_transition_find(tsh_layout from, tsh_layout to, bool automatic);
/* Bytes that a rank sends per byte of the whole tensor, times p / (p - 1). They do not depend on p, so that rules
 * choose the same rows at any p. */
extern const double tshi_move_cost[TSHI_MOVE_COUNT];
/* The cost of forward and, with `backward`, of backward. */
static inline double tshi_transition_cost(const tshi_transition *t, bool backward) {
    return tshi_move_cost[t->forward] + (backward ? tshi_move_cost[t->backward] : 0);
}

/* --- routes ------------------------------------------------------------------------------------------------------- */

/* A change of layouts along all axes of a mesh; both sides are normalized. */
typedef struct tshi_change {
    const tsh_mesh *mesh;
    const tsh_layout *from, *to; /* [TSH_MAX_AXES] */
} tshi_change;

/* A step of a route, and the layouts after it: a transition along one axis, or a box exchange over all axes (axis
 * -1). */
typedef struct tshi_route_step {
    int axis;
    tsh_layout to[TSH_MAX_AXES];
} tshi_route_step;

#define TSHI_ROUTE_STEPS (3 * TSH_MAX_AXES)

typedef struct tshi_route {
    int steps;
    tshi_route_step step[TSHI_ROUTE_STEPS];
} tshi_route;

/* Makes the route: transitions if at most one of them moves parts between ranks, else one exchange. False where the
 * layouts cannot be reached: a LOCAL axis can only become REPLICATED. */
bool tshi_route_make(const tshi_change *change, tshi_route *route);

#endif
