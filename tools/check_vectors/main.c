/* check_vectors DIR [--ranks LIST] [--weights W:W...] [--device cpu|cuda]: every golden-vector file in DIR that this
 * version knows, and every folder there with a model, in float64, float32 and bfloat16, whole and split, on ranks that
 * it starts itself; redistributions on as many ranks as each names. A row's ranks are processes of their own, so that a
 * crash or a hang fails that row alone. */
#include "base/number.h"
#include "cases.h"
#include "common/output.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MOST_RANKS 64
/* The tolerance for what is left after several steps in bfloat16, whose roundings add up. */
#define STEPS_IN_BFLOAT16 4e-2
/* The tolerance for results in float64 of which parts were computed in float32. */
#define PARTLY_FLOAT32 5e-6

typedef struct precision {
    tsh_dtype dtype;
    double tolerance, model_tolerance;
} precision;

static const precision precisions[] = {
    {TSH_FLOAT64, 1e-10, 1e-9}, {TSH_FLOAT32, 1e-5, 2e-4}, {TSH_BFLOAT16, 2e-2, 1e-1}};

#define PRECISIONS (sizeof precisions / sizeof *precisions)

const cv_case cv_cases[] = {{"linear", cv_linear},
                            {"linear_uneven", cv_linear},
                            {"embedding", cv_embedding},
                            {"gelu_erf", cv_gelu_erf},
                            {"gelu_tanh", cv_gelu_tanh},
                            {"relu", cv_relu},
                            {"silu", cv_silu},
                            {"batched_matmul", cv_batched_matmul},
                            {"broadcast", cv_broadcast},
                            {"layer_norm", cv_layer_norm},
                            {"rms_norm", cv_rms_norm},
                            {"linear_cross_entropy_*", cv_linear_cross_entropy},
                            {"cross_entropy_mean_*", cv_cross_entropy_mean},
                            {"cross_entropy_sum_*", cv_cross_entropy_sum},
                            {"cross_entropy_none_*", cv_cross_entropy_none},
                            {"attention_positions", cv_attention_positions},
                            {"attention_permuted", cv_attention_permuted},
                            {"attention_*", cv_attention},
                            {"causal_attention", cv_causal_attention},
                            {"rotary_half", cv_rotary_half},
                            {"rotary_pairs", cv_rotary_pairs},
                            {"sgd", cv_sgd},
                            {"adamw", cv_adamw},
                            {"mlp_lm", cv_mlp_lm},
                            {"gated_mlp", cv_gated_mlp},
                            {"tiny_gpt", cv_tiny_gpt},
                            {"moe_router", cv_moe_router},
                            {"moe_layer", cv_moe_layer},
                            {NULL, NULL}};

/* --- one row ------------------------------------------------------------------------------------------------------ */

typedef struct row {
    const char *file;
    const char *folder; /* a model's, or NULL */
    double least;       /* the tolerance is at least this */
    bool steps;         /* it trains for several steps */
    const tshi_vectors *vectors;
    const cv_sharding *sharding;
    const precision *precision;
    int ranks;
    const char *weights; /* of the ranks, in their order, or NULL */
} row;

/* Appends "model=3:1": the weights of `count` ranks from rank `first` on, or their number. */
static void append_axis(char *axes, size_t size, const char *name, const char *weights, int first, int count) {
    tshi_append(axes, size, "%s=", name);
    if (!weights || count == 1) {
        tshi_append(axes, size, "%d", count);
        return;
    }
    for (; first > 0; first--) weights = strchr(weights, ':') + 1;
    for (int i = 0; i < count; i++, weights += strcspn(weights, ":") + 1)
        tshi_append(axes, size, "%s%.*s", i ? ":" : "", (int)strcspn(weights, ":"), weights);
}

