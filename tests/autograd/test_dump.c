/* tsh_tape_dump: what the files say of a step whose calls are known. */
#include "tshard/tshard.h"

#include "support/ranks.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void read_dump(tshi_rank *r, const tsh_tape *tape, tsh_dump_format format, char *text, size_t size) {
    char path[64];
    snprintf(path, sizeof path, "/tmp/tshard-dump-%d", (int)getpid());
    tshi_check_ok(r, tsh_tape_dump(tape, path, format));
    FILE *file = fopen(path, "r");
    size_t n = file ? fread(text, 1, size - 1, file) : 0;
    text[n] = '\0';
    if (file) fclose(file);
    unlink(path);
}

static void has(tshi_rank *r, const char *text, const char *words) {
    tshi_check(r, strstr(text, words) != NULL, "no \"%s\" in\n%.800s", words, text);
}

static void dump(tshi_rank *r, void *arg) {
    static char text[16384];
    tsh_group *world = tsh_world_group(r->world);
    tsh_linear_config narrow = {.in_features = 8, .out_features = 4, .shard = TSH_ROW};
    tsh_linear *down = NULL;
    tsh_tensor *x = NULL;
    tsh_tape *tape = NULL;
    tsh_parameters *list = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_linear_create(world, &narrow, &down));
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tshi_check_ok(r, tsh_linear_register(down, list, "down"));
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tensor_config input = {.ndim = 2, .shape = {2, 8}, .layout = {TSH_SHARD(1)}};
    if (!tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &input, &x))) return;
    tsh_tensor *y = tsh_linear_forward(tape, down, x);
    tsh_tensor *loss = tsh_sum(tape, y, TSH_ALL_DIMS);
    read_dump(r, tape, TSH_DUMP_TEXT, text, sizeof text);
    has(r, text, "#0 linear_forward: float32 [2,8] world=SHARD(1), down.weight float32 [4,8] world=SHARD(1)");
    has(r, text, "-> float32 [2,4] world=PARTIAL; 32 bytes\n");
    has(r, text, "-> float32 [2,4] world=REPLICATED; 0 bytes (a view); all_reduce, 32 bytes sent\n");
    read_dump(r, tape, TSH_DUMP_GRAPHVIZ, text, sizeof text);
    has(r, text, "digraph step {\n");
    has(r, text, "n0 -> n1;\n");
    has(r, text, "down.weight\\nfloat32 [4,8]");
    tshi_check(r, tsh_backward(tape, loss) == TSH_OK, "%s", tsh_tape_message(tape));
    read_dump(r, tape, TSH_DUMP_TEXT, text, sizeof text);
    has(r, text, "#0 freed by a backward\n");
    tsh_tape_destroy(tape);
    tsh_parameters_destroy(list);
    tsh_tensor_release(x);
    tsh_linear_destroy(down);
}

Test(dump, names_calls_layouts_and_bytes, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, dump, NULL));
}
