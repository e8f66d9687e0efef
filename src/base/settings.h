/* The environment variables of tshard: one table, from which they are read, checked and documented. Parsing is strict
 * (number.h): a malformed value is an error that names the variable, the value and what is accepted. An empty variable
 * counts as not set. */
#ifndef TSHI_SETTINGS_H
#define TSHI_SETTINGS_H

#include "base/base.h"

typedef enum tshi_setting_id {
    TSHI_SETTING_TIMEOUT = 0,
    TSHI_SETTING_WARN,
    TSHI_SETTING_DEVICE,
    TSHI_SETTING_HEAP,
    TSHI_SETTING_BLAS_THREADS,
    TSHI_SETTING_CPU_ISA,
    TSHI_SETTING_PRODUCTS,
    TSHI_SETTING_SEED,
    TSHI_SETTING_INIT,
    TSHI_SETTING_GROUP,
    TSHI_SETTING_TOKEN,
    TSHI_SETTING_RESTART,
    TSHI_SETTING_MIN_RANKS,
    TSHI_SETTING_JOIN,
    TSHI_SETTING_SILENCE,
    TSHI_SETTING_BACKEND,
    TSHI_SETTING_CHECK,
    TSHI_SETTING_LOG,
    TSHI_SETTING_SIGUSR1,
    TSHI_SETTING_PLAN,
    TSHI_SETTING_RECORD,
    TSHI_SETTING_TRACE,
    TSHI_SETTING_DETERMINISTIC,
    TSHI_SETTING_TF32,
    TSHI_SETTING_CUDNN,
    TSHI_SETTING_CUDA_IPC,
    TSHI_SETTING_CUDA_CACHE,
    TSHI_SETTING_CUDA_MANAGED,
    TSHI_SETTING_COUNT
} tshi_setting_id;

typedef enum tshi_setting_type {
    TSHI_SWITCH,
    TSHI_NUMBER,
    TSHI_BYTES,
    TSHI_SECONDS,
    TSHI_TEXT,
    TSHI_CHOICE
} tshi_setting_type;

#define TSHI_CHOICES 6

typedef struct tshi_setting {
    const char *name;
    tshi_setting_type type;
    uint64_t low, high;                /* limits of numbers, bytes and seconds */
    const char *choices[TSHI_CHOICES]; /* NULL after the last */
    const char *initial;               /* the default as a user would write it; NULL: `computed` describes it */
    const char *computed;
    const char *text; /* what it sets, in Markdown */
} tshi_setting;

extern const tshi_setting tshi_settings_table[TSHI_SETTING_COUNT];

/* The value in the environment, NULL if not set. */
TSHI_TOOLS const char *tshi_setting_value(tshi_setting_id id);
/* The value, or the default; without either *out does not change. TSH_ERR_ARGUMENT for a malformed value. */
tsh_status tshi_setting_switch(tshi_setting_id id, bool *out);
tsh_status tshi_setting_number(tshi_setting_id id, uint64_t *out);
tsh_status tshi_setting_bytes(tshi_setting_id id, size_t *out);
tsh_status tshi_setting_seconds(tshi_setting_id id, double *out);
/* *out is the index of the value in `choices`. */
tsh_status tshi_setting_choice(tshi_setting_id id, int *out);
/* A copy; a text that does not fit is an error. */
TSHI_TOOLS tsh_status tshi_setting_text(tshi_setting_id id, char *out, size_t size);

/* Warns about variables named TSHARD_* that are not settings, and suggests a similar one. TSHARD_TEST_* are the tests'
 * own. */
void tshi_settings_check(const tsh_log_sink *log);
/* A row of the table in Markdown: name, type, default, text. Returns its length as snprintf does. values: what a text
 * may be, where another room knows it; or NULL. */
TSHI_TOOLS int tshi_setting_describe(tshi_setting_id id, const char *values, char *out, size_t size);

/* 0 or 1, off or on, no or yes, false or true, in letters of either case; false for any other text. */
bool tshi_parse_switch(const char *text, bool *out);

/* --- variables of launchers and other programs -------------------------------------------------------------------- */

/* The value of a variable that is set and not empty, else NULL; also NULL for a NULL name. */
TSHI_TOOLS const char *tshi_variable(const char *name);
/* *out does not change if the variable is not set; *found (may be NULL) tells whether it is set. */
tsh_status tshi_variable_int(const char *name, int low, int high, int *out, bool *found);
/* A copy in `out`; a text that does not fit is an error. */
tsh_status tshi_variable_text(const char *name, char *out, size_t size, bool *found);

#endif
