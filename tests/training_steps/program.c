#include "training_steps/program.h"
#include "base/base.h"
#include "support/values.h"

#include <stddef.h>
#include <string.h>

/* A number of a program: its words, the largest value, and how often it is not 0, in hundredths. */
typedef struct field {
    const char *words;
    size_t at;
    int most, chance;
    const char *const *names; /* of the values, or NULL */
} field;

#define OF_PROGRAM(member) offsetof(tshi_training_program, member)
#define OF_PART(member)    offsetof(tshi_training_part, member)
#define OF_PHASE(member)   offsetof(tshi_training_phase, member)

static const char *const precisions[] = {"float64",
                                         "float32",
                                         "bfloat16, float32 gradients",
                                         "bfloat16",
                                         "float32, bfloat16 arithmetic",
                                         "bfloat16, float32 arithmetic",
                                         "float16, float32 gradients",
                                         "float32, float16 arithmetic"};
static const char *const low_bits[] = {"master weights", "stochastic rounding", "lost"};
static const char *const shards[] = {"dense", "row", "column"};
static const char *const writes[] = {"write_whole", "fill", "scatter_whole", "init"};
static const char *const moments[] = {"before forward", "in forward", "before backward", "after backward",
                                      "in the backward of a call"};
static const char *const losses[] = {"cross entropy", "squares", "both", "both and binary"};
static const char *const kinds[] = {"linear", "column and row", "transposed", "gain", "norm", "block", "dropout"};
static const char *const optimizers[] = {"sgd", "adamw", "lion", "muon"};

static const field program_fields[] = {
    {"a deterministic world", OF_PROGRAM(deterministic), 1, 35, NULL},
    {"precision", OF_PROGRAM(precision), PRECISIONS - 1, 50, precisions},
    {"low bits", OF_PROGRAM(low_bits), 2, 40, low_bits},
    {"float32 norms", OF_PROGRAM(float32_norms), 1, 40, NULL},
    {"TSHARD_CHECK", OF_PROGRAM(check), 1, 20, NULL},
    {"sequences, and one more", OF_PROGRAM(more_batch), 4, 80, NULL},
    {"tokens of each, and one more", OF_PROGRAM(more_time), 2, 70, NULL},
    {"features, and two more", OF_PROGRAM(more_embed), 5, 80, NULL},
    {"words, and three more", OF_PROGRAM(more_words), 8, 80, NULL},
    {"tables more than one", OF_PROGRAM(tables), 1, 35, NULL},
    {"their shards", OF_PROGRAM(table_shard), 2, 70, shards},
    {"sparse gradients", OF_PROGRAM(sparse), 1, 40, NULL},
    {"a row of padding", OF_PROGRAM(padding), 1, 25, NULL},
    {"gradients by frequency", OF_PROGRAM(by_frequency), 1, 15, NULL},
    {"rows of limited norm", OF_PROGRAM(max_norm), 1, 15, NULL},
    {"the first table is the head, too", OF_PROGRAM(tied), 1, 40, NULL},
    {"the head's shards", OF_PROGRAM(head_shard), 2, 70, shards},
    {"losses", OF_PROGRAM(losses), 3, 50, losses},
    {"a backward each", OF_PROGRAM(apart), 1, 40, NULL},
    {"sums, not means", OF_PROGRAM(sums), 1, 30, NULL},
    {"optimizer", OF_PROGRAM(optimizer), OPTIMIZERS - 1, 50, optimizers},
    {"momentum", OF_PROGRAM(momentum), 1, 50, NULL},
    {"weight decay", OF_PROGRAM(decay), 1, 50, NULL},
    {"other learning rates", OF_PROGRAM(rates), 1, 30, NULL},
    {"clipped", OF_PROGRAM(clip), 1, 40, NULL},
    {"clipped by value in backward", OF_PROGRAM(clip_value), 1, 25, NULL},
    {"a loss scale (2: too large)", OF_PROGRAM(scaled), 2, 30, NULL},
    {"the first part is frozen", OF_PROGRAM(frozen), 1, 25, NULL},
    {"the tables are a group", OF_PROGRAM(groups), 1, 25, NULL},
    {"micro-batches more than one", OF_PROGRAM(micro), 2, 40, NULL},
    {"steps in backward", OF_PROGRAM(in_backward), 1, 25, NULL},
    {"gradients are read", OF_PROGRAM(look), 1, 40, NULL},
    {"evaluations in each step (2: on tapes of their own)", OF_PROGRAM(peek), 2, 30, NULL},
    {"a parameter is written in step (0: none)", OF_PROGRAM(write_step), 4, 35, NULL},
    {"by", OF_PROGRAM(write_way), 3, 80, writes},
    {"its number", OF_PROGRAM(write_index), 20, 90, NULL},
    {"a rank fails in step (0: none)", OF_PROGRAM(fail_step), 4, 25, NULL},
    {"it fails", OF_PROGRAM(fail_moment), 4, 80, moments},
    {"its rank", OF_PROGRAM(fail_rank), 4, 80, NULL},
    {"parts, and one more", OF_PROGRAM(more_parts), MOST_PARTS - 1, 80, NULL},
    {"checkpoints", OF_PROGRAM(more_phases), MOST_PHASES - 1, 35, NULL},
};

