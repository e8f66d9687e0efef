#include "base/settings.h"
#include "base/number.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MAX_SECONDS 31536000

extern char **environ;

const tshi_setting tshi_settings_table[TSHI_SETTING_COUNT] = {
    [TSHI_SETTING_TIMEOUT] = {"TSHARD_TIMEOUT", TSHI_SECONDS, .high = MAX_SECONDS, .initial = "600",
                              .text = "how long a call waits for other ranks; a rendezvous waits at most 120 s"},
    [TSHI_SETTING_WARN] =
        {"TSHARD_WARN", TSHI_SECONDS, .high = MAX_SECONDS, .initial = "5",
         .text =
             "how long a wait lasts before it logs a warning that names the missing ranks, and between two warnings"},
    [TSHI_SETTING_DEVICE] = {"TSHARD_DEVICE", TSHI_CHOICE, .choices = {"cpu", "cuda"}, .initial = "cpu",
                             .text = "where tensors live"},
    [TSHI_SETTING_HEAP] = {"TSHARD_HEAP", TSHI_BYTES, .low = 1, .high = INT64_MAX, .computed = "the machine's memory",
                           .text =
                               "address space for the tensors of a rank; pages are allocated when they are first used"},
    [TSHI_SETTING_BLAS_THREADS] = {"TSHARD_BLAS_THREADS", TSHI_NUMBER, .low = 1, .high = 4096,
                                   .computed = "cores granted / ranks on this machine",
                                   .text = "threads of a rank, for matrix products and for kernels on large tensors"},
    [TSHI_SETTING_CPU_ISA] = {"TSHARD_CPU_ISA", TSHI_CHOICE,
                              .choices = {"base", "avx2", "avx512", "avx512vnni", "avx512bf16", "bf16"},
                              .computed = "the last of these that the CPU has",
                              .text = "the vector instructions of the CPU's kernels; matrix products of libraries "
                                      "choose their own"},
    [TSHI_SETTING_PRODUCTS] = {"TSHARD_PRODUCTS", TSHI_CHOICE, .choices = {"onednn", "blas"},
                               .computed = "by the CPU and the sizes of a product",
                               .text = "the library of float32 matrix products"},
    [TSHI_SETTING_SEED] = {"TSHARD_SEED", TSHI_NUMBER, .high = UINT64_MAX, .initial = "0",
                           .text = "the seed of all random numbers"},
    [TSHI_SETTING_INIT] =
        {"TSHARD_INIT", TSHI_TEXT, .initial = "env://",
         .text = "how the ranks find each other: `env://`, `tcp://HOST:PORT`, `file:///PATH` or `mpi://`"},
    [TSHI_SETTING_GROUP] = {"TSHARD_GROUP", TSHI_TEXT, .computed = "none",
                            .text = "the job's name: jobs with different names may share an address or a file"},
    [TSHI_SETTING_TOKEN] =
        {"TSHARD_TOKEN", TSHI_TEXT, .computed = "`tshard-run` draws one",
         .text = "the job's secret, at most 255 characters: connections without it are refused. Use at least 16 random "
                 "characters (`openssl rand -hex 16`), because an eavesdropper can test guesses offline"},
    [TSHI_SETTING_RESTART] =
        {"TSHARD_RESTART", TSHI_NUMBER, .high = 1000000, .initial = "0",
         .text = "how often the job's ranks have been started again; `tshard-run` sets it. Ranks that have different "
                 "numbers never join"},
    [TSHI_SETTING_MIN_RANKS] =
        {"TSHARD_MIN_RANKS", TSHI_NUMBER, .low = 1, .high = 1048576, .initial = "1",
         .text =
             "with fewer ranks `tsh_world_continue` fails ([elastic.md](elastic.md)); `tshard-run --min-ranks` sets "
             "it"},
    [TSHI_SETTING_JOIN] = {"TSHARD_JOIN", TSHI_TEXT, .computed = "none",
                           .text = "`HOST:PORT` of a running job, which this rank joins ([elastic.md](elastic.md)); "
                                   "`tshard-run --join` sets it"},
    [TSHI_SETTING_SILENCE] =
        {"TSHARD_SILENCE", TSHI_SECONDS, .high = MAX_SECONDS,
         .computed = "`TSHARD_TIMEOUT`; 5 with `tshard-run --min-ranks`",
         .text = "how long a machine may give no sign of life before its ranks are lost: at least 5 s, but in "
                 "`tsh_world_continue` at most 5 s ([elastic.md](elastic.md))"},
    [TSHI_SETTING_BACKEND] =
        {"TSHARD_BACKEND", TSHI_TEXT,
         .computed = "by the launcher's variables; "
                     "`nccl` if every rank has its own GPU",
         .text = "the backend, if several are possible. `plan`: a dry run as rank RANK of WORLD_SIZE, which counts "
                 "work and bytes, but computes and sends nothing ([planning.md](planning.md))"},
    [TSHI_SETTING_CHECK] =
        {"TSHARD_CHECK", TSHI_CHOICE, .choices = {"0", "1", "nan"}, .initial = "0",
         .text = "1: slower runs that find mistakes: ranks of the `nccl` backend compare every call first; handles of "
                 "tensors are not reused; optimizers compare what must be equal on all ranks "
                 "([failures.md](failures.md#mistakes-that-are-caught)). nan: also, a function fails when its "
                 "result, or its gradient in backward, has a NaN"},
    [TSHI_SETTING_LOG] =
        {"TSHARD_LOG", TSHI_CHOICE, .choices = {"error", "warning", "info", "debug"},
         .computed = "`warning`; with a log sink all lines",
         .text = "the lowest level of the log lines that a rank prints to stderr, or passes to the program's log sink"},
    [TSHI_SETTING_SIGUSR1] = {"TSHARD_SIGUSR1", TSHI_SWITCH, .initial = "1",
                              .text = "SIGUSR1 prints a rank's last calls, unless the program has set a handler before "
                                      "it creates its world; 0: tshard sets no handler"},
    [TSHI_SETTING_PLAN] =
        {"TSHARD_PLAN", TSHI_SWITCH, .initial = "0",
         .text = "1: logs every transition with the function that needs it, the layouts before and after, the "
                 "collective and the bytes that the rank sends; without a log sink, to stderr"},
    [TSHI_SETTING_RECORD] = {"TSHARD_RECORD", TSHI_TEXT, .computed = "none",
                             .text = "a file name: rank R writes its counters (memory, collectives, in a dry run also "
                                     "kernels) to NAME.R when its world is destroyed; fd:N is an open file"},
    [TSHI_SETTING_TRACE] = {"TSHARD_TRACE", TSHI_TEXT, .computed = "none",
                            .text = "a folder: rank R writes a trace to FOLDER/rank.R, for `tshard-trace` "
                                    "([tracing.md](tracing.md)); on all ranks or on none"},
    [TSHI_SETTING_DETERMINISTIC] =
        {"TSHARD_DETERMINISTIC", TSHI_SWITCH, .initial = "0",
         .text = "1: losses and gradients have the same bits at any number of ranks, because each rank computes with "
                 "whole tensors; matrix products use one thread unless TSHARD_BLAS_THREADS is set"},
    [TSHI_SETTING_TF32] = {"TSHARD_TF32", TSHI_SWITCH, .initial = "0",
                           .text = "1: float32 matrix products on a GPU's tensor cores, with 10 bits of mantissa"},
    [TSHI_SETTING_CUDNN] = {"TSHARD_CUDNN", TSHI_SWITCH, .initial = "1",
                            .text = "1: 16-bit attention on a GPU uses cuDNN if it is installed and supports the call; "
                                    "the last bits of gradients may then differ from run to run, except where ranks "
                                    "compute the same and in a deterministic world. 0: tshard's own kernels"},
    [TSHI_SETTING_CUDA_IPC] = {"TSHARD_CUDA_IPC", TSHI_SWITCH, .initial = "1",
                               .text = "0: `local` copies a GPU's tensors through host memory"},
    [TSHI_SETTING_CUDA_CACHE] = {"TSHARD_CUDA_CACHE", TSHI_SWITCH, .initial = "1",
                                 .text = "0: each tensor is a separate allocation, so that a memory checker such as "
                                         "compute-sanitizer finds accesses past its end; slow, for debugging"},
    [TSHI_SETTING_CUDA_MANAGED] =
        {"TSHARD_CUDA_MANAGED", TSHI_SWITCH, .initial = "0",
         .text = "1: GPU memory that the host may read, and a wait after every kernel; for debugging"},
};

