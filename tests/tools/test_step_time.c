/* The model of a step's time and the machine file: hand-made machines with known answers. */
#include "common/step_time.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(step_time, .timeout = 60);

static void check_near(double value, double expected) {
    cr_assert_leq(fabs(value - expected), 1e-9 * fabs(expected), "%.12g, %.12g expected", value, expected);
}

/* Writes the text to a file of its own, reads that, and says what machine_read said. */
static bool read_text(const char *text, machine *m, char *why, size_t size) {
    char path[] = "/tmp/tshard-machine-XXXXXX";
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    bool good = machine_read(path, m, why, size);
    unlink(path);
    return good;
}

static void read_good(const char *text, machine *m) {
    char why[512] = "";
    cr_assert(read_text(text, m, why, sizeof why), "%s", why);
}

#define HEAD "{\"format\": \"tshard machine\", \"version\": 1"

/* One rate for all products; memory; two networks. */
static const char cluster[] =
    HEAD ", \"name\": \"by hand\", \"call_us\": 2,\n"
         "\"products\": [{\"m\": [1], \"n\": [1], \"k\": [1], \"gflop_per_s\": [400000]}],\n"
         "\"attention\": [{\"queries\": [1], \"dim\": [1], \"gflop_per_s\": [200000]}],\n"
         "\"kernels\": [{\"bytes\": [1], \"gb_per_s\": [1500]}],\n"
         "\"networks\": [{\"axis\": \"model\", \"latency_us\": 3, \"bus_gb_per_s\": 300, \"overlaps\": true},\n"
         "               {\"latency_us\": 10, \"bus_gb_per_s\": 25, \"overlaps\": true}]}";

/* --- records, made by hand ---------------------------------------------------------------------------------------- */

enum { MOST = 32 };

typedef struct written {
    tshi_record record;
    tshi_record_entry entries[MOST];
} written;

static tshi_record_entry *add(written *w, tshi_record_kind kind, const char *name, tsh_dtype dtype, uint64_t calls) {
    cr_assert_lt(w->record.count, MOST);
    w->record.entries = w->entries;
    tshi_record_entry *e = &w->entries[w->record.count++];
    *e = (tshi_record_entry){.call = {.kind = kind, .dtype = dtype}, .calls = calls};
    snprintf(e->call.name, sizeof e->call.name, "%s", name);
    return e;
}

/* C [m, n] = A B, in all `calls` of them. */
static tshi_record_entry *add_product(written *w, int64_t m, int64_t n, int64_t k, bool ta, bool tb, uint64_t calls) {
    tshi_record_entry *e = add(w, TSHI_RECORD_PRODUCT, "", TSH_BFLOAT16, calls);
    const int64_t sizes[] = {m, n, k, ta, tb};
    memcpy(e->call.size, sizes, sizeof sizes);
    e->flops = 2 * (double)m * (double)n * (double)k;
    return e;
}

static tshi_record_entry *add_collective(written *w, const char *name, const char *axis, int ranks, int64_t bytes,
                                         uint64_t calls) {
    tshi_record_entry *e = add(w, TSHI_RECORD_COLLECTIVE, name, TSH_BFLOAT16, calls);
    snprintf(e->call.axis, sizeof e->call.axis, "%s", axis);
    e->call.size[0] = ranks;
    e->call.size[1] = bytes;
    return e;
}

static step_time time_of(const machine *m, const written *w) {
    step_time t;
    step_time_of(m, &w->record, &t);
    return t;
}

/* --- the model ---------------------------------------------------------------------------------------------------- */

