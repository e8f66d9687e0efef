/* train_gpt as its users run it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "support/shell.h"

#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROGRAM TSHARD_BIN_DIR "/train_gpt"
/* A busy machine makes ranks warn of waits, between the lines of JSON. */
#define QUIET "TSHARD_LOG=error "
#define SMALL " --layers 2 --heads 3 --embed 24 --block 9 --batch 5 --warmup 4 --lr 0.01 --sample 0 --dtype float64"

enum { STEPS = 30 };

/* The losses after each step from number `first` on; the validation loss comes last, at [STEPS]. */
static void losses(int ranks, const char *options, int first, double out[STEPS + 1]) {
    int code, length = 0, told = 0, parameters = 0, found;
    double speed = 0, milliseconds = -1, val_loss = 0;
    const char *text = tshi_test_shell(&code,
                                       QUIET TSHARD_BIN_DIR "/tshard-run -n %d --no-prefix " PROGRAM
                                                            " --json --steps %d --eval-every 20" SMALL " %s",
                                       ranks, STEPS, options);
    cr_assert_eq(code, 0, "%s", text);
    for (int i = first; i <= STEPS; i++, text += length) {
        int step = 0;
        length = 0;
        found = sscanf(text, "{\"step\": %d, \"loss\": %lf, %*[^}]}\n%n", &step, &out[i - 1], &length);
        cr_assert(found == 2 && step == i && length > 0, "line of step %d is %.80s", i, text);
        if (i != 20 && i != STEPS) continue;
        text += length;
        length = 0;
        found = sscanf(text, "{\"step\": %d, \"val_loss\": %lf}\n%n", &step, &val_loss, &length);
        cr_assert(found == 2 && step == i && length > 0, "evaluation of step %d is %.80s", i, text);
    }
    length = 0;
    found = sscanf(
        text, "{\"val_loss\": %lf, \"step_ms\": %lf, \"tokens_per_s\": %lf, \"parameters\": %d, \"ranks\": %d}\n%n",
        &out[STEPS], &milliseconds, &speed, &parameters, &told, &length);
    cr_assert(found == 5 && out[STEPS] == val_loss && milliseconds > 0 && speed > 0 && told == ranks, "%.200s", text);
    cr_assert_gt(parameters, 2 * 12 * 24 * 24);
    cr_assert_str_empty(text + length);
}

/* Options of a run on so many ranks change nothing against one rank without them, which learns: the validation loss is
 * at most `learnt` of the first one. */
static void same_losses_of(int ranks, const char *options, const char *shape, double learnt) {
    double one[STEPS + 1], many[STEPS + 1];
    char words[256];
    losses(1, shape, 1, one);
    snprintf(words, sizeof words, "%s %s", shape, options);
    losses(ranks, words, 1, many);
    for (int i = 0; i <= STEPS; i++) {
        cr_assert_leq(fabs(many[i] - one[i]), (strstr(shape, "float32") ? 1e-3 : 1e-8) * one[i],
                      "%s: loss %d is %.9g on %d ranks, %.9g on one", words, i, many[i], ranks, one[i]);
    }
    cr_assert_lt(one[STEPS], learnt * one[0], "nothing was learnt: %g became %g", one[0], one[STEPS]);
}

static void same_losses(int ranks, const char *options, const char *shape) {
    same_losses_of(ranks, options, shape, 0.95);
}

Test(train_gpt, two_ranks_agree_with_one, .timeout = 200) {
    same_losses(2, "", "");
}

Test(train_gpt, three_ranks_agree_with_one, .timeout = 200) {
    same_losses(3, "", "");
}

Test(train_gpt, more_ranks_than_heads_agree_with_one, .timeout = 200) {
    same_losses(4, "", "--kv-heads 1");
}

Test(train_gpt, sequence_parallel_ranks_agree_with_one, .timeout = 200) {
    same_losses(3, "--sequence-parallel", "");
}

Test(train_gpt, a_split_batch_agrees_with_one_rank, .timeout = 200) {
    same_losses(2, "--data-parallel 2", "");
    same_losses(4, "--model-parallel 2 --sequence-parallel", "");
}

