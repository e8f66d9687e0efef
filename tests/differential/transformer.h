/* The layers of a transformer as steps: norms, MLPs, self-attention, blocks. A step owns its layer. */
#ifndef TSHI_TEST_TRANSFORMER_H
#define TSHI_TEST_TRANSFORMER_H

#include "differential/program.h"

/* At most one layer is there, with the list of its parameters. */
typedef struct tshi_transformer {
    tsh_norm *norm;
    tsh_mlp *mlp;
    tsh_self_attention *attention;
    tsh_block *block;
    tsh_parameters *own;
} tshi_transformer;

/* The layer of step k, along a group; a whole one is dense. Close it in any case. */
tsh_status tshi_transformer_open(const tshi_program *p, int k, tsh_group *group, bool whole, tshi_transformer *out);
void tshi_transformer_close(tshi_transformer *t);
tsh_status tshi_transformer_register(const tshi_transformer *t, tsh_parameters *list, const char *name);
tsh_tensor *tshi_transformer_forward(const tshi_transformer *t, tsh_tape *tape, const tshi_step *s,
                                     tsh_tensor *const *in);

#endif