Test(step_time, constant_rates_give_work_over_rate) {
    machine m;
    written w = {.record = {.count = 0}};
    read_good(cluster, &m);
    add_product(&w, 100, 200, 300, false, false, 5);
    *add(&w, TSHI_RECORD_ATTENTION, "attention", TSH_FLOAT32, 3) = (tshi_record_entry){
        .call = {.kind = TSHI_RECORD_ATTENTION, .size = {2, 4, 4, 10, 30, 8}}, .flops = 4e6, .calls = 3};
    add(&w, TSHI_RECORD_KERNEL, "adamw", TSH_FLOAT32, 7)->bytes = 3000000;
    add(&w, TSHI_RECORD_KERNEL, "copy", TSH_FLOAT32, 0)->bytes = 3000000;
    step_time t = time_of(&m, &w);
    check_near(t.products, 5 * 2.0 * 100 * 200 * 300 / 4e14);
    check_near(t.attention, 3 * 4e6 / 2e14);
    check_near(t.kernels, 7 * 3e6 / 1.5e12);
    check_near(t.calls, 15 * 2e-6);
    check_near(t.all, t.products + t.attention + t.kernels + t.calls);
    cr_assert_eq(t.missing[0], '\0');
    machine_free(&m);
}

/* All three forms of a layer's product have the sizes of the layer: X [2, 5], W [3, 5], Y [2, 3]. */
Test(step_time, forms_of_a_product_have_the_sizes_of_its_layer) {
    const struct {
        const char *form;
        int64_t m, n, k;
        bool ta, tb;
    } cases[] = {{"forward", 2, 3, 5, false, true}, {"dx", 2, 5, 3, false, false}, {"dw", 3, 5, 2, true, false}};
    for (int i = 0; i < 3; i++) {
        written w = {.record = {.count = 0}};
        double sizes[MACHINE_AXES];
        add_product(&w, cases[i].m, cases[i].n, cases[i].k, cases[i].ta, cases[i].tb, 1);
        cr_assert_str_eq(step_product_form(&w.entries[0].call, sizes), cases[i].form);
        cr_assert(sizes[0] == 2 && sizes[1] == 3 && sizes[2] == 5, "%s: %g %g %g", cases[i].form, sizes[0], sizes[1],
                  sizes[2]);
    }
}

Test(step_time, rates_are_interpolated_in_the_logarithms_and_stay_beyond_the_table) {
    machine m;
    read_good(HEAD
              ", \"products\": [{\"form\": \"forward\", \"dtype\": \"float32\", \"m\": [1, 100], \"n\": [10, 1000],"
              "\"k\": [7], \"gflop_per_s\": [1, 4, 16, 64]}]}",
              &m);
    const struct {
        double m, n, rate;
    } cases[] = {{1, 10, 1},   {1, 1000, 4}, {100, 10, 16},  {100, 1000, 64}, {10, 10, 4},  {1, 100, 2},
                 {10, 100, 8}, {0.5, 1, 1},  {1e6, 1e6, 64}, {1000, 100, 32}, {10, 5e9, 16}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const double at[MACHINE_AXES] = {cases[i].m, cases[i].n, 3};
        check_near(machine_rate(&m, MACHINE_PRODUCTS, "forward", "float32", at, 0), 1e9 * cases[i].rate);
    }
    machine_free(&m);
}

/* A table of three points along its one size: between the second and the third too. */
Test(step_time, the_cell_of_a_size_is_found) {
    machine m;
    read_good(HEAD ", \"kernels\": [{\"bytes\": [1, 16, 4096], \"gb_per_s\": [2, 8, 32]}]}", &m);
    const double sizes[] = {1, 4, 16, 256, 4096}, rates[] = {2, 4, 8, 16, 32};
    for (int i = 0; i < 5; i++) {
        const double at[MACHINE_AXES] = {sizes[i]};
        check_near(machine_rate(&m, MACHINE_KERNELS, "copy", "int64", at, 0), 1e9 * rates[i]);
    }
    machine_free(&m);
}