/* 5 experts over 2, 3 and 4 ranks. */
Test(train_gpt, experts_are_trained_alike_on_any_ranks, .timeout = 400) {
    same_losses(3, "", "--experts 5 --top-k 2");
    same_losses(4, "--model-parallel 2 --sequence-parallel", "--experts 5 --top-k 2");
    same_losses(4, "--model-parallel 2 --sequence-parallel --zero 3 --recompute", "--experts 5 --top-k 2");
}

/* Experts on an axis of their own, and the features of each along another. */
Test(train_gpt, experts_and_their_features_are_split_along_two_axes, .timeout = 400) {
    same_losses(4, "--expert-parallel 2 --model-parallel 2", "--experts 5 --top-k 2");
    same_losses(6, "--expert-parallel 3 --model-parallel 2:1 --zero 3", "--experts 2 --top-k 1");
}

/* Another option changes the loss of the first step but one, so that the ranks that agree about it do not ignore it. */
static void changes_losses(const char *with, const char *without) {
    double changed[STEPS + 1], plain[STEPS + 1];
    losses(1, with, 1, changed);
    losses(1, without, 1, plain);
    cr_assert_neq(changed[1], plain[1], "%s: loss %.17g with and without it", with, changed[1]);
}

/* At half of their even share, experts drop choices in every step. */
Test(train_gpt, full_experts_drop_the_same_tokens_on_any_ranks, .timeout = 400) {
    same_losses(4, "--model-parallel 2", "--experts 5 --capacity 0.5");
    changes_losses("--experts 5 --capacity 0.5", "--experts 5");
}

/* Tokens of each sequence, 9, are split over ranks. */
Test(train_gpt, split_tokens_agree_with_one_rank, .timeout = 400) {
    same_losses(2, "--context-parallel 2", "");
    same_losses(3, "--context-parallel 3:1:2 --exchange-heads --zero 3", "");
    same_losses(2, "--context-parallel 2 --ring", "--dtype float32 --lr 0.003");
}

Test(train_gpt, split_tokens_beside_other_axes_agree_with_one_rank, .timeout = 400) {
    same_losses(4, "--context-parallel 2 --model-parallel 2 --recompute", "--kv-heads 1");
    same_losses(4, "--context-parallel 2 --data-parallel 2 --zero 2", "");
}

Test(train_gpt, split_tokens_go_to_experts, .timeout = 400) {
    same_losses(4, "--context-parallel 2 --model-parallel 2", "--experts 5 --top-k 2");
    same_losses(4, "--context-parallel 2 --data-parallel 2", "--experts 5 --top-k 2");
}

/* Muon's matrices are split by rows, by columns and over copies. */
Test(train_gpt, muon_steps_alike_on_any_ranks, .timeout = 400) {
    double adamw[STEPS + 1], muon[STEPS + 1];
    same_losses(2, "", "--optimizer muon");
    same_losses(3, "--data-parallel 3:1:2 --zero 3 --recompute", "--optimizer muon");
    same_losses(4, "--model-parallel 2 --sequence-parallel --zero 1", "--optimizer muon --experts 5 --top-k 2");
    losses(1, "", 1, adamw);
    losses(1, "--optimizer muon", 1, muon);
    cr_assert_eq(muon[0], adamw[0], "the first step's loss is before any update");
    cr_assert_neq(muon[STEPS], adamw[STEPS], "AdamW has stepped the matrices");
}

/* Fine-tuning: gradients and states of one block and the last norm alone. */
Test(train_gpt, only_some_layers_are_trained, .timeout = 200) {
    same_losses(2, "--data-parallel 2", "--train-only layers.1,norm,tokens");
    same_losses(4, "--model-parallel 2 --zero 3", "--train-only layers.1,norm,tokens");
}

/* The factors of all layers in blocks are all that is trained, beside a table and a head of random weights. */
Test(train_gpt, adapters_are_trained_alike_on_any_ranks, .timeout = 200) {
    const char *const lora = "--lora 3 --lora-alpha 24"; /* at larger rates rounding grows to 1e-8 in so many steps */
    same_losses_of(2, "--data-parallel 2", lora, 0.995);
    same_losses_of(3, "", lora, 0.995);
    same_losses_of(4, "--model-parallel 2 --sequence-parallel", lora, 0.995);
    same_losses_of(4, "--model-parallel 2 --zero 3", lora, 0.995);
}

