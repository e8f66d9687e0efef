/* Random programs of public functions: what one is, what it computes the shapes of, how it is printed.
 *
 * A program is a list of steps. Step k makes value k; leaves and layers are steps too. Everything that a step does
 * follows from its own numbers and the shapes of its inputs, so that a program stays one when steps or sizes are taken
 * out of it. */
#ifndef TSHI_TEST_PROGRAM_H
#define TSHI_TEST_PROGRAM_H

#include "layout/layout.h"
#include "tshard/tshard.h"

#include <stdio.h>

enum {
    MAX_STEPS = 48,
    MAX_IN = 10,
    MAX_OBJECTIVES = 3,
    MAX_ROUNDS = 3,
    MAX_RANKS = 8,
    MAX_TAPES = 10,
    MAX_PARTS = 4,
    MAX_CUTS = 6,
    MAX_PARAMETERS = 18 * MAX_STEPS,
    SPOIL_VALUE = MAX_PARAMETERS
};

typedef enum tshi_verb {
    CALL_LEAF, /* shape, layout, grad; n: FLAGS */
    CALL_IDS,  /* shape, layout; n: LIMIT, FLAGS, ignore index */
    CALL_MATMUL,
    CALL_AFFINE,
    CALL_ADD,
    CALL_SUB,
    CALL_MUL,
    CALL_SCALE, /* f: factor */
    CALL_BIAS,
    CALL_GELU,
    CALL_GELU_TANH,
    CALL_RELU,
    CALL_SILU,
    CALL_DROPOUT,        /* f: p */
    CALL_RESHAPE,        /* n: form, dim, factor, whether one size is -1 */
    CALL_SLICE,          /* n: dim, start, length (cut to what there is) */
    CALL_CONCAT,         /* n: dim */
    CALL_SUM,            /* n: dim or TSH_ALL_DIMS */
    CALL_MEAN,           /* n: dim or TSH_ALL_DIMS */
    CALL_SOFTMAX,        /* n: dim */
    CALL_LOG_SOFTMAX,    /* n: dim */
    CALL_LOOKUP,         /* table, ids; n: padding */
    CALL_LAYER_NORM,     /* f: eps */
    CALL_RMS_NORM,       /* f: eps */
    CALL_ATTENTION,      /* q, k, v, lengths or two of ids; n: causal, scale 0.5, kind of ids; f: dropout */
    CALL_ROTARY,         /* x, positions; n: order, dims, whether theta is 100 */
    CALL_REDISTRIBUTE,   /* n: axis; layout[0]: the new one */
    CALL_MOVE_ALL,       /* layout: the new ones, but LOCAL where the value is */
    CALL_SCATTER,        /* n: axis, dim; these four leave a value alone that is in a layout which they do not take */
    CALL_GATHER,         /* n: axis */
    CALL_REDUCE,         /* n: axis */
    CALL_COPY,           /* n: axis */
    CALL_PREPARE,        /* what a layer takes: n as in its step */
    CALL_LINEAR,         /* x and, to share that layer, its step; n: out, SHARDING, AXIS, FLAGS, activation, init */
    CALL_EMBEDDING,      /* ids, likewise; n: cols, SHARDING, AXIS, FLAGS, rows, padding */
    CALL_PROJECT,        /* x, the step of an embedding; n: SHARDING, AXIS of that */
    CALL_NORM,           /* n: AXIS, FLAGS */
    CALL_MLP,            /* n: hidden, AXIS, FLAGS, activation */
    CALL_SELF_ATTENTION, /* x, positions, lengths; n: AXIS, FLAGS, heads; f: dropout */
    CALL_BLOCK,          /* likewise, and hidden, activation */
    CALL_CROSS_ENTROPY,  /* logits, target, weights; n: reduction; f: smoothing */
    CALL_DIV,            /* from here on: functions.c */
    CALL_EXP,
    CALL_LOG,
    CALL_TANH,
    CALL_SQRT,
    CALL_SIGMOID,
    CALL_POW,         /* f: exponent */
    CALL_CLAMP,       /* n: which limits */
    CALL_MASKED_FILL, /* x, ids of 0 and 1; f: value */
    CALL_CAST,        /* n: whether to integers */
    CALL_PERMUTE,     /* n: which order */
    CALL_TRANSPOSE,   /* n: two dims */
    CALL_SPLIT_PARTS, /* n: dim, count, which part (-1: all, reversed), whether sizes are given */
    CALL_TOPK,        /* n: dim, k, whether the indices are wanted */
    CALL_ARGMAX,      /* n: dim, 1 */
    CALL_CUMSUM,      /* n: dim */
    CALL_MSE_LOSS,    /* x, target; n: reduction */
    CALL_BCE_LOSS,    /* logits, target, weights; n: reduction */
    CALL_ABS,
    CALL_SCALE_SHIFT, /* n: shift; f: factor */
    CALL_MAXIMUM,
    CALL_MINIMUM,
    CALL_WHERE,   /* x, y, chosen by a comparison of x with y or with 1 */
    CALL_MAX,     /* n: dim, 1 */
    CALL_MIN,     /* n: dim, 1 */
    CALL_L1_LOSS, /* x, target; n: reduction */
    CALL_SMOOTH_L1_LOSS,
    CALL_INDEX_SELECT, /* x, ids; n: dim */
    CALL_TAKE_ALONG,
    CALL_INDEX_ADD, /* x, ids, y; n: dim */
    CALL_ADD_ALONG,
    CALL_ONE_HOT, /* ids; n: classes */
    CALL_SWIGLU,  /* gate, up */
    CALL_COUNT
} tshi_verb;

