/* train_gpt: trains a GPT of a text's characters. What is printed, evaluation, and the text that it writes. */
#define _POSIX_C_SOURCE 200809L
#include "numbers.h"
#include "program.h"
#include "progress.h"
#include "resume.h"
#include "train_gpt.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_UP = 5 }; /* the first steps, whose times are not counted */

typedef struct run {
    const options *o;
    model *m;
    text t;
    windows training, validation;
    int64_t *inputs, *targets; /* [batch, block] */
    double *times;             /* [steps] seconds */
    int64_t first_step, timed;
    progress progress;
    double val_loss;
} run;

/* --- what is printed ---------------------------------------------------------------------------------------------- */

static void report_evaluation(const run *r, int64_t step) {
    if (!r->progress.speaks) return;
    progress_clear(&r->progress);
    if (r->o->json)
        printf("{\"step\": %lld, \"val_loss\": %s}\n", (long long)step, json_number(r->val_loss).text);
    else
        printf("step %lld   validation loss %.4f\n", (long long)step, r->val_loss);
}

static void report_end(run *r) {
    double seconds = median_seconds(r->times, r->timed, WARM_UP), tokens = (double)(r->o->batch * r->o->block);
    double per_s = seconds > 0 ? tokens / seconds : 0;
    long long parameters = (long long)model_parameters(r->m);
    if (!r->progress.speaks) return;
    if (r->o->json)
        printf("{\"val_loss\": %s, \"step_ms\": %.4f, \"tokens_per_s\": %.1f, \"parameters\": %lld, \"ranks\": %d}\n",
               json_number(r->val_loss).text, 1e3 * seconds, per_s, parameters, r->progress.ranks);
    else
        printf("validation loss %.4f, %.2f ms a step, %.0f tokens/s, %lld parameters, ranks: %d\n", r->val_loss,
               1e3 * seconds, per_s, parameters, r->progress.ranks);
}

/* --- training ----------------------------------------------------------------------------------------------------- */

static bool evaluate(run *r, int64_t step) {
    double sum = 0, loss = 0;
    for (int64_t i = 0; i < r->o->eval_batches; i++) {
        windows_draw(&r->validation, r->o, i, r->inputs, r->targets);
        if (!model_loss(r->m, r->inputs, r->targets, &loss)) return false;
        sum += loss;
    }
    r->val_loss = sum / (double)r->o->eval_batches;
    report_evaluation(r, step);
    return true;
}

static bool train(run *r) {
    const options *o = r->o;
    bool good = true;
    const tsh_lr_schedule rates = {
        .kind = TSH_LR_COSINE, .lr = o->lr, .min_lr = o->min_lr, .warmup = o->warmup, .steps = o->steps};
    progress_begin(&r->progress, r->first_step);
    for (int64_t step = r->first_step; good && step < o->steps; step++) {
        double loss, begin = seconds_now();
        windows_draw(&r->training, o, step, r->inputs, r->targets);
        good = model_step(r->m, r->inputs, r->targets, tsh_lr_at(&rates, step), &loss) == TSH_OK;
        r->times[r->timed++] = seconds_now() - begin;
        if (good) progress_step(&r->progress, step + 1, loss);
        if (!good || ((step + 1) % o->eval_every != 0 && step + 1 != o->steps)) continue;
        good = evaluate(r, step + 1);
        if (good && o->save) good = model_save(r->m, &r->t, step + 1);
    }
    return model_finish_save(r->m) && good;
}

/* A character, or the id of a token. */
static void write_symbol(const run *r, int64_t symbol) {
    if (!r->progress.speaks) return;
    if (r->t.symbols)
        putchar(r->t.letter[symbol]);
    else
        printf("%lld ", (long long)symbol);
}

/* The text goes on from the first character of the validation part. Every rank predicts, with the same random numbers;
 * one rank prints. */