Test(train_gpt, adapters_drop_the_same_elements_on_any_ranks, .timeout = 200) {
    const char *const lora = "--lora 3 --lora-alpha 24 --lora-dropout 0.25";
    same_losses_of(4, "--model-parallel 2", lora, 0.995);
    changes_losses(lora, "--lora 3 --lora-alpha 24");
}

/* Adam's first steps make much of gradients that are rounding errors. */
Test(train_gpt, float32_agrees_to_its_rounding, .timeout = 200) {
    same_losses(2, "", "--dtype float32 --lr 0.003");
}

/* --- determinism -------------------------------------------------------------------------------------------------- */

/* The losses of all steps and those of evaluations, as they are printed, without the speed: enough digits for all bits
 * of float32. */
static void deterministic_losses(int ranks, const char *options, char out[1 << 15]) {
#ifdef __SANITIZE_ADDRESS__
    const int steps = 20; /* later ones use memory as these do */
#else
    const int steps = 100;
#endif
    int code;
    char last[32];
    const char *text = tshi_test_shell(&code,
                                       QUIET TSHARD_BIN_DIR "/tshard-run -n %d --no-prefix " PROGRAM
                                                            " --json --deterministic --steps %d --eval-every %d" SMALL
                                                            " --dtype float32 %s",
                                       ranks, steps, steps / 2, options);
    snprintf(last, sizeof last, "\"step\": %d", steps);
    cr_assert_eq(code, 0, "%s", text);
    const char *end = strstr(text, "{\"val_loss\"");
    cr_assert(end && end - text < 1 << 15 && strstr(text, last), "%.200s", text);
    char *to = out;
    for (const char *line = text; line < end; line = strchr(line, '\n') + 1) {
        const char *speed = strstr(line, ", \"tokens_per_s\""), *newline = strchr(line, '\n');
        size_t length = (size_t)((speed && speed < newline ? speed : newline) - line);
        memcpy(to, line, length);
        to += length;
        *to++ = '\n';
    }
    *to = '\0';
}

Test(train_gpt, deterministic_losses_have_the_same_bits_at_any_number_of_ranks, .timeout = 600) {
    static const struct {
        int ranks;
        const char *options;
    } runs[] = {{2, ""},
                {3, "--sequence-parallel"},
                {4, ""},
                {2, "--data-parallel 2"},
                {3, "--data-parallel 3 --recompute"},
                {2, "--data-parallel 2 --zero 1"},
                {3, "--data-parallel 3 --zero 3 --recompute"},
                {4, "--model-parallel 2"}};
    static char one[1 << 15], many[1 << 15];
    deterministic_losses(1, "", one);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        deterministic_losses(runs[i].ranks, runs[i].options, many);
        cr_assert_str_eq(many, one, "%d ranks %s", runs[i].ranks, runs[i].options);
    }
}

Test(train_gpt, deterministic_losses_in_16_bits_have_the_same_bits_whatever_copies_share_out, .timeout = 600) {
    static const char *const precisions[] = {"--dtype bfloat16 --master-weights", "--dtype bfloat16 --stochastic",
                                             "--dtype float16 --master-weights --loss-scale", "--arithmetic bfloat16"};
    static char one[1 << 15], many[1 << 15];
    for (size_t i = 0; i < sizeof precisions / sizeof *precisions; i++) {
        char options[128];
        deterministic_losses(1, precisions[i], one);
        snprintf(options, sizeof options, "%s --data-parallel 3 --zero 3 --recompute", precisions[i]);
        deterministic_losses(3, options, many);
        cr_assert_str_eq(many, one, "%s", options);
    }
}

/* --- precision and what copies share out -------------------------------------------------------------------------- */

/* Losses from number `first` on agree to what 16-bit roundings make of another order of additions in 30 steps. */
static void agree(const char *words, int first, const double got[STEPS + 1], const double wanted[STEPS + 1]) {
    for (int i = first; i <= STEPS; i++)
        cr_assert_leq(fabs(got[i] - wanted[i]), 3e-3 * wanted[i], "%s: loss %d is %.9g, wanted %.9g", words, i, got[i],
                      wanted[i]);
}