static const field part_fields[] = {
    {"kind", OF_PART(kind), PART_KINDS - 1, 90, kinds},
    {"x is added", OF_PART(residual), 1, 50, NULL},
    {"the part before again", OF_PART(again), 1, 25, NULL},
    {"it rests every other step", OF_PART(rests), 1, 15, NULL},
    {"shards", OF_PART(shard), 2, 80, shards},
    {"activation", OF_PART(activation), 4, 60, NULL},
    {"bias", OF_PART(bias), 1, 60, NULL},
    {"hidden features, and three more", OF_PART(wide), 5, 80, NULL},
    {"root mean square norms", OF_PART(rms), 1, 50, NULL},
    {"key heads, and one more", OF_PART(kv_heads), 2, 60, NULL},
    {"query heads of each, and one more", OF_PART(repeats), 1, 50, NULL},
    {"causal", OF_PART(causal), 1, 50, NULL},
    {"rotary", OF_PART(rotary), 1, 40, NULL},
    {"lengths", OF_PART(lengths), 1, 30, NULL},
    {"dropout", OF_PART(drops), 1, 15, NULL},
};

static const field phase_fields[] = {
    {"ranks, and one more", OF_PHASE(more_ranks), 4, 85, NULL},
    {"data axis: divisor", OF_PHASE(data), 4, 70, NULL},
    {"the axes turned", OF_PHASE(turned), 1, 30, NULL},
    {"the ranks reversed", OF_PHASE(reversed), 1, 25, NULL},
    {"data-parallel schedule", OF_PHASE(schedule), 1, 65, NULL},
    {"level", OF_PHASE(level), 3, 70, NULL},
    {"buckets of hundreds of bytes", OF_PHASE(buckets), 3, 60, NULL},
    {"the schedule knows the model axis", OF_PHASE(model_group), 1, 50, NULL},
    {"sums in every micro-batch", OF_PHASE(sync_each), 1, 25, NULL},
    {"sequences are split along both axes", OF_PHASE(both), 1, 20, NULL},
    {"a batch of each rank's own", OF_PHASE(average), 1, 35, NULL},
    {"sequence parallel", OF_PHASE(sequence), 1, 30, NULL},
    {"recomputation", OF_PHASE(recompute), 2, 45, NULL},
    {"values written after the schedule is made", OF_PHASE(written_late), 1, 25, NULL},
    {"a checkpoint in the background after each step", OF_PHASE(background), 1, 40, NULL},
    {"steps, and one more", OF_PHASE(more_steps), 2, 80, NULL},
    {"weights along data", OF_PHASE(data_weights), TSHI_WEIGHT_PATTERNS, 0, NULL},
    {"weights along model", OF_PHASE(model_weights), TSHI_WEIGHT_PATTERNS, 0, NULL},
};

