/* custom: a program's own differentiable functions, built as the library's are. See docs/own-functions.md.
 *
 * An operation is a const struct: a name, layout rules, a shape rule, forward and backward. A call brings the inputs to
 * the layouts of a rule's row, forward fills this rank's part of the output, and backward adds to the gradients of this
 * rank's parts. The tape runs the collectives that the layouts require; tsh_call_reduce sums over a sharded dim.
 *
 * Thread safety: everything here is for the world's thread. */
#ifndef TSHARD_CUSTOM_H
#define TSHARD_CUSTOM_H

#include "tshard/autograd.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- layout rules: rows of patterns ------------------------------------------------------------------------------- */

/* The layout along one axis that a row requires of an input, or gives the output. BATCH, STACK, ANY and OTHER mean
 * SHARD(d) with one d for the whole row: the dim along which an input with that pattern is split. All SHARD patterns of
 * a row except HAS_OWN_S0 split in the same units, taken from an input that is already split that way. Where no input
 * is split, a row with S2_WHOLE takes units = the items of that input's dim, and blocks = the items of the S2 input's
 * dim. */
typedef enum tsh_pattern {
    TSH_ROW_END = 0, /* ends a row's inputs, and the table */
    TSH_AS_R,        /* REPLICATED */
    TSH_AS_P,        /* PARTIAL: for a function that is linear in this input */
    TSH_AS_L,        /* LOCAL; a REPLICATED input becomes LOCAL so that its gradient is summed over the axis */
    TSH_AS_S0,       /* SHARD(0) */
    TSH_AS_S1,       /* SHARD(1) */
    TSH_AS_S2,       /* SHARD(2) */
    TSH_AS_S2_WHOLE, /* SHARD(2); ranks that share a unit hold all of it, each for its own use */
    TSH_HAS_S0,      /* SHARD(0), and the tensor has that layout before the call */
    TSH_HAS_S1,      /* SHARD(1), and the tensor has that layout before the call */
    TSH_HAS_OWN_S0,  /* SHARD(0) in its own units, or SHARD_NEXT(0), and the tensor has it before the call */
    TSH_HAS_LAST,    /* SHARD of the last dim, and the tensor has that layout before the call */
    TSH_HAS_P,       /* PARTIAL, and the tensor has that layout before the call */
    TSH_AS_COPY,     /* LOCAL, from a REPLICATED tensor: each rank uses the value in its own term of a sum */
    TSH_AS_LAST,     /* SHARD of the tensor's last dim */
    TSH_AS_DIM,      /* SHARD of the call's dim */
    TSH_AS_ROWS,     /* SHARD of the tensor's second to last dim */
    TSH_AS_BATCH,    /* SHARD(d), d not the last dim */
    TSH_AS_STACK,    /* SHARD(d), d before the last two dims */
    TSH_AS_ANY,      /* SHARD(d), any d */
    TSH_AS_OTHER     /* SHARD(d), d not the call's dim */
} tsh_pattern;

/* The most inputs in a row. */
#define TSH_ROW_INPUTS 7

/* One legal combination of layouts along one axis. The last pattern is repeated for further inputs. */
typedef struct tsh_rule {
    tsh_pattern in[TSH_ROW_INPUTS];
    tsh_pattern out;
} tsh_rule;

/* --- operations --------------------------------------------------------------------------------------------------- */

/* One call of an operation: valid only inside the functions that get it. */
typedef struct tsh_call tsh_call;

/* An operation. All its functions except forward and backward depend only on metadata, which is the same on every rank:
 * they read no elements. A function that fails says why with tsh_call_fail; every rank of the step gets the message. */
typedef struct tsh_op {
    const char *name; /* lives as long as the world, as `rules` does */
    /* Rows of layouts, ended by {{TSH_ROW_END}, TSH_ROW_END}. The first row is usually TSH_AS_R throughout. */
    const tsh_rule *rules;
    /* Sets the output's dtype and global shape from the inputs' global shapes. NULL: those of the first input. */
    tsh_status (*shape)(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out);
    /* Fills the output, whose memory is not zeroed; the inputs have the layouts of the chosen row. Recomputation
     * (tsh_tape_recompute_since) runs it again, and it must then compute the same. */
    tsh_status (*forward)(tsh_call *call);
    /* Adds to the gradient of every input that wants one; with backward_rest, only to that of the first input. NULL: no
     * input may want a gradient. */
    tsh_status (*backward)(tsh_call *call);
    /* Adds to the gradients of the inputs after the first, at least one of which wants one, while the collective on the
     * first input's gradient may be in flight. NULL: `backward` handles all inputs. */
    tsh_status (*backward_rest)(tsh_call *call);
    /* Size of the operation's params struct, which is copied byte by byte; 0: no params. With has_dim the struct begins
     * with an int, a dim of the first input; a negative dim is resolved before `shape`. */
    size_t params_size;
    bool has_dim;
    /* Returns the output dim that input dim d becomes along this axis, or -1 where the row does not apply. NULL: d
     * itself. */
    int (*map_dim)(const tsh_call *call, int axis, int d);
    /* In place of map_dim, for an operation that changes units: turns the input's SHARD layout into the output's, or
     * returns false where the row does not apply. */
    bool (*map_split)(const tsh_call *call, int axis, tsh_layout *split);
    /* False where a row does not apply with d as the dim that it binds. NULL: all rows apply. */
    bool (*row_holds)(const tsh_call *call, const tsh_rule *row, int d);
    /* The output is a view of the first input, with as many bytes: its values are there before forward, which may be
     * NULL, and backward may adopt the output's gradient. */
    bool views;
    bool reads_output; /* backward reads the output's values, not just its gradient */
    /* Each element of the output and of the gradients has the same bits however the tensor is split, since elements are
     * moved or computed independently, unless a row sums gradients over ranks. In a deterministic world other
     * operations run on the whole inputs on every rank. */
    bool by_element;
    bool reads_no_input; /* backward does not read the inputs that have gradients: they may be freed before it */
    bool repeats;        /* backward needs only the output's gradient, so that each loss of a step may run it */

    int inputs;       /* number of inputs; 0: any */
    unsigned dtypes;  /* bit 1u << d: inputs may have the float dtype d; 0: any float dtype */
    unsigned devices; /* bit 1u << kind: it runs on devices of that kind; 0: only on TSH_CPU */
} tsh_op;