Test(train_gpt, sixteen_bits_agree_whatever_copies_share_out, .timeout = 300) {
    static const struct {
        int ranks;
        const char *options;
    } runs[] = {{2, "--dtype bfloat16 --master-weights --data-parallel 2 --zero 3 --recompute"},
                {3, "--dtype bfloat16 --master-weights --data-parallel 3 --zero 3 --recompute"},
                {4, "--dtype bfloat16 --master-weights --data-parallel 2 --zero 2 --sequence-parallel"},
                {2, "--dtype bfloat16 --stochastic --data-parallel 2 --zero 3 --recompute"},
                {1, "--dtype float32 --arithmetic bfloat16"},
                {2, "--dtype float32 --arithmetic bfloat16 --sequence-parallel"},
                {4, "--dtype float32 --arithmetic bfloat16 --data-parallel 2 --zero 3"},
                {2, "--dtype bfloat16 --arithmetic float32 --master-weights --recompute"},
                {1, "--dtype float16 --master-weights --loss-scale"},
                {3, "--dtype float16 --master-weights --loss-scale --data-parallel 3 --zero 1"},
                {4, "--dtype float16 --master-weights --loss-scale --data-parallel 2 --zero 3 --recompute"}};
    double one[STEPS + 1], many[STEPS + 1];
    losses(1, "--dtype float32 --lr 0.003", 1, one);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        char words[128];
        snprintf(words, sizeof words, "%s --lr 0.003", runs[i].options);
        losses(runs[i].ranks, words, 1, many);
        agree(words, 0, many, one);
        cr_assert_lt(many[STEPS], 0.95 * many[0], "%s: nothing was learnt", words);
    }
}

/* What a short training writes at its end, in static memory. */
static const char *sample(int ranks, const char *dtype) {
    int code;
    const char *text =
        tshi_test_shell(&code,
                        TSHARD_BIN_DIR "/tshard-run -n %d --no-prefix " PROGRAM
                                       " --steps 3 --layers 1 --heads 2 --embed 8 --block 7 --sample 40 --dtype %s",
                        ranks, dtype);
    cr_assert_eq(code, 0, "%s", text);
    char *start = strstr(text, "It writes"), *end = start ? strstr(start, "\nvalidation loss") : NULL;
    cr_assert(end && end - start > 40, "%s", text);
    *end = '\0';
    return start;
}

Test(train_gpt, writes_what_the_seed_says_at_any_number_of_ranks_and_in_any_precision, .timeout = 200) {
    char one[4096];
    snprintf(one, sizeof one, "%s", sample(1, "float32"));
    cr_assert_str_eq(sample(3, "float32"), one);
    cr_assert_str_eq(sample(2, "float64"), one);
}

Test(train_gpt, learns_with_more_rows_than_the_text_has_symbols, .timeout = 200) {
    same_losses(2, "", "--vocabulary 301");
}

Test(train_gpt, writes_in_16_bits, .timeout = 200) {
    cr_assert_geq(strlen(sample(2, "bfloat16")), 40);
    cr_assert_geq(strlen(sample(1, "float16")), 40);
}

/* --- checkpoints -------------------------------------------------------------------------------------------------- */

Test(train_gpt, resumes_bit_for_bit_on_as_many_ranks_and_to_rounding_on_others, .timeout = 300) {
    double all[STEPS + 1], saving[STEPS + 1], resumed[STEPS + 1];
    int code;
    char folder[] = "/tmp/tshard-gpt-XXXXXX", words[128];
    cr_assert(mkdtemp(folder));
    losses(2, "", 1, all);
    snprintf(words, sizeof words, "--save %s", folder);
    losses(2, words, 1, saving);
    snprintf(words, sizeof words, "--resume %s/step-00000020", folder);
    for (int ranks = 1; ranks <= 3; ranks++) {
        losses(ranks, words, 21, resumed);
        for (int i = 20; i <= STEPS; i++) {
            double off = ranks == 2 ? 0 : 1e-8 * all[i];
            cr_assert_eq(saving[i], all[i], "loss %d: %g with saves, %g without", i, saving[i], all[i]);
            cr_assert_leq(fabs(resumed[i] - all[i]), off, "loss %d: %.9g resumed on %d ranks, %.9g in one go", i,
                          resumed[i], ranks, all[i]);
        }
    }
    /* No shape of a parameter shows the number of heads. */
    const char *text = tshi_test_shell(&code, PROGRAM SMALL " --heads 4 --resume %s", folder);
    cr_assert(code == 1 && strstr(text, "the checkpoint is of a run with another: heads"), "%d: %s", code, text);
    snprintf(words, sizeof words, "rm -r %s", folder);
    cr_assert_eq(system(words), 0);
}

