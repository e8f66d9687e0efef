/* The command line of many_classes. */
#include "command_line.h"
#include "many_classes.h"

#include <float.h>
#include <stdio.h>
#include <string.h>

static const options defaults = {.classes = 10000,
                                 .inputs = 64,
                                 .hidden = 256,
                                 .features = 128,
                                 .batch = 64,
                                 .steps = 1000,
                                 .evaluate = 1000,
                                 .optimizer = "adamw",
                                 .momentum = 0.9,
                                 .noise = 1.5};

static const char help[] =
    "usage: [tshard-run -n RANKS] many_classes [options]\n"
    "\n"
    "Trains a classifier of very many classes. Each rank runs a small network on its part of the batch, and holds the\n"
    "weights of its part of the classes; features and labels are gathered, and the loss is computed where the logits\n"
    "are. Samples are random: a class is a direction, and a sample is that direction plus noise, so that the best\n"
    "possible accuracy is known. The losses do not depend on the number of ranks.\n"
    "\n"
    "  --classes N        classes, over which the classifier is split (10000)\n"
    "  --drawn N          classes that have samples, spread evenly over all classes (all)\n"
    "  --sample PART      compute each step with the classes of its batch and random others, up to this part of all\n"
    "                     classes; only their rows get gradients and are stepped (all classes)\n"
    "  --in-backward      step the classifier within backward, without storing its gradient\n"
    "  --features N       features that the classifier sees (128)\n"
    "  --hidden N         features of the network's hidden layer (256)\n"
    "  --inputs N         features of a sample (64)\n"
    "  --noise X          length of the noise; a class's direction has length 1 (1.5)\n"
    "  --batch N          samples of a step (64)\n"
    "  --steps N          training steps (1000)\n"
    "  --optimizer NAME   adamw or sgd (adamw)\n"
    "  --lr RATE          highest learning rate (0.003, 1 for sgd); it rises over the first steps and falls to 0 at\n"
    "                     the last\n"
    "  --momentum X       momentum of sgd (0.9)\n"
    "  --weight-decay X   weight decay of all parameters (0)\n"
    "  --evaluate N       samples to classify at the end, in whole batches (1000)\n"
    "  --seed N           seed of parameters and samples (0)\n"
    "  --dtype TYPE       float32, float64, bfloat16 or float16 (float32)\n"
    "  --products         after each step, time only the classifier's three matrix products\n"
    "  --json             print JSON objects instead of text: one for each step (step, loss) and a last one with\n"
    "                     accuracy, best (the best possible accuracy), step_ms and products_ms (medians), peak_bytes\n"
    "                     and model_bytes (parameters, gradients and optimizer) of a rank, ranks\n"
    "  --help             this text\n";

/* Computes settings from others; NULL, or why these settings are invalid. */
static const char *complete(options *o) {
    bool adamw = strcmp(o->optimizer, "adamw") == 0;
    if (!o->drawn) o->drawn = o->classes;
    if (o->lr == 0) o->lr = adamw ? 3e-3 : 1;
    if (!adamw && strcmp(o->optimizer, "sgd") != 0) return "--optimizer wants adamw or sgd";
    return o->drawn > o->classes ? "--drawn is more than --classes" : NULL;
}

int options_parse(int argc, char **argv, bool speaks, options *out) {
    static const double size = 1e6, count = 1e9;
    *out = defaults;
    const option_row rows[] = {{"classes", OPTION_COUNT, &out->classes, 2, count},
                               {"drawn", OPTION_COUNT, &out->drawn, 2, count},
                               {"sample", OPTION_NUMBER, &out->sample, 0, 1},
                               {"features", OPTION_COUNT, &out->features, 1, size},
                               {"hidden", OPTION_COUNT, &out->hidden, 1, size},
                               {"inputs", OPTION_COUNT, &out->inputs, 3, size},
                               {"noise", OPTION_NUMBER, &out->noise, 0, DBL_MAX},
                               {"batch", OPTION_COUNT, &out->batch, 1, size},
                               {"steps", OPTION_COUNT, &out->steps, 1, count},
                               {"optimizer", OPTION_TEXT, &out->optimizer, 0, 0},
                               {"lr", OPTION_RATE, &out->lr, 0, 0},
                               {"momentum", OPTION_NUMBER, &out->momentum, 0, 0.999},
                               {"weight-decay", OPTION_NUMBER, &out->weight_decay, 0, DBL_MAX},
                               {"evaluate", OPTION_COUNT, &out->evaluate, 1, count},
                               {"seed", OPTION_SEED, &out->seed, 0, 0},
                               {"dtype", OPTION_DTYPE, &out->dtype, 0, 0},
                               {"in-backward", OPTION_FLAG, &out->in_backward, 0, 0},
                               {"products", OPTION_FLAG, &out->products, 0, 0},
                               {"json", OPTION_FLAG, &out->json, 0, 0},
                               {NULL, OPTION_FLAG, NULL, 0, 0}};
    int code = command_line_parse("many_classes", help, rows, argc, argv, speaks);
    const char *wrong = code < 0 ? complete(out) : NULL;
    if (!wrong) return code;
    if (speaks) fprintf(stderr, "many_classes: %s\n", wrong);
    return 2;
}