/* --- values ------------------------------------------------------------------------------------------------------- */

const char *tshi_variable(const char *name) {
    const char *value = name ? getenv(name) : NULL;
    return value && value[0] ? value : NULL;
}

const char *tshi_setting_value(tshi_setting_id id) {
    return tshi_variable(tshi_settings_table[id].name);
}

static const char *value_or_default(const tshi_setting *s) {
    const char *value = tshi_variable(s->name);
    return value ? value : s->initial;
}

bool tshi_parse_switch(const char *text, bool *out) {
    static const char *const words[] = {"0", "1", "off", "on", "no", "yes", "false", "true"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcasecmp(text, words[i]) != 0) continue;
        *out = i % 2 == 1;
        return true;
    }
    return false;
}

tsh_status tshi_setting_switch(tshi_setting_id id, bool *out) {
    const tshi_setting *s = &tshi_settings_table[id];
    const char *text = value_or_default(s);
    if (!text || tshi_parse_switch(text, out)) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT, "%s is \"%.64s\"; it must be 0 or 1 (off or on, no or yes, false or true)",
                     s->name, text);
}

tsh_status tshi_setting_number(tshi_setting_id id, uint64_t *out) {
    const tshi_setting *s = &tshi_settings_table[id];
    const char *text = value_or_default(s);
    if (!text || tshi_parse_uint64(text, s->low, s->high, out)) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT, "%s is \"%.64s\"; it must be a whole number from %llu to %llu", s->name, text,
                     (unsigned long long)s->low, (unsigned long long)s->high);
}