typedef struct fields {
    const field *all;
    int count;
    void *at; /* the struct that has them */
    const char *title;
    uint64_t number;
} fields;

#define FIELDS(table, at, title, number) ((fields){table, (int)(sizeof table / sizeof *table), at, title, number})

static int *number_at(const fields *f, int i) {
    return (int *)(void *)((char *)f->at + f->all[i].at);
}

/* All structs of a program that have numbers; out [1 + MOST_PARTS + MOST_PHASES]. */
static int tables_of(tshi_training_program *p, fields *out) {
    int count = 0;
    out[count++] = FIELDS(program_fields, p, "program", p->seed);
    for (int i = 0; i <= p->more_parts; i++) out[count++] = FIELDS(part_fields, &p->part[i], "part", (uint64_t)i);
    for (int i = 0; i <= p->more_phases; i++) out[count++] = FIELDS(phase_fields, &p->phase[i], "phase", (uint64_t)i);
    return count;
}

/* --- what goes together ------------------------------------------------------------------------------------------- */

int tshi_phase_ranks(const tshi_training_phase *phase) {
    return 1 + phase->more_ranks;
}

int tshi_phase_data(const tshi_training_phase *phase) {
    int ranks = tshi_phase_ranks(phase), data = 1 + phase->data;
    while (data > ranks || ranks % data) data--;
    return data;
}

void tshi_phase_axis(int size, int pattern, char *text, size_t room) {
    static const char *const patterns[] = {"3:1:1:2:1", "5:3:2:1:1", "0:1:1:0:1", "1:0:2:1:0", "2:1:1:1:3"};
    if (pattern == 0 || size == 1)
        tshi_append(text, room, "%d", size);
    else
        tshi_append(text, room, "%.*s", 2 * size - 1, patterns[pattern - 1]);
}

int tshi_program_steps(const tshi_training_program *p) {
    int steps = 0;
    for (int i = 0; i <= p->more_phases; i++) steps += 1 + p->phase[i].more_steps;
    return steps;
}

static bool drops(const tshi_training_program *p) {
    bool any = false;
    for (int i = 0; i <= p->more_parts; i++)
        any = any || p->part[i].kind == PART_DROPOUT || (p->part[i].kind == PART_BLOCK && p->part[i].drops);
    return any;
}

bool tshi_program_keeps_pieces(const tshi_training_program *p) {
    return drops(p) || p->by_frequency || p->max_norm;
}

/* Each micro-batch has as many sequences for each rank along data. */
static bool divides(const tshi_training_program *p, const tshi_training_phase *phase) {
    for (int i = 0; i <= p->micro; i++) {
        int64_t length;
        tsh_split(1 + p->more_batch, 1 + p->micro, i, NULL, &length);
        if (length % tshi_phase_data(phase)) return false;
    }
    return true;
}

static void settle_phase(const tshi_training_program *p, tshi_training_phase *phase) {
    if (!phase->schedule) phase->level = phase->buckets = phase->model_group = phase->written_late = phase->average = 0;
    if (p->in_backward) phase->level = 0;
    if (phase->both || phase->data_weights) phase->average = 0;
    bool casts = p->precision == PRECISION_CASTS_BFLOAT16 || p->precision == PRECISION_CASTS_FLOAT32 ||
                 p->precision == PRECISION_CASTS_FLOAT16;
    if (p->max_norm && casts && phase->level == 3) phase->level = 2; /* gathered rows are casts */
    if (p->deterministic || tshi_program_keeps_pieces(p) || !divides(p, phase)) phase->average = 0;
}