/* Places in n. */
enum { LEAF_FLAGS = 0, IDS_LIMIT = 0, IDS_FLAGS, IDS_IGNORE };
enum { LAYER_OUT = 0, LAYER_SHARDING, LAYER_AXIS, LAYER_FLAGS, LAYER_ACTIVATION, LAYER_INIT };
enum { EMBEDDING_ROWS = 4, EMBEDDING_PADDING };
enum { ATTENTION_HEADS = 6, ATTENTION_KV_HEADS, ATTENTION_HEAD_DIM, ATTENTION_BATCH, NUMBERS };
/* What a step prepares beside a tsh_sharding: features whole, and no LOCAL along the axis. */
enum { PREPARE_WHOLE = 3 };
/* Flags of leaves and ids, and of layers. */
enum { FLAG_FROM_PARTS = 1, FLAG_INIT = 2, FLAG_TARGET = 4, FLAG_POSITIVE = 8, FLAG_RAGGED = 16 };
enum { FLAG_BIAS = 1, FLAG_GATHER = 2, FLAG_SEQUENCE = 4, FLAG_LOAD = 8, FLAG_PADDING = 16 };
enum {
    FLAG_GATED = 32,
    FLAG_CAUSAL = 64,
    FLAG_ROTARY = 128,
    FLAG_LENGTHS = 256,
    FLAG_POST = 512,
    FLAG_RMS = 1024,
    FLAG_WEIGHT = 2048
};
/* Forms of reshape. */
enum { FORM_MERGE, FORM_SPLIT, FORM_FLATTEN, FORM_INSERT, FORM_SWAP, FORM_COUNT };

typedef struct tshi_dims {
    int ndim;
    int64_t dim[TSH_MAX_DIMS];
} tshi_dims;

typedef struct tshi_step {
    tshi_verb call;
    int inputs, in[MAX_IN];
    int64_t n[NUMBERS];
    double f;
    tsh_layout layout[TSH_MAX_AXES];
    uint64_t salt; /* keys the values of leaves and layers */
    bool grad;     /* of a leaf */
    bool retain;   /* the gradient of an intermediate */
    bool detached; /* made while the tape does not record */

    /* Shape and layouts of the value, set by tshi_program_infer (for leaves the shape is an input). */
    tshi_dims shape;
    bool integer;    /* int64 */
    bool wants_grad; /* leads to a leaf with a gradient */
    bool dropped;    /* differs when the tape does not record */
    unsigned local;  /* axes along which it may be LOCAL, a bit each */
    double bound;    /* no element is larger */
    double least;    /* no element is smaller; 0 or less: unknown */
    int bits;        /* binary places behind the point, of an exact program */
} tshi_step;

typedef struct tshi_objective {
    int value;
    bool retain_graph; /* needed by a later one */
    bool given;        /* by a gradient instead of ones */
    bool sync;         /* of the data parallel schedule */
    uint64_t salt;
} tshi_objective;