/* Rates of 16 in a cache of 100 bytes and of 4 beyond 400: halfway on the logarithms, at 200, the rate is 8. */
Test(step_time, a_larger_working_set_moves_the_rate_to_that_of_memory) {
    static const double sets[] = {1, 100, 200, 400, 1e9}, rates[] = {16, 16, 8, 4, 4};
    machine m;
    written w = {.record = {.count = 0, .peak = 200}};
    read_good(HEAD ", \"kernels\": [{\"bytes\": [1], \"gb_per_s\": [1]},"
                   "{\"family\": \"copy\", \"working_set\": 400, \"bytes\": [1], \"gb_per_s\": [4]},"
                   "{\"family\": \"copy\", \"working_set\": 100, \"bytes\": [1], \"gb_per_s\": [16]}]}",
              &m);
    const double at[MACHINE_AXES] = {5};
    for (int i = 0; i < 5; i++) {
        check_near(machine_rate(&m, MACHINE_KERNELS, "copy", "float32", at, sets[i]), 1e9 * rates[i]);
        check_near(machine_rate(&m, MACHINE_KERNELS, "zero", "float32", at, sets[i]), 1e9);
    }
    add(&w, TSHI_RECORD_KERNEL, "copy", TSH_FLOAT32, 1)->bytes = 8;
    check_near(time_of(&m, &w).kernels, 1e-9);
    machine_free(&m);
}

Test(step_time, the_row_that_names_most_counts) {
    machine m;
    read_good(HEAD ", \"kernels\": [{\"bytes\": [1], \"gb_per_s\": [1]},"
                   "{\"family\": \"copy\", \"bytes\": [1], \"gb_per_s\": [2]},"
                   "{\"dtype\": \"float32\", \"bytes\": [1], \"gb_per_s\": [3]},"
                   "{\"family\": \"copy\", \"dtype\": \"float32\", \"bytes\": [1], \"gb_per_s\": [4]}],"
                   "\"networks\": [{\"latency_us\": 1, \"bus_gb_per_s\": 1},"
                   "{\"axis\": \"data\", \"latency_us\": 2, \"bus_gb_per_s\": 1},"
                   "{\"kind\": \"all_reduce\", \"latency_us\": 3, \"bus_gb_per_s\": 1},"
                   "{\"kind\": \"all_reduce\", \"ranks\": 4, \"latency_us\": 4, \"bus_gb_per_s\": 1}]}",
              &m);
    const double at[MACHINE_AXES] = {5};
    check_near(machine_rate(&m, MACHINE_KERNELS, "zero", "float64", at, 0), 1e9);
    check_near(machine_rate(&m, MACHINE_KERNELS, "copy", "float64", at, 0), 2e9);
    check_near(machine_rate(&m, MACHINE_KERNELS, "zero", "float32", at, 0), 3e9);
    check_near(machine_rate(&m, MACHINE_KERNELS, "copy", "float32", at, 0), 4e9);
    check_near(machine_find_network(&m, "model", "all_gather", 2)->latency_us, 1);
    check_near(machine_find_network(&m, "data", "all_reduce", 4)->latency_us, 2);
    check_near(machine_find_network(&m, "model", "all_reduce", 2)->latency_us, 3);
    check_near(machine_find_network(&m, "model", "all_reduce", 4)->latency_us, 4);
    machine_free(&m);
}

/* A ring carries 2 (p - 1) / p of the bytes over every link; a tree has log2 p levels, an all-reduce goes up and
 * down. */
Test(step_time, collectives_take_rounds_of_latency_and_bytes_over_bandwidth) {
    machine m;
    written w = {.record = {.count = 0}};
    const double expected[] = {6 * 3e-6 + 1e9 * 14 / 8 / 300e9, 4 * 10e-6 + 1e8 * 15 / 16 / 25e9,
                               3 * 10e-6 + 1e8 / 25e9, 0};
    read_good(cluster, &m);
    add_collective(&w, "all_reduce", "model", 8, 1000000000, 4);
    add_collective(&w, "all_gather", "data", 16, 100000000, 1);
    add_collective(&w, "broadcast", "data", 5, 100000000, 1);
    add_collective(&w, "all_reduce", "data", 1, 100000000, 1);
    for (int i = 0; i < 4; i++) check_near(step_call_seconds(&m, &w.entries[i], 0), expected[i]);
    step_time t = time_of(&m, &w);
    check_near(t.exposed, 4 * expected[0] + expected[1] + expected[2]);
    cr_assert_eq(t.hidden, 0);
    machine_free(&m);
}

/* Ten early sums of 0.07 s, of which the last one is seen: behind 1 s of backward the others are hidden, behind 0.5 s
 * some of them. */