/* Losses of a run that is saved with `saves` at step 20 and resumed with `resumes`, no further than `off` times as large
 * from those in one go. */
static void resumes_alike(int ranks, const char *saves, int others, const char *resumes, double off) {
    double all[STEPS + 1], resumed[STEPS + 1];
    char folder[] = "/tmp/tshard-gpt-XXXXXX", words[256];
    cr_assert(mkdtemp(folder));
    snprintf(words, sizeof words, "%s --save %s", saves, folder);
    losses(ranks, words, 1, all);
    snprintf(words, sizeof words, "%s --resume %s/step-00000020", resumes, folder);
    losses(others, words, 21, resumed);
    for (int i = 20; i <= STEPS; i++)
        cr_assert_leq(fabs(resumed[i] - all[i]), off * all[i], "%s: loss %d is %.9g, %.9g in one go", resumes, i,
                      resumed[i], all[i]);
    snprintf(words, sizeof words, "rm -r %s", folder);
    cr_assert_eq(system(words), 0);
}

/* Master weights, float32 states and the loss scale, in slices of other sizes and of other parts of the training. */
Test(train_gpt, resumes_at_another_level_on_another_number_of_ranks, .timeout = 300) {
    resumes_alike(4, "--dtype float16 --master-weights --loss-scale --lr 0.003 --data-parallel 4 --zero 1", 3,
                  "--dtype float16 --master-weights --loss-scale --lr 0.003 --data-parallel 3 --zero 3", 3e-3);
}

/* Slices of experts become experts and features along two axes. */
Test(train_gpt, experts_are_resumed_on_another_mesh, .timeout = 300) {
    resumes_alike(4, "--experts 3 --top-k 2 --data-parallel 2 --expert-parallel 2 --zero 3", 4,
                  "--experts 3 --top-k 2 --expert-parallel 2 --model-parallel 2", 2e-9);
}

/* With B = 0, the first loss with adapters is that of the base; then only they are trained, and resumed. */
Test(train_gpt, adapters_start_from_a_base_and_are_resumed, .timeout = 300) {
    double base[STEPS + 1], plain[STEPS + 1], adapted[STEPS + 1], resumed[STEPS + 1];
    char folder[] = "/tmp/tshard-gpt-XXXXXX", words[256];
    cr_assert(mkdtemp(folder));
    snprintf(words, sizeof words, "--save %s/base", folder);
    losses(2, words, 1, base);
    snprintf(words, sizeof words, "--base %s/base", folder);
    losses(3, words, 1, plain);
    snprintf(words, sizeof words, "--base %s/base --lora 4 --lora-alpha 32 --save %s/lora", folder, folder);
    losses(3, words, 1, adapted);
    cr_assert_eq(adapted[0], plain[0], "the first loss is %.17g, %.17g without adapters", adapted[0], plain[0]);
    cr_assert_lt(adapted[0], 0.95 * base[0], "the base's weights have not been loaded");
    cr_assert_neq(adapted[STEPS], plain[STEPS]);
    cr_assert_lt(adapted[STEPS], base[STEPS], "nothing was learnt: %g became %g", base[STEPS], adapted[STEPS]);
    snprintf(words, sizeof words, "--lora 4 --lora-alpha 32 --resume %s/lora/step-00000020", folder);
    losses(2, words, 21, resumed);
    agree(words, 20, resumed, adapted);
    snprintf(words, sizeof words, "rm -r %s", folder);
    cr_assert_eq(system(words), 0);
}