static bool write_text(run *r) {
    int64_t block = r->o->block, length = 1, *window = calloc((size_t)block, sizeof *window);
    bool good = window != NULL;
    if (good) window[0] = text_symbol(&r->t, r->validation.first);
    if (good && r->progress.speaks) printf("\nIt writes:\n\n");
    if (good) write_symbol(r, window[0]);
    for (int64_t i = 0; good && i < r->o->sample; i++) {
        float *probabilities = model_predict(r->m, window, length);
        good = probabilities != NULL;
        if (!good) break;
        double uniform = (double)(random_bits(r->o->seed + 1, (uint64_t)i) >> 11) * 0x1p-53;
        int64_t symbol = 0;
        for (; symbol < r->t.vocabulary - 1 && uniform >= (double)probabilities[symbol]; symbol++)
            uniform -= (double)probabilities[symbol];
        free(probabilities);
        if (length == block) memmove(window, window + 1, (size_t)--length * sizeof *window);
        window[length++] = symbol;
        write_symbol(r, symbol);
    }
    if (good && r->progress.speaks) putchar('\n');
    free(window);
    return good;
}

static bool run_with_model(run *r) {
    const options *o = r->o;
    int64_t numbers = o->batch * o->block;
    r->inputs = calloc((size_t)numbers, sizeof *r->inputs);
    r->targets = calloc((size_t)numbers, sizeof *r->targets);
    r->times = calloc((size_t)o->steps, sizeof *r->times);
    bool good = r->inputs && r->targets && r->times;
    if (!good) fprintf(stderr, "train_gpt: no memory for a batch\n");
    if (good && o->save) good = run_can_save("train_gpt", o->save);
    if (good && o->resume) good = model_load(r->m, &r->t, &r->first_step);
    if (good && o->resume && r->progress.speaks && !o->json)
        printf("resumed after step %lld\n", (long long)r->first_step);
    if (good) good = train(r);
    if (good && r->first_step >= o->steps) good = evaluate(r, r->first_step);
    if (good && !o->json && o->sample > 0) good = write_text(r);
    if (good) report_end(r);
    free(r->times);
    free(r->targets);
    free(r->inputs);
    return good;
}

/* The symbols that the model has; 0 after saying that the text has more. */
static int64_t symbols_of(const options *o, const text *t) {
    if (o->vocabulary == 0 || o->vocabulary >= t->vocabulary) return o->vocabulary ? o->vocabulary : t->vocabulary;
    fprintf(stderr, "train_gpt: --vocabulary is %lld, and the text has %lld symbols\n", (long long)o->vocabulary,
            (long long)t->vocabulary);
    return 0;
}

static bool run_all(tsh_world *world, const options *o) {
    bool speaks = tsh_world_rank(world) == 0;
    run r = {.o = o};
    r.progress = (progress){.unit = "tokens",
                            .per_step = o->batch * o->block,
                            .steps = o->steps,
                            .ranks = tsh_world_size(world),
                            .json = o->json,
                            .speaks = speaks};
    bool read = o->tokens ? tokens_read("train_gpt", world, o->tokens, o->block, &r.t)
                          : text_read("train_gpt", world, o->text, o->block, &r.t);
    if (!read) return false;
    if (speaks && !o->json) {
        printf("%lld %s, %lld %s; a loss of %.4f would be guessing\n", (long long)r.t.length,
               r.t.symbols ? "bytes" : "tokens", (long long)r.t.vocabulary,
               r.t.symbols ? "distinct" : "in the vocabulary", log((double)r.t.vocabulary));
    }
    int64_t symbols = symbols_of(o, &r.t);
    bool good = symbols && windows_split("train_gpt", &r.t, o, &r.training, &r.validation);
    good = good && model_create(world, o, symbols, &r.m) == TSH_OK && run_with_model(&r);
    model_destroy(r.m);
    text_free(&r.t);
    return good;
}

/* The option must be known before the world is created; the command line is checked after that. */
static void read_determinism(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--deterministic") == 0) setenv("TSHARD_DETERMINISTIC", "1", 1);
    }
}

int main(int argc, char **argv) {
    options o;
    read_determinism(argc, argv);
    tsh_world *world = program_begin("train_gpt");
    if (!world) return 1;
    int code = options_parse(argc, argv, tsh_world_rank(world) == 0, &o);
    if (code < 0) code = run_all(world, &o) ? 0 : 1;
    return program_end("train_gpt", world, code);
}
