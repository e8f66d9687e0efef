/* The command line. */
#include "base/cpu.h"
#include "base/number.h"
#include "base/settings.h"
#include "dist/registry.h"
#include "run.h"
#include "tshard/base.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: tshard-run -n N [options] PROGRAM [ARGS...]\n"
    "\n"
    "Starts N ranks of PROGRAM on this machine, forwards their output, and exits when they have exited. A job on\n"
    "several machines starts it on each of them, with the same options.\n"
    "\n"
    "  -n, --ranks N           number of ranks on this machine, 1 to 1024 (also -np, --nproc-per-node; auto: one per\n"
    "                          core)\n"
    "      --bind cores|numa|none|LIST\n"
    "                          pin each rank to its share of the allowed cores, to all cores of its memory node, or\n"
    "                          to its set in LIST, such as 0-3:4-7 for two ranks; a single set is divided among the\n"
    "                          ranks (default: cores if there are at least as many cores as ranks, otherwise none)\n"
    "      --report-bindings   print the cores of each rank to stderr\n"
    "      --grace SECONDS     time between asking ranks to end (TERM) and killing them (default: 3)\n"
    "      --no-prefix         forward output without \"[rank] \" before each line\n"
    "      --log-dir DIR       also write each rank's output to DIR/attempt_0/node_0/rank_0/stdout.log and stderr.log\n"
    "  -r, --redirects 0|1|2|3\n"
    "                          1: write stdout only to its file; 2: stderr; 3: both\n"
    "      --max-restarts N    start all ranks of the job again when one fails, at most N times (default: 0). Give it\n"
    "                          on all machines; they then wait for each other before any rank starts\n"
    "      --min-ranks N       keep the job running when a rank fails, as long as N ranks are alive: for programs\n"
    "                          that call tsh_world_continue (default: the job ends)\n"
    "      --join HOST:PORT    start ranks that join a running job whose program calls tsh_world_joiners; HOST and\n"
    "                          PORT are its MASTER_ADDR and MASTER_PORT, and TSHARD_TOKEN must be that of the job\n"
    "      --monitor-interval SECONDS\n"
    "                          accepted for compatibility with torchrun, and ignored: failures are noticed at once\n"
    "      --plan N            start no ranks; run tshard-plan -n N, which prints what a run of PROGRAM would take,\n"
    "                          with its options --json, --machine, --search and --memory-limit\n"
    "  -h, --help              this text\n"
    "  -V, --version           version\n"
    "      --settings          print a table of tshard's environment variables\n"
    "\n"
    "Several machines (nodes):\n"
    "      --nnodes N          number of nodes\n"
    "      --node-rank K       number of this node, from 0 (default: SLURM_NODEID)\n"
    "      --nodes A,B,...     names or addresses of the nodes; each node finds itself in the list, and the first is\n"
    "                          the master\n"
    "      --hostfile FILE     the same, one node per line; \"slots=N\" after a name sets the ranks of that node\n"
    "      --master-addr HOST  MASTER_ADDR (default: the first node, or 127.0.0.1)\n"
    "      --master-port PORT  MASTER_PORT, 1 to 65535 (default: 29500, on a single node any free port; also --port)\n"
    "      --rdzv-endpoint HOST[:PORT]\n"
    "                          both in one; on a single node port 0 means any free port\n"
    "      --rdzv-id ID        the job's name, the same on all nodes\n"
    "      --standalone        a single node and any free port\n"
    "Options may also be spelled with underscores, as torchrun allows; torchrun's --rdzv-backend, --rdzv-conf,\n"
    "--local-addr and --start-method are accepted and ignored. Nodes share no secret unless you set one: give all of\n"
    "them the same TSHARD_TOKEN. Between nodes NCCL moves data between GPUs, and UCX between CPUs.\n"
    "\n"
    "Each rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT and the\n"
    "other variables that torchrun sets, TSHARD_TOKEN, the job's random secret, and TSHARD_RESTART, the number of\n"
    "restarts so far. With several ranks OMP_NUM_THREADS and TSHARD_BLAS_THREADS are set to each rank's share of the\n"
    "cores, unless they are set already.\n"
    "Rank 0 reads stdin, all other ranks /dev/null. Output is forwarded in whole lines of up to 1 MiB.\n"
    "\n"
    "INT, TERM, HUP and QUIT go to all ranks. Ranks that are still running after the grace period are killed; a\n"
    "second signal kills them at once. USR1 and USR2 go to all ranks that handle them, and end no rank. When a rank\n"
    "fails, the others have one second to notice, then get TERM, then KILL. A signal that is ignored when tshard-run\n"
    "starts, as under nohup, stays ignored. While a job ends, output is dropped if its reader blocks for a second.\n"
    "\n"
    "Exit code: 0 if all ranks exit with 0 (with --min-ranks N: at least N ranks, and all that were not lost);\n"
    "otherwise that of the rank that failed first, or 128 + the signal that killed it (the last line names the rank);\n"
    "128 + the signal if tshard-run was told to stop and a rank did not exit with 0; 1 if all exit with 0 but some of\n"
    "their output could not be written; 127 if PROGRAM is not found, 126 if it cannot be run; 2 for a usage error.\n";