tsh_status tshi_setting_bytes(tshi_setting_id id, size_t *out) {
    const tshi_setting *s = &tshi_settings_table[id];
    const char *text = value_or_default(s);
    int64_t value;
    if (!text) return TSH_OK;
    if (!tshi_parse_bytes(text, (int64_t)s->low, (int64_t)s->high, &value)) {
        return tshi_fail(TSH_ERR_ARGUMENT, "%s is \"%.64s\"; it must be bytes, or a number like 512M or 4G%s", s->name,
                         text, s->low > 0 ? "" : ", or 0");
    }
    *out = (size_t)value;
    return TSH_OK;
}

tsh_status tshi_setting_seconds(tshi_setting_id id, double *out) {
    const tshi_setting *s = &tshi_settings_table[id];
    const char *text = value_or_default(s);
    double value;
    if (!text) return TSH_OK;
    if (!tshi_parse_real(text, 0, (double)s->high, &value) || value == 0) {
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "%s is \"%.64s\"; it must be a positive number of seconds, like 30 or 0.5, of at most %llu",
                         s->name, text, (unsigned long long)s->high);
    }
    *out = value;
    return TSH_OK;
}

tsh_status tshi_setting_text(tshi_setting_id id, char *out, size_t size) {
    return tshi_variable_text(tshi_settings_table[id].name, out, size, NULL);
}

/* "cpu or cuda", "error, warning, info or debug". */
static const char *list_choices(const tshi_setting *s, char text[64]) {
    text[0] = '\0';
    for (int i = 0; i < TSHI_CHOICES && s->choices[i]; i++) {
        bool last = i + 1 == TSHI_CHOICES || !s->choices[i + 1];
        tshi_append(text, 64, "%s%s", i == 0 ? "" : last ? " or " : ", ", s->choices[i]);
    }
    return text;
}

