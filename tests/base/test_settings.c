/* Environment variables: what is taken, and what is nearly a value. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/settings.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Test(settings, switches, .timeout = 120) {
    static const char *const on[] = {"1", "on", "yes", "true", "True", "YES"};
    static const char *const off[] = {"0", "off", "no", "false", "False", "OFF"};
    static const char *const bad[] = {"", "2", "-1", " 1", "1 ", "y", "enabled", "00"};
    for (size_t i = 0; i < sizeof on / sizeof *on; i++) {
        bool value = false;
        cr_assert(tshi_parse_switch(on[i], &value) && value, "%s", on[i]);
        cr_assert(tshi_parse_switch(off[i], &value) && !value, "%s", off[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        bool value = true;
        cr_assert_not(tshi_parse_switch(bad[i], &value), "\"%s\"", bad[i]);
        cr_assert(value);
    }
}

Test(settings, variables, .timeout = 120) {
    char text[4] = "was";
    int value = 7;
    bool found = true;
    unsetenv("TSHARD_X");
    cr_assert(tshi_variable_int("TSHARD_X", 0, 9, &value, &found) == TSH_OK && value == 7 && !found);
    cr_assert(tshi_variable_text(NULL, text, sizeof text, &found) == TSH_OK && !found && !strcmp(text, "was"));
    setenv("TSHARD_X", "10", 1);
    cr_assert_eq(tshi_variable_int("TSHARD_X", 0, 9, &value, NULL), TSH_ERR_ARGUMENT);
    cr_assert_str_eq(tsh_error_message(), "TSHARD_X is \"10\"; it must be a whole number from 0 to 9");
    setenv("TSHARD_X", "blue", 1);
    cr_assert_eq(tshi_variable_text("TSHARD_X", text, sizeof text, NULL), TSH_ERR_ARGUMENT);
    cr_assert_str_eq(tsh_error_message(), "TSHARD_X has 4 characters; it must have at most 3");
    cr_assert_str_eq(text, "was");
}

Test(settings, defaults_come_from_the_table, .timeout = 120) {
    double seconds = 0;
    size_t bytes = 7;
    uint64_t number = 7;
    int choice = 7;
    bool is_on = true;
    for (int i = 0; i < TSHI_SETTING_COUNT; i++) {
        const tshi_setting *s = &tshi_settings_table[i];
        cr_assert(s->name && s->text && (s->initial || s->computed), "setting %d", i);
        unsetenv(s->name);
    }
    cr_assert(tshi_setting_seconds(TSHI_SETTING_TIMEOUT, &seconds) == TSH_OK && seconds == 600);
    cr_assert(tshi_setting_number(TSHI_SETTING_SEED, &number) == TSH_OK && number == 0);
    cr_assert(tshi_setting_choice(TSHI_SETTING_DEVICE, &choice) == TSH_OK && choice == 0);
    cr_assert(tshi_setting_switch(TSHI_SETTING_TF32, &is_on) == TSH_OK && !is_on);
    setenv("TSHARD_CUDA_IPC", "", 1); /* counts as not set */
    cr_assert(tshi_setting_switch(TSHI_SETTING_CUDA_IPC, &is_on) == TSH_OK && is_on);
    choice = 7;
    cr_assert(tshi_setting_choice(TSHI_SETTING_LOG, &choice) == TSH_OK && choice == 7, "computed: left alone");
    cr_assert(tshi_setting_bytes(TSHI_SETTING_HEAP, &bytes) == TSH_OK && bytes == 7, "computed: left alone");
}

Test(settings, malformed_values_are_errors, .timeout = 120) {
    uint64_t number = 7;
    size_t bytes = 7;
    int choice = 7;
    setenv("TSHARD_LOG", "10", 1);
    cr_assert_eq(tshi_setting_choice(TSHI_SETTING_LOG, &choice), TSH_ERR_ARGUMENT);
    cr_assert_str_eq(tsh_error_message(), "TSHARD_LOG is \"10\"; it must be error, warning, info or debug");
    setenv("TSHARD_LOG", "info", 1);
    cr_assert(tshi_setting_choice(TSHI_SETTING_LOG, &choice) == TSH_OK && choice == 2);
    setenv("TSHARD_HEAP", "blue", 1);
    cr_assert_eq(tshi_setting_bytes(TSHI_SETTING_HEAP, &bytes), TSH_ERR_ARGUMENT);
    cr_assert_str_eq(tsh_error_message(), "TSHARD_HEAP is \"blue\"; it must be bytes, or a number like 512M or 4G");
    setenv("TSHARD_BLAS_THREADS", "4097", 1);
    cr_assert_eq(tshi_setting_number(TSHI_SETTING_BLAS_THREADS, &number), TSH_ERR_ARGUMENT);
    cr_assert_str_eq(tsh_error_message(), "TSHARD_BLAS_THREADS is \"4097\"; it must be a whole number from 1 to 4096");
    cr_assert(number == 7 && bytes == 7);
}

static void keep_line(void *user, tsh_log_level level, const char *line) {
    char *kept = user;
    if (level == TSH_LOG_WARNING) snprintf(kept + strlen(kept), 1024 - strlen(kept), "%s\n", line);
}

/* Names that are nearly a setting, and one that is like none; the tests' own are no mistake. */
Test(settings, unknown_variables_are_reported, .timeout = 120) {
    char lines[1024] = "";
    const tsh_log_sink log = {keep_line, lines};
    clearenv();
    setenv("TSHARD_TIMEOUT", "60", 1);
    setenv("TSHARD_TEST_DEVICE", "cpu", 1);
    setenv("OTHER", "1", 1);
    tshi_settings_check(&log);
    cr_assert_str_empty(lines);
    setenv("TSHARD_TIMOUT", "60", 1);
    tshi_settings_check(&log);
    cr_assert_str_eq(lines, "TSHARD_TIMOUT is not a setting of tshard; did you mean TSHARD_TIMEOUT?\n");
    clearenv();
    lines[0] = '\0';
    setenv("TSHARD_WHATEVER_IT_MEANS", "60", 1);
    tshi_settings_check(&log);
    cr_assert_str_eq(lines, "TSHARD_WHATEVER_IT_MEANS is not a setting of tshard\n");
}
