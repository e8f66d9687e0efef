/* train_gpt: a GPT of a text's characters, trained over ranks that split its layers and batches.
 *
 *   options.c  the command line
 *   model.c    the model: layers, a training step, evaluation, checkpoints
 *   windows.c  the batches
 *   main.c     the training loop, and what it prints
 *
 * Text, command line and checkpoints are read by ../common. ../any_machines.c trains the same model. */
#ifndef TRAIN_GPT_H
#define TRAIN_GPT_H

#include "text.h"
#include "tshard/tshard.h"

typedef struct options {
    const char *text;   /* a file, or NULL for the project's own sources */
    const char *tokens; /* a file of ids in place of a text, or NULL */
    const char *save;   /* a folder for checkpoints, or NULL */
    const char *resume; /* a folder of checkpoints or of one, to go on from, or NULL */
    int64_t vocabulary; /* 0: as many as the text has symbols */
    int64_t layers, heads, kv_heads, embed, block, batch, steps, warmup, eval_every, eval_batches;
    int64_t experts, top_k; /* of each block, in place of its MLP, and of a token; experts 0: none */
    double aux_loss;        /* factor of the experts' balance loss */
    double capacity;        /* of an expert, in even shares of the choices; 0: any */
    const char *train_only; /* names of layers, with commas between them; NULL: all */
    int64_t lora;           /* rank of adapters, which are then all that is trained; 0: none */
    double lora_alpha;      /* 0: the rank */
    double lora_dropout;    /* of the adapters' input */
    const char *base;       /* a folder of checkpoints or of one, whose weights the run starts with, or NULL */
    const char *optimizer;  /* "adamw", as NULL, or "muon" */
    double lr, min_lr, muon_lr, weight_decay, clip;
    uint64_t seed;
    tsh_dtype dtype;      /* of weights */
    tsh_dtype arithmetic; /* of functions; TSH_DTYPE_COUNT: that of the weights */
    bool master_weights, stochastic, scales_loss;
    /* ranks that share a copy of the model, and copies, as in a mesh's text; NULL: what the other leaves */
    const char *model_parallel, *data_parallel;
    const char *expert_parallel;  /* ranks that split the experts and a copy's batch; NULL: the model's ranks do */
    const char *context_parallel; /* ranks that split each sequence's tokens; NULL: sequences are whole */
    bool exchange_heads;          /* attention exchanges heads for tokens, and does not gather keys and values */
    bool ring;                    /* keys and values go round the ranks */
    int64_t zero;                 /* a tsh_zero_level: what the copies share out */
    bool sequence_parallel, recompute;
    bool deterministic; /* main has read it before, for the world */
    int64_t sample;     /* characters to write after training */
    bool json;
    bool survives; /* any_machines goes on after a death: the model then prints no error */
} options;

/* -1 to continue, or an exit code. Only a rank that `speaks` prints, because all ranks find the same mistake. */
int options_parse(int argc, char **argv, bool speaks, options *out);

typedef struct model model;

/* Collective. On failure *out is NULL, and stderr says why. */
tsh_status model_create(tsh_world *world, const options *o, int64_t vocabulary, model **out);
void model_destroy(model *m);
int64_t model_parameters(const model *m);
/* Of the model, which owns them. */
tsh_parameters *model_list(const model *m);
tsh_optimizer *model_optimizer(const model *m);

/* One step on a whole batch, inputs and targets [batch, block]; this rank takes its part of it. *loss is the loss
 * before the step. Collective, like all functions below; on failure stderr says why. */
tsh_status model_step(model *m, const int64_t *inputs, const int64_t *targets, double lr, double *loss);
/* The loss of a batch; false after printing why to stderr, as from all functions below. */
bool model_loss(model *m, const int64_t *inputs, const int64_t *targets, double *loss);
/* The probabilities of the character that follows the first `length` of a window [block], for the caller to free; NULL
 * on failure. */
float *model_predict(model *m, const int64_t *window, int64_t length);

/* Save in the background all that is needed to resume after this many steps; load it. */
bool model_save(model *m, const text *t, int64_t steps);
bool model_load(model *m, const text *t, int64_t *steps);
/* Wait for a save in the background. */
bool model_finish_save(model *m);

/* --- windows.c ---------------------------------------------------------------------------------------------------- */

/* A part of a text, from which windows are drawn. */
typedef struct windows {
    const text *t;
    int64_t first, length;
    uint64_t seed;
} windows;

/* The text's first nine tenths are for training, the rest for validation; false after printing that it is too short. */
bool windows_split(const char *program, const text *t, const options *o, windows *training, windows *validation);
/* Batch `number`, from 0, of all ranks together: inputs and targets [batch, block]. */
void windows_draw(const windows *w, const options *o, int64_t number, int64_t *inputs, int64_t *targets);

#endif
