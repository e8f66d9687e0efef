/* The command line of generate. */
#include "command_line.h"
#include "generate.h"

#include <stdio.h>

static const char help[] =
    "usage: [tshard-run -n RANKS] generate --model DIR (--prompt TEXT | --chat | --prompt-ids 1,2,3 | --prompts FILE)\n"
    "       [options]\n"
    "\n"
    "Continues a prompt with a GPT-2, Llama, Qwen or Mixtral model. DIR is a Hugging Face folder with config.json and\n"
    "model.safetensors. Each rank holds its heads, its part of the MLPs and of the vocabulary.\n"
    "\n"
    "  --model DIR         the model's folder\n"
    "  --adapter DIR       the folder of a low-rank adapter in PEFT's format, which is added to the weights\n"
    "  --prompt TEXT       the text to continue, which DIR/tokenizer.json turns into tokens\n"
    "  --chat              answer the lines of stdin, one after another, in the format of DIR's chat template\n"
    "  --system TEXT       with --chat: the system prompt\n"
    "  --prompt-ids LIST   the token ids to continue, such as 1,2,3\n"
    "  --prompts FILE      prompts to continue at once: a file with the ids of each on a line of its own\n"
    "  --prompt-tokens N   for measurements: a prompt of N random ids\n"
    "  --batch B           with --prompt-tokens: B prompts at once (1)\n"
    "  --tokens N          tokens to generate (32), fewer if one ends the text\n"
    "  --ignore-eos        continue after a token that ends the text (eos_token_id of generation_config.json or\n"
    "                      config.json)\n"
    "  --dtype TYPE        float32, float64, bfloat16 or float16, to which the weights are converted (float32, but\n"
    "                      weights that a GGUF file has as Q8_0 or Q4_0 stay quantized in memory, unless --adapter\n"
    "                      is given)\n"
    "  --temperature T     divide the logits by T; 0 takes the likeliest token (0)\n"
    "  --top-k K           draw from the K likeliest tokens; 0: all (0)\n"
    "  --top-p P           draw from the likeliest tokens that together have the probability P; 0: all (0)\n"
    "  --seed N            seed of the draws and of random weights (0)\n"
    "  --random-weights    for measurements: random weights; DIR needs only config.json\n"
    "  --repeat N          generate N times, print medians, and measure how fast memory is read (1)\n"
    "  --json              one JSON object: ids, text, tokens per second, bytes of weights read per second\n"
    "  --help              this text\n"
    "\n"
    "The tokens go to stdout, speeds and progress to stderr.\n";

int options_parse(int argc, char **argv, bool speaks, options *out) {
    static const double most = 1e9;
    *out = (options){.tokens = 32, .batch = 1, .repeat = 1, .dtype = TSH_DTYPE_COUNT};
    const option_row rows[] = {{"model", OPTION_TEXT, &out->model, 0, 0},
                               {"adapter", OPTION_TEXT, &out->adapter, 0, 0},
                               {"prompt", OPTION_TEXT, &out->text, 0, 0},
                               {"chat", OPTION_FLAG, &out->chat, 0, 0},
                               {"system", OPTION_TEXT, &out->system, 0, 0},
                               {"prompt-ids", OPTION_TEXT, &out->prompt_ids, 0, 0},
                               {"prompts", OPTION_PATH, &out->prompts, 0, 0},
                               {"prompt-tokens", OPTION_COUNT, &out->prompt_tokens, 1, most},
                               {"batch", OPTION_COUNT, &out->batch, 1, 1e6},
                               {"tokens", OPTION_COUNT, &out->tokens, 1, most},
                               {"ignore-eos", OPTION_FLAG, &out->ignore_eos, 0, 0},
                               {"dtype", OPTION_DTYPE, &out->dtype, 0, 0},
                               {"temperature", OPTION_NUMBER, &out->temperature, 0, 1000},
                               {"top-k", OPTION_COUNT, &out->top_k, 0, most},
                               {"top-p", OPTION_NUMBER, &out->top_p, 0, 1},
                               {"seed", OPTION_COUNT, &out->seed, 0, 9e18},
                               {"random-weights", OPTION_FLAG, &out->random_weights, 0, 0},
                               {"repeat", OPTION_COUNT, &out->repeat, 1, 1e6},
                               {"json", OPTION_FLAG, &out->json, 0, 0},
                               {NULL, OPTION_FLAG, NULL, 0, 0}};
    int code = command_line_parse("generate", help, rows, argc, argv, speaks);
    if (code >= 0) return code;
    out->keep_quantized = out->dtype == TSH_DTYPE_COUNT && !out->adapter;
    if (out->dtype == TSH_DTYPE_COUNT) out->dtype = TSH_FLOAT32;
    int prompts =
        (out->text != NULL) + out->chat + (out->prompt_ids != NULL) + (out->prompts != NULL) + (out->prompt_tokens > 0);
    bool batch = out->batch == 1 || out->prompt_tokens > 0;
    bool chat = out->chat ? out->repeat == 1 && !out->json : !out->system;
    if (out->model && prompts == 1 && batch && chat) return -1;
    if (speaks)
        fprintf(stderr, "generate: %s\n",
                !out->model    ? "--model DIR is missing"
                : prompts != 1 ? "one of --prompt, --chat, --prompt-ids, --prompts and --prompt-tokens is wanted"
                : !chat        ? "--chat excludes --repeat and --json, and --system wants --chat"
                               : "--batch wants --prompt-tokens; a file for --prompts has as many prompts as lines");
    return 2;
}
