/* custom: differentiable functions of a program's own, in the form that the library's have. docs/own-functions.md.
 *
 * An operation is a const struct: a name, rows of layouts, a shape rule, forward and backward. A call of it is made
 * like any other: inputs are brought to the layouts of a row, forward fills this rank's part of the output, backward
 * adds to the gradients of this rank's parts. The collectives that the layouts require are the tape's; a sum over a dim
 * that ranks share is tsh_call_reduce.
 *
 * Thread safety: everything here is for the world's thread. */
#ifndef TSHARD_CUSTOM_H
#define TSHARD_CUSTOM_H

#include "tshard/autograd.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- layout rules: rows of patterns ------------------------------------------------------------------------------- */

/* The layout that a row of layout rules wants of one input along one axis, or names for the output. BATCH, STACK,
 * ANY and OTHER stand for SHARD(d) with one d for the whole row: the dim along which an input with that pattern is
 * split. All SHARD patterns of a row split in the same units, those of an input that is split so. In a row with
 * S2_WHOLE these are the items of that input's dim, and blocks those of the S2 input's, where no input says
 * otherwise. */
typedef enum tsh_pattern {
    TSH_ROW_END = 0, /* closes a row's inputs, and a table */
    TSH_AS_R,        /* REPLICATED */
    TSH_AS_P,        /* PARTIAL: a function that is linear in this input may take its terms */
    TSH_AS_L,        /* LOCAL; a REPLICATED input becomes LOCAL so that its gradient is summed over the axis */
    TSH_AS_S0,       /* SHARD(0) */
    TSH_AS_S1,       /* SHARD(1) */
    TSH_AS_S2,       /* SHARD(2) */
    TSH_AS_S2_WHOLE, /* SHARD(2); ranks that share a unit of the row have all of it, each for its own use */
    TSH_HAS_S0,      /* SHARD(0), and the tensor has that layout before the call */
    TSH_HAS_S1,      /* SHARD(1), and the tensor has that layout before the call */
    TSH_HAS_LAST,    /* SHARD of the last dim, and the tensor has that layout before the call */
    TSH_HAS_P,       /* PARTIAL, and the tensor has that layout before the call */
    TSH_AS_COPY,     /* LOCAL, and the tensor is REPLICATED: each rank uses the value in a term of its own */
    TSH_AS_LAST,     /* SHARD of the tensor's last dim */
    TSH_AS_DIM,      /* SHARD of the call's dim */
    TSH_AS_ROWS,     /* SHARD of the tensor's last dim but one */
    TSH_AS_BATCH,    /* SHARD(d), d not the last dim */
    TSH_AS_STACK,    /* SHARD(d), d before the last two dims */
    TSH_AS_ANY,      /* SHARD(d), any d */
    TSH_AS_OTHER     /* SHARD(d), d not the call's dim */
} tsh_pattern;

/* The most inputs that a row of layouts names. */
#define TSH_ROW_INPUTS 4

/* One legal combination of layouts along one axis. A call with more inputs than the row names repeats the last
 * pattern. */
typedef struct tsh_rule {
    tsh_pattern in[TSH_ROW_INPUTS];
    tsh_pattern out;
} tsh_rule;

/* --- operations --------------------------------------------------------------------------------------------------- */

/* One call of an operation: valid inside of the functions that get it. */
typedef struct tsh_call tsh_call;

/* An operation. Its functions but forward and backward follow from metadata alone, which is the same on every rank:
 * they read no values. A function that fails says why with tsh_call_fail; every rank of the step gets that message. */
typedef struct tsh_op {
    const char *name; /* lives as long as the world, as `rules` does */
    /* Rows of layouts, ended by {{TSH_ROW_END}, TSH_ROW_END}. The first one is most often all TSH_AS_R. */
    const tsh_rule *rules;
    /* Writes the output's dtype and global shape; the inputs have their global shapes. NULL: those of the first
     * input. */
    tsh_status (*shape)(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out);
    /* Fills the output, whose memory is not zeroed; the inputs have the layouts of the chosen rows. It runs once more
     * where a segment is made again (tsh_tape_recompute_since), and does the same then. */
    tsh_status (*forward)(tsh_call *call);
    /* Adds to the gradient of every input that wants one, or of the first input alone where backward_rest is set. NULL:
     * no input may want a gradient. */
    tsh_status (*backward)(tsh_call *call);
    /* Adds to the gradients of the inputs after the first, of which one at least wants a gradient, while the first
     * one's collective may be under way. NULL: `backward` does all. */
    tsh_status (*backward_rest)(tsh_call *call);
    /* Size of the operation's own struct of parameters, which is copied byte by byte; 0 without one. With has_dim the
     * struct begins with an int, a dim of the first input; a negative one is resolved before `shape`. */
    size_t params_size;
    bool has_dim;
    /* Returns the output dim that input dim d becomes along this axis, or -1 where the row does not hold. NULL: d stays
     * d. */
    int (*map_dim)(const tsh_call *call, int axis, int d);
    /* map_dim for an operation that changes units, too: makes the input's SHARD layout that of the output, or returns
     * false. */
    bool (*map_split)(const tsh_call *call, int axis, tsh_layout *split);
    /* False where a row does not hold with d as the dim that it binds. NULL: all rows do. */
    bool (*row_holds)(const tsh_call *call, const tsh_rule *row, int d);
    bool views; /* the output is a view of the first input, of as many bytes: forward, which may be NULL, finds its
                        * values there already, and backward may adopt the output's gradient */
    bool reads_output; /* backward reads the output's values, not just its gradient */
    /* An element of the output, or of a gradient, has the same bits whichever part of it a rank has, where no row sums
     * gradients over ranks: parts are moved, or elements computed by themselves. Others run whole on every rank of a
     * deterministic world. */
    bool by_element;
    bool reads_no_input; /* backward reads no values of inputs that have gradients: they may be freed before */
    bool repeats;        /* backward needs the output's gradient alone: each loss of a step may run it */

    int inputs;       /* of a call; 0: any number */
    unsigned dtypes;  /* bit 1u << d: inputs of a float dtype d are taken; 0: all of them */
    unsigned devices; /* bit 1u << kind: it runs on devices of that kind; 0: on TSH_CPU alone */

    const struct tshi_engine_op *engine; /* NULL: the library's own */
} tsh_op;