/* --- mistakes and failures ---------------------------------------------------------------------------------------- */

#define RUN(ranks) QUIET TSHARD_BIN_DIR "/tshard-run -n " #ranks " --no-prefix " PROGRAM

/* A pipe gives its bytes once, to the rank that reads it. */
Test(train_gpt, learns_the_text_of_a_pipe, .timeout = 120) {
    int code;
    const char *text =
        tshi_test_shell(&code, "seq 200 | " RUN(3) " --text /dev/stdin --json --steps 2 --eval-batches 1" SMALL);
    cr_assert(code == 0 && strstr(text, "\"val_loss\""), "%s", text);
}

static void refuses(int wanted_code, const char *words, const char *arguments) {
    int code;
    const char *text = tshi_test_shell(&code, PROGRAM " %s", arguments);
    cr_assert_eq(code, wanted_code, "%s: exit code %d, %s", arguments, code, text);
    cr_assert(strstr(text, words), "%s: '%s' is not in: %s", arguments, words, text);
}

/* The ids of a text's symbols: in a file of nanoGPT's kind, or behind a header as llm.c writes it. */
static void write_tokens(const char *path, bool headed) {
    const int32_t head[256] = {20240520, 1, 600};
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file);
    if (headed) cr_assert_eq(fwrite(head, sizeof head, 1, file), 1);
    for (int i = 0; i < 600; i++) {
        const uint16_t id = (uint16_t)((i * i + i / 7) % 7);
        cr_assert_eq(fwrite(&id, sizeof id, 1, file), 1);
    }
    cr_assert_eq(fclose(file), 0);
}

Test(train_gpt, learns_the_ids_of_a_token_file_as_those_of_a_text, .timeout = 200) {
    char folder[] = "/tmp/tshard-tokens-XXXXXX", path[64], options[128];
    double of_text[STEPS + 1], of_tokens[STEPS + 1];
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/text", folder);
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file);
    for (int i = 0; i < 600; i++) fputc("acegikm"[(i * i + i / 7) % 7], file);
    cr_assert_eq(fclose(file), 0);
    snprintf(options, sizeof options, "--vocabulary 13 --text %s", path);
    losses(1, options, 1, of_text);
    for (int headed = 0; headed < 2; headed++) {
        snprintf(path, sizeof path, "%s/tokens", folder);
        write_tokens(path, headed);
        snprintf(options, sizeof options, "--vocabulary 13 --tokens %s", path);
        losses(1 + headed, options, 1, of_tokens);
        for (int i = 0; i <= STEPS; i++) cr_assert_float_eq(of_tokens[i], of_text[i], 1e-9, "loss %d", i);
    }
    cr_assert_eq(truncate(path, 1025), 0);
    snprintf(options, sizeof options, "--tokens %s", path);
    refuses(1, "has 1025 bytes, and ids of 16 bits make an even number", options);
    cr_assert_eq(truncate(path, 1100), 0);
    refuses(1, "has 1100 bytes, and its header says 600 ids", options);
    cr_assert_eq(truncate(path, 0), 0);
    refuses(1, "cannot be mapped: it is empty", options);
    refuses(1, "cannot be mapped: No such file or directory", "--tokens /nonexistent/tokens");
    snprintf(path, sizeof path, "rm -r %s", folder);
    cr_assert_eq(system(path), 0);
}

/* A learning rate that is far too high: JSON has no number for what comes of it. */
Test(train_gpt, writes_null_for_a_loss_that_is_no_number, .timeout = 120) {
    int code;
    const char *text = tshi_test_shell(&code, RUN(2) " --json --steps 3 --eval-batches 1" SMALL " --lr 1e300");
    cr_assert(code == 0 && strstr(text, "{\"step\": 3, \"loss\": null, ") && strstr(text, "{\"val_loss\": null, "),
              "%s", text);
    cr_assert_not(strstr(text, "nan"), "%s", text);
}