typedef enum tshi_stepper { STEPPER_NONE, STEPPER_SGD, STEPPER_ADAMW } tshi_stepper;
typedef enum tshi_zero { ZERO_OPTIMIZER, ZERO_PARAMETERS, ZERO_NOT } tshi_zero;

/* How parameters are stored and computed with on the ranks, in a program of small whole numbers; gradients are
 * float32. */
typedef enum tshi_policy {
    POLICY_NONE,
    POLICY_STORED_NARROW,
    POLICY_COMPUTED_NARROW,
    POLICY_COMPUTED_WIDE
} tshi_policy;

/* Cut points that layouts name by their number. */
typedef struct tshi_program_cuts {
    uint64_t number;
    int parts;
    int64_t at[MAX_RANKS + 1];
} tshi_program_cuts;

typedef struct tshi_program {
    uint64_t seed;
    int axes, size[TSH_MAX_AXES];
    int64_t weight[TSH_MAX_AXES][MAX_RANKS]; /* of an axis' ranks; all 0: none */
    int order;          /* of the world's ranks in the mesh: 0 as they are numbered, else a random one */
    bool deterministic; /* the ranks' worlds are, and have the bits of one rank */
    bool exact;         /* whole numbers and functions that keep them exact */
    tsh_dtype dtype;    /* of the truth; of the ranks without a policy */
    tshi_policy policy;
    tsh_dtype narrow; /* the policy's 16 bits */
    int cuts;
    tshi_program_cuts cut[MAX_CUTS];
    int steps;
    tshi_step step[MAX_STEPS];
    int objectives;
    tshi_objective objective[MAX_OBJECTIVES];
    bool evaluate; /* first once without recording */
    bool rewrite;  /* then parameters are written to, and the same step of the tape goes on with another evaluation */
    int spoil;     /* the parameter or, from SPOIL_VALUE on, value that is written to between forward and backward; -1:
                    * none */
    /* Before this round's step comes one that fails, at a step or, counted on, an objective, where the backward of a
     * call may be what fails; 0: none does. A rank fails there, or, from MAX_RANKS on, a call is refused on all of
     * them. */
    int fail_round, fail_at, fail_rank;
    bool fused;  /* matrices are stepped in backward, on the ranks */
    bool sparse; /* gradients of tables are, on the ranks; steps are such that rows without a gradient stay */
    int tapes;   /* beside the program's, each with a step of its own */
    int rounds;
    tshi_stepper stepper;
    double lr, momentum, weight_decay, clip; /* clip 0: none */
    bool nesterov;
    tshi_zero zero;
    int ragged;  /* the axis along which LOCAL leaves may differ in size, -1 */
    int dp_axis; /* -1: none */
    bool dp_average, dp_keep;
    int dp_level; /* a tsh_zero_level */
    int64_t dp_bucket;
} tshi_program;

/* What a step is called, how many inputs it may have. */
typedef struct tshi_verb_info {
    const char *name;
    int least, most;
} tshi_verb_info;
extern const tshi_verb_info tshi_verbs[CALL_COUNT];

int tshi_program_ranks(const tshi_program *p);
/* The parts of a dim along an axis, and of their weights that of one. */
tshi_parts tshi_program_parts(const tshi_program *p, int axis);
double tshi_program_share(const tshi_program *p, int axis, int index);
bool tshi_axis_has_weights(const tshi_program *p, int axis);
/* The world's ranks in the order of the mesh. */
void tshi_program_order(const tshi_program *p, int ranks[MAX_RANKS]);
/* True when the step makes its value from another one by transitions alone. */
bool tshi_verb_moves(tshi_verb call);
/* True when the step calls a layer, at a place n[LAYER_AXIS]. */
bool tshi_verb_has_layer(tshi_verb call);
/* True when input i is the step of a layer, not a tensor. */
bool tshi_input_is_layer(const tshi_step *s, int i);
/* How many parameters the norm, MLP, self-attention or block of a step has; 0 for other steps. */
int tshi_transformer_parameters(const tshi_step *s);