static int usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int usage_error(const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    run_say("%s (tshard-run --help says more)", text);
    return RUN_USAGE_EXIT;
}

static bool parse_bind(const char *text, run_options *out) {
    const struct {
        const char *name;
        run_bind bind;
    } names[] = {
        {"cores", RUN_BIND_CORES}, {"core", RUN_BIND_CORES}, {"numa", RUN_BIND_NODES}, {"none", RUN_BIND_NONE}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        out->bind = names[i].bind;
        if (strcmp(text, names[i].name) == 0) return true;
    }
    out->bind = RUN_BIND_LIST;
    out->bind_list = text;
    return run_cores_sets(text) > 0;
}

enum {
    OPTION_BIND = 256,
    OPTION_REPORT,
    OPTION_GRACE,
    OPTION_NO_PREFIX,
    OPTION_PORT,
    OPTION_NNODES,
    OPTION_NODE_RANK,
    OPTION_NODES,
    OPTION_HOSTFILE,
    OPTION_ADDRESS,
    OPTION_ENDPOINT,
    OPTION_RUN_ID,
    OPTION_BACKEND,
    OPTION_STANDALONE,
    OPTION_LOG_DIR,
    OPTION_RESTARTS,
    OPTION_MIN_RANKS,
    OPTION_JOIN,
    OPTION_INTERVAL,
    OPTION_SETTINGS,
    OPTION_PLAN,
    OPTION_OF_PLAN
};

static const struct option long_options[] = {{"plan", required_argument, NULL, OPTION_PLAN},
                                             {"json", no_argument, NULL, OPTION_OF_PLAN},
                                             {"machine", required_argument, NULL, OPTION_OF_PLAN},
                                             {"search", required_argument, NULL, OPTION_OF_PLAN},
                                             {"memory-limit", required_argument, NULL, OPTION_OF_PLAN},
                                             {"ranks", required_argument, NULL, 'n'},
                                             {"nproc-per-node", required_argument, NULL, 'n'},
                                             {"nproc_per_node", required_argument, NULL, 'n'},
                                             {"bind", required_argument, NULL, OPTION_BIND},
                                             {"report-bindings", no_argument, NULL, OPTION_REPORT},
                                             {"grace", required_argument, NULL, OPTION_GRACE},
                                             {"no-prefix", no_argument, NULL, OPTION_NO_PREFIX},
                                             {"nnodes", required_argument, NULL, OPTION_NNODES},
                                             {"node-rank", required_argument, NULL, OPTION_NODE_RANK},
                                             {"node_rank", required_argument, NULL, OPTION_NODE_RANK},
                                             {"nodes", required_argument, NULL, OPTION_NODES},
                                             {"hostfile", required_argument, NULL, OPTION_HOSTFILE},
                                             {"master-addr", required_argument, NULL, OPTION_ADDRESS},
                                             {"master_addr", required_argument, NULL, OPTION_ADDRESS},
                                             {"master-port", required_argument, NULL, OPTION_PORT},
                                             {"master_port", required_argument, NULL, OPTION_PORT},
                                             {"port", required_argument, NULL, OPTION_PORT},
                                             {"rdzv-endpoint", required_argument, NULL, OPTION_ENDPOINT},
                                             {"rdzv_endpoint", required_argument, NULL, OPTION_ENDPOINT},
                                             {"rdzv-id", required_argument, NULL, OPTION_RUN_ID},
                                             {"rdzv_id", required_argument, NULL, OPTION_RUN_ID},
                                             {"rdzv-backend", required_argument, NULL, OPTION_BACKEND},
                                             {"rdzv_backend", required_argument, NULL, OPTION_BACKEND},
                                             {"rdzv-conf", required_argument, NULL, OPTION_BACKEND},
                                             {"rdzv_conf", required_argument, NULL, OPTION_BACKEND},
                                             {"local-addr", required_argument, NULL, OPTION_BACKEND},
                                             {"local_addr", required_argument, NULL, OPTION_BACKEND},
                                             {"start-method", required_argument, NULL, OPTION_BACKEND},
                                             {"start_method", required_argument, NULL, OPTION_BACKEND},
                                             {"standalone", no_argument, NULL, OPTION_STANDALONE},
                                             {"log-dir", required_argument, NULL, OPTION_LOG_DIR},
                                             {"log_dir", required_argument, NULL, OPTION_LOG_DIR},
                                             {"redirects", required_argument, NULL, 'r'},
                                             {"max-restarts", required_argument, NULL, OPTION_RESTARTS},
                                             {"max_restarts", required_argument, NULL, OPTION_RESTARTS},
                                             {"min-ranks", required_argument, NULL, OPTION_MIN_RANKS},
                                             {"join", required_argument, NULL, OPTION_JOIN},
                                             {"monitor-interval", required_argument, NULL, OPTION_INTERVAL},
                                             {"monitor_interval", required_argument, NULL, OPTION_INTERVAL},
                                             {"settings", no_argument, NULL, OPTION_SETTINGS},
                                             {"help", no_argument, NULL, 'h'},
                                             {"version", no_argument, NULL, 'V'},
                                             {NULL, 0, NULL, 0}};

