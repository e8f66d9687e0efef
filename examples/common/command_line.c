#include "command_line.h"
#include "numbers.h"

#include <float.h>
#include <stdio.h>
#include <string.h>

static bool parse_dtype(const char *text, tsh_dtype *out) {
    static const tsh_dtype floats[] = {TSH_FLOAT32, TSH_FLOAT64, TSH_BFLOAT16, TSH_FLOAT16};
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        if (strcmp(text, tsh_dtype_name(floats[i])) != 0) continue;
        *out = floats[i];
        return true;
    }
    return false;
}

/* NULL, or what the option's value must be. */
static const char *take(const option_row *o, const char *text) {
    static char wanted[96];
    bool good = true;
    switch (o->kind) {
    case OPTION_FLAG: *(bool *)o->value = true; return NULL;
    case OPTION_TEXT: *(const char **)o->value = text; return NULL;
    case OPTION_PATH: *(const char **)o->value = text; return text[0] ? NULL : "a path";
    case OPTION_AXIS:
        *(const char **)o->value = text;
        good = text[0] >= '0' && text[0] <= '9' && !text[strspn(text, "0123456789:")];
        return good || strcmp(text, "auto") == 0 ? NULL : "a number of ranks, weights like 3:1, or auto";
    case OPTION_SEED: return parse_seed(text, o->value) ? NULL : "a whole number, 0 to 18446744073709551615";
    case OPTION_RATE: return parse_number(text, DBL_TRUE_MIN, DBL_MAX, o->value) ? NULL : "a number above 0";
    case OPTION_DTYPE: return parse_dtype(text, o->value) ? NULL : "float32, float64, bfloat16 or float16";
    case OPTION_COUNT:
        good = parse_count(text, (int64_t)o->low, (int64_t)o->high, o->value);
        snprintf(wanted, sizeof wanted, "a whole number, %.0f to %.0f", o->low, o->high);
        break;
    case OPTION_NUMBER:
        good = parse_number(text, o->low, o->high, o->value);
        snprintf(wanted, sizeof wanted, o->high < DBL_MAX ? "a number, %g to %g" : "a number, %g or more", o->low,
                 o->high);
        break;
    }
    return good ? NULL : wanted;
}

static const option_row *find(const option_row *options, const char *word, size_t length) {
    for (const option_row *o = options; o->name; o++) {
        if (strlen(o->name) == length && strncmp(o->name, word, length) == 0) return o;
    }
    return NULL;
}

int command_line_parse(const char *program, const char *help, const option_row *options, int argc, char **argv,
                       bool speaks) {
    for (int i = 1; i < argc; i++) {
        const char *word = strncmp(argv[i], "--", 2) == 0 ? argv[i] + 2 : "";
        size_t length = strcspn(word, "=");
        const option_row *o = find(options, word, length);
        const char *value = word[length] ? word + length + 1 : NULL;
        if (strcmp(word, "help") == 0) {
            if (speaks) fputs(help, stdout);
            return 0;
        }
        if (!o || (o->kind == OPTION_FLAG && value)) {
            if (speaks) fprintf(stderr, "%s: '%s' is no option (--help names them)\n", program, argv[i]);
            return 2;
        }
        if (o->kind != OPTION_FLAG && !value && i + 1 < argc) value = argv[++i];
        if (o->kind != OPTION_FLAG && !value) {
            if (speaks) fprintf(stderr, "%s: --%s wants a value\n", program, o->name);
            return 2;
        }
        const char *wanted = take(o, value);
        if (!wanted) continue;
        if (speaks) fprintf(stderr, "%s: --%s wants %s, not '%s'\n", program, o->name, wanted, value);
        return 2;
    }
    return -1;
}