static void settle_model(tshi_training_program *p) {
    if (p->precision <= PRECISION_FLOAT32) p->float32_norms = 0;
    if (p->losses == 0) p->apart = 0;
    if (p->losses == 1) p->tied = 0;
    for (int i = 0; i <= p->more_parts; i++) {
        tshi_training_part *part = &p->part[i];
        if (i == 0 || part->kind != p->part[i - 1].kind) part->again = 0;
    }
}

static bool is_alone_along_data(const tshi_training_program *p) {
    bool alone = true;
    for (int i = 0; i <= p->more_phases; i++) alone = alone && tshi_phase_data(&p->phase[i]) == 1;
    return alone;
}

/* Numbers that contradict others become plainer. */
static void settle(tshi_training_program *p) {
    bool float16 = p->precision == PRECISION_FLOAT16 || p->precision == PRECISION_CASTS_FLOAT16;
    bool stored16 = p->precision == PRECISION_BFLOAT16 || p->precision == PRECISION_BFLOAT16_SUMS ||
                    p->precision == PRECISION_CASTS_FLOAT32 || p->precision == PRECISION_FLOAT16;
    settle_model(p);
    if (float16 && !p->scaled) p->scaled = 1;
    if (p->scaled == 2 && !(float16 && p->deterministic)) p->scaled = 1; /* others may find other infinities */
    if (p->scaled || p->apart) p->clip_value = 0; /* a scale is not for the bound; a backward clamps what it adds to */
    if (!stored16 || (p->low_bits == 1 && float16)) p->low_bits = 0;
    /* Rows without a gradient wait, but not where a sum over ranks makes the gradient one of all rows. */
    if (p->sparse && !(p->deterministic && !p->tied && is_alone_along_data(p)))
        p->optimizer = p->momentum = p->decay = 0;
    if (p->optimizer == OPTIMIZER_LION && !p->deterministic) p->optimizer = OPTIMIZER_ADAMW; /* signs have no limit */
    /* Each of five iterations multiplies a small singular value, which may be a rounding error, by up to 3.4445. */
    if (p->optimizer == OPTIMIZER_MUON && !p->deterministic) p->optimizer = OPTIMIZER_ADAMW;
    if (p->micro > p->more_batch) p->micro = p->more_batch;
    if (p->clip || p->scaled || p->micro || p->apart || p->fail_step || (stored16 && p->low_bits == 1) ||
        p->optimizer == OPTIMIZER_MUON)
        p->in_backward = 0;
    for (int i = 0; i <= p->more_phases; i++) settle_phase(p, &p->phase[i]);
    if (p->write_step > tshi_program_steps(p)) p->write_step = 0;
    if (p->fail_step > tshi_program_steps(p)) p->fail_step = 0;
    if (p->fail_step == p->write_step) p->write_step = 0;
    /* A failed step has scaled rows in place: rounded ones may shrink twice, and a head sees those of all pieces. */
    if (p->max_norm && p->precision != PRECISION_FLOAT64) p->peek = p->fail_step = 0;
    if (p->max_norm && p->tied) p->fail_step = 0;
}

/* --- generate, print, shrink -------------------------------------------------------------------------------------- */

int tshi_program_draw(const tshi_training_program *p, uint64_t salt, int n) {
    return (int)((tshi_mix(tshi_mix(p->seed) ^ salt) >> 8) % (uint64_t)n);
}

static int draw(uint64_t *state, int n) {
    *state = tshi_mix(*state);
    return (int)((*state >> 16) % (uint64_t)n);
}

static void generate(const fields *f, uint64_t *state) {
    for (int i = 0; i < f->count; i++) {
        if (f->all[i].chance == 0) continue; /* chosen apart */
        bool plain = draw(state, 100) >= f->all[i].chance;
        *number_at(f, i) = plain ? 0 : 1 + draw(state, f->all[i].most);
    }
}

/* Two micro-batches of ranks that each have a batch of their own, and so own copies of a parameter that are looked at:
 * much must come together for that. */
