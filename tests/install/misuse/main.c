/* misuse --list prints the table: name, ranks, environment and expected words, with tabs between. misuse NAME runs one
 * rank of that row. */
#include "misuse.h"

#include <stdio.h>
#include <string.h>

static const misuse *const tables[] = {settings_rows, tensor_rows,     step_rows, reference_rows,
                                       layer_rows,    collective_rows, file_rows};

void say(tsh_status status) {
    if (status == TSH_OK) return;
    printf("%s: %s\n", tsh_status_name(status), tsh_error_message());
    fflush(stdout);
}

void say_step(const job *j) {
    printf("%s: %s\n", tsh_status_name(tsh_tape_status(j->tape)), tsh_tape_message(j->tape));
    fflush(stdout);
}

tsh_tensor *ones(const job *j, tsh_dtype dtype, int ndim, int64_t rows, int64_t cols) {
    tsh_tensor *x = NULL;
    const tsh_tensor_config config = {.dtype = dtype, .ndim = ndim, .shape = {rows, cols}};
    say(tsh_tensor_create_full(j->mesh, &config, 1, &x));
    return x;
}

tsh_tensor *leaf(const job *j, int64_t rows, int64_t cols) {
    tsh_tensor *x = ones(j, TSH_FLOAT32, 2, rows, cols);
    say(tsh_tensor_require_grad(x, true));
    return x;
}

static void list(void) {
    static const char *const ranks[] = {"", "1", "2", "1 2"};
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++) {
        for (const misuse *m = tables[t]; m->name; m++) {
            printf("%s\t%s\t%s\t%s\n", m->name, ranks[m->ranks], m->environment[0] ? m->environment : "-", m->words);
        }
    }
}

static const misuse *find(const char *name) {
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++) {
        for (const misuse *m = tables[t]; m->name; m++) {
            if (!strcmp(m->name, name)) return m;
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "--list")) {
        list();
        return 0;
    }
    const misuse *m = argc == 2 ? find(argv[1]) : NULL;
    if (!m) return 2;
    job j = {0};
    if (m->bare) {
        m->run(&j);
        return 0;
    }
    say(tsh_world_init(NULL, &j.world));
    if (!j.world) return 0;
    j.group = tsh_world_group(j.world);
    j.mesh = tsh_world_mesh(j.world);
    j.rank = tsh_world_rank(j.world);
    j.size = tsh_world_size(j.world);
    say(tsh_tape_create(j.world, &j.tape));
    if (m->run) m->run(&j);
    tsh_tape_destroy(j.tape);
    tsh_world_destroy(j.world);
    return 0;
}
