/* The tape from the inside: what an op is, how a call runs, how gradients reach its inputs. */
#ifndef TSHI_TAPE_H
#define TSHI_TAPE_H

#include "dist/world.h"
#include "tensor/tensor.h"
#include "tshard/autograd.h"

#define TSHI_MAX_SAVED 3

/* --- layout rules: rows of patterns ------------------------------------------------------------------------------- */

/* A row says, along one axis, which layouts the inputs must have and which one the output then has. BATCH, ANY and
 * OTHER stand for SHARD(d) with one d for the whole row, which one of the inputs with that pattern has already. */
typedef enum tshi_pattern {
    TSHI_END = 0, /* closes a row's inputs, and a table */
    TSHI_R,
    TSHI_P,
    TSHI_L,
    TSHI_S0,     /* SHARD(0) */
    TSHI_S1,     /* SHARD(1) */
    TSHI_HAS_S0, /* SHARD(0), and the tensor is that already */
    TSHI_HAS_S1, /* SHARD(1) likewise */
    TSHI_HAS_P,  /* PARTIAL likewise */
    TSHI_COPY,   /* LOCAL, and the tensor is REPLICATED: each rank uses the value in a term of its own */
    TSHI_LAST,   /* SHARD of the tensor's last dim */
    TSHI_DIM,    /* SHARD of the call's dim */
    TSHI_BATCH,  /* SHARD(d), d not the last dim */
    TSHI_ANY,    /* SHARD(d), any d */
    TSHI_OTHER   /* SHARD(d), d not the call's dim */
} tshi_pattern;

/* An op with fewer rows' inputs than the call has (concat) repeats the last pattern. */
typedef struct tshi_rule {
    tshi_pattern in[4];
    tshi_pattern out;
} tshi_rule;

/* --- ops ---------------------------------------------------------------------------------------------------------- */

typedef struct tshi_node tshi_node;

/* An op: a const struct for each function. `shape` sees inputs of global shapes and writes the output's dtype and
 * global shape. The rules name layouts: when `forward` runs, the inputs have those of the chosen rows, and the output
 * has memory that is not zeroed. `backward` adds to the gradients of the inputs that want one. */
typedef struct tshi_op {
    const char *name;
    const tshi_rule *rules;
    tsh_status (*shape)(const tshi_node *call, tsh_dtype *dtype, tshi_shape *out);
    tsh_status (*forward)(tshi_node *call);
    tsh_status (*backward)(tshi_node *call);
    /* Size of the op's own struct of parameters, which call->params points to; 0 without one. With has_dim the struct
     * begins with an int, a dim of the first input; the tape resolves a negative one in place. */
    size_t params_size;
    bool has_dim;
    /* The output dim that the bound dim d becomes along this axis, -1: the row does not hold. NULL: d stays d. */
    int (*map_dim)(const tshi_node *call, int axis, int d);
    bool views;        /* the output is a view of the first input: forward finds its values there already */
    bool reads_output; /* backward reads the output's values, not just its gradient */
} tshi_op;

/* What a call of a layer wants beside what the rules allow. */
typedef struct tshi_want {
    /* Bit i: input i is a parameter, whose values stay where they are. Rules may use it as it is, and where it is
     * REPLICATED as LOCAL, so that its gradient is summed, or as PARTIAL, so that a sum over ranks has it once. */
    unsigned parameters;
    int axis; /* along which the output is brought to `out`; -1: none */
    tsh_layout out;
} tshi_want;

/* One call of an op: on the stack during the forward, and on the tape afterwards if a gradient may be asked of it. The
 * recorded node holds a reference to each of its tensors; `in` and `params` are in the tape's memory of the step. */
struct tshi_node {
    tsh_tape *tape;
    const tshi_op *op;
    int inputs;
    tsh_tensor **in;
    tsh_tensor *out;
    tsh_tensor *saved[TSHI_MAX_SAVED]; /* what forward keeps for backward */
    void *params;
    const tshi_want *want; /* borrowed until the call is recorded; or NULL */
    bool used;             /* backward has been here, and its memory is gone */
};

/* --- sums put off: what a schedule of gradient sums does for backward --------------------------------------------- */

