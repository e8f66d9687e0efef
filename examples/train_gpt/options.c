#include "train_gpt.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

/* nanoGPT's character model. */
static const options defaults = {.layers = 4,
                                 .heads = 4,
                                 .embed = 128,
                                 .block = 64,
                                 .batch = 12,
                                 .steps = 2000,
                                 .warmup = 100,
                                 .eval_every = 500,
                                 .lr = 1e-3,
                                 .min_lr = 1e-4,
                                 .weight_decay = 0.1,
                                 .clip = 1.0,
                                 .seed = 1337,
                                 .sample = 300};

static const char help[] =
    "usage: [tshard-run -n RANKS] train_gpt [options]\n"
    "\n"
    "Trains a GPT that predicts the next character of a text, then lets it write. The defaults are those of nanoGPT's\n"
    "character model. Heads and features of every layer are split over the ranks; the losses do not depend on their\n"
    "number.\n"
    "\n"
    "  --text FILE          the text (default: the C sources of tshard); it learns the first 90 % and is judged by "
    "the\n"
    "                       rest\n"
    "  --layers N           transformer blocks (4)\n"
    "  --heads N            query heads (4)\n"
    "  --kv-heads N         key and value heads, a divisor of the heads (as many)\n"
    "  --embed N            features of a token (128)\n"
    "  --block N            tokens of a sequence (64)\n"
    "  --batch N            sequences of a step (12)\n"
    "  --steps N            training steps (2000)\n"
    "  --lr RATE            highest learning rate (0.001), reached after\n"
    "  --warmup N           steps (100); it falls to\n"
    "  --min-lr RATE        at the last step (0.0001), as a cosine does\n"
    "  --weight-decay X     of matrices (0.1)\n"
    "  --clip NORM          largest norm of the gradients (1)\n"
    "  --seed N             of parameters, batches and the written text (1337)\n"
    "  --dtype TYPE         float32, float64, bfloat16 or float16 (float32)\n"
    "  --model-parallel M   ranks that share one copy of the model (all that --data-parallel leaves)\n"
    "  --data-parallel D    copies of the model, over which the batch is split\n"
    "  --sequence-parallel  tokens are split where features are not: norms and sums of a block\n"
    "  --eval-every N       steps from one evaluation and checkpoint to the next (500)\n"
    "  --sample N           characters to write at the end (300)\n"
    "  --save FOLDER        save checkpoints into this folder, which keeps the last three\n"
    "  --resume FOLDER      go on from the newest checkpoint in this folder, saved by any number of ranks\n"
    "  --json               JSON objects in place of words: one for each step (step, loss) and evaluation (step,\n"
    "                       val_loss), at the end one with val_loss, step_ms (the median), tokens_per_s, parameters,\n"
    "                       ranks\n"
    "  --help               this text\n";

enum {
    TEXT,
    LAYERS,
    HEADS,
    KV_HEADS,
    EMBED,
    BLOCK,
    BATCH,
    STEPS,
    LR,
    WARMUP,
    MIN_LR,
    WEIGHT_DECAY,
    CLIP,
    SEED,
    DTYPE,
    MODEL_PARALLEL,
    DATA_PARALLEL,
    SEQUENCE_PARALLEL,
    EVAL_EVERY,
    SAMPLE,
    SAVE,
    RESUME,
    JSON,
    HELP
};

static const struct option names[] = {{"text", required_argument, NULL, TEXT},
                                      {"layers", required_argument, NULL, LAYERS},
                                      {"heads", required_argument, NULL, HEADS},
                                      {"kv-heads", required_argument, NULL, KV_HEADS},
                                      {"embed", required_argument, NULL, EMBED},
                                      {"block", required_argument, NULL, BLOCK},
                                      {"batch", required_argument, NULL, BATCH},
                                      {"steps", required_argument, NULL, STEPS},
                                      {"lr", required_argument, NULL, LR},
                                      {"warmup", required_argument, NULL, WARMUP},
                                      {"min-lr", required_argument, NULL, MIN_LR},
                                      {"weight-decay", required_argument, NULL, WEIGHT_DECAY},
                                      {"clip", required_argument, NULL, CLIP},
                                      {"seed", required_argument, NULL, SEED},
                                      {"dtype", required_argument, NULL, DTYPE},
                                      {"model-parallel", required_argument, NULL, MODEL_PARALLEL},
                                      {"data-parallel", required_argument, NULL, DATA_PARALLEL},
                                      {"sequence-parallel", no_argument, NULL, SEQUENCE_PARALLEL},
                                      {"eval-every", required_argument, NULL, EVAL_EVERY},
                                      {"sample", required_argument, NULL, SAMPLE},
                                      {"save", required_argument, NULL, SAVE},
                                      {"resume", required_argument, NULL, RESUME},
                                      {"json", no_argument, NULL, JSON},
                                      {"help", no_argument, NULL, HELP},
                                      {NULL, 0, NULL, 0}};