/* --- several nodes ------------------------------------------------------------------------------------------------ */

/* "2", and torchrun's "2:2"; the number of nodes does not change while a job runs. */
static int take_nnodes(run_options *out) {
    char text[64], *colon;
    snprintf(text, sizeof text, "%s", optarg);
    colon = strchr(text, ':');
    if (colon) *colon++ = '\0';
    if (tshi_parse_int(text, 1, RUN_MAX_NODES, &out->nnodes) && (!colon || !strcmp(text, colon))) return -1;
    return usage_error("--nnodes wants a number of nodes from 1 to %d, not '%s'", RUN_MAX_NODES, optarg);
}

static int take_endpoint(run_options *out) {
    char text[512];
    snprintf(text, sizeof text, "%s", optarg);
    if (run_endpoint_split(optarg, &out->master_addr, &out->port)) return -1;
    return usage_error("--rdzv-endpoint wants HOST, HOST:PORT or [IPV6]:PORT, not '%s'", text);
}

static int take_join(run_options *out) {
    char text[512];
    const char *host;
    int port = 0;
    snprintf(text, sizeof text, "%s", optarg);
    out->join = optarg;
    if (run_endpoint_split(text, &host, &port) && port > 0) return -1;
    return usage_error("--join wants HOST:PORT or [IPV6]:PORT, not '%s'", optarg);
}

static int take_hostfile(run_options *out) {
    int line = run_nodes_from_file(out, optarg);
    if (line == 0) return -1;
    if (line < 0) return usage_error("--hostfile %s: %s", optarg, strerror(errno));
    return usage_error("--hostfile %s, line %d: a name, and perhaps slots=N, 1 to %d, is wanted", optarg, line,
                       RUN_MAX_RANKS);
}

/* Which node this is, when it has not been said. */
static int find_node_rank(run_options *o) {
    const char *slurm = tshi_variable("SLURM_NODEID");
    int others;
    if (o->nodes_listed) {
        o->node_rank = run_nodes_find_self(o, &others);
        if (o->node_rank < 0) return usage_error("none of the %d nodes is this machine", o->nodes_listed);
        if (others == 0) return -1;
        return usage_error("%d of the nodes are this machine: --node-rank has to say which this is", others + 1);
    }
    if (o->nnodes == 1) {
        o->node_rank = 0;
    } else if (!slurm || !tshi_parse_int(slurm, 0, RUN_MAX_NODES, &o->node_rank)) {
        return usage_error("--node-rank is missing: which of the %d nodes this is", o->nnodes);
    }
    return -1;
}

