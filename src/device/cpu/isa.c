#include "device/cpu/isa.h"
#include "base/settings.h"

#include <string.h>

extern const tshi_isa tshi_isa_table_base;
#ifdef TSHARD_X86_ISAS
extern const tshi_isa tshi_isa_table_avx2, tshi_isa_table_avx512, tshi_isa_table_avx512bf16;

/* Every CPU with AVX2 has F16C. */
static bool cpu_has(const tshi_isa *isa) {
    if (isa == &tshi_isa_table_base) return true;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2"))
        return false;
    if (isa == &tshi_isa_table_avx2) return true;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512vl") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512bw"))
        return false;
    return isa == &tshi_isa_table_avx512 || __builtin_cpu_supports("avx512bf16");
}

/* In the order of TSHI_SETTING_CPU_ISA's choices: the best is the last. */
static const tshi_isa *const isas[] = {&tshi_isa_table_base, &tshi_isa_table_avx2, &tshi_isa_table_avx512,
                                       &tshi_isa_table_avx512bf16};
#else
static bool cpu_has(const tshi_isa *isa) {
    return isa == &tshi_isa_table_base;
}

static const tshi_isa *const isas[] = {&tshi_isa_table_base};
#endif

enum { ISAS = sizeof isas / sizeof *isas };

tsh_status tshi_isa_choose(const tshi_isa **out) {
    int best = ISAS - 1, wanted = -1;
    tsh_status status = tshi_setting_choice(TSHI_SETTING_CPU_ISA, &wanted);
    if (status != TSH_OK) return status;
    while (!cpu_has(isas[best])) best--;
    if (wanted > best) {
        return tshi_fail(TSH_ERR_UNSUPPORTED, "TSHARD_CPU_ISA is %s, but this CPU or this build has no more than %s",
                         tshi_setting_value(TSHI_SETTING_CPU_ISA), isas[best]->name);
    }
    *out = isas[wanted < 0 ? best : wanted];
    return TSH_OK;
}