static bool parse_dtype(const char *from, tsh_dtype *out) {
    const tsh_dtype known[] = {TSH_FLOAT32, TSH_FLOAT64, TSH_BFLOAT16, TSH_FLOAT16};
    for (int i = 0; i < 4; i++) {
        if (strcmp(from, tsh_dtype_name(known[i])) != 0) continue;
        *out = known[i];
        return true;
    }
    return false;
}

static const char *wants_count(const char *value, int64_t low, int64_t *out) {
    if (parse_count(value, low, 1000000000, out)) return NULL;
    return low ? "a whole number, 1 to 1000000000" : "a whole number, 0 to 1000000000";
}

static const char *wants_size(const char *value, int64_t *out) {
    return parse_count(value, 1, 1000000, out) ? NULL : "a whole number, 1 to 1000000";
}

static const char *wants_rate(const char *value, double *out) {
    return parse_rate(value, out) ? NULL : "a number above 0";
}

static const char *wants_rate_or_0(const char *value, double *out) {
    *out = 0;
    return strcmp(value, "0") == 0 || parse_rate(value, out) ? NULL : "a number, 0 or more";
}

/* NULL, or what the option wants. */
static const char *take(int option, const char *value, options *o) {
    switch (option) {
    case TEXT: o->text = value; return value[0] ? NULL : "a file";
    case SAVE: o->save = value; return value[0] ? NULL : "a folder";
    case RESUME: o->resume = value; return value[0] ? NULL : "a folder";
    case LAYERS: return wants_size(value, &o->layers);
    case HEADS: return wants_size(value, &o->heads);
    case KV_HEADS: return wants_size(value, &o->kv_heads);
    case EMBED: return wants_size(value, &o->embed);
    case BLOCK: return wants_size(value, &o->block);
    case BATCH: return wants_size(value, &o->batch);
    case MODEL_PARALLEL: return wants_size(value, &o->model_parallel);
    case DATA_PARALLEL: return wants_size(value, &o->data_parallel);
    case STEPS: return wants_count(value, 1, &o->steps);
    case EVAL_EVERY: return wants_count(value, 1, &o->eval_every);
    case WARMUP: return wants_count(value, 0, &o->warmup);
    case SAMPLE: return wants_count(value, 0, &o->sample);
    case LR: return wants_rate(value, &o->lr);
    case CLIP: return wants_rate(value, &o->clip);
    case MIN_LR: return wants_rate_or_0(value, &o->min_lr);
    case WEIGHT_DECAY: return wants_rate_or_0(value, &o->weight_decay);
    case SEED: return parse_seed(value, &o->seed) ? NULL : "a whole number, 0 to 18446744073709551615";
    case DTYPE: return parse_dtype(value, &o->dtype) ? NULL : "float32, float64, bfloat16 or float16";
    case SEQUENCE_PARALLEL: o->sequence_parallel = true; return NULL;
    default: o->json = true; return NULL;
    }
}

/* NULL, or why these sizes make no model. */
static const char *contradiction(const options *o) {
    if (o->embed % o->heads) return "--heads must divide --embed";
    return o->kv_heads && o->heads % o->kv_heads ? "--kv-heads must divide --heads" : NULL;
}

parsed options_parse(int argc, char **argv, bool speaks, options *out) {
    *out = defaults;
    opterr = speaks;
    for (int option, index = 0; (option = getopt_long(argc, argv, "", names, &index)) != -1;) {
        if (option == '?') return PARSED_WRONG;
        if (option == HELP) {
            if (speaks) fputs(help, stdout);
            return PARSED_HELP;
        }
        const char *wanted = take(option, optarg, out);
        if (!wanted) continue;
        if (speaks) fprintf(stderr, "train_gpt: --%s wants %s, not '%s'\n", names[index].name, wanted, optarg);
        return PARSED_WRONG;
    }
    const char *wrong = contradiction(out);
    if (optind == argc && !wrong) return PARSED;
    if (speaks && optind < argc)
        fprintf(stderr, "train_gpt: '%s' is no option (--help names them; a text is --text FILE)\n", argv[optind]);
    else if (speaks)
        fprintf(stderr, "train_gpt: %s\n", wrong);
    return PARSED_WRONG;
}