static void rank_main(tshi_rank *r, void *arg) {
    const row *w = arg;
    char axes[2048] = "";
    int data = w->sharding->data ? w->sharding->data : r->size, model = r->size / data;
    cv_run run = {.rank = r, .vectors = w->vectors, .folder = w->folder, .dtype = w->precision->dtype};
    append_axis(axes, sizeof axes, "data", w->weights, 0, data);
    append_axis(axes, sizeof axes, ",model", w->weights, r->size - model, model);
    if (tshi_check_ok(r, tsh_mesh_create(r->world, axes, &run.mesh)) &&
        tshi_check_ok(r, tsh_tape_create(r->world, &run.tape))) {
        run.data = tsh_mesh_group(run.mesh, "data");
        run.model = tsh_mesh_group(run.mesh, "model");
        w->sharding->run(&run, w->sharding->variant);
    }
    tsh_tape_destroy(run.tape);
    for (int i = 0; i < run.tensor_count; i++) tsh_tensor_release(run.tensors[i]);
    *(double *)r->result = run.worst;
    if (!r->failed && run.mesh)
        tsh_barrier(tsh_world_group(r->world)); /* no rank leaves while its peers still compare */
    tsh_mesh_destroy(run.mesh);
}

static bool run_row(const row *w) {
    double worst[MOST_RANKS] = {0}, most = 0;
    tshi_test_options options = {.ranks = w->ranks,
                                 .timeout = 30,
                                 .heap_bytes = (size_t)64 << 20,
                                 .result_bytes = sizeof(double),
                                 .own_memory = true};
    row copy = *w;
    const char *words = tshi_test_run_with(&options, rank_main, &copy, NULL, worst);
    for (int i = 0; i < w->ranks; i++) most = fmax(most, worst[i]);
    double tolerance = w->folder ? fmax(w->precision->model_tolerance, w->least) : w->precision->tolerance;
    if (w->steps && w->precision->dtype == TSH_BFLOAT16) tolerance = STEPS_IN_BFLOAT16;
    bool passed = !words[0] && most <= tolerance;
    char error[16] = "-";
    if (!words[0]) snprintf(error, sizeof error, "%.1e", most);
    printf("%-26s %-28s %5d  %-8s %9s  %s%s%s\n", w->file, w->sharding->name, w->ranks,
           tsh_dtype_name(w->precision->dtype), error, passed ? "passed" : "FAILED", words[0] ? ": " : "", words);
    return passed;
}

/* --- one file ----------------------------------------------------------------------------------------------------- */

static const cv_case *find_case(const char *name) {
    for (const cv_case *c = cv_cases; c->name; c++) {
        size_t length = strlen(c->name);
        bool any = c->name[length - 1] == '*';
        if (any ? strncmp(name, c->name, length - 1) == 0 : strcmp(name, c->name) == 0) return c;
    }
    return NULL;
}

static void run_sharding(row *w, cv_totals *t) {
    const cv_sharding *s = w->sharding;
    if (s->needs && !tshi_vectors_find(w->vectors, s->needs)) return;
    if (s->data > 1 && w->ranks % s->data != 0) return;
    for (size_t p = 0; p < PRECISIONS; p++) {
        w->precision = &precisions[p];
        if (run_row(w)) {
            t->passed++;
        } else {
            t->failed++;
        }
    }
}

static void run_shardings(row *w, const cv_sharding *shardings, const int *ranks, cv_totals *t) {
    for (w->sharding = shardings; w->sharding->name; w->sharding++) {
        for (int i = 0; ranks[i]; i++) {
            w->ranks = ranks[i];
            run_sharding(w, t);
        }
    }
}

static void fail_case(const char *name, const char *words, cv_totals *t) {
    printf("%-26s %-28s %5s  %-8s %9s  FAILED: %s\n", name, "-", "-", "-", "-", words);
    t->failed++;
}