static int choose_node(run_options *o) {
    if (o->nodes_listed && o->nnodes && o->nnodes != o->nodes_listed) {
        return usage_error("--nnodes says %d, but %d nodes are listed", o->nnodes, o->nodes_listed);
    }
    if (o->nodes_listed) o->nnodes = o->nodes_listed;
    if (o->nnodes == 0) o->nnodes = 1;
    int code = o->node_rank < 0 ? find_node_rank(o) : -1;
    if (code >= 0) return code;
    if (o->node_rank >= o->nnodes) return usage_error("--node-rank is %d, of %d nodes", o->node_rank, o->nnodes);
    if (o->nodes_listed && !o->master_addr) o->master_addr = o->nodes[0].name;
    if (o->nnodes > 1 && !o->master_addr) {
        return usage_error("--master-addr is missing: where rank 0 is to be found, on node 0");
    }
    bool counted = o->nodes_listed > 0;
    for (int i = 0; i < o->nodes_listed; i++) counted = counted && o->nodes[i].slots > 0;
    if (!counted && o->ranks == 0) return usage_error("-n N, the number of ranks, is missing");
    run_nodes_count(o);
    return -1;
}

static int take_node_option(int option, run_options *out) {
    switch (option) {
    case OPTION_NNODES: return take_nnodes(out);
    case OPTION_NODE_RANK:
        if (tshi_parse_int(optarg, 0, RUN_MAX_NODES - 1, &out->node_rank)) return -1;
        return usage_error("--node-rank wants a number from 0, not '%s'", optarg);
    case OPTION_NODES:
        if (run_nodes_from_list(out, optarg)) return -1;
        return usage_error("--nodes wants names with commas between them, not '%s'", optarg);
    case OPTION_HOSTFILE: return take_hostfile(out);
    case OPTION_ADDRESS: out->master_addr = optarg; return -1;
    case OPTION_ENDPOINT: return take_endpoint(out);
    case OPTION_RUN_ID: out->run_id = optarg; return -1;
    case OPTION_PORT:
        if (tshi_parse_int(optarg, 1, 65535, &out->port)) return -1;
        return usage_error("--master-port wants a port from 1 to 65535, not '%s'", optarg);
    case OPTION_STANDALONE: out->nnodes = 1; return -1;
    default: return -1; /* what is torchrun's affair: its backend, its store, how it starts Python's processes */
    }
}

/* --- all options -------------------------------------------------------------------------------------------------- */

static int take_ranks(run_options *out) {
    if (!strcmp(optarg, "auto") || !strcmp(optarg, "cpu")) {
        out->ranks = tshi_granted_cores(NULL, 0);
        return -1;
    }
    if (tshi_parse_int(optarg, 1, RUN_MAX_RANKS, &out->ranks)) return -1;
    return usage_error("-n wants a number of ranks from 1 to %d, not '%s'", RUN_MAX_RANKS, optarg);
}

/* The table of docs/environment.md. */
static int print_settings(void) {
    char row[1024];
    puts("| variable | value | default | meaning |\n|---|---|---|---|");
    for (int i = 0; i < TSHI_SETTING_COUNT; i++) {
        tshi_setting_describe((tshi_setting_id)i, i == TSHI_SETTING_BACKEND ? tshi_backend_names() : NULL, row,
                              sizeof row);
        puts(row);
    }
    return run_flush_stdout();
}