static void look_at_copies(tshi_training_program *p) {
    p->deterministic = p->precision = p->by_frequency = p->max_norm = p->in_backward = 0;
    p->look = p->micro = 1;
    p->more_batch = 3;
    p->part[0].kind = p->part[0].kind % 2 ? PART_TRANSPOSED : PART_GAIN;
    for (int i = 0; i < MOST_PARTS; i++) {
        p->part[i].drops = 0;
        if (p->part[i].kind == PART_DROPOUT) p->part[i].kind = PART_LINEAR;
    }
    for (int i = 0; i < MOST_PHASES; i++) {
        p->phase[i].more_ranks |= 1;
        p->phase[i].data = p->phase[i].schedule = p->phase[i].average = 1;
        p->phase[i].both = 0;
    }
}

/* Apart from the other numbers, which do not depend on them. */
static void choose_weights(tshi_training_program *p) {
    for (int i = 0; i < MOST_PHASES; i++) {
        int data = tshi_program_draw(p, 6000011 + (uint64_t)i, 2 * TSHI_WEIGHT_PATTERNS),
            model = tshi_program_draw(p, 7000003 + (uint64_t)i, 2 * TSHI_WEIGHT_PATTERNS);
        if (data <= TSHI_WEIGHT_PATTERNS) p->phase[i].data_weights = data;
        if (model <= TSHI_WEIGHT_PATTERNS) p->phase[i].model_weights = model;
    }
}

void tshi_training_generate(uint64_t seed, int ranks, tshi_training_program *p) {
    fields tables[1 + MOST_PARTS + MOST_PHASES];
    uint64_t state = seed;
    *p = (tshi_training_program){.seed = seed, .more_parts = MOST_PARTS - 1, .more_phases = MOST_PHASES - 1};
    int count = tables_of(p, tables);
    for (int t = 0; t < count; t++) generate(&tables[t], &state);
    if (seed % 16 == 5) look_at_copies(p);
    for (int i = 0; i < MOST_PHASES; i++) {
        if (p->phase[i].more_ranks >= ranks) p->phase[i].more_ranks = ranks - 1;
    }
    choose_weights(p);
    settle(p);
}

void tshi_training_print(const tshi_training_program *p, FILE *to) {
    tshi_training_program copy = *p;
    fields tables[1 + MOST_PARTS + MOST_PHASES];
    int count = tables_of(&copy, tables);
    for (int t = 0; t < count; t++) {
        fprintf(to, "  %s %llu:", tables[t].title, (unsigned long long)tables[t].number);
        const char *between = " ";
        for (int i = 0; i < tables[t].count; i++) {
            const field *f = &tables[t].all[i];
            int value = *number_at(&tables[t], i);
            if (value == 0 && !f->names) continue;
            fprintf(to, "%s%s", between, f->words);
            if (f->names) fprintf(to, " %s", f->names[value]);
            if (!f->names && f->most > 1) fprintf(to, " %d", value);
            between = "; ";
        }
        fprintf(to, "\n");
    }
}

/* True when one number has become plainer. */
static bool shrink_once(tshi_training_program *p, tshi_program_fails *fails, void *user) {
    fields tables[1 + MOST_PARTS + MOST_PHASES];
    tshi_training_program smaller = *p;
    bool any = false;
    int count = tables_of(&smaller, tables);
    for (int t = 0; t < count; t++) {
        for (int i = 0; i < tables[t].count; i++) {
            int *number = number_at(&tables[t], i), old = *number;
            for (int value = 0; value < old; value = value < old - 1 ? old - 1 : old) {
                *number = value;
                settle(&smaller);
                bool good = memcmp(&smaller, p, sizeof *p) && fails(&smaller, user);
                if (good) *p = smaller;
                smaller = *p;
                any = any || good;
                if (good) break;
            }
        }
    }
    return any;
}

void tshi_training_shrink(tshi_training_program *p, tshi_program_fails *fails, void *user) {
    for (int i = 0; i < 4 && shrink_once(p, fails, user); i++) continue;
}
