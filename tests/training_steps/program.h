/* A program of training steps: a model, how it is trained, and where. Every number of it is an int, of which 0 is the
 * plainest, so that one table makes, prints and shrinks programs. */
#ifndef TSHI_TEST_TRAINING_PROGRAM_H
#define TSHI_TEST_TRAINING_PROGRAM_H

#include "tshard/tshard.h"

#include <stdio.h>

enum { MOST_PARTS = 4, MOST_PHASES = 3, MOST_FIELDS = 64 };

typedef enum tshi_part_kind {
    PART_LINEAR,
    PART_PAIR,       /* a column layer, then a row layer */
    PART_TRANSPOSED, /* times the transpose of a parameter */
    PART_GAIN,       /* times a parameter that is repeated */
    PART_NORM,
    PART_BLOCK, /* of a transformer */
    PART_DROPOUT,
    PART_KINDS
} tshi_part_kind;

/* x becomes part(x), or x + part(x). */
typedef struct tshi_training_part {
    int kind, residual;
    int again; /* the layer is that of the part before, where this is of the same kind */
    int rests; /* every other step */
    int shard, activation, bias, wide, rms, kv_heads, repeats, causal, rotary, lengths, drops;
} tshi_training_part;

typedef enum tshi_precision_kind {
    PRECISION_FLOAT64,
    PRECISION_FLOAT32,
    PRECISION_BFLOAT16,
    PRECISION_BFLOAT16_SUMS,  /* gradients, too */
    PRECISION_CASTS_BFLOAT16, /* float32 parameters */
    PRECISION_CASTS_FLOAT32,  /* bfloat16 parameters */
    PRECISION_FLOAT16,
    PRECISION_CASTS_FLOAT16, /* float32 parameters */
    PRECISIONS
} tshi_precision_kind;

/* Some steps on some ranks, between two checkpoints. Nothing in it changes numbers, but for the order of additions. */
typedef struct tshi_training_phase {
    int more_ranks, data, turned,
        reversed; /* the axes: data, a divisor of the ranks, and model; in this order or not */
    int schedule, level, buckets, model_group, sync_each;
    int both;    /* the batch is split along model, too */
    int average; /* each rank along data has a batch and a loss of its own */
    int sequence, recompute, written_late, background;
    int more_steps;
    int data_weights, model_weights; /* of the axes' ranks: 0 none, else a pattern */
} tshi_training_phase;

enum { TSHI_WEIGHT_PATTERNS = 5 };

enum { OPTIMIZER_SGD, OPTIMIZER_ADAMW, OPTIMIZER_LION, OPTIMIZER_MUON, OPTIMIZERS };

typedef struct tshi_training_program {
    uint64_t seed;
    int deterministic, precision, low_bits, float32_norms, check;
    int more_batch, more_time, more_embed, more_words;
    int tables, table_shard, sparse, padding, by_frequency, max_norm, tied, head_shard;
    int losses, apart, sums;
    int optimizer, momentum, decay, rates, clip, clip_value, scaled, frozen, groups;
    int micro, in_backward, look, peek;
    int write_step, write_way, write_index;
    int fail_step, fail_moment, fail_rank; /* step 0: none fails */
    int more_parts, more_phases;
    tshi_training_part part[MOST_PARTS];
    tshi_training_phase phase[MOST_PHASES];
} tshi_training_program;

void tshi_training_generate(uint64_t seed, int ranks, tshi_training_program *p);
void tshi_training_print(const tshi_training_program *p, FILE *to);
/* The plainer values of all numbers, one after another, each where `fails` is still true of the program with it. */
typedef bool tshi_program_fails(const tshi_training_program *p, void *user);
void tshi_training_shrink(tshi_training_program *p, tshi_program_fails *fails, void *user);

int tshi_program_steps(const tshi_training_program *p);
int tshi_phase_ranks(const tshi_training_phase *phase);
/* The number of ranks along the axis data. */
int tshi_phase_data(const tshi_training_phase *phase);
/* Appends the size of an axis, or the weights of a pattern for so many ranks. */
void tshi_phase_axis(int size, int pattern, char *text, size_t room);
/* Its numbers depend on the micro-batches. */
bool tshi_program_keeps_pieces(const tshi_training_program *p);
/* A whole number in [0, n) of the program's; each salt has one. */
int tshi_program_draw(const tshi_training_program *p, uint64_t salt, int n);

#endif