/* A leaf with a schedule is in a place of it, and so is its copy that is LOCAL along the schedule's axis: the copy's
 * gradient is this rank's term of the leaf's, and goes straight to where the schedule sums it. */
typedef struct tshi_schedule_ops {
    /* Before the first node of a backward from loss. */
    tsh_status (*begin)(tshi_schedule *schedule, const tsh_tensor *loss);
    /* Memory to add a gradient to, *beta as tshi_grad_beta; NULL with words. term: it is this rank's term of the sum;
     * otherwise the same on all ranks. The schedule's. */
    tsh_tensor *(*gradient)(tshi_schedule *schedule, int place, bool term, double *beta);
    /* A node has given its gradients or has none to give: each in its turn. */
    tsh_status (*passed)(tshi_schedule *schedule, const tshi_node *node);
    /* After the last; status is the backward's, and so is what it returns. */
    tsh_status (*end)(tshi_schedule *schedule, tsh_status status);
    /* The step has failed and is over. */
    void (*forget)(tshi_schedule *schedule);
    /* The tape is destroyed. */
    void (*detach)(tshi_schedule *schedule);
} tshi_schedule_ops;

struct tsh_tape {
    tsh_world *world;
    tshi_schedule *schedule; /* or NULL */
    bool recording;
    uint64_t generation; /* of this step; unique over the tape's life */
    uint64_t number;     /* in its world */
    bool skips;          /* this step: other ranks are ahead */
    uint64_t recoveries; /* of the world when the step failed */
    tsh_status status;
    char message[TSHI_MESSAGE_SIZE];
    tshi_node *nodes;
    int node_count, node_capacity;
    tshi_region memory; /* of the step, for its nodes' arrays */
    bool keeps_graph;   /* in a backward: another may follow over the same nodes, which need what they have saved */
    const void *marked; /* the gradient that tshi_grad_complete was last told of, NULL: no longer */
    tsh_tensor **owned; /* every tensor made in this step */
    int owned_count, owned_capacity;
};

/* Run a call: shapes, rules, transitions, forward, record. `in` and `params` are borrowed. The tape owns the result,
 * which is NULL on failure and where an input is NULL. */
tsh_tensor *tshi_tape_apply(tsh_tape *tape, const tshi_node *call);
static inline tsh_tensor *tshi_apply(tsh_tape *tape, const tshi_op *op, int inputs, tsh_tensor **in, void *params) {
    return tshi_tape_apply(tape, &(tshi_node){.op = op, .inputs = inputs, .in = in, .params = params});
}
/* The end of a call whose inputs have their layouts: make the output (a view of `share` when that is given), forward,
 * record. */
tsh_tensor *tshi_run(tshi_node *call, tsh_dtype dtype, const tshi_shape *shape, const tsh_layout layout[TSH_MAX_AXES],
                     tsh_tensor *share);
/* The call goes on the tape: a gradient may be asked of it. */
bool tshi_tape_records(const tshi_node *call);
/* The tape takes the caller's reference; on failure it is released. */
tsh_status tshi_tape_own(tsh_tape *tape, tsh_tensor *tensor);
/* Keep the first failure of the step with its words, tell the peers. Returns NULL, so that a function may end with it.
 */
tsh_tensor *tshi_tape_fail(tsh_tape *tape, tsh_status status, const char *format, ...) TSH_PRINTF(3, 4);
/* TSH_ERR_ARGUMENT, in words: a tape is required. */
tsh_status tshi_tape_missing(const char *what);
/* The same with tsh_error_message() after "what: ". */
tsh_tensor *tshi_tape_fail_as(tsh_tape *tape, tsh_status status, const char *what);
/* As tshi_tape_fail_as for what was started in the step and has failed after it; the status, and tsh_error_message() is
 * as before. */
tsh_status tshi_tape_spoil(tsh_tape *tape, tsh_status status, const char *what);
/* Whether the step goes on. One that the other ranks have ended, or failed in, already fails here, with its first
 * call. */
bool tshi_tape_goes_on(tsh_tape *tape);
/* Work may go on: a tape, no failure so far, no NULL among the tensors, all of them with memory. */
bool tshi_tape_ready(tsh_tape *tape, const char *what, int count, tsh_tensor *const *tensors);
/* node index of the tensor in this step, -1 for a leaf */
static inline int tshi_tape_node(const tsh_tape *tape, const tsh_tensor *t) {
    return t->generation == tape->generation ? t->node : -1;
}

