/* layout: the part of a tensor that each rank of a mesh holds. See docs/layouts.md.
 *
 * Thread safety: any thread may call everything here, at any time. */
#ifndef TSHARD_LAYOUT_H
#define TSHARD_LAYOUT_H

#include "tshard/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The most dims of a tensor and axes of a mesh. */
#define TSH_MAX_DIMS 8
#define TSH_MAX_AXES 8

/* Ranks in a grid with named axes. */
typedef struct tsh_mesh tsh_mesh;
/* Ranks that communicate: along one axis of a mesh, or any others. */
typedef struct tsh_group tsh_group;

/* What each rank along a mesh axis holds of a tensor, and of its gradient. Zero is REPLICATED.
 *  REPLICATED  the same value                              gradient: the same gradient
 *  SHARD       its slice of dim `dim`, balanced, by the    gradient: sliced alike
 *              weights of the axis (tsh_mesh_create), or
 *              at the layout's own cut points
 *  PARTIAL     a term; the value is the sum over ranks     gradient: replicated
 *  LOCAL       may differ on every rank                    gradient: a contribution, to be summed */
typedef enum tsh_layout_kind {
    TSH_KIND_REPLICATED = 0,
    TSH_KIND_SHARD,
    TSH_KIND_PARTIAL,
    TSH_KIND_LOCAL
} tsh_layout_kind;

/* What the ranks that share a unit hold of it, with more ranks than units.
 *  UNSHARED    parts of it                                 gradient: split alike
 *  SHARED      all of it, the same value                   gradient: the same gradient
 *  SHARED_OWN  all of it, each for a use of its own        gradient: a contribution, to be summed over those ranks
 *  SHARED_NEXT parts of it: they split the next dim        gradient: split alike */
typedef enum tsh_sharing { TSH_UNSHARED = 0, TSH_SHARED, TSH_SHARED_OWN, TSH_SHARED_NEXT } tsh_sharing;

/* The layout of a tensor along one axis of its mesh. */
typedef struct tsh_layout {
    tsh_layout_kind kind;
    int dim; /* SHARD only; a negative dim counts from the end */
    /* SHARD only: of the axes that shard a dim, the lowest number splits it first; equal numbers: the earlier axis */
    int order;
    tsh_sharing sharing; /* with units and more ranks than units, which are balanced over the units */
    /* SHARD only: the dim consists of `units` equal units (heads, sequences of a batch), and whole units are split over
     * the ranks; ranks without a unit hold nothing. 0: each index is a unit. */
    int64_t units;
    /* With units: the dim consists of `blocks` equal blocks, the same number in each unit. More ranks than units are
     * balanced over the units, and a unit's blocks over the ranks that share it. 0: no unit is cut, as above. */
    int64_t blocks;
    /* SHARD only, without units, and only on the first axis that splits the dim: the handle of cut points
     * (tsh_cuts_create), at which the dim is split instead of by the axis' weights. 0: none. */
    uint64_t cuts;
} tsh_layout;

/* Layouts as expressions: TSH_SHARD(0); TSH_SHARD_ORDER(0, n) with a split order; TSH_SHARD_UNITS(0, units, blocks) for
 * query heads, with units = KV heads and blocks = query heads; TSH_SHARD_SHARED(0, units) for KV heads;
 * TSH_SHARD_NEXT(0) for a stack of matrices, whole ones or, with more ranks than matrices, rows of one;
 * TSH_SHARD_CUTS(0, cuts) with cut points. Initialisers of static objects in C must be constants (gcc -pedantic): write
 * TSH_SHARD_INIT(0) there. */
#ifdef __cplusplus
#define TSH_LAYOUT_(kind, dim, order, sharing, units, blocks, cuts)                                                    \
    (tsh_layout{kind, dim, order, sharing, units, blocks, cuts})
#else
#define TSH_LAYOUT_(kind, dim, order, sharing, units, blocks, cuts)                                                    \
    ((tsh_layout){kind, dim, order, sharing, units, blocks, cuts})