Test(train_gpt, says_what_is_wrong_with_an_option, .timeout = 120) {
    refuses(2, "--layers wants a whole number, 1 to 1000000, not '0'", "--layers 0");
    refuses(2, "--steps wants a whole number", "--steps 1.5");
    refuses(2, "--warmup wants a whole number, 0 to", "--warmup -1");
    refuses(2, "--min-lr wants a number, 0 or more, not 'nan'", "--min-lr nan");
    refuses(2, "--min-lr must not be above --lr", "--min-lr 1");
    refuses(2, "--weight-decay wants a number, 0 or more", "--weight-decay -1");
    refuses(2, "--clip wants a number above 0, not '0'", "--clip 0");
    refuses(2, "--dtype wants float32, float64, bfloat16 or float16, not 'int64'", "--dtype int64");
    refuses(1, "--vocabulary is 5, and the text has ", "--vocabulary 5");
    refuses(2, "--heads must divide --embed", "--heads 3");
    refuses(2, "--kv-heads must divide --heads", "--kv-heads 3");
    refuses(2, "--lora excludes --train-only", "--lora 2 --train-only norm");
    refuses(2, "--lora-dropout must be below 1", "--lora 2 --lora-dropout 1");
    refuses(2, "--lora-dropout goes with --lora", "--lora-dropout 0.1");
    refuses(2, "--capacity goes with --experts", "--capacity 2");
    refuses(2, "--base excludes --resume", "--base a --resume b");
    refuses(2, "--optimizer must be adamw or muon", "--optimizer lion");
    refuses(2, "--muon-lr goes with --optimizer muon", "--muon-lr 0.1");
    refuses(2, "--text excludes --tokens", "--text a --tokens b");
    refuses(1, "the base: checkpoint_load: /nonexistent: no complete checkpoint found",
            "--steps 2 --base /nonexistent" SMALL);
    refuses(2, "'a.txt' is no option", "a.txt");
    refuses(2, "--text wants a value", "--text");
    refuses(1, "/nonexistent: no complete checkpoint found", "--steps 2 --resume /nonexistent" SMALL);
    refuses(1, "cannot be read: No such file or directory", "--text /nonexistent/text");
    refuses(1, "no checkpoint can be saved in /nonexistent/run: No such file or directory",
            "--steps 2 --save /nonexistent/run" SMALL);
    refuses(1, "/dev/null: Not a directory", "--steps 2 --save /dev/null" SMALL);
}

Test(train_gpt, says_that_the_text_is_too_short_or_the_ranks_do_not_divide, .timeout = 120) {
    char path[] = "/tmp/tshard-text-XXXXXX", arguments[128];
    int code, file = mkstemp(path);
    cr_assert_geq(file, 0);
    cr_assert_eq(write(file, "0123456789012345678901234567890123456789", 40), 40);
    close(file);
    snprintf(arguments, sizeof arguments, "--block 4 --text %s", path);
    refuses(1, "the text has 40 symbols, of which the last 4 are for validation: a block of 4 wants more", arguments);
    unlink(path);
    const char *text = tshi_test_shell(&code, TSHARD_BIN_DIR "/tshard-run -n 3 " PROGRAM " --model-parallel 2" SMALL);
    cr_assert(code == 1 && strstr(text, "model=2") && strstr(text, "3"), "%d: %s", code, text);
}

/* The second rank of a run is killed when it has made some steps: all ends at once, and the first says why. */
Test(train_gpt, ends_in_words_when_a_rank_is_killed, .timeout = 120) {
    char steps[] = "/tmp/tshard-steps-XXXXXX";
    int code, file = mkstemp(steps);
    cr_assert_geq(file, 0);
    close(file);
    const char *text = tshi_test_shell(
        &code,
        "timeout 100 " TSHARD_BIN_DIR "/tshard-run -n 2 --grace 5 sh -c '[ $RANK = 0 ] || { "
        "until grep -q step %s || ! kill -0 $$; do sleep 0.1; done; kill -9 $$; } 2> /dev/null & exec " PROGRAM
        " --json --steps 1000000" SMALL "' > %s",
        steps, steps);
    unlink(steps);
    cr_assert_eq(code, 128 + SIGKILL, "%d: %s", code, text);
    cr_assert(strstr(text, "rank 1 died"), "%s", text);
}