/* The dim of the call's params, -1 where its op has none. */
static inline int tshi_call_dim(const tshi_node *call) {
    return call->op->has_dim ? *(const int *)call->params : -1;
}

/* Shape rules' checks: float tensors of one dtype. */
tsh_status tshi_check_floats(const tshi_node *call, tsh_dtype *dtype);
/* TSH_ERR_SHAPE: "A and B: WANTED". */
tsh_status tshi_check_fails(const tsh_tensor *a, const tsh_tensor *b, const char *wanted);
/* The call's dim in range, negative ones resolved; TSH_OK without one. */
tsh_status tshi_check_dim(tshi_node *call);

/* --- gradients, inside backward ----------------------------------------------------------------------------------- */

/* Whether input i wants a gradient. */
bool tshi_wants_grad(const tshi_node *call, int i);
/* Gradient of the output; its memory may be given away or overwritten only through tshi_grad_adopt. */
static inline tsh_tensor *tshi_grad_out(const tshi_node *call) {
    return call->out->grad;
}
/* Gradient of input i to add to, zeroed on first touch; NULL on failure (words set). */
tsh_tensor *tshi_grad(const tshi_node *call, int i);
/* The same for kernels that can start a sum: *beta is 0 on first touch (the memory is not zeroed), else 1. */
tsh_tensor *tshi_grad_beta(const tshi_node *call, int i, double *beta);
/* Add `gradient` to that of input i, taking over its memory when nobody else uses it. Its shape is in[i]'s. */
tsh_status tshi_grad_adopt(const tshi_node *call, int i, tsh_tensor *gradient);

/* Input i's gradient is complete, as far as this node goes, and what it queues from here on has nothing to do with it:
 * if the node that made the input comes next, its collective may run beside that. */
void tshi_grad_complete(const tshi_node *call, int i);

/* --- transitions -------------------------------------------------------------------------------------------------- */

/* Of an element type that has gradients: its transitions cost their backward too, whether or not a gradient is asked
 * for, so that a program takes the same rows with and without recording. */
bool tshi_differentiable(const tsh_tensor *x);

/* x in these layouts: x itself, one made before in this step, or a new one. TSH_ERR_LAYOUT, in the name of `what`,
 * where no plan exists. consume: x is an intermediate that nothing uses after this call, and its memory may be used in
 * place. automatic: only transitions that rules may take. */
tsh_tensor *tshi_bring(tsh_tape *tape, const char *what, tsh_tensor *x, const tsh_layout to[TSH_MAX_AXES],
                       bool automatic, bool consume);
/* The same along one axis, with any transition of the table. */
tsh_tensor *tshi_transit(tsh_tape *tape, tsh_tensor *x, int axis, tsh_layout to, bool consume);

/* A row of the op's rules for each axis; `bound` is the dim that its BATCH, ANY or OTHER stands for. */
typedef struct tshi_choice {
    const tshi_rule *row[TSH_MAX_AXES];
    int bound[TSH_MAX_AXES];
    tsh_layout out[TSH_MAX_AXES]; /* the output's layouts */
} tshi_choice;

typedef struct tshi_output {
    tsh_dtype dtype;
    const tshi_shape *shape;
} tshi_output;

/* Choose the rows of all axes together. What is split is used as it is: where inputs are SHARD along an axis, rows that
 * take one of them as it is come first, then rows that split the work otherwise, and last rows that gather them all,
 * which would repeat the same arithmetic on every rank. Among those the one is taken whose transitions send the fewest
 * bytes, forward and backward, a sum that is left open counting as its all-reduce; the first on ties.
 * TSH_ERR_LAYOUT, naming all layouts, where an axis has no row. */
tsh_status tshi_rules_choose(const tshi_node *call, const tshi_output *out, tshi_choice *choice);
/* The layouts that the choice asks of input i. */
void tshi_choice_need(const tshi_node *call, const tshi_choice *choice, int i, tsh_layout need[TSH_MAX_AXES]);

#endif