#endif
#define TSH_REPLICATED                    TSH_LAYOUT_(TSH_KIND_REPLICATED, 0, 0, TSH_UNSHARED, 0, 0, 0)
#define TSH_SHARD(d)                      TSH_LAYOUT_(TSH_KIND_SHARD, d, 0, TSH_UNSHARED, 0, 0, 0)
#define TSH_SHARD_ORDER(d, n)             TSH_LAYOUT_(TSH_KIND_SHARD, d, n, TSH_UNSHARED, 0, 0, 0)
#define TSH_SHARD_UNITS(d, units, blocks) TSH_LAYOUT_(TSH_KIND_SHARD, d, 0, TSH_UNSHARED, units, blocks, 0)
#define TSH_SHARD_SHARED(d, units)        TSH_LAYOUT_(TSH_KIND_SHARD, d, 0, TSH_SHARED, units, 0, 0)
#define TSH_SHARD_NEXT(d)                 TSH_LAYOUT_(TSH_KIND_SHARD, d, 0, TSH_SHARED_NEXT, 0, 0, 0)
#define TSH_SHARD_CUTS(d, cuts)           TSH_LAYOUT_(TSH_KIND_SHARD, d, 0, TSH_UNSHARED, 0, 0, cuts)
#define TSH_PARTIAL                       TSH_LAYOUT_(TSH_KIND_PARTIAL, 0, 0, TSH_UNSHARED, 0, 0, 0)
#define TSH_LOCAL                         TSH_LAYOUT_(TSH_KIND_LOCAL, 0, 0, TSH_UNSHARED, 0, 0, 0)

/* Layouts as initialisers of static objects. */
#define TSH_LAYOUT_INIT_(kind, dim, order)                                                                             \
    { kind, dim, order, TSH_UNSHARED, 0, 0, 0 }
#define TSH_REPLICATED_INIT        TSH_LAYOUT_INIT_(TSH_KIND_REPLICATED, 0, 0)
#define TSH_SHARD_INIT(d)          TSH_LAYOUT_INIT_(TSH_KIND_SHARD, d, 0)
#define TSH_SHARD_ORDER_INIT(d, n) TSH_LAYOUT_INIT_(TSH_KIND_SHARD, d, n)
#define TSH_PARTIAL_INIT           TSH_LAYOUT_INIT_(TSH_KIND_PARTIAL, 0, 0)
#define TSH_LOCAL_INIT             TSH_LAYOUT_INIT_(TSH_KIND_LOCAL, 0, 0)

/* A part of a global tensor: an offset and a length for each dim; empty when a length is 0. */
typedef struct tsh_box {
    int64_t start[TSH_MAX_DIMS];  /* the first index of each dim */
    int64_t length[TSH_MAX_DIMS]; /* how many indices of each dim */
} tsh_box;

/* The global shape of a tensor, and the shape of this rank's part of it. */
typedef struct tsh_shape {
    int ndim;                     /* of both shapes */
    int64_t local[TSH_MAX_DIMS];  /* of the part */
    int64_t global[TSH_MAX_DIMS]; /* of the whole */
} tsh_shape;

/* The balanced split of n >= 0 items over parts >= 1: the first n % parts hold one item more. Part `index` holds
 * *length items from *start on; either may be NULL. 13 over 4 is 4,3,3,3; 2 over 4 is 1,1,0,0. Invalid arguments set
 * both to 0. */
TSH_API void tsh_split(int64_t n, int parts, int index, int64_t *start, int64_t *length);
/* The split of n >= 0 items by weights[0..parts), none of them below 0 and at least one above: with W the sum of the
 * weights, part i holds floor(n w_i / W) items; the items that are left go one each to the parts with the largest
 * remainders, ties to the lower index. 13 by 2,1,1 is 7,3,3; 5 by 0,1,1 is 0,3,2. Exact for all sizes. With equal
 * weights, or NULL, the same as tsh_split. */
TSH_API void tsh_split_by_weight(int64_t n, int parts, const int64_t *weights, int index, int64_t *start,
                                 int64_t *length);
/* An order of n >= 0 tokens in which a causal mask gives `parts` >= 1 ranks equal work: the tokens are split into 2p
 * chunks (tsh_split), p = parts, and rank i gets chunks i and 2p - 1 - i. Fills order[n] with the tokens of rank 0,
 * then those of rank 1, and so on: 7 over 2 is 0,1,6, 2,3,4,5. Tensors in this order are split like any others. Invalid
 * arguments write nothing. */
TSH_API void tsh_zigzag(int64_t n, int parts, int64_t *order);

#ifdef __cplusplus
}
#endif

#endif
