/* load_sums PATH SUMS [--gpt2 | --save PATH [BYTES]]: a rank of a job that loads the parameters of which
 * tests/io/sums.py has written the lines SUMS, in layouts of all kinds, and compares their sums with Python's. Says how
 * many bytes the ranks have read and how many their boxes have. --save writes them all again, in files of at most
 * BYTES. */
#include "io/load.h"
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 1024 };

typedef struct parameter {
    char name[256];
    tsh_tensor *tensor;
    double sum, weighted; /* Python's */
} parameter;

static const tsh_name_rule gpt2_rules[] = {
    {"h.*.attn.q.weight", "transformer.h.*.attn.c_attn.weight", true, 0, 32, 0, 0, false},
    {"h.*.attn.k.weight", "transformer.h.*.attn.c_attn.weight", true, 0, 32, 0, 32, false},
    {"h.*.attn.v.weight", "transformer.h.*.attn.c_attn.weight", true, 0, 32, 0, 64, false},
    {"h.*.attn.q.bias", "transformer.h.*.attn.c_attn.bias", false, 0, 32, 0, 0, false},
    {"h.*.attn.k.bias", "transformer.h.*.attn.c_attn.bias", false, 0, 32, 0, 32, false},
    {"h.*.attn.v.bias", "transformer.h.*.attn.c_attn.bias", false, 0, 32, 0, 64, false},
    {"h.*.c_proj.weight", "transformer.h.*.c_proj.weight", true, 0, 0, 0, 0, false},
    {"h.*.c_fc.weight", "transformer.h.*.c_fc.weight", true, 0, 0, 0, 0, false},
    {"*", "transformer.*", false, 0, 0, 0, 0, false},
};

static int fail(const char *what) {
    fprintf(stderr, "load_sums: %s: %s\n", what, tsh_error_message());
    return 1;
}

/* Layouts of all kinds in turns, of dims that the parameter has. */
static void lay_out(tsh_tensor_config *config, int number) {
    static const tsh_layout layouts[][2] = {
        {TSH_SHARD_INIT(0), TSH_SHARD_INIT(1)},     {TSH_REPLICATED_INIT, TSH_SHARD_INIT(0)},
        {TSH_SHARD_INIT(1), TSH_REPLICATED_INIT},   {TSH_SHARD_INIT(0), TSH_SHARD_INIT(0)},
        {TSH_REPLICATED_INIT, TSH_REPLICATED_INIT}, {TSH_SHARD_INIT(1), TSH_SHARD_INIT(1)},
        {TSH_REPLICATED_INIT, TSH_SHARD_INIT(1)}};
    for (int a = 0; a < 2; a++) {
        tsh_layout layout = layouts[number % 7][a];
        config->layout[a] = layout.kind == TSH_KIND_SHARD && layout.dim >= config->ndim ? TSH_REPLICATED : layout;
    }
}

/* Reads a line of SUMS; false at the end. */
static bool read_line(FILE *lines, tsh_mesh *mesh, int number, parameter *p) {
    char dtype[16];
    tsh_tensor_config config = {0};
    if (fscanf(lines, "%255s %15s %d", p->name, dtype, &config.ndim) != 3) return false;
    while (config.dtype < TSH_DTYPE_COUNT && strcmp(tsh_dtype_name(config.dtype), dtype) != 0) config.dtype++;
    for (int d = 0; d < config.ndim; d++) {
        long long size;
        if (fscanf(lines, "%lld", &size) != 1) return false;
        config.shape[d] = size;
    }
    if (fscanf(lines, "%lf %lf", &p->sum, &p->weighted) != 2) return false;
    lay_out(&config, number);
    return tsh_tensor_create(mesh, &config, &p->tensor) == TSH_OK;
}

/* Adds this rank's part to the sums of a parameter, and its magnitude; of replicas the first one alone. */
static void add_part(const tsh_mesh *mesh, const tsh_tensor *t, double sums[3]) {
    tsh_box box = tsh_tensor_box(t);
    const int64_t *shape = tsh_tensor_shape(t);
    for (int a = 0; a < 2; a++) {
        tsh_group *group = tsh_mesh_axis_group(mesh, a);
        if (tsh_tensor_layout(t, group).kind == TSH_KIND_REPLICATED && tsh_group_rank(group) > 0) return;
    }
    for (int64_t i = 0; i < tsh_tensor_local_numel(t); i++) {
        int64_t at = 0, stride = 1, rest = i;
        for (int d = tsh_tensor_ndim(t) - 1; d >= 0; d--) {
            at += (box.start[d] + rest % box.length[d]) * stride;
            rest /= box.length[d];
            stride *= shape[d];
        }
        double weight = (double)(1 + at % 1009);
        double x = tshi_test_element(t, i);
        sums[0] += x;
        sums[1] += weight * x;
        sums[2] += weight * fabs(x);
    }
}

