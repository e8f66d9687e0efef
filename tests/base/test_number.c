#include "base/number.h"

#include <criterion/criterion.h>
#include <stdio.h>

/* Nothing of these is a number from -5 to 5 as a whole, by any of the parsers. */
static const char *const nonsense[] = {"",
                                       " ",
                                       " 2",
                                       "2 ",
                                       "+2",
                                       "2x",
                                       "x",
                                       "0x2",
                                       "1,5",
                                       "--2",
                                       "- 2",
                                       "2\n",
                                       "\t2",
                                       "2.",
                                       "1e",
                                       "nan",
                                       "inf",
                                       "INF",
                                       "-",
                                       ".",
                                       "e2",
                                       "1.5.",
                                       "1-2",
                                       "1 KB",
                                       "2KB",
                                       "2iB",
                                       "\xc2\xb2",
                                       "1'0",
                                       "9999999999999999999999"};

Test(number, nonsense_is_no_number) {
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        int small = 77;
        int64_t large = 77;
        uint64_t bits = 77;
        double real = 77;
        const char *text = nonsense[i];
        cr_expect(!tshi_parse_int(text, -5, 5, &small) && small == 77, "'%s'", text);
        cr_expect(!tshi_parse_int64(text, -5, 5, &large) && large == 77, "'%s'", text);
        cr_expect(!tshi_parse_uint64(text, 0, 5, &bits) && bits == 77, "'%s'", text);
        cr_expect(!tshi_parse_bytes(text, 0, INT64_MAX, &large) && large == 77, "'%s'", text);
        /* "2." is 2 to C, and to a user. */
        bool real_too = text[0] == '2' && text[1] == '.';
        cr_expect(tshi_parse_real(text, -5, 5, &real) == real_too && (real == 77) != real_too, "'%s'", text);
    }
}

Test(number, ends_of_the_range) {
    int small = 0;
    int64_t large = 0;
    uint64_t bits = 0;
    cr_expect(tshi_parse_int("-5", -5, 5, &small) && small == -5);
    cr_expect(!tshi_parse_int("-6", -5, 5, &small) && !tshi_parse_int("6", -5, 5, &small));
    cr_expect(!tshi_parse_int("-0", 0, 5, &small), "no sign where nothing is below 0");
    cr_expect(!tshi_parse_int("4294967298", 0, 5, &small), "what does not fit in 32 bits is not its remainder");
    cr_expect(tshi_parse_int64("9223372036854775807", 0, INT64_MAX, &large) && large == INT64_MAX);
    cr_expect(!tshi_parse_int64("9223372036854775808", 0, INT64_MAX, &large));
    cr_expect(tshi_parse_int64("-9223372036854775808", INT64_MIN, 0, &large) && large == INT64_MIN);
    cr_expect(!tshi_parse_int64("-9223372036854775809", INT64_MIN, 0, &large));
    cr_expect(tshi_parse_uint64("18446744073709551615", 0, UINT64_MAX, &bits) && bits == UINT64_MAX);
    cr_expect(!tshi_parse_uint64("18446744073709551616", 0, UINT64_MAX, &bits));
    cr_expect(!tshi_parse_uint64("-1", 0, UINT64_MAX, &bits));
    cr_expect(tshi_parse_part("12,13", 2, 1, 20, &large) && large == 12);
    cr_expect(!tshi_parse_part("12,13", 3, 1, 20, &large) && !tshi_parse_part("12", 0, 1, 20, &large));
}

Test(number, bytes_by_powers_of_1024) {
    int64_t n = 0;
    cr_expect(tshi_parse_bytes("4096", 1, INT64_MAX, &n) && n == 4096);
    cr_expect(tshi_parse_bytes("16k", 1, INT64_MAX, &n) && n == 16 << 10);
    cr_expect(tshi_parse_bytes("3M", 1, INT64_MAX, &n) && n == 3 << 20);
    cr_expect(tshi_parse_bytes("2g", 1, INT64_MAX, &n) && n == (int64_t)2 << 30);
    cr_expect(tshi_parse_bytes("1T", 1, INT64_MAX, &n) && n == (int64_t)1 << 40);
    cr_expect(!tshi_parse_bytes("4 ", 1, INT64_MAX, &n), "a space is no letter");
    cr_expect(!tshi_parse_bytes("K", 1, INT64_MAX, &n) && !tshi_parse_bytes("1KM", 1, INT64_MAX, &n));
    cr_expect(!tshi_parse_bytes("8388608T", 1, INT64_MAX, &n), "2^63");
    cr_expect(tshi_parse_bytes("8388607T", 1, INT64_MAX, &n));
    cr_expect(!tshi_parse_bytes("0", 1, INT64_MAX, &n) && !tshi_parse_bytes("2K", 1, 2047, &n));
}

Test(number, reals) {
    double x = 0;
    cr_expect(tshi_parse_real("0.5", 0, 1, &x) && x == 0.5);
    cr_expect(tshi_parse_real("1e-3", 0, 1, &x) && x == 1e-3);
    cr_expect(tshi_parse_real(".25", 0, 1, &x) && x == 0.25);
    cr_expect(tshi_parse_real("-2.5E+1", -30, 1, &x) && x == -25);
    cr_expect(!tshi_parse_real("1.0000001", 0, 1, &x) && !tshi_parse_real("-0.1", 0, 1, &x));
    cr_expect(!tshi_parse_real("1e999", 0, 1e308, &x));
}
