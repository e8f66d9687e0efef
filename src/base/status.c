/* Status names, and the message of the last failure on each thread. */
#include "base/base.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define STRINGIFY_(x) #x
#define STRINGIFY(x)  STRINGIFY_(x)

static _Thread_local char last_message[TSHI_MESSAGE_SIZE];
/* Every call of an operation looks at it: it is where the thread finds it without a function's call. */
#if defined(__GNUC__)
__attribute__((tls_model("initial-exec")))
#endif
static _Thread_local uint64_t failures;
static _Thread_local tshi_failure unread;

static const char *const status_names[TSH_STATUS_COUNT] = {
    [TSH_OK] = "TSH_OK",
    [TSH_ERR_ARGUMENT] = "TSH_ERR_ARGUMENT",
    [TSH_ERR_SHAPE] = "TSH_ERR_SHAPE",
    [TSH_ERR_DTYPE] = "TSH_ERR_DTYPE",
    [TSH_ERR_LAYOUT] = "TSH_ERR_LAYOUT",
    [TSH_ERR_RANGE] = "TSH_ERR_RANGE",
    [TSH_ERR_OVERFLOW] = "TSH_ERR_OVERFLOW",
    [TSH_ERR_MEMORY] = "TSH_ERR_MEMORY",
    [TSH_ERR_IO] = "TSH_ERR_IO",
    [TSH_ERR_SYSTEM] = "TSH_ERR_SYSTEM",
    [TSH_ERR_STATE] = "TSH_ERR_STATE",
    [TSH_ERR_UNSUPPORTED] = "TSH_ERR_UNSUPPORTED",
    [TSH_ERR_MISMATCH] = "TSH_ERR_MISMATCH",
    [TSH_ERR_TIMEOUT] = "TSH_ERR_TIMEOUT",
    [TSH_ERR_PEER] = "TSH_ERR_PEER",
};

const char *tsh_status_name(tsh_status status) {
    if ((int)status < 0 || status >= TSH_STATUS_COUNT) return "unknown status";
    return status_names[status];
}

const char *tsh_error_message(void) {
    unread.status = TSH_OK;
    return last_message;
}

const char *tsh_version(void) {
    return STRINGIFY(TSH_VERSION_MAJOR) "." STRINGIFY(TSH_VERSION_MINOR) "." STRINGIFY(TSH_VERSION_PATCH);
}

tsh_status tshi_vfail(tsh_status status, const char *format, va_list arguments) {
    /* The arguments may point into last_message. */
    char text[TSHI_MESSAGE_SIZE];
    if (vsnprintf(text, sizeof text, format, arguments) < 0) text[0] = '\0';
    memcpy(last_message, text, strlen(text) + 1);
    failures++;
    return status;
}

uint64_t tshi_failures(void) {
    return failures;
}

tsh_status tshi_fail(tsh_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    tshi_vfail(status, format, arguments);
    va_end(arguments);
    return status;
}

void tshi_failure_keep(tshi_failure *failure, tsh_status status) {
    failure->status = status;
    if (status != TSH_OK) memcpy(failure->words, last_message, sizeof last_message);
}

tsh_status tshi_failure_report(const tshi_failure *failure) {
    return failure->status == TSH_OK ? TSH_OK : tshi_fail(failure->status, "%s", failure->words);
}

tsh_status tshi_failure_hold(tsh_status status) {
    bool lasts = status == TSH_ERR_PEER || status == TSH_ERR_TIMEOUT; /* later calls fail as well */
    if (status != TSH_OK && !lasts) tshi_failure_keep(&unread, status);
    return status;
}

tsh_status tshi_failure_dropped(tshi_failure *out) {
    *out = unread;
    unread.status = TSH_OK;
    return out->status;
}

/* strerror_r returns an int or a text, by feature macros; this takes either. */
static inline const char *words_of_int(int result, const char *buffer) {
    return result == 0 ? buffer : "unknown error";
}
static inline const char *words_of_pointer(const char *result, const char *buffer) {
    return result ? result : buffer;
}
#define WORDS_OF(result, buffer) _Generic((result), int : words_of_int, default : words_of_pointer)((result), (buffer))

tsh_status tshi_fail_errno(int error, const char *format, ...) {
    char text[TSHI_MESSAGE_SIZE];
    char buffer[128] = "unknown error";
    va_list arguments;
    va_start(arguments, format);
    if (vsnprintf(text, sizeof text, format, arguments) < 0) text[0] = '\0';
    va_end(arguments);
    const char *words = WORDS_OF(strerror_r(error, buffer, sizeof buffer), buffer);
    return tshi_fail(error == ENOMEM ? TSH_ERR_MEMORY : TSH_ERR_SYSTEM, "%.400s: %s (errno %d)", text, words, error);
}