/* A call of op: in[0], ..., in[inputs - 1], all on one mesh, and params, which point to op->params_size bytes (NULL
 * without). The struct *op is copied. The tape owns the result, which is NULL on failure (tsh_tape_message says why),
 * and where an input is NULL. Collective over the groups of the transitions that inputs need, and of what forward
 * calls. TSH_ERR_ARGUMENT for an op without a name, rows or forward, or with another number of inputs; TSH_ERR_DTYPE,
 * _UNSUPPORTED for dtypes and devices that it does not take; TSH_ERR_SHAPE for a shape that is none; _LAYOUT;
 * TSH_ERR_STATE without a backward where an input wants a gradient, and inside of another call's functions. */
TSH_API tsh_tensor *tsh_apply(tsh_tape *tape, const tsh_op *op, int inputs, tsh_tensor *const *in, const void *params);

/* --- inside of a call --------------------------------------------------------------------------------------------- */

/* The inputs as they are now: in `shape` those of the program, in forward and backward in the layouts of a row, with
 * this rank's part in tsh_tensor_data, tsh_tensor_local_shape and tsh_tensor_box. NULL past the last one. */
TSH_API int tsh_call_inputs(const tsh_call *call);
TSH_API tsh_tensor *tsh_call_input(const tsh_call *call, int i);
/* The output: this rank's part of it. NULL in `shape`. */
TSH_API tsh_tensor *tsh_call_output(const tsh_call *call);
/* The call's own copy of the parameters; NULL without. */
TSH_API const void *tsh_call_params(const tsh_call *call);
/* Forward: a backward may follow, for which tensors are worth saving. False in evaluation. */
TSH_API bool tsh_call_records(const tsh_call *call);

/* Memory for count elements, not zeroed, until the function returns; a LOCAL tensor on the output's mesh. NULL, with
 * the message, where there is none: return TSH_ERR_MEMORY then. */
TSH_API tsh_tensor *tsh_call_scratch(tsh_call *call, tsh_dtype dtype, int64_t count);

/* Tensors that forward keeps for backward have slots. */
#define TSH_CALL_SLOTS 3
/* tsh_call_scratch that lives until backward has run, in forward. */
TSH_API tsh_tensor *tsh_call_save(tsh_call *call, int slot, tsh_dtype dtype, int64_t count);
/* What forward has saved there; NULL, with the message, where that is nothing: return TSH_ERR_STATE then. */
TSH_API tsh_tensor *tsh_call_saved(const tsh_call *call, int slot);

/* statistics = op over the ranks that share dim of x, which is an input, the output or its gradient: over each axis
 * that shards the dim, in place; dim -1: any dim. Without communication where no axis does. Collective over these axes:
 * every rank of them calls, those with empty parts, too. */
TSH_API tsh_status tsh_call_reduce(const tsh_call *call, const tsh_tensor *x, int dim, tsh_tensor *statistics,
                                   tsh_reduce_op op);

/* Says why the function fails, and returns the status for it to return:
 *     return tsh_call_fail(call, TSH_ERR_RANGE, "beta is %g, above 0 wanted", beta); */
TSH_API tsh_status tsh_call_fail(const tsh_call *call, tsh_status status, const char *format, ...) TSH_PRINTF(3, 4);

/* Asked before the function computes: true. In a planned run (docs/planning.md) false: no memory is touched, and the
 * plan counts what the loop would have done, the bytes that it reads and writes, and its additions and
 * multiplications. */
TSH_API bool tsh_call_computes(const tsh_call *call, double flops, double bytes);

/* --- inside of backward ------------------------------------------------------------------------------------------- */

/* Input i exists and wants a gradient. */
TSH_API bool tsh_call_wants_grad(const tsh_call *call, int i);
/* The output's gradient, laid out as the output (REPLICATED for PARTIAL); it is read alone. NULL outside of
 * backward. */
TSH_API tsh_tensor *tsh_call_grad_out(const tsh_call *call);
/* Input i's gradient, to add to: of the input's dtype and local shape, zeroed when it is asked for first. NULL, with
 * the message, without memory and for an input that wants none: return TSH_ERR_MEMORY then. */
TSH_API tsh_tensor *tsh_call_grad(const tsh_call *call, int i);
/* Adds `gradient`, of input i's local size and of any float dtype, to input i's, or shares its memory where input i has
 * none yet. */
TSH_API tsh_status tsh_call_grad_adopt(const tsh_call *call, int i, tsh_tensor *gradient);

#ifdef __cplusplus
}
#endif

#endif