tsh_status tshi_setting_choice(tshi_setting_id id, int *out) {
    const tshi_setting *s = &tshi_settings_table[id];
    const char *text = value_or_default(s);
    char choices[64];
    if (!text) return TSH_OK;
    for (int i = 0; i < TSHI_CHOICES && s->choices[i]; i++) {
        if (strcmp(text, s->choices[i]) != 0) continue;
        *out = i;
        return TSH_OK;
    }
    return tshi_fail(TSH_ERR_ARGUMENT, "%s is \"%.64s\"; it must be %s", s->name, text, list_choices(s, choices));
}

/* --- variables of launchers and other programs -------------------------------------------------------------------- */

static const char *look_up_setting(const char *name, bool *found) {
    const char *text = tshi_variable(name);
    if (found) *found = text != NULL;
    return text;
}

tsh_status tshi_variable_int(const char *name, int low, int high, int *out, bool *found) {
    const char *text = look_up_setting(name, found);
    if (!text || tshi_parse_int(text, low, high, out)) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT, "%s is \"%.64s\"; it must be a whole number from %d to %d", name, text, low,
                     high);
}

tsh_status tshi_variable_text(const char *name, char *out, size_t size, bool *found) {
    const char *text = look_up_setting(name, found);
    if (!text) return TSH_OK;
    size_t length = strlen(text);
    if (length >= size) {
        return tshi_fail(TSH_ERR_ARGUMENT, "%s has %zu characters; it must have at most %zu", name, length, size - 1);
    }
    memcpy(out, text, length + 1);
    return TSH_OK;
}

/* --- names -------------------------------------------------------------------------------------------------------- */

static size_t min_size(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Levenshtein's distance: the least number of letters inserted, removed or replaced that turns one name into the
 * other. */
static size_t edits_between(const char *a, size_t a_length, const char *b) {
    size_t row[64], b_length = strlen(b);
    for (size_t k = 0; k <= b_length; k++) row[k] = k;
    for (size_t i = 1; i <= a_length; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t k = 1; k <= b_length; k++) {
            size_t above = row[k];
            row[k] = min_size(min_size(above, row[k - 1]) + 1, diagonal + (a[i - 1] != b[k - 1]));
            diagonal = above;
        }
    }
    return row[b_length];
}

static void warn_of(const char *name, size_t length, const tsh_log_sink *log) {
    const char *nearest = NULL;
    size_t fewest = 4;
    for (int i = 0; i < TSHI_SETTING_COUNT; i++) {
        size_t edits = edits_between(name, length, tshi_settings_table[i].name);
        if (edits == 0) return;
        if (edits >= fewest) continue;
        fewest = edits;
        nearest = tshi_settings_table[i].name;
    }
    tshi_log(log, TSH_LOG_WARNING, "%.*s is not a setting of tshard%s%s%s", (int)length, name,
             nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
}

void tshi_settings_check(const tsh_log_sink *log) {
    static const char own[] = "TSHARD_", tests[] = "TSHARD_TEST_";
    for (char **variable = environ; variable && *variable; variable++) {
        size_t length = strcspn(*variable, "=");
        if (strncmp(*variable, own, sizeof own - 1) != 0 || !strncmp(*variable, tests, sizeof tests - 1)) continue;
        warn_of(*variable, length < 128 ? length : 128, log);
    }
}

int tshi_setting_describe(tshi_setting_id id, const char *values, char *out, size_t size) {
    static const char *const types[] = {"0 or 1", "number", "bytes (`512M`, `4G`)", "seconds", "text", NULL};
    const tshi_setting *s = &tshi_settings_table[id];
    char choices[64];
    const char *type = values ? values : types[s->type] ? types[s->type] : list_choices(s, choices);
    const char *quote = s->initial ? "`" : "";
    return snprintf(out, size, "| `%s` | %s | %s%s%s | %s |", s->name, type, quote,
                    s->initial ? s->initial : s->computed, quote, s->text);
}