static bool is_file(const char *directory, const char *name, const char *inner) {
    char path[4096];
    struct stat info;
    snprintf(path, sizeof path, "%s/%s/%s", directory, name, inner);
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

static bool is_model(const char *directory, const char *name) {
    return is_file(directory, name, "config.json") && is_file(directory, name, "expected.safetensors");
}

static bool is_vectors(const char *name) {
    size_t length = strlen(name);
    return length > 4 && strcmp(name + length - 4, ".txt") == 0;
}

static const int usual[] = {1, 2, 3, 4, 0};

/* What the command line says. ranks: ended by 0, none where it names none. */
typedef struct options {
    const char *directory, *weights;
    int ranks[MOST_RANKS + 1];
} options;

static void run_model(const char *folder, const char *name, const options *o, cv_totals *t) {
    char error[512];
    tshi_vectors vectors;
    bool exact;
    if (!cv_model_vectors(folder, &vectors, &exact, error, sizeof error)) {
        fail_case(name, error, t);
        return;
    }
    row w = {.file = name,
             .folder = folder,
             .least = exact ? 0 : PARTLY_FLOAT32,
             .vectors = &vectors,
             .weights = o->weights};
    run_shardings(&w, cv_model, o->ranks[0] ? o->ranks : usual, t);
    tshi_vectors_free(&vectors);
}

static void run_file(const char *file, const options *o, cv_totals *t) {
    char path[4096], name[256], error[512];
    tshi_vectors vectors;
    snprintf(path, sizeof path, "%s/%s", o->directory, file);
    if (!is_vectors(file)) {
        run_model(path, file, o, t);
        return;
    }
    snprintf(name, sizeof name, "%.*s", (int)(strlen(file) - strlen(".txt")), file);
    if (!strncmp(name, "redistribute", strlen("redistribute"))) {
        cv_redistributions(path, name, o->ranks[0] ? o->ranks : NULL, t);
        return;
    }
    const cv_case *c = find_case(name);
    if (!c) {
        printf("%-26s %-28s %5s  %-8s %9s  skipped: a case that this version does not know\n", name, "-", "-", "-",
               "-");
        t->skipped++;
        return;
    }
    if (!tshi_vectors_read(path, &vectors, error, sizeof error)) {
        fail_case(name, error, t);
        return;
    }
    row w = {.file = name, .vectors = &vectors, .steps = c->shardings == cv_tiny_gpt, .weights = o->weights};
    run_shardings(&w, c->shardings, o->ranks[0] ? o->ranks : usual, t);
    tshi_vectors_free(&vectors);
}

/* --- the command line --------------------------------------------------------------------------------------------- */

static const char help[] =
    "usage: check_vectors DIR [--ranks LIST | --weights W:W...] [--device cpu|cuda]\n"
    "\n"
    "Computes every case in DIR's .txt files, and every model in a subfolder of DIR that has config.json,\n"
    "model.safetensors and expected.safetensors, with its layers split over each number of ranks in LIST\n"
    "(1,2,3,4), and compares the results with those in the files. The case of a redistribution has a number\n"
    "of ranks of its own, and runs unless --ranks omits that number. --weights 3:1 splits the layers over two\n"
    "ranks by these weights.\n"
    "\n"
    "transformers computes rotary positions and RMS norms in float32 in models of any dtype. For a model with\n"
    "these, errors of 5e-06 are allowed in float64, unless the metadata of expected.safetensors has\n"
    "\"computed\": \"float64\".\n";

static int usage_error(const char *format, const char *word) {
    return output_usage_error("check_vectors", help, format, word);
}

/* "1,2,4" into a list that ends with 0. */
static bool parse_ranks(const char *text, int ranks[MOST_RANKS + 1]) {
    for (int count = 0; count < MOST_RANKS; text++) {
        size_t length = strcspn(text, ",");
        int64_t value;
        if (!tshi_parse_part(text, length, 1, MOST_RANKS, &value)) return false;
        ranks[count++] = (int)value;
        ranks[count] = 0;
        text += length;
        if (!*text) return true;
    }
    return false;
}

/* "3:1": the number of ranks that it names. */
static bool parse_weights(const char *text, options *o) {
    int64_t value;
    o->weights = text;
    o->ranks[0] = o->ranks[1] = 0;
    while (o->ranks[0] < MOST_RANKS) {
        size_t length = strcspn(text, ":");
        if (!tshi_parse_part(text, length, 0, INT32_MAX, &value)) return false;
        o->ranks[0]++;
        text += length;
        if (!*text++) return o->ranks[0] > 1;
    }
    return false;
}

/* -1 to go on, or the exit code. */
static int parse(int argc, char **argv, options *o) {
    for (int i = 1; i < argc; i++) {
        bool takes = !strcmp(argv[i], "--ranks") || !strcmp(argv[i], "--weights") || !strcmp(argv[i], "--device");
        if (takes && i + 1 == argc) return usage_error("%s wants a value", argv[i]);
        if (strcmp(argv[i], "--ranks") == 0) {
            if (!parse_ranks(argv[++i], o->ranks))
                return usage_error("--ranks wants a list like 1,2,4, not '%s'", argv[i]);
        } else if (strcmp(argv[i], "--weights") == 0) {
            if (!parse_weights(argv[++i], o)) return usage_error("--weights wants weights like 3:1, not '%s'", argv[i]);
        } else if (strcmp(argv[i], "--device") == 0) {
            i++;
            if (strcmp(argv[i], "cpu") != 0 && strcmp(argv[i], "cuda") != 0) {
                return usage_error("--device wants cpu or cuda, not '%s'", argv[i]);
            }
            setenv("TSHARD_TEST_DEVICE", argv[i], 1); /* the ranks' */
        } else if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            return fputs(help, stdout) < 0;
        } else if (argv[i][0] == '-') {
            return usage_error("unknown option '%s'", argv[i]);
        } else if (o->directory) {
            return usage_error("one folder is wanted, and '%s' is another", argv[i]);
        } else {
            o->directory = argv[i];
        }
    }
    return o->directory ? -1 : usage_error("%s is missing", "DIR");
}

