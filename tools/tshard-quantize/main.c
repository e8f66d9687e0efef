/* tshard-quantize: the command line. */
#include "tool.h"

#include "common/output.h"

#include <getopt.h>

static const char help[] =
    "usage: tshard-quantize FOLDER FILE --type q8_0|q4_0\n"
    "\n"
    "Writes a Llama or Qwen2 model from a Hugging Face folder to a GGUF file, with quantized weights.\n"
    "\n"
    "Matrices are quantized in groups of 32 weights of a row. q8_0 takes 8.5 bits per weight; q4_0 takes 4.5, and\n"
    "8.5 in the output layer. A matrix whose rows are not whole groups becomes float16, and vectors become float32.\n"
    "The folder's tokenizer.json and its chat template are stored whole in the file.\n"
    "\n"
    "  --type q8_0|q4_0   the type of the quantized weights\n"
    "  --help, --version\n";

static int usage(const char *format, const char *word) {
    return output_usage_error("tshard-quantize", help, format, word);
}

typedef struct command_line {
    tshi_quant quant; /* TSHI_QUANTS: not said */
    const char *words[2];
    int count;
} command_line;

/* -1 to go on, or the exit code. */
static int parse(int argc, char **argv, command_line *c) {
    static const struct option names[] = {{"type", required_argument, NULL, 't'},
                                          {"help", no_argument, NULL, 'h'},
                                          {"version", no_argument, NULL, 'v'},
                                          {NULL, 0, NULL, 0}};
    *c = (command_line){.quant = TSHI_QUANTS};
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, ":h", names, NULL)) != -1;) {
        switch (option) {
        case 'h': fputs(help, stdout); return 0;
        case 'v': printf("tshard-quantize %s\n", tsh_version()); return 0;
        case 't':
            if (strcmp(optarg, "q8_0") == 0)
                c->quant = TSHI_Q8_0;
            else if (strcmp(optarg, "q4_0") == 0)
                c->quant = TSHI_Q4_0;
            else
                return usage("--type wants q8_0 or q4_0, not '%s'", optarg);
            break;
        case ':': return usage("%s wants a value", argv[optind - 1]);
        default: return usage("unknown option '%s'", argv[optind - 1]);
        }
    }
    for (; optind < argc; optind++) {
        if (c->count == 2) return usage("'%s' is one word too many", argv[optind]);
        c->words[c->count++] = argv[optind];
    }
    if (c->count < 2) return usage("%s", c->count ? "the FILE to write is missing" : "the FOLDER to read is missing");
    return c->quant == TSHI_QUANTS ? usage("%s", "--type is missing") : -1;
}

int main(int argc, char **argv) {
    command_line c;
    int quantized = 0, plain = 0;
    output_begin();
    int code = parse(argc, argv, &c);
    if (code >= 0) return output_end("tshard-quantize", code);
    if (write_model(c.words[0], c.words[1], c.quant, &quantized, &plain) != TSH_OK) {
        fprintf(stderr, "tshard-quantize: %s\n", tsh_error_message());
        return output_end("tshard-quantize", 1);
    }
    printf("%s: %d matrices are quantized", c.words[1], quantized);
    if (plain) printf(", %d are float16, because their rows are not whole groups of 32", plain);
    printf("\n");
    return output_end("tshard-quantize", 0);
}
