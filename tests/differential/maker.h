/* What random programs are made with: adding a step, leaves, inputs among earlier values. */
#ifndef TSHI_TEST_MAKER_H
#define TSHI_TEST_MAKER_H

#include "differential/program.h"

typedef struct tshi_maker {
    tshi_program *p;
    uint64_t random;
    int detached;        /* steps that are detached, of a hundred */
    bool local, partial; /* leaves may be LOCAL, PARTIAL */
    int64_t size[4];     /* of dims, mostly */
} tshi_maker;

/* A number of [0, n); true so often of a hundred times. */
int tshi_maker_below(tshi_maker *m, int n);
bool tshi_maker_chance(tshi_maker *m, int percent);

/* All of these return the number of a value, or -1 where nothing sensible would be made. */
int tshi_maker_add(tshi_maker *m, const tshi_step *step);
int tshi_maker_add1(tshi_maker *m, tshi_verb call, int x, int64_t n0, int64_t n1, int64_t n2);
int tshi_maker_leaf(tshi_maker *m, int ndim, const int64_t *dims, bool grad);
int tshi_maker_random_leaf(tshi_maker *m);
/* Along one axis ids may be sums; LOCAL where the table may be. */
int tshi_maker_ids(tshi_maker *m, const tshi_dims *shape, int64_t limit, bool target, int no_local);
/* A value of floats, mostly a late one; one of a shape, or a new leaf. */
int tshi_maker_value(tshi_maker *m);
int tshi_maker_value_of(tshi_maker *m, int ndim, const int64_t *dims);

/* Often by a dim that another axis splits too, in any split order. */
tsh_layout tshi_maker_shard(tshi_maker *m, int ndim);
/* Units, blocks and ranks that share units, now and then, where they fit. */
void tshi_maker_units(tshi_maker *m, const tshi_dims *dims, tsh_layout layout[TSH_MAX_AXES]);
int64_t tshi_maker_size(tshi_maker *m);
/* Of value x: the size of its last dim, one of its dims. */
int64_t tshi_maker_last(const tshi_maker *m, int x);
int tshi_maker_dim(tshi_maker *m, int x);

/* Steps of generate.c that others are made of: ids as they are or moved and shaped on their way; an earlier step whose
 * layer may be used again. */
int tshi_add_ids(tshi_maker *m, const tshi_dims *shape, int64_t limit, int no_local);
int tshi_layer_to_share(tshi_maker *m, tshi_verb call);
int tshi_add_embedding(tshi_maker *m);
/* A call of x and a value of its shape, which may have sizes of 1 in it or fewer dims, as in tshi_repeated_shape; an
 * earlier step of indices. */
int tshi_add_two(tshi_maker *m, tshi_verb call, int x);
tshi_dims tshi_repeated_shape(tshi_maker *m, int x);
int tshi_any_indices(tshi_maker *m);

/* A random step of functions.c with x. */
int tshi_add_function(tshi_maker *m, int x);

/* Attention and the layers of a transformer. */
int tshi_add_rotary(tshi_maker *m);
int tshi_add_attention(tshi_maker *m);
int tshi_add_project(tshi_maker *m);
int tshi_add_norm(tshi_maker *m, int x);
int tshi_add_transformer(tshi_maker *m, tshi_verb call);

#endif