Test(step_time, early_collectives_hide_behind_what_backward_computes) {
    machine m;
    written w = {.record = {.count = 0}};
    read_good(cluster, &m);
    add_product(&w, 1000, 1000, 200000000, false, true, 1);
    tshi_record_entry *backward = add_product(&w, 1000, 1000, 200000000, true, false, 1);
    backward->call.backward = true;
    add_collective(&w, "all_reduce", "data", 8, 1000000000, 10)->call.early = true;
    double seconds = step_call_seconds(&m, &w.entries[2], 0);
    check_near(seconds, 6 * 10e-6 + 1e9 * 14 / 8 / 25e9);
    step_time t = time_of(&m, &w);
    check_near(t.hidden, 9 * seconds);
    check_near(t.exposed, seconds);
    backward->flops /= 2;
    t = time_of(&m, &w);
    check_near(t.hidden, 0.5);
    check_near(t.exposed, 10 * seconds - 0.5);
    m.network[1].overlaps = false;
    t = time_of(&m, &w);
    cr_assert_eq(t.hidden, 0);
    check_near(t.exposed, 10 * seconds);
    machine_free(&m);
}

/* Narayanan et al., "Efficient large-scale language model training on GPU clusters", SC'21: GPT-3 of 96 layers, 12,288
 * features and 2,048 tokens, here 1,536 sequences over data=128,model=8. A layer's products are 72 b s h^2 operations
 * both ways, over 8 ranks; two all-reduces of b s h elements each way. */
Test(step_time, gpt3_on_a_cluster_by_hand) {
    const int64_t tokens = 1536 / 128 * 2048, h = 12288, part = 8;
    const struct {
        int64_t out, in;
    } layer[] = {{3 * h / part, h}, {h, h / part}, {4 * h / part, h}, {h, 4 * h / part}};
    machine m;
    written w = {.record = {.count = 0}};
    read_good(cluster, &m);
    for (int i = 0; i < 4; i++) {
        add_product(&w, tokens, layer[i].out, layer[i].in, false, true, 96);
        add_product(&w, tokens, layer[i].in, layer[i].out, false, false, 96);
        add_product(&w, layer[i].out, layer[i].in, tokens, true, false, 96);
    }
    add_collective(&w, "all_reduce", "model", 8, 2 * tokens * h, 4 * 96);
    step_time t = time_of(&m, &w);
    check_near(t.products, 96.0 * 72 * (double)tokens * (double)h * (double)h / (double)part / 4e14);
    check_near(t.exposed, 384 * (6 * 3e-6 + 2.0 * (double)tokens * (double)h * 14 / 8 / 300e9));
    check_near(t.all, t.products + t.exposed + (12 * 96 + 384) * 2e-6);
    machine_free(&m);
}

Test(step_time, a_rate_that_is_not_there_is_named) {
    machine m;
    written w = {.record = {.count = 0}};
    read_good(HEAD "}", &m);
    add_product(&w, 0, 8, 8, false, true, 1);
    add_collective(&w, "all_reduce", "model", 1, 8, 1);
    step_time t = time_of(&m, &w);
    cr_assert_eq(t.missing[0], '\0', "neither a product of no elements nor a lone rank needs a rate");
    add(&w, TSHI_RECORD_KERNEL, "adamw", TSH_FLOAT32, 1)->bytes = 8;
    add_collective(&w, "all_reduce", "model", 8, 8, 1);
    t = time_of(&m, &w);
    cr_assert_str_eq(t.missing, "kernels adamw float32");
    cr_assert_eq(t.all, 0);
    machine_free(&m);
}

