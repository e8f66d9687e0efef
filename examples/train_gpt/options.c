/* The command line of train_gpt. */
#include "command_line.h"
#include "train_gpt.h"

#include <float.h>
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
                                 .eval_batches = 200,
                                 .lr = 1e-3,
                                 .min_lr = -1, /* a tenth of lr */
                                 .weight_decay = 0.1,
                                 .clip = 1.0,
                                 .seed = 1337,
                                 .top_k = 2,
                                 .aux_loss = 0.01,
                                 .arithmetic = TSH_DTYPE_COUNT,
                                 .sample = 300};

static const char help[] =
    "usage: [tshard-run -n RANKS] train_gpt [options]\n"
    "\n"
    "Trains a GPT that predicts the next character of a text, then lets it write. The defaults are those of nanoGPT's\n"
    "character model. Heads and features of every layer are split over the ranks; the losses do not depend on their\n"
    "number.\n"
    "\n"
    "  --text FILE          the text (default: the C sources of tshard); the first 90 % is for training, the rest for\n"
    "                       validation\n"
    "  --tokens FILE        instead of a text, a file of 16-bit token ids, as tokenize, nanoGPT and llm.c write them;\n"
    "                       the sample at the end is then ids, not characters\n"
    "  --vocabulary N       size of the vocabulary, at least the number of symbols in the text (that number)\n"
    "  --layers N           transformer blocks (4)\n"
    "  --heads N            query heads (4)\n"
    "  --kv-heads N         key and value heads, a divisor of the query heads (as many as these)\n"
    "  --embed N            features of a token (128)\n"
    "  --experts N          a mixture of N experts (gated MLPs) in place of each block's MLP, split over the ranks\n"
    "                       that share a copy (none)\n"
    "  --top-k K            experts that each token chooses (2)\n"
    "  --aux-loss X         factor of the load-balancing loss of experts (0.01)\n"
    "  --capacity X         an expert takes at most X times its even share of the choices, and drops others (any)\n"
    "  --block N            tokens of a sequence (64)\n"
    "  --batch N            sequences of a step (12)\n"
    "  --steps N            training steps (2000)\n"
    "  --optimizer NAME     adamw, or muon, which steps matrices of the blocks by Muon and everything else "
    "(embeddings,\n"
    "                       vectors, experts) by AdamW (adamw)\n"
    "  --lr RATE            highest learning rate (0.001)\n"
    "  --warmup N           steps over which the learning rate rises to --lr (100); then it falls by half a cosine\n"
    "  --min-lr RATE        learning rate of the last step (a tenth of --lr)\n"
    "  --muon-lr RATE       highest learning rate of the matrices that Muon steps (0.02), which rises and falls as "
    "that\n"
    "                       of the others\n"
    "  --weight-decay X     weight decay of matrices (0.1)\n"
    "  --train-only NAMES   train only the parameters of these layers, such as layers.3,norm, and freeze all others\n"
    "  --lora R             freeze all parameters, and train low-rank adapters of rank R on all linear layers of the\n"
    "                       blocks\n"
    "  --lora-alpha X       alpha of the adapters, whose factor is X / R (R)\n"
    "  --lora-dropout P     probability with which an element of an adapter's input is dropped (0)\n"
    "  --base FOLDER        start from the weights of the newest checkpoint in this folder\n"
    "  --clip NORM          clip the gradients to this norm (1)\n"
    "  --seed N             seed of parameters, batches and the written text (1337)\n"
    "  --dtype TYPE         float32, float64, bfloat16 or float16 (float32)\n"
    "  --arithmetic TYPE    the type that functions compute in, to which they cast the weights; gradients are float32\n"
    "                       (the weights' type)\n"
    "  --master-weights     float32 master weights of bfloat16 or float16 weights, and float32 gradients\n"
    "  --stochastic         instead: bfloat16 weights with stochastic rounding, and float32 gradients\n"
    "  --loss-scale         a dynamic loss scale, for float16\n"
    "  --model-parallel M   ranks that share one copy of the model (all that --data-parallel leaves)\n"
    "  --data-parallel D    copies of the model, over which the batch is split\n"
    "  --expert-parallel E  ranks that split the experts, and the batch of each copy, whose tokens go to the ranks of\n"
    "                       their experts (1); --model-parallel then splits the features of each expert\n"
    "  --context-parallel C\n"
    "                       ranks that split the tokens of each sequence, for long sequences (1); the losses stay the\n"
    "                       same. M, D, E and C may also be weights of the ranks, such as 3:1, or auto, which\n"
    "                       measures them\n"
    "  --exchange-heads     with --context-parallel: attention exchanges heads for tokens and back; otherwise it\n"
    "                       gathers keys and values\n"
    "  --ring               with --context-parallel: keys and values go round the ranks in blocks\n"
    "  --zero LEVEL         what the copies shard: nothing (0), the optimizer's states (1), gradients too (2),\n"
    "                       parameters too (3); the losses stay the same (0)\n"
    "  --sequence-parallel  norms and residuals of a block are split by tokens\n"
    "  --recompute          blocks keep only their inputs, and run again in backward: less memory, more time\n"
    "  --deterministic      losses have the same bits at any number of ranks: all compute with whole tensors\n"
    "  --eval-every N       steps between two evaluations and checkpoints (500)\n"
    "  --eval-batches N     batches of an evaluation (200)\n"
    "  --sample N           characters to write at the end (300)\n"
    "  --save FOLDER        save checkpoints into this folder, which keeps the last three\n"
    "  --resume FOLDER      continue from the newest checkpoint in this folder, saved by any number of ranks\n"
    "  --json               print JSON objects instead of text: one for each step (step, loss) and evaluation (step,\n"
    "                       val_loss), and a last one with val_loss, step_ms (the median), tokens_per_s, parameters,\n"
    "                       ranks\n"
    "  --help               this text\n";

