#define _POSIX_C_SOURCE 200809L
#include "resume.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RUN_VALUES = RUN_NUMBERS + 2 };

static bool fails(const char *program, const char *what, const char *why) {
    fprintf(stderr, "%s: %s: %s\n", program, what, why);
    return false;
}

/* The run as a checkpoint, whose values are stored in `numbers`. */
static tsh_checkpoint describe(const saved_run *r, int64_t numbers[RUN_NUMBERS], tsh_value values[RUN_VALUES]) {
    int count = r->count;
    for (int i = 0; i < r->count; i++) {
        numbers[i] = r->numbers[i].value;
        values[i] = (tsh_value){.name = r->numbers[i].name, .data = &numbers[i]};
    }
    if (r->scale) {
        values[count++] = (tsh_value){.name = "loss_scale", .kind = TSH_VALUE_DOUBLE, .data = &r->scale->scale};
        values[count++] = (tsh_value){.name = "loss_scale_good_steps", .data = &r->scale->good_steps};
    }
    return (tsh_checkpoint){.parameters = r->parameters,
                            .optimizer = r->optimizer,
                            .values = values,
                            .value_count = count,
                            .other_states = r->other_states};
}

bool run_can_save(const char *program, const char *folder) {
    char inside[4096], what[4096];
    snprintf(inside, sizeof inside, "%s/.", folder);
    bool there = mkdir(folder, 0777) == 0 || errno == EEXIST;
    if (there && access(inside, W_OK) == 0) return true;
    const char *why = strerror(errno);
    snprintf(what, sizeof what, "no checkpoint can be saved in %s", folder);
    return fails(program, what, why);
}

bool run_save(const saved_run *r, const char *folder, int64_t steps) {
    int64_t numbers[RUN_NUMBERS];
    tsh_value values[RUN_VALUES];
    tsh_checkpoint c = describe(r, numbers, values);
    c.step = steps;
    c.keep = 3;
    c.background = true;
    return tsh_checkpoint_save(folder, &c) == TSH_OK || fails(r->program, "a checkpoint", tsh_error_message());
}

bool run_finish_save(const char *program, tsh_world *world) {
    return tsh_checkpoint_wait(world) == TSH_OK || fails(program, "a checkpoint", tsh_error_message());
}

bool run_load(const saved_run *r, const char *folder, int64_t *steps) {
    int64_t saved[RUN_NUMBERS];
    tsh_value values[RUN_VALUES];
    tsh_checkpoint c = describe(r, saved, values);
    if (tsh_checkpoint_load(folder, &c) != TSH_OK) return fails(r->program, "the checkpoint", tsh_error_message());
    for (int i = 0; i < r->count; i++) {
        if (saved[i] != r->numbers[i].value)
            return fails(r->program, "the checkpoint is of a run with another", values[i].name);
    }
    *steps = c.step;
    if (c.new_states + c.ignored_states && tsh_world_rank(r->world) == 0)
        fprintf(stderr,
                "%s: the checkpoint's optimizer states of %d parameters are not used; those of %d start at zero\n",
                r->program, c.ignored_states, c.new_states);
    return true;
}
