/* tshard-trace: the command line. */
#include "tool.h"

#include "base/number.h"
#include "common/output.h"
#include "tshard/base.h"

#include <getopt.h>
#include <stdlib.h>

static const char help[] =
    "usage: tshard-trace FOLDER [--steps A-B] [--table | --json] [--out FILE] [--html FILE]\n"
    "\n"
    "Shows where the time of traced steps went.\n"
    "\n"
    "FOLDER is the one given to TSHARD_TRACE or tsh_trace_start. For each rank the table splits the time of a step\n"
    "into matrix products, other kernels, communication and waiting; it also names the rank that the others wait\n"
    "for, and what took longest.\n"
    "\n"
    "  --steps A-B  only steps A to B, counted from 1, or only --steps A (all; the table leaves out the first)\n"
    "  --table      the table as text (the default)\n"
    "  --json       the table as JSON\n"
    "  --out FILE   write the events of all ranks for Perfetto (https://ui.perfetto.dev) or chrome://tracing, and\n"
    "               print the table only with --table or --json\n"
    "  --html FILE  write a page that shows the events in any browser and needs no other files\n"
    "  --help, --version\n";

typedef struct command_line {
    const char *folder, *out, *html;
    int first_step, last_step; /* 0: all */
    bool table, json;
} command_line;

static int usage(const char *format, const char *word) {
    return output_usage_error("tshard-trace", help, format, word);
}

/* "11-20", or "11". */
static bool parse_steps(const char *text, command_line *c) {
    size_t first = strcspn(text, "-");
    int64_t from, to;
    if (!tshi_parse_part(text, first, 1, INT32_MAX, &from)) return false;
    to = from;
    if (text[first] && !tshi_parse_part(text + first + 1, strlen(text + first + 1), from, INT32_MAX, &to)) return false;
    c->first_step = (int)from;
    c->last_step = (int)to;
    return true;
}

/* -1 to go on, or the exit code. */
static int parse(int argc, char **argv, command_line *c) {
    static const struct option names[] = {
        {"table", no_argument, NULL, 't'},       {"json", no_argument, NULL, 'j'},
        {"steps", required_argument, NULL, 's'}, {"out", required_argument, NULL, 'o'},
        {"html", required_argument, NULL, 'm'},  {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'v'},     {NULL, 0, NULL, 0}};
    *c = (command_line){0};
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, ":h", names, NULL)) != -1;) {
        switch (option) {
        case 'h': fputs(help, stdout); return 0;
        case 'v': printf("tshard-trace %s\n", tsh_version()); return 0;
        case 't': c->table = true; break;
        case 'j': c->json = true; break;
        case 's':
            if (parse_steps(optarg, c)) break;
            return usage("--steps wants A-B, numbers from 1, not '%s'", optarg);
        case 'o': c->out = optarg; break;
        case 'm': c->html = optarg; break;
        case ':': return usage("%s wants a value", argv[optind - 1]);
        default: return usage("unknown option '%s'", argv[optind - 1]);
        }
    }
    if (optind == argc) return usage("%s", "the folder of a trace is missing");
    if (optind + 1 < argc) return usage("'%s' is one word too many", argv[optind + 1]);
    if (c->table && c->json) return usage("%s", "the table is either text or JSON");
    c->folder = argv[optind];
    if (!c->json && !c->out && !c->html) c->table = true;
    return -1;
}

static int write_file(const char *path, const traces *r, const table *t, bool page) {
    FILE *to = fopen(path, "we");
    errno = 0;
    if (to && page) write_html(r, t, to);
    if (to && !page) write_json(r, to);
    bool bad = !to || ferror(to);
    if (to && fclose(to) != 0) bad = true;
    if (bad) fprintf(stderr, "tshard-trace: %s: %s\n", path, strerror(errno ? errno : EIO));
    return bad ? 1 : 0;
}

/* What has been read lives as long as the program. */
static int run_tool(int argc, char **argv) {
    static traces r;
    static table t;
    command_line c;
    int code = parse(argc, argv, &c);
    if (code >= 0) return code;
    if (!run_read(c.folder, &r)) return 1;
    r.first_step = c.first_step;
    r.last_step = c.last_step;
    if (!run_match(&r)) return 1;
    if (!table_make(&r, &t)) {
        fprintf(stderr, "tshard-trace: %s: there is no memory\n", c.folder);
        return 1;
    }
    if (c.out) code = write_file(c.out, &r, &t, false);
    if (c.html && code <= 0) code = write_file(c.html, &r, &t, true);
    if (c.table) table_print(&r, &t, stdout);
    if (c.json) table_json(&r, &t, stdout);
    return code > 0 ? code : 0;
}

int main(int argc, char **argv) {
    output_begin();
    return output_end("tshard-trace", run_tool(argc, argv));
}
