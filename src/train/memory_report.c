/* A report of memory by name: parameters, gradients, states, and results of functions. */
#include "autograd/dump.h"
#include "train/optimizer.h"

#include <errno.h>

static void print_parameter_memory(const tsh_tensor *t, const char *what, const char *name, FILE *to) {
    if (!t || !tshi_tensor_is_loaded(t)) return;
    fprintf(to, "%12zu  %s %s\n", tsh_tensor_local_nbytes(t), what, name);
}

static void print_parameters(const tsh_parameters *list, FILE *to) {
    for (int i = 0; i < list->count; i++) {
        const tshi_parameter *p = &list->items[i];
        print_parameter_memory(p->tensor, "parameter", p->name, to);
        print_parameter_memory(p->tensor->gradient ? p->tensor->gradient->value : NULL, "gradient of", p->name, to);
    }
}

static void print_states(const tsh_optimizer *optimizer, FILE *to) {
    char what[64];
    for (int i = 0; i < optimizer->count; i++) {
        const tshi_optimizer_slot *slot = &optimizer->slots[i];
        const char *name = slot->parameter->name ? slot->parameter->name : "";
        print_parameter_memory(slot->master, "master weights of", name, to);
        for (int s = 0; s < TSHI_MAX_STATES && optimizer->kind->state[s]; s++) {
            snprintf(what, sizeof what, "%s of", optimizer->kind->state[s]);
            print_parameter_memory(slot->state[s], what, name, to);
        }
    }
}

static void print_purposes(const tsh_device *device, FILE *to) {
    const tsh_memory_use use = tsh_device_memory(device);
    const tsh_memory_stats stats = tsh_device_stats(device);
    fprintf(to, "\n%12zu  bytes of all tensors of this rank, and %zu at the peak; by purpose\n", stats.bytes_in_use,
            stats.bytes_peak);
    for (int p = 0; p < TSH_MEMORY_PURPOSE_COUNT; p++) {
        fprintf(to, "%12zu  %s\n", use.live[p], tsh_memory_purpose_name((tsh_memory_purpose)p));
    }
}

tsh_status tsh_memory_report(const char *path, const tsh_parameters *list, const tsh_optimizer *optimizer,
                             const tsh_tape *tape) {
    if (!path || !list) return tshi_fail(TSH_ERR_ARGUMENT, "memory_report: a path and a list are required");
    FILE *to = fopen(path, "we");
    if (!to) return tshi_fail_errno(errno, "memory_report: %s", path);
    errno = 0;
    print_parameters(list, to);
    if (optimizer) print_states(optimizer, to);
    if (tape) tshi_dump_memory(tape, to);
    print_purposes(tsh_world_device(list->world), to);
    bool bad = ferror(to) != 0;
    if (fclose(to) != 0 || bad) return tshi_fail_errno(errno ? errno : EIO, "memory_report: %s", path);
    return TSH_OK;
}