/* NULL, or why these sizes are invalid. */
static const char *contradiction(const options *o) {
    if (o->optimizer && strcmp(o->optimizer, "adamw") != 0 && strcmp(o->optimizer, "muon") != 0)
        return "--optimizer must be adamw or muon";
    if (o->muon_lr > 0 && !(o->optimizer && strcmp(o->optimizer, "muon") == 0))
        return "--muon-lr goes with --optimizer muon";
    if (o->master_weights && o->stochastic) return "--master-weights excludes --stochastic";
    if (o->lora && o->train_only) return "--lora excludes --train-only";
    if (o->lora_dropout >= 1) return "--lora-dropout must be below 1";
    if (o->lora_dropout > 0 && !o->lora) return "--lora-dropout goes with --lora";
    if (o->capacity > 0 && !o->experts) return "--capacity goes with --experts";
    if (o->text && o->tokens) return "--text excludes --tokens";
    if (o->base && o->resume) return "--base excludes --resume";
    if (o->min_lr > o->lr) return "--min-lr must not be above --lr";
    if (o->experts && o->top_k > o->experts) return "--top-k must not be above --experts";
    if (o->expert_parallel && !o->experts) return "--expert-parallel goes with --experts";
    if (o->exchange_heads && !o->context_parallel) return "--exchange-heads goes with --context-parallel";
    if (o->ring && !o->context_parallel) return "--ring goes with --context-parallel";
    if (o->ring && o->exchange_heads) return "--ring excludes --exchange-heads";
    if (o->sequence_parallel && o->context_parallel) return "--sequence-parallel excludes --context-parallel";
    if (o->embed % o->heads) return "--heads must divide --embed";
    return o->kv_heads && o->heads % o->kv_heads ? "--kv-heads must divide --heads" : NULL;
}