/* One option; -1 to go on, or the exit code. `word` is how the user wrote it. */
static int take_option(int option, const char *word, run_options *out) {
    double ignored;
    if (optarg && !*optarg) return usage_error("%s wants a value that is not empty", word);
    switch (option) {
    case 'n': return take_ranks(out);
    case 'r':
        if (tshi_parse_int(optarg, 0, 3, &out->redirects)) return -1;
        return usage_error("--redirects wants 0, 1, 2 or 3, not '%s'", optarg);
    case OPTION_BIND:
        if (parse_bind(optarg, out)) return -1;
        return usage_error("--bind wants cores, numa, none or a list like 0-3:4-7, not '%s'", optarg);
    case OPTION_REPORT: out->report_bindings = true; return -1;
    case OPTION_GRACE:
        if (tshi_parse_real(optarg, 0, 1e6, &out->grace)) return -1;
        return usage_error("--grace wants seconds, 0 or more, not '%s'", optarg);
    case OPTION_LOG_DIR:
        out->log_dir = optarg;
        if (strlen(optarg) < RUN_LONGEST_LOG_DIR) return -1;
        return usage_error("--log-dir wants a path of fewer than %d characters", RUN_LONGEST_LOG_DIR);
    case OPTION_RESTARTS:
        if (tshi_parse_int(optarg, 0, 1000000, &out->max_restarts)) return -1;
        return usage_error("--max-restarts wants a number from 0, not '%s'", optarg);
    case OPTION_MIN_RANKS:
        if (tshi_parse_int(optarg, 1, RUN_MAX_RANKS * RUN_MAX_NODES, &out->min_ranks)) return -1;
        return usage_error("--min-ranks wants a number from 1, not '%s'", optarg);
    case OPTION_JOIN: return take_join(out);
    case OPTION_INTERVAL:
        if (tshi_parse_real(optarg, 0, 1e6, &ignored)) return -1;
        return usage_error("--monitor-interval wants seconds, not '%s'", optarg);
    case OPTION_NO_PREFIX: out->prefix = false; return -1;
    case 'h': fputs(help, stdout); return run_flush_stdout();
    case 'V': printf("tshard-run %s\n", tsh_version()); return run_flush_stdout();
    case OPTION_SETTINGS: return print_settings();
    case OPTION_PLAN: out->planned = true; return -1;
    case OPTION_OF_PLAN: return -1;
    case ':': return usage_error("%s wants a value", word);
    case '?': return usage_error("unknown option '%s'", word);
    default: return take_node_option(option, out);
    }
}

/* The command line of tshard-plan: its options are there already. */
static void take_plan_command(run_options *o, int words) {
    char **to = o->plan;
    *to++ = "tshard-plan";
    to += o->plan_words;
    *to++ = "--";
    for (int i = 0; i < words; i++) *to++ = o->command[i];
}

int run_options_parse(int argc, char **argv, run_options *options) {
    *options = (run_options){.grace = 3.0, .prefix = true, .node_rank = -1};
    options->plan = calloc((size_t)argc + 3, sizeof *options->plan);
    if (!options->plan) return usage_error("no memory");
    opterr = 0;
    for (;;) {
        int word = optind ? optind : 1;
        const char *instead = word < argc ? run_foreign_option(argv[word]) : NULL;
        if (instead) return usage_error("'%s' is an option of another launcher: %s", argv[word], instead);
        if (word < argc && strcmp(argv[word], "-np") == 0) argv[word] = "-n"; /* as mpirun has it */
        int option = getopt_long(argc, argv, "+:n:r:hV", long_options, NULL);
        if (option == -1) break;
        int code = take_option(option, word < argc ? argv[word] : "", options);
        if (code >= 0) return code;
        if (option != OPTION_PLAN && option != OPTION_OF_PLAN) continue;
        for (int i = word; i < optind; i++) options->plan[1 + options->plan_words++] = argv[i];
    }
    if (options->redirects && !options->log_dir) return usage_error("--redirects needs --log-dir, where the files go");
    if (options->plan_words && !options->planned) return usage_error("%s needs --plan", options->plan[1]);
    if (options->planned && (options->ranks || options->nnodes || options->nodes_listed)) {
        return usage_error("--plan has the number of ranks of all machines: -n and nodes do not go with it");
    }
    if (options->join && (options->nnodes > 1 || options->nodes_listed || options->max_restarts || options->planned))
        return usage_error("--join excludes several nodes, --max-restarts and --plan");
    int code = options->planned ? -1 : choose_node(options);
    if (code >= 0) return code;
    int sets = options->bind == RUN_BIND_LIST ? run_cores_sets(options->bind_list) : 1;
    if (sets != 1 && sets != options->ranks) {
        return usage_error("--bind %s has %d sets, for %d ranks", options->bind_list, sets, options->ranks);
    }
    if (optind >= argc) return usage_error("the PROGRAM to run is missing");
    options->command = argv + optind;
    if (options->planned) take_plan_command(options, argc - optind);
    return -1;
}
