/* Meshes, shapes, layouts, transitions and routes as metadata: pure functions without memory or communication, which
 * return the same on every rank for the same arguments. */
#ifndef TSHI_LAYOUT_H
#define TSHI_LAYOUT_H

#include "base/base.h"
#include "tshard/layout.h"

/* --- meshes and shapes -------------------------------------------------------------------------------------------- */

#define TSHI_AXIS_NAME 16

/* One axis of a mesh: its name, its size, this rank's index along it, and the group of ranks along it. src/layout only
 * compares the group's pointer. The index is -1 on a rank outside the mesh. */
typedef struct tshi_axis {
    char name[TSHI_AXIS_NAME];
    int size;
    int index;
    tsh_group *group;
} tshi_axis;

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
/* Each rank uses the tensor in its own way: its gradient is the sum of the ranks' terms. */
static inline bool tshi_layout_is_own(tsh_layout layout) {
    return layout.kind == TSH_KIND_LOCAL || (layout.kind == TSH_KIND_SHARD && layout.sharing == TSH_SHARED_OWN);
}
/* Equal except for the split order. */
static inline bool tshi_layout_alike(tsh_layout a, tsh_layout b) {
    return a.kind == b.kind && (a.kind != TSH_KIND_SHARD || (a.dim == b.dim && a.units == b.units &&
                                                             a.blocks == b.blocks && a.sharing == b.sharing));
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
/* Axis a splits before axis b if both shard the same dim. */
bool tshi_splits_before(const tsh_layout *layout, int a, int b);
/* The axes in split order. */
void tshi_split_sequence(int axes, const tsh_layout *layout, int sequence[TSH_MAX_AXES]);
/* Makes equal layouts equal structs: axes that split a dim in the order of the axes get order 0, others their position
 * among the axes of the dim. */
void tshi_layouts_normalize(int axes, tsh_layout *layout);
/* Reduces the items [*start, *start + *length) of a dim of size n, whole units, to part `index` of `parts` under a
 * SHARD layout. */
void tshi_layout_split(const tsh_layout *layout, int64_t n, int parts, int index, int64_t *start, int64_t *length);
/* How many of the `parts` ranks along an axis share a unit with rank `index` (at least 1, itself), and the first of
 * them. */
int tshi_layout_sharers(const tsh_layout *layout, int parts, int index, int *first);
/* Along every axis, this rank is the first of the ranks that share its unit. */
bool tshi_layouts_hold_first(const tsh_mesh *mesh, const tsh_layout *layout);
/* A SHARD layout of a dim of size n that no other axis splits, with its units dropped if they change no box. */
tsh_layout tshi_layout_plain(tsh_layout layout, int64_t n, int parts);
/* The layout that splits a part, `length` items of a dim of size n, as `layout` splits the dim. */
tsh_layout tshi_layout_of_part(tsh_layout layout, int64_t n, int64_t length);
#define TSHI_LAYOUT_NAME 64
/* Write "SHARD(0)", with a split order "SHARD(0,1)", with units "SHARD(0, 2 units)", into text; return text. */
char *tshi_layout_name(tsh_layout layout, char *text, size_t size);
/* Write "[8,16]" into text; return text. */
TSHI_TOOLS char *tshi_dims_name(int ndim, const int64_t *dims, char *text, size_t size);
/* Write "data=2,model=2 of ranks 0,1,2,3" into text, always terminated; return text. */
char *tshi_mesh_name(const tsh_mesh *mesh, char *text, size_t size);
/* These texts as arguments of a message, in memory of the enclosing block. */
#define TSHI_LAYOUT_TEXT(layout)   tshi_layout_name((layout), (char[TSHI_LAYOUT_NAME]){""}, TSHI_LAYOUT_NAME)
#define TSHI_DIMS_TEXT(ndim, dims) tshi_dims_name((ndim), (dims), (char[128]){""}, 128)
#define TSHI_MESH_TEXT(mesh)       tshi_mesh_name((mesh), (char[TSHI_LINE]){""}, TSHI_LINE)
/* The number of the mesh's axis whose group is `group`, or -1. */
int tshi_mesh_axis(const tsh_mesh *mesh, const tsh_group *group);

/* Set the local shape from the global one: each SHARD axis takes its slice, in split order; all sizes are 0 on a rank
 * outside the mesh. Resolves negative dims in `layout`, normalizes the layouts, and drops units that change no box.
 * TSH_ERR_SHAPE for a dim that does not exist and for units that do not divide a dim, TSH_ERR_LAYOUT for units that
 * another axis cuts. */
tsh_status tshi_shape_resolve(const tsh_mesh *mesh, tsh_shape *shape, tsh_layout layout[TSH_MAX_AXES]);
/* tshi_shape_resolve after `axis` has a new layout: if that cuts the units of other axes, these drop their units. */
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