Test(step_time, a_machine_that_is_written_reads_back) {
    machine m = {.ranks = 2, .call_us = 0.25, .name = "a \"name\"\\"}, back;
    machine_table *t = machine_add_table(&m, MACHINE_PRODUCTS, (const int[]){2, 1, 3});
    snprintf(t->what, sizeof t->what, "dw");
    t->working_set = 134217728;
    for (int a = 0; a < MACHINE_AXES; a++) {
        for (int i = 0; i < t->points[a]; i++) t->at[a][i] = 1 + i;
    }
    for (int i = 0; i < 6; i++) t->rate[i] = 0.5 + i;
    *machine_add_network(&m) = (machine_network){.axis = "data", .ranks = 3, .latency_us = 1.5, .bus_gb_per_s = 8};
    char text[4096] = "", why[256] = "";
    FILE *file = fmemopen(text, sizeof text, "w");
    machine_write(file, &m);
    fclose(file);
    cr_assert(read_text(text, &back, why, sizeof why), "%s", why);
    cr_assert_str_eq(back.name, m.name);
    cr_assert_eq(back.ranks, 2);
    check_near(back.call_us, 0.25);
    cr_assert_eq(back.count[MACHINE_PRODUCTS], 1);
    const machine_table *same = &back.table[MACHINE_PRODUCTS][0];
    cr_assert_str_eq(same->what, "dw");
    check_near(same->working_set, 134217728);
    for (int i = 0; i < 6; i++) check_near(same->rate[i], 0.5 + i);
    cr_assert_str_eq(back.network[0].axis, "data");
    cr_assert_eq(back.network[0].ranks, 3);
    machine_free(&back);
    machine_free(&m);
}

Test(step_time, files_that_are_no_machine_are_refused_in_words) {
    const struct {
        const char *text, *words;
    } cases[] = {
        {"", "line 1: "},
        {"{}", "its \"format\" is not \"tshard machine\""},
        {"{\"format\": \"tshard machine\", \"version\": 2}", "its \"version\" is not 1"},
        {HEAD ", \"speed\": 1}", "\"speed\" is not known"},
        {HEAD ", \"call_us\": -1}", "\"call_us\" wants a number of 0 or more"},
        {HEAD ", \"kernels\": [{\"bytes\": [1], \"gb_per_s\": [1]}, 3]}", "kernels[1]: an object is wanted"},
        {HEAD ", \"kernels\": [{\"gb_per_s\": [1]}]}", "kernels[0]: \"bytes\" wants 1 to 32 sizes"},
        {HEAD ", \"kernels\": [{\"bytes\": [2, 1], \"gb_per_s\": [1, 1]}]}",
         "kernels[0]: \"bytes\" wants a list of 2 numbers above 0, ascending"},
        {HEAD ", \"kernels\": [{\"bytes\": [1, 2], \"gb_per_s\": [1]}]}",
         "kernels[0]: \"gb_per_s\" wants a list of 2 numbers above 0"},
        {HEAD ", \"kernels\": [{\"bytes\": [1], \"gb_per_s\": [0]}]}",
         "kernels[0]: \"gb_per_s\" wants a list of 1 numbers above 0"},
        {HEAD ", \"kernels\": [{\"working_set\": 0, \"bytes\": [1], \"gb_per_s\": [1]}]}",
         "kernels[0]: \"working_set\" wants a number of 1 or more"},
        {HEAD ", \"kernels\": [{\"bytes\": [1], \"gbps\": [1]}]}", "kernels[0]: \"gbps\" is not known"},
        {HEAD ", \"products\": [{\"form\": 1, \"m\": [1], \"n\": [1], \"k\": [1], \"gflop_per_s\": [1]}]}",
         "products[0]: \"form\" wants a text of fewer than 64 characters"},
        {HEAD ", \"networks\": [{\"latency_us\": 1}]}",
         "networks[0]: \"bus_gb_per_s\" wants a number of 1e-09 or more"},
        {HEAD ", \"networks\": [{\"latency_us\": 1, \"bus_gb_per_s\": 1, \"overlaps\": 1}]}",
         "networks[0]: \"overlaps\" wants true or false"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        machine m;
        char why[512] = "";
        cr_assert_not(read_text(cases[i].text, &m, why, sizeof why), "%s", cases[i].text);
        cr_assert_not_null(strstr(why, cases[i].words), "%s: '%s'", cases[i].text, why);
    }
    machine m;
    char why[512] = "";
    cr_assert_not(machine_read("/nowhere/machine.json", &m, why, sizeof why));
    cr_assert_not_null(strstr(why, "/nowhere/machine.json: "), "'%s'", why);
}