/* Calls op on in[0], ..., in[inputs - 1], all on one mesh, with op->params_size bytes at params (NULL without). The
 * struct *op is copied. The tape owns the result, which is NULL on failure (tsh_tape_message says why) and where an
 * input is NULL. Collective over the groups of the inputs' transitions and of the collectives in forward.
 * TSH_ERR_ARGUMENT for an op without a name, rows or forward, or for a wrong number of inputs; TSH_ERR_DTYPE,
 * _UNSUPPORTED for dtypes and devices that op does not take; TSH_ERR_SHAPE for an invalid output shape; _LAYOUT;
 * TSH_ERR_STATE where an input wants a gradient and op has no backward, and inside another call's functions. */
TSH_API tsh_tensor *tsh_apply(tsh_tape *tape, const tsh_op *op, int inputs, tsh_tensor *const *in, const void *params);

/* --- inside a call --------------------------------------------------------------------------------------------- */

/* The inputs. In `shape` they are the program's tensors; in forward and backward they have the layouts of the chosen
 * row, and tsh_tensor_data, tsh_tensor_local_shape and tsh_tensor_box describe this rank's part. NULL past the last
 * input. */
TSH_API int tsh_call_inputs(const tsh_call *call);
TSH_API tsh_tensor *tsh_call_input(const tsh_call *call, int i);
/* This rank's part of the output. NULL in `shape`. */
TSH_API tsh_tensor *tsh_call_output(const tsh_call *call);
/* The call's copy of params; NULL without. */
TSH_API const void *tsh_call_params(const tsh_call *call);
/* In forward: true when a backward may follow, for which forward saves tensors. False in evaluation. */
TSH_API bool tsh_call_records(const tsh_call *call);

/* Memory for count elements, not zeroed, until the function returns; a LOCAL tensor on the output's mesh. NULL, with
 * the message set, without memory: return TSH_ERR_MEMORY then. */
TSH_API tsh_tensor *tsh_call_scratch(tsh_call *call, tsh_dtype dtype, int64_t count);

/* The number of slots for tensors that forward saves for backward. */
#define TSH_CALL_SLOTS 3
/* In forward: as tsh_call_scratch, but the memory lives until backward has run. */
TSH_API tsh_tensor *tsh_call_save(tsh_call *call, int slot, tsh_dtype dtype, int64_t count);
/* The tensor that forward has saved in the slot. If the slot is empty: NULL with the message set; return TSH_ERR_STATE
 * then. */
TSH_API tsh_tensor *tsh_call_saved(const tsh_call *call, int slot);

/* Reduces statistics in place over each axis that shards dim of x, an input, the output or its gradient; dim -1: any
 * dim. No communication if no axis does. Collective over these axes: ranks with empty parts call it too. */
TSH_API tsh_status tsh_call_reduce(const tsh_call *call, const tsh_tensor *x, int dim, tsh_tensor *statistics,
                                   tsh_reduce_op op);

/* Records why the function fails, and returns the status for it to return:
 *     return tsh_call_fail(call, TSH_ERR_RANGE, "beta is %g, above 0 wanted", beta); */
TSH_API tsh_status tsh_call_fail(const tsh_call *call, tsh_status status, const char *format, ...) TSH_PRINTF(3, 4);

/* A function calls it before it computes, with the additions and multiplications and the bytes read and written. False
 * in a dry run (docs/planning.md), which counts these and touches no memory: the function must not compute. */
TSH_API bool tsh_call_computes(const tsh_call *call, double flops, double bytes);

/* --- inside backward ------------------------------------------------------------------------------------------- */

/* Input i exists and wants a gradient. */
TSH_API bool tsh_call_wants_grad(const tsh_call *call, int i);
/* The output's gradient, read-only, in the output's layouts (REPLICATED for PARTIAL). NULL outside backward. */
TSH_API tsh_tensor *tsh_call_grad_out(const tsh_call *call);
/* Input i's gradient, to add to: of the input's dtype and local shape, zeroed at the first call. NULL, with the message
 * set, without memory and for an input that wants no gradient: return TSH_ERR_MEMORY then. */
TSH_API tsh_tensor *tsh_call_grad(const tsh_call *call, int i);
/* Adds `gradient`, of input i's local size and any float dtype, to input i's gradient, or shares its memory where input
 * i has none yet. */
TSH_API tsh_status tsh_call_grad_adopt(const tsh_call *call, int i, tsh_tensor *gradient);

#ifdef __cplusplus
}
#endif

#endif
