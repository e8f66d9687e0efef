#include "train_text.h"

#include <getopt.h>
#include <stdio.h>

static const options defaults = {
    .steps = 3000, .every = 500, .batch = 128, .context = 16, .embed = 24, .hidden = 256, .lr = 4e-3, .sample = 600};

static const char help[] =
    "usage: [tshard-run -n RANKS] train_text [options]\n"
    "\n"
    "Trains a language model that reads the last bytes of a text and predicts the next one, then lets it write.\n"
    "Each rank holds its part of every layer; the losses do not depend on the number of ranks.\n"
    "\n"
    "  --text FILE         the text (default: the C sources of tshard)\n"
    "  --steps N           training steps (3000)\n"
    "  --batch N           predictions a step (128)\n"
    "  --context N         bytes that a prediction sees (16)\n"
    "  --embed N           features of a byte (24)\n"
    "  --hidden N          features of the hidden layers (256)\n"
    "  --lr RATE           highest learning rate (0.004); it rises over the first steps and falls to 0 at the last\n"
    "  --seed N            of parameters, batches and the written text (0)\n"
    "  --model-parallel M  ranks that share one copy of the model (all); the batch is split over the copies\n"
    "  --sample N          bytes to write at the end (600)\n"
    "  --save FOLDER       save checkpoints into this folder, which keeps the last three\n"
    "  --every N           steps from one to the next (500); the last step is saved too\n"
    "  --resume FOLDER     go on from the newest checkpoint in this folder, saved by any number of ranks\n"
    "  --json              a JSON object for each step in place of the table: step, loss, tokens_per_s, ranks\n"
    "  --help              this text\n";

enum { TEXT, STEPS, BATCH, CONTEXT, EMBED, HIDDEN, LR, SEED, MODEL_PARALLEL, SAMPLE, SAVE, EVERY, RESUME, JSON, HELP };

static const struct option names[] = {{"text", required_argument, NULL, TEXT},
                                      {"steps", required_argument, NULL, STEPS},
                                      {"batch", required_argument, NULL, BATCH},
                                      {"context", required_argument, NULL, CONTEXT},
                                      {"embed", required_argument, NULL, EMBED},
                                      {"hidden", required_argument, NULL, HIDDEN},
                                      {"lr", required_argument, NULL, LR},
                                      {"seed", required_argument, NULL, SEED},
                                      {"model-parallel", required_argument, NULL, MODEL_PARALLEL},
                                      {"sample", required_argument, NULL, SAMPLE},
                                      {"save", required_argument, NULL, SAVE},
                                      {"every", required_argument, NULL, EVERY},
                                      {"resume", required_argument, NULL, RESUME},
                                      {"json", no_argument, NULL, JSON},
                                      {"help", no_argument, NULL, HELP},
                                      {NULL, 0, NULL, 0}};

/* NULL, or what the option wants. */
static const char *take(int option, const char *value, options *o) {
    static const int64_t most = 1000000;
    static const char positive[] = "a whole number, 1 to 1000000";
    switch (option) {
    case TEXT: o->text = value; return value[0] ? NULL : "a file";
    case SAVE: o->save = value; return value[0] ? NULL : "a folder";
    case RESUME: o->resume = value; return value[0] ? NULL : "a folder";
    case EVERY: return parse_count(value, 1, 1000000000, &o->every) ? NULL : "a whole number, 1 to 1000000000";
    case JSON: o->json = true; return NULL;
    case STEPS: return parse_count(value, 1, 1000000000, &o->steps) ? NULL : "a whole number, 1 to 1000000000";
    case BATCH: return parse_count(value, 1, most, &o->batch) ? NULL : positive;
    case CONTEXT: return parse_count(value, 1, most, &o->context) ? NULL : positive;
    case EMBED: return parse_count(value, 1, most, &o->embed) ? NULL : positive;
    case HIDDEN: return parse_count(value, 1, most, &o->hidden) ? NULL : positive;
    case MODEL_PARALLEL: return parse_count(value, 1, most, &o->model_parallel) ? NULL : positive;
    case SAMPLE: return parse_count(value, 0, 1000000000, &o->sample) ? NULL : "a whole number, 0 to 1000000000";
    case SEED: return parse_seed(value, &o->seed) ? NULL : "a whole number, 0 to 18446744073709551615";
    default: return parse_rate(value, &o->lr) ? NULL : "a number above 0";
    }
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
        if (speaks) fprintf(stderr, "train_text: --%s wants %s, not '%s'\n", names[index].name, wanted, optarg);
        return PARSED_WRONG;
    }
    if (optind == argc) return PARSED;
    if (speaks)
        fprintf(stderr, "train_text: '%s' is no option (--help names them; a text is --text FILE)\n", argv[optind]);
    return PARSED_WRONG;
}