int options_parse(int argc, char **argv, bool speaks, options *out) {
    static const double size = 1e6, count = 1e9;
    *out = defaults;
    const option_row rows[] = {{"text", OPTION_PATH, &out->text, 0, 0},
                               {"tokens", OPTION_PATH, &out->tokens, 0, 0},
                               {"vocabulary", OPTION_COUNT, &out->vocabulary, 1, size},
                               {"layers", OPTION_COUNT, &out->layers, 1, size},
                               {"heads", OPTION_COUNT, &out->heads, 1, size},
                               {"kv-heads", OPTION_COUNT, &out->kv_heads, 1, size},
                               {"embed", OPTION_COUNT, &out->embed, 1, size},
                               {"experts", OPTION_COUNT, &out->experts, 1, size},
                               {"top-k", OPTION_COUNT, &out->top_k, 1, size},
                               {"aux-loss", OPTION_NUMBER, &out->aux_loss, 0, DBL_MAX},
                               {"capacity", OPTION_RATE, &out->capacity, 0, 0},
                               {"block", OPTION_COUNT, &out->block, 1, size},
                               {"batch", OPTION_COUNT, &out->batch, 1, size},
                               {"steps", OPTION_COUNT, &out->steps, 1, count},
                               {"optimizer", OPTION_TEXT, &out->optimizer, 0, 0},
                               {"lr", OPTION_RATE, &out->lr, 0, 0},
                               {"warmup", OPTION_COUNT, &out->warmup, 0, count},
                               {"min-lr", OPTION_NUMBER, &out->min_lr, 0, DBL_MAX},
                               {"muon-lr", OPTION_RATE, &out->muon_lr, 0, 0},
                               {"weight-decay", OPTION_NUMBER, &out->weight_decay, 0, DBL_MAX},
                               {"train-only", OPTION_PATH, &out->train_only, 0, 0},
                               {"lora", OPTION_COUNT, &out->lora, 1, size},
                               {"lora-alpha", OPTION_NUMBER, &out->lora_alpha, 0, DBL_MAX},
                               {"lora-dropout", OPTION_NUMBER, &out->lora_dropout, 0, DBL_MAX},
                               {"base", OPTION_PATH, &out->base, 0, 0},
                               {"clip", OPTION_RATE, &out->clip, 0, 0},
                               {"seed", OPTION_SEED, &out->seed, 0, 0},
                               {"dtype", OPTION_DTYPE, &out->dtype, 0, 0},
                               {"arithmetic", OPTION_DTYPE, &out->arithmetic, 0, 0},
                               {"master-weights", OPTION_FLAG, &out->master_weights, 0, 0},
                               {"stochastic", OPTION_FLAG, &out->stochastic, 0, 0},
                               {"loss-scale", OPTION_FLAG, &out->scales_loss, 0, 0},
                               {"model-parallel", OPTION_AXIS, &out->model_parallel, 0, 0},
                               {"data-parallel", OPTION_AXIS, &out->data_parallel, 0, 0},
                               {"expert-parallel", OPTION_AXIS, &out->expert_parallel, 0, 0},
                               {"context-parallel", OPTION_AXIS, &out->context_parallel, 0, 0},
                               {"exchange-heads", OPTION_FLAG, &out->exchange_heads, 0, 0},
                               {"ring", OPTION_FLAG, &out->ring, 0, 0},
                               {"zero", OPTION_COUNT, &out->zero, 0, TSH_ZERO_PARAMETERS},
                               {"sequence-parallel", OPTION_FLAG, &out->sequence_parallel, 0, 0},
                               {"recompute", OPTION_FLAG, &out->recompute, 0, 0},
                               {"deterministic", OPTION_FLAG, &out->deterministic, 0, 0},
                               {"eval-every", OPTION_COUNT, &out->eval_every, 1, count},
                               {"eval-batches", OPTION_COUNT, &out->eval_batches, 1, count},
                               {"sample", OPTION_COUNT, &out->sample, 0, count},
                               {"save", OPTION_PATH, &out->save, 0, 0},
                               {"resume", OPTION_PATH, &out->resume, 0, 0},
                               {"json", OPTION_FLAG, &out->json, 0, 0},
                               {NULL, OPTION_FLAG, NULL, 0, 0}};
    int code = command_line_parse("train_gpt", help, rows, argc, argv, speaks);
    if (out->min_lr < 0) out->min_lr = out->lr / 10;
    const char *wrong = code < 0 ? contradiction(out) : NULL;
    if (out->muon_lr == 0) out->muon_lr = 0.02;
    if (!wrong) return code;
    if (speaks) fprintf(stderr, "train_gpt: %s\n", wrong);
    return 2;
}
