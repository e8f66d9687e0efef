/* check_vectors: what a case is, and what cases use. */
#ifndef CASES_H
#define CASES_H

#include "support/ranks.h"
#include "support/vectors.h"
#include "tensor/tensor.h"
#include "tshard/tshard.h"

/* One row on one rank: a file's case in one sharding, dtype and number of ranks. */
typedef struct cv_run {
    tshi_rank *rank;
    const tshi_vectors *vectors;
    const char *folder; /* of a model's case */
    tsh_dtype dtype;
    tsh_mesh *mesh;
    tsh_group *data, *model; /* the mesh's axes */
    tsh_tape *tape;
    double worst; /* the largest error so far */
    tsh_tensor *tensors[96];
    int tensor_count;
} cv_run;

/* How a case is run; each case reads its own variants out of `variant`. */
typedef struct cv_sharding {
    const char *name;
    void (*run)(cv_run *run, const void *variant);
    const void *variant;
    const char *needs; /* a tensor without which this sharding makes no sense, or NULL */
    int data;          /* size of the mesh's data axis, which must divide the ranks; 0: all of them */
} cv_sharding;

typedef struct cv_case {
    const char *name; /* the file's, without .txt; a last '*' stands for anything */
    const cv_sharding *shardings;
} cv_case;

/* Ended by a NULL name. */
extern const cv_case cv_cases[];

extern const cv_sharding cv_linear[], cv_embedding[], cv_gelu_erf[], cv_gelu_tanh[], cv_relu[], cv_silu[],
    cv_layer_norm[], cv_rms_norm[], cv_batched_matmul[], cv_broadcast[], cv_cross_entropy_mean[],
    cv_cross_entropy_sum[], cv_linear_cross_entropy[], cv_cross_entropy_none[], cv_attention[], cv_causal_attention[],
    cv_attention_positions[], cv_attention_permuted[], cv_rotary_half[], cv_rotary_pairs[], cv_sgd[], cv_adamw[],
    cv_mlp_lm[], cv_gated_mlp[], cv_tiny_gpt[], cv_model[], cv_moe_router[], cv_moe_layer[];

typedef struct cv_totals {
    int passed, failed, skipped;
} cv_totals;

/* The rows of a file of redistributions (tests/data/boxes): those on the listed numbers of ranks, ended by 0, or all of
 * them. */
void cv_redistributions(const char *path, const char *file, const int *ranks, cv_totals *t);

/* The tensors of a model folder's expected.safetensors that belong to no weight; exact: all of it was computed in
 * float64. False, with words in error, when it cannot be read. */
bool cv_model_vectors(const char *folder, tshi_vectors *out, bool *exact, char *error, size_t size);

/* --- what cases use; after a failure, which is noted on the rank, they give NULL or do nothing -------------------- */

/* The file's tensor, with so many dims. */
const tshi_vector *cv_vector(cv_run *run, const char *name, int ndim);
/* Its one value. */
double cv_scalar(cv_run *run, const char *name);
/* Elements from `start` on in the run's dtype, or int64; the caller frees them. */
void *cv_elements(cv_run *run, const tshi_vector *v, int64_t start, int64_t count);
/* This rank's part of the file's tensor, along both axes' layouts; the run owns it. */
tsh_tensor *cv_tensor(cv_run *run, const char *name, int ndim, tsh_layout data, tsh_layout model, bool gradient);
/* Part `index` of a tensor that stacks equal ones along its first dim, shaped and laid out as `like`. */
tsh_tensor *cv_stacked(cv_run *run, const char *name, int64_t index, const tsh_tensor *like);
/* Fill a layer from the file. */
bool cv_load_linear(cv_run *run, tsh_linear *layer, const char *weight, const char *bias);
bool cv_load_embedding(cv_run *run, tsh_embedding *layer, const char *table);
/* Backward from y with the file's `dy` as its gradient. */
void cv_backward(cv_run *run, tsh_tensor *y, const char *dy);
/* Compare this rank's part with the file's; the error is |got - wanted| over the largest |wanted| of the tensor. */
void cv_compare(cv_run *run, const char *name, const tsh_tensor *got);
/* With elements from `start` on of a tensor that has the dims of `got`, but more rows. */
void cv_compare_from(cv_run *run, const char *name, int64_t start, const tsh_tensor *got);
void cv_compare_grad(cv_run *run, const char *name, const tsh_tensor *of);
void cv_compare_stacked(cv_run *run, const char *name, int64_t index, const tsh_tensor *got);
/* This rank's part in float64; the caller frees it. */
double *cv_read(cv_run *run, const tsh_tensor *t);
/* An error of either sign; NaN counts as the largest error there is. */
void cv_note_error(cv_run *run, double error);
void cv_compare_value(cv_run *run, const char *name, int64_t index, double got);

#endif
