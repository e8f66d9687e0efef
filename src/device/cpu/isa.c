#include "device/cpu/isa.h"
#include "base/settings.h"

#include <string.h>

extern const tshi_isa tshi_isa_table_base;
#if defined(TSHARD_X86_ISAS)
extern const tshi_isa tshi_isa_table_avx2, tshi_isa_table_avx512, tshi_isa_table_avx512vnni, tshi_isa_table_avx512bf16;

/* Every CPU with AVX2 has F16C. */
static bool cpu_has(const tshi_isa *isa) {
    if (isa == &tshi_isa_table_base) return true;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2"))
        return false;
    if (isa == &tshi_isa_table_avx2) return true;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512vl") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512bw"))
        return false;
    if (isa == &tshi_isa_table_avx512) return true;
    if (!__builtin_cpu_supports("avx512vnni")) return false;
    return isa == &tshi_isa_table_avx512vnni || __builtin_cpu_supports("avx512bf16");
}

/* The best is the last. */
static const tshi_isa *const isas[] = {&tshi_isa_table_base, &tshi_isa_table_avx2, &tshi_isa_table_avx512,
                                       &tshi_isa_table_avx512vnni, &tshi_isa_table_avx512bf16};
#elif defined(TSHARD_ARM64_ISAS)
#include <asm/hwcap.h>
#include <sys/auxv.h>

extern const tshi_isa tshi_isa_table_bf16;

static bool cpu_has(const tshi_isa *isa) {
    return isa == &tshi_isa_table_base || (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
}

static const tshi_isa *const isas[] = {&tshi_isa_table_base, &tshi_isa_table_bf16};
#else
static bool cpu_has(const tshi_isa *isa) {
    return isa == &tshi_isa_table_base;
}

static const tshi_isa *const isas[] = {&tshi_isa_table_base};
#endif

enum { ISAS = sizeof isas / sizeof *isas };

/* The instruction set of that name; NULL where the build lacks it. */
static const tshi_isa *isa_named(const char *name) {
    for (int i = 0; i < ISAS; i++) {
        if (strcmp(isas[i]->name, name) == 0) return isas[i];
    }
    return NULL;
}

tsh_status tshi_isa_choose(const tshi_isa **out) {
    int best = ISAS - 1, wanted = -1;
    tsh_status status = tshi_setting_choice(TSHI_SETTING_CPU_ISA, &wanted);
    if (status != TSH_OK) return status;
    while (!cpu_has(isas[best])) best--;
    const char *name = tshi_setting_value(TSHI_SETTING_CPU_ISA);
    const tshi_isa *isa = wanted < 0 ? isas[best] : isa_named(name);
    if (!isa || !cpu_has(isa)) {
        return tshi_fail(TSH_ERR_UNSUPPORTED, "TSHARD_CPU_ISA is %s, but this CPU or this build has no more than %s",
                         name, isas[best]->name);
    }
    *out = isa;
    return TSH_OK;
}
