/* tshard-checkpoint: the command line. */
#include "tool.h"

#include "base/number.h"
#include "common/output.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: tshard-checkpoint list FOLDER\n"
    "       tshard-checkpoint show CHECKPOINT\n"
    "       tshard-checkpoint verify CHECKPOINT\n"
    "       tshard-checkpoint merge CHECKPOINT FOLDER [--file-size BYTES] [--optimizer]\n"
    "       tshard-checkpoint split SOURCE FOLDER --files N [--step N]\n"
    "\n"
    "Lists, checks, merges and splits checkpoints.\n"
    "\n"
    "CHECKPOINT is the folder of a step, or a folder of steps, of which the newest complete one is taken.\n"
    "\n"
    "  list    lists the checkpoints in a folder, and says what is wrong with incomplete ones\n"
    "  show    prints the step, values and tensors of a checkpoint\n"
    "  verify  reads a whole checkpoint and compares its checksums; the exit code is 1 if one differs\n"
    "  merge   writes the parameters to a new folder in Hugging Face's format: model.safetensors, or several\n"
    "          files of whole tensors and model.safetensors.index.json\n"
    "  split   writes SOURCE, a checkpoint or a model in that format, to FOLDER/step-..., as N ranks would\n"
    "\n"
    "  --file-size BYTES  the most bytes of elements in a file, such as 500M or 5G (a single file)\n"
    "  --optimizer        also merge the optimizer's state tensors\n"
    "  --files N          number of files, 1 to 100000\n"
    "  --step N           step of the new checkpoint (that of a source checkpoint; 0 for a model)\n"
    "  --help, --version\n";

typedef struct command_line {
    int64_t file_bytes, step;
    int files;
    bool optimizer;
    const char *words[3];
    int count;
} command_line;

static int usage(const char *format, const char *word) {
    return output_usage_error("tshard-checkpoint", help, format, word);
}

/* -1 to go on, or the exit code. */
static int parse(int argc, char **argv, command_line *c) {
    static const struct option names[] = {{"file-size", required_argument, NULL, 'b'},
                                          {"optimizer", no_argument, NULL, 'o'},
                                          {"files", required_argument, NULL, 'n'},
                                          {"step", required_argument, NULL, 's'},
                                          {"help", no_argument, NULL, 'h'},
                                          {"version", no_argument, NULL, 'v'},
                                          {NULL, 0, NULL, 0}};
    *c = (command_line){.step = -1};
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, ":h", names, NULL)) != -1;) {
        switch (option) {
        case 'h': fputs(help, stdout); return 0;
        case 'v': printf("tshard-checkpoint %s\n", tsh_version()); return 0;
        case 'o': c->optimizer = true; break;
        case 'b':
            if (!tshi_parse_bytes(optarg, 1, INT64_MAX, &c->file_bytes)) {
                return usage("--file-size wants bytes, like 500M or 5G, not '%s'", optarg);
            }
            break;
        case 'n':
            if (!tshi_parse_int(optarg, 1, 100000, &c->files)) {
                return usage("--files wants a whole number from 1 to 100000, not '%s'", optarg);
            }
            break;
        case 's':
            if (!tshi_parse_int64(optarg, 0, INT64_MAX, &c->step)) {
                return usage("--step wants a whole number, not '%s'", optarg);
            }
            break;
        case ':': return usage("%s wants a value", argv[optind - 1]);
        default: return usage("unknown option '%s'", argv[optind - 1]);
        }
    }
    for (; optind < argc; optind++) {
        if (c->count == 3) return usage("'%s' is one word too many", argv[optind]);
        c->words[c->count++] = argv[optind];
    }
    return -1;
}

/* The command takes these options alone. */
static int check_options(const command_line *c, bool merges, bool splits) {
    if ((c->file_bytes || c->optimizer) && !merges)
        return usage("%s takes no --file-size and no --optimizer", c->words[0]);
    if ((c->files || c->step >= 0) && !splits) return usage("%s takes no --files and no --step", c->words[0]);
    if (splits && !c->files) return usage("%s wants --files N", c->words[0]);
    return -1;
}

static int run(int argc, char **argv) {
    command_line c;
    int code = parse(argc, argv, &c);
    if (code >= 0) return code;
    if (c.count == 0) return usage("%s", "a command is missing");
    bool merges = !strcmp(c.words[0], "merge"), splits = !strcmp(c.words[0], "split");
    bool lists = !strcmp(c.words[0], "list"), shows = !strcmp(c.words[0], "show");
    if (!merges && !splits && !lists && !shows && strcmp(c.words[0], "verify") != 0) {
        return usage("unknown command '%s'", c.words[0]);
    }
    if (c.count != (merges || splits ? 3 : 2)) {
        return usage(merges || splits ? "%s wants what to read and where to write" : "%s wants one path", c.words[0]);
    }
    code = check_options(&c, merges, splits);
    if (code >= 0) return code;
    if (merges) return tool_merge(c.words[1], c.words[2], c.file_bytes, c.optimizer);
    if (splits) return tool_split(c.words[1], c.words[2], c.files, c.step);
    return lists ? tool_list(c.words[1]) : shows ? tool_show(c.words[1]) : tool_verify(c.words[1]);
}

int main(int argc, char **argv) {
    output_begin();
    return output_end("tshard-checkpoint", run(argc, argv));
}