static void print_heading(void) {
    printf("error: |got - wanted| over the tensor's largest |wanted|; at most");
    for (size_t p = 0; p < PRECISIONS; p++) {
        printf("%s %g in %s", p ? "," : "", precisions[p].tolerance, tsh_dtype_name(precisions[p].dtype));
    }
    printf("\nmodels: at most");
    for (size_t p = 0; p < PRECISIONS; p++)
        printf("%s %g in %s", p ? "," : "", precisions[p].model_tolerance, tsh_dtype_name(precisions[p].dtype));
    printf("\n");
    printf("%-26s %-28s %5s  %-8s %9s\n", "case", "sharding", "ranks", "dtype", "error");
}

static int run(int argc, char **argv) {
    options o = {.directory = NULL};
    int code = parse(argc, argv, &o);
    if (code >= 0) return code;
    struct dirent **files;
    int count = scandir(o.directory, &files, NULL, alphasort), cases = 0;
    cv_totals t = {0};
    for (int i = 0; i < count; i++) {
        bool known = is_vectors(files[i]->d_name) || is_model(o.directory, files[i]->d_name);
        if (known && cases++ == 0) print_heading();
        if (known) run_file(files[i]->d_name, &o, &t);
        free(files[i]);
    }
    if (count >= 0) free(files);
    if (cases == 0) {
        const char *why = count < 0 ? strerror(errno) : "no .txt files here, and no folders of models";
        fprintf(stderr, "check_vectors: %s: %s\n", o.directory, why);
        return 2;
    }
    printf("%d passed, %d failed, %d skipped\n", t.passed, t.failed, t.skipped);
    if (t.failed) fprintf(stderr, "check_vectors: %d of %d rows failed\n", t.failed, t.passed + t.failed);
    return t.failed ? 1 : 0;
}

int main(int argc, char **argv) {
    output_begin();
    return output_end("check_vectors", run(argc, argv));
}
