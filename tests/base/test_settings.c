/* Environment variables: what is taken, and what is nearly a value. */
#include "base/settings.h"

#include <criterion/criterion.h>
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
    static const char *const words[] = {"red", "green", "blue"};
    char text[4] = "was";
    int value = 7;
    bool found = true, is_on = true;
    size_t bytes = 7;
    unsetenv("TSHARD_X");
    cr_assert(tshi_variable_int("TSHARD_X", 0, 9, &value, &found) == TSH_OK && value == 7 && !found);
    setenv("TSHARD_X", "", 1);
    cr_assert(tshi_variable_switch("TSHARD_X", &is_on) == TSH_OK && is_on);
    cr_assert(tshi_variable_text(NULL, text, sizeof text, &found) == TSH_OK && !found && !strcmp(text, "was"));
    setenv("TSHARD_X", "10", 1);
    cr_assert_eq(tshi_variable_int("TSHARD_X", 0, 9, &value, NULL), TSH_ERR_ARGUMENT);
    cr_assert_str_eq(tsh_error_message(), "TSHARD_X is \"10\"; it must be a whole number from 0 to 9");
    cr_assert_eq(tshi_variable_choice("TSHARD_X", words, 3, &value, &found), TSH_ERR_ARGUMENT);
    cr_assert_str_eq(tsh_error_message(), "TSHARD_X is \"10\"; it must be red, green or blue");
    cr_assert_eq(value, 7);
    setenv("TSHARD_X", "blue", 1);
    cr_assert(tshi_variable_choice("TSHARD_X", words, 3, &value, &found) == TSH_OK && value == 2 && found);
    cr_assert_eq(tshi_variable_text("TSHARD_X", text, sizeof text, NULL), TSH_ERR_ARGUMENT);
    cr_assert_str_eq(tsh_error_message(), "TSHARD_X has 4 characters; it must have at most 3");
    cr_assert_str_eq(text, "was");
    cr_assert_eq(tshi_variable_bytes("TSHARD_X", 1, &bytes, NULL), TSH_ERR_ARGUMENT);
    cr_assert_str_eq(tsh_error_message(), "TSHARD_X is \"blue\"; it must be bytes, or a number like 512M or 4G");
}
