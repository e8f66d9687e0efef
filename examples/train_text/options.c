/* The command line of train_text. */
#include "command_line.h"
#include "train_text.h"

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
    "  --batch N           predictions in a step (128)\n"
    "  --context N         bytes that a prediction sees (16)\n"
    "  --embed N           features of a byte (24)\n"
    "  --hidden N          features of the hidden layers (256)\n"
    "  --lr RATE           highest learning rate (0.004); it rises over the first steps and falls to 0 at the last\n"
    "  --seed N            seed of parameters, batches and the written text (0)\n"
    "  --model-parallel M  ranks that share one copy of the model (all); the batch is split over the copies. May\n"
    "                      also be weights of these ranks, such as 3:1, or auto, which measures them\n"
    "  --sample N          bytes to write at the end (600)\n"
    "  --save FOLDER       save checkpoints into this folder, which keeps the last three\n"
    "  --every N           steps between two checkpoints (500); the last step is saved too\n"
    "  --resume FOLDER     continue from the newest checkpoint in this folder, saved by any number of ranks\n"
    "  --json              print a JSON object for each step instead of the table: step, loss, tokens_per_s, ranks\n"
    "  --help              this text\n";

int options_parse(int argc, char **argv, bool speaks, options *out) {
    static const double size = 1e6, count = 1e9;
    *out = defaults;
    const option_row rows[] = {{"text", OPTION_PATH, &out->text, 0, 0},
                               {"steps", OPTION_COUNT, &out->steps, 1, count},
                               {"batch", OPTION_COUNT, &out->batch, 1, size},
                               {"context", OPTION_COUNT, &out->context, 1, size},
                               {"embed", OPTION_COUNT, &out->embed, 1, size},
                               {"hidden", OPTION_COUNT, &out->hidden, 1, size},
                               {"lr", OPTION_RATE, &out->lr, 0, 0},
                               {"seed", OPTION_SEED, &out->seed, 0, 0},
                               {"model-parallel", OPTION_AXIS, &out->model_parallel, 0, 0},
                               {"sample", OPTION_COUNT, &out->sample, 0, count},
                               {"save", OPTION_PATH, &out->save, 0, 0},
                               {"every", OPTION_COUNT, &out->every, 1, count},
                               {"resume", OPTION_PATH, &out->resume, 0, 0},
                               {"json", OPTION_FLAG, &out->json, 0, 0},
                               {NULL, OPTION_FLAG, NULL, 0, 0}};
    return command_line_parse("train_text", help, rows, argc, argv, speaks);
}
