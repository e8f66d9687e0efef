/* The generator against its published answers, and the uniforms and normals made of its output. */
#include "support/philox.h"

#include <criterion/criterion.h>
#include <math.h>

TestSuite(philox, .timeout = 120);

static void expect(const uint32_t counter[4], const uint32_t key[2], const uint32_t wanted[4]) {
    uint32_t out[4];
    tshi_philox(counter, key, out);
    for (int i = 0; i < 4; i++) cr_assert_eq(out[i], wanted[i], "word %d: %08x, not %08x", i, out[i], wanted[i]);
}

Test(philox, known_answers) {
    const uint32_t f = 0xffffffffu;
    expect((uint32_t[]){0, 0, 0, 0}, (uint32_t[]){0, 0},
           (uint32_t[]){0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
    expect((uint32_t[]){f, f, f, f}, (uint32_t[]){f, f},
           (uint32_t[]){0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
    expect((uint32_t[]){0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, (uint32_t[]){0xa4093822u, 0x299f31d0u},
           (uint32_t[]){0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u});
}

Test(philox, a_block_is_counter_and_key_in_this_order) {
    uint32_t out[4];
    tshi_philox_block(0x299f31d0a4093822u, 0x0370734413198a2eu, 0x85a308d3243f6a88u, out);
    cr_assert_eq(out[0], 0xd16cfe09u);
    cr_assert_eq(out[3], 0x24126ea1u);
}

Test(philox, uniforms_are_exact_in_both_float_types) {
    cr_assert_eq(tshi_uniform(0), 0.0);
    cr_assert_eq(tshi_uniform(0xffffffffu), 1.0 - 0x1p-24);
    cr_assert_eq(tshi_uniform(0x80000000u), 0.5);
    for (uint32_t w = 0; w < 0xff000000u; w += 0x00345678u) {
        double u = tshi_uniform(w);
        cr_assert_eq((double)(float)u, u);
    }
}

Test(philox, normals_are_finite_and_standard) {
    cr_assert(isfinite(tshi_normal(0, 0)));
    cr_assert_eq(tshi_normal(0xffffffffu, 12345), 0.0, "the logarithm of 1");
    cr_assert_float_eq(tshi_normal(0, 0), sqrt(48.0 * log(2.0)), 1e-12);
    double sum = 0, squares = 0, fourth = 0;
    const int blocks = 50000;
    for (int i = 0; i < blocks; i++) {
        uint32_t w[4];
        tshi_philox_block(1, 2, (uint64_t)i, w);
        for (int k = 0; k < 4; k += 2) {
            double z = tshi_normal(w[k], w[k + 1]);
            sum += z;
            squares += z * z;
            fourth += z * z * z * z;
        }
    }
    double n = 2.0 * blocks;
    cr_assert_float_eq(sum / n, 0.0, 5.0 / sqrt(n));
    cr_assert_float_eq(squares / n, 1.0, 5.0 * sqrt(2.0 / n));
    cr_assert_float_eq(fourth / n, 3.0, 5.0 * sqrt(96.0 / n));
}