static int compare(tsh_world *world, const tsh_mesh *mesh, const parameter *p, int n, double read) {
    static double sums[MOST * 3 + 2];
    int64_t count = 3 * n + 2;
    tsh_tensor *all = NULL;
    int wrong = 0;
    for (int i = 0; i < n; i++) {
        add_part(mesh, p[i].tensor, &sums[3 * i]);
        sums[3 * n] += (double)tsh_tensor_local_nbytes(p[i].tensor);
    }
    sums[3 * n + 1] = read;
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 1, .shape = {count}, .layout = {TSH_LOCAL}};
    if (tsh_tensor_create(tsh_world_mesh(world), &config, &all) != TSH_OK ||
        tsh_tensor_write(all, sums, count) != TSH_OK ||
        tsh_all_reduce(tsh_world_group(world), all, TSH_REDUCE_SUM) != TSH_OK ||
        tsh_tensor_read(all, sums, count) != TSH_OK)
        return fail("sums");
    tsh_tensor_release(all);
    for (int i = 0; i < n; i++) {
        const double *s = &sums[3 * i];
        if (fabs(s[0] - p[i].sum) <= 1e-13 * s[2] && fabs(s[1] - p[i].weighted) <= 1e-13 * s[2]) continue;
        fprintf(stderr, "%s: sums %.17g %.17g, Python's %.17g %.17g\n", p[i].name, s[0], s[1], p[i].sum, p[i].weighted);
        wrong++;
    }
    if (tsh_world_rank(world) == 0) {
        printf("%d ranks: %d tensors, %d wrong, %.0f bytes in boxes, read %.4f times\n", tsh_world_size(world), n,
               wrong, sums[3 * n], sums[3 * n + 1] / sums[3 * n]);
    }
    return wrong > 0;
}

static int run(tsh_world *world, int count, char **words) {
    static parameter p[MOST];
    tsh_mesh *mesh = NULL;
    tsh_parameters *list = NULL;
    tsh_load_options options = {0};
    uint64_t read;
    int n = 0, wrong;
    bool gpt2 = count > 3 && strcmp(words[3], "--gpt2") == 0;
    if (gpt2) {
        options.rules = gpt2_rules;
        options.rule_count = sizeof gpt2_rules / sizeof *gpt2_rules;
    }
    FILE *lines = fopen(words[2], "r");
    if (!lines) return fail(words[2]);
    if (tsh_mesh_create(world, tsh_world_size(world) == 4 ? "a=2,b=2" : "a=1,b=-1", &mesh) != TSH_OK)
        return fail("mesh");
    if (tsh_parameters_create(world, &list) != TSH_OK) return fail("list");
    while (n < MOST && read_line(lines, mesh, n, &p[n])) {
        if (tsh_parameters_add(list, p[n].name, p[n].tensor) != TSH_OK) return fail("list");
        n++;
    }
    fclose(lines);
    if (tshi_load(list, words[1], &options, &read) != TSH_OK) return fail("load");
    wrong = compare(world, mesh, p, n, (double)read);
    if (count > 4 && strcmp(words[3], "--save") == 0) {
        tsh_save_options save = {.max_shard_bytes = count > 5 ? (uint64_t)atoll(words[5]) : 0};
        if (tsh_save(list, words[4], &save) != TSH_OK) return fail("save");
    }
    for (int i = 0; i < n; i++) tsh_tensor_release(p[i].tensor);
    tsh_parameters_destroy(list);
    tsh_mesh_destroy(mesh);
    return wrong;
}

int main(int count, char **words) {
    tsh_world *world = NULL;
    if (count < 3) return 2;
    if (tsh_world_init(NULL, &world) != TSH_OK) return fail("world");
    int code = run(world, count, words);
    tsh_world_destroy(world);
    return code;
}