/* The shapes and whatever else is inferred; false for a program that is none (its sizes do not fit any more). */
bool tshi_program_infer(tshi_program *p);
bool tshi_step_infer(const tshi_program *p, int k, tshi_step *s);
/* True when the program is valid at every index along its ragged axis, and no step needs equal sizes there. */
bool tshi_program_ragged_fits(const tshi_program *p);
/* The shape that a reshape asks for. */
tshi_dims tshi_reshape_dims(const tshi_step *s, const tshi_dims *x);
/* The dims of what add makes of x and y, aligned at the last one; sizes of 1 are repeated. False where it does not. */
bool tshi_repeated_dims(const tshi_dims *x, const tshi_dims *y, tshi_dims *out);
int64_t tshi_dims_numel(const tshi_dims *d);
/* The whole of a leaf that a rank has a part of: a ragged one's dim 0 grows with its index. */
tshi_dims tshi_leaf_dims(const tshi_program *p, const tshi_step *s, int rank);
int tshi_leaf_flags(const tshi_step *s);

/* A step's parameter: the leaf itself, or a layer's weight or bias. */
typedef struct tshi_owned {
    int step;
    enum { OWNED_LEAF, OWNED_WEIGHT, OWNED_BIAS, OWNED_NTH } part;
    int nth; /* of a transformer's layer */
} tshi_owned;
int tshi_program_parameters(const tshi_program *p, tshi_owned out[MAX_PARAMETERS]);
/* One that an optimizer may step: a term of a sum would be stepped on each rank. */
bool tshi_parameter_steps(const tshi_program *p, const tshi_owned *o);

/* False for the matrices of a fused program, whose gradients backward uses up. */
bool tshi_parameter_shows_gradient(const tshi_program *p, const tsh_tensor *parameter);

/* Whole tensors by the global index of an element; `copy` tells apart the values of a LOCAL one. */
double tshi_leaf_value(const tshi_program *p, const tshi_step *s, int copy, int64_t i);
/* The term of the rank with number `place` > 0 among those along the PARTIAL axes. */
double tshi_leaf_term(const tshi_program *p, const tshi_step *s, int copy, int place, int64_t i);
/* Whether a parameter is written over with one number: a sum of terms is not. */
bool tshi_rewritten_alike(const tshi_program *p, const tshi_owned *o);
/* What it is written over with. */
double tshi_rewritten_value(const tshi_program *p, const tshi_owned *o, int copy, int64_t i);
double tshi_salted_value(const tshi_program *p, uint64_t salt, int copy, int64_t i);

/* Places of a rank: its index along an axis; its number among those that differ along axes of these kinds alone. */
int tshi_rank_index(const tshi_program *p, int rank, int axis);
int tshi_rank_number(const tshi_program *p, const tsh_layout *layout, tsh_layout_kind kind, int rank);
/* How many such numbers there are. */
int tshi_rank_count(const tshi_program *p, const tsh_layout *layout, tsh_layout_kind kind);

/* The axes in the order in which they split dims. */
void tshi_split_order(const tshi_program *p, const tsh_layout *layout, int sequence[TSH_MAX_AXES]);

/* The cut points of a layout along an axis, or NULL. */
const tshi_program_cuts *tshi_layout_cuts(const tshi_program *p, tsh_layout layout);
/* Whether units divide the dims that they split, and no axis cuts those of another, and cut points end at the dims'
 * sizes; whether any layout has units or cut points. */
bool tshi_layouts_fit(const tshi_program *p, const tsh_layout *layout, const tshi_dims *whole);
bool tshi_layouts_have_units(const tshi_program *p, const tsh_layout *layout);

/* What a rank holds of a whole: its first element in each dim, and how many. */
typedef struct tshi_held {
    tshi_dims start, shape;
} tshi_held;
tshi_held tshi_held_of(const tshi_program *p, const tsh_layout *layout, int rank, const tshi_dims *whole);
/* The index in the whole of element i of the box. */
int64_t tshi_held_index(const tshi_held *box, const tshi_dims *whole, int64_t i);

void tshi_program_print(const tshi_program *p, FILE *to);

/* A program from a seed. ranks: how many at most. */
void tshi_program_generate(uint64_t seed, int ranks, tshi_program *out);
/* Random numbers for generating: the next 64 bits; one of [0, n). */
uint64_t tshi_random_next(uint64_t *state);
int tshi_random_below(uint64_t *state, int n);

#endif
