/* Planned worlds: one rank of N, without the others. */
#include "device/plan/plan.h"
#include "dist/world.h"
#include "support/slots.h"
#include "tshard/functional.h"
#include "tshard/train.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static tsh_world *open_world(int rank, int size) {
    char text[16];
    tsh_world *world = NULL;
    setenv("TSHARD_BACKEND", "plan", 1);
    snprintf(text, sizeof text, "%d", rank);
    setenv("RANK", text, 1);
    snprintf(text, sizeof text, "%d", size);
    setenv("WORLD_SIZE", text, 1);
    cr_assert_eq(tsh_world_init(NULL, &world), TSH_OK, "%s", tsh_error_message());
    return world;
}

/* --- the device --------------------------------------------------------------------------------------------------- */

/* A kernel that the CPU has and a plan lacks would run on memory that has no pages. */
Test(plan, has_every_kernel_of_the_cpu, .timeout = 60) {
    tsh_world *world = open_world(0, 2);
    static char heap[1 << 16] __attribute__((aligned(4096)));
    tsh_device *cpu;
    cr_assert_eq(tshi_device_create_cpu(NULL, heap, sizeof heap, 1, &cpu), TSH_OK);
    expect_replaced_slots(cpu->ops, world->device->ops, false);
    tshi_device_destroy(cpu);
    tsh_world_destroy(world);
}

Test(plan, of_a_gpu_needs_cuda_and_no_gpu, .timeout = 60) {
    const bool built = tshi_cuda_table() != NULL;
    const tsh_world_config config = {.device = TSH_CUDA};
    tsh_world *world = NULL;
    setenv("TSHARD_BACKEND", "plan", 1);
    cr_assert_eq(tsh_world_init(&config, &world), built ? TSH_OK : TSH_ERR_UNSUPPORTED, "%s", tsh_error_message());
    cr_expect(built || strstr(tsh_error_message(), "-DTSHARD_CUDA=ON"), "%s", tsh_error_message());
    cr_expect(!built || tsh_device_kind_of(tsh_world_device(world)) == TSH_CUDA);
    tsh_world_destroy(world);
}

static long resident_kilobytes(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

Test(plan, tensors_take_no_memory, .timeout = 60) {
    tsh_world *world = open_world(0, 2);
    tsh_tensor *x = NULL, *y = NULL;
    const tsh_tensor_config config = {.ndim = 2, .shape = {(int64_t)1 << 20, (int64_t)1 << 20}};
    long before = resident_kilobytes();
    cr_assert_eq(tsh_tensor_create_full(tsh_world_mesh(world), &config, 2.0, &x), TSH_OK, "%s", tsh_error_message());
    cr_assert_eq(tsh_tensor_clone(x, &y), TSH_OK, "%s", tsh_error_message());
    cr_expect_eq(tsh_device_stats(tsh_world_device(world)).bytes_in_use, (size_t)8 << 40);
    cr_expect_lt(resident_kilobytes() - before, 64 << 10);
    tsh_tensor_release(x);
    tsh_tensor_release(y);
    tsh_world_destroy(world);
}

Test(plan, values_are_zeros_and_a_read_is_noted, .timeout = 60) {
    tsh_world *world = open_world(1, 3);
    float values[3] = {1, 2, 3};
    tsh_tensor *x = NULL, *one = NULL;
    const tsh_tensor_config config = {.ndim = 1, .shape = {3}}, scalar = {.ndim = 0, .dtype = TSH_FLOAT64};
    cr_assert_eq(tsh_tensor_create_full(tsh_world_mesh(world), &config, 2.0, &x), TSH_OK);
    cr_assert_eq(tsh_tensor_create(tsh_world_mesh(world), &scalar, &one), TSH_OK);
    cr_expect_eq(tsh_tensor_write(x, values, 3), TSH_OK);
    cr_expect_eq(tsh_tensor_write(x, values, 2), TSH_ERR_SHAPE);
    cr_expect(!world->device->record->reads);
    cr_expect_eq(tsh_tensor_read(x, values, 3), TSH_OK);
    cr_expect(values[0] == 0 && values[1] == 0 && values[2] == 0);
    cr_expect(world->device->record->reads);
    cr_expect_eq(tsh_tensor_item(one), 0.0);
    tsh_tensor_release(x);
    tsh_tensor_release(one);
    tsh_world_destroy(world);
}

/* --- many ranks --------------------------------------------------------------------------------------------------- */

Test(plan, meshes_of_65536_ranks_are_cheap, .timeout = 60) {
    static const int ranks[] = {0, 1, 4097, 65535};
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        tsh_world *world = open_world(ranks[i], 65536);
        tsh_mesh *mesh = NULL;
        cr_assert_eq(tsh_mesh_create(world, "data=4096,model=16", &mesh), TSH_OK, "%s", tsh_error_message());
        cr_expect_eq(tsh_group_size(tsh_mesh_group(mesh, "data")), 4096);
        cr_expect_eq(tsh_group_rank(tsh_mesh_group(mesh, "model")), ranks[i] % 16);
        cr_expect_eq(tsh_barrier(tsh_mesh_group(mesh, "data")), TSH_OK);
        tsh_mesh_destroy(mesh);
        tsh_world_destroy(world);
    }
}

Test(plan, groups_are_made_and_checked, .timeout = 60) {
    tsh_world *world = open_world(2, 4);
    const int ranks[] = {3, 2, 0}, twice[] = {3, 2, 3};
    tsh_group *group = NULL;
    tsh_tensor *x = NULL;
    cr_assert_eq(tsh_group_create(world, ranks, 3, &group), TSH_OK, "%s", tsh_error_message());
    cr_expect_eq(tsh_group_rank(group), 1);
    cr_expect_str_eq(tsh_group_backend(group), "plan");
    const tsh_tensor_config config = {.ndim = 1, .shape = {100}};
    cr_assert_eq(tsh_tensor_create(tsh_group_mesh(group), &config, &x), TSH_OK);
    cr_expect_eq(tsh_all_reduce(group, x, TSH_REDUCE_SUM), TSH_OK);
    cr_expect_eq(tsh_send(group, x, 0), TSH_OK);
    int sender = -1;
    cr_expect_eq(tsh_recv(group, x, TSH_ANY_RANK, &sender), TSH_OK);
    cr_expect_eq(sender, 0);
    tsh_communication_stats stats = tsh_group_stats(group);
    cr_expect_eq(stats.calls[TSH_COLLECTIVE_ALL_REDUCE], 1);
    cr_expect_eq(stats.bytes[TSH_COLLECTIVE_ALL_REDUCE], 2 * (400 - 134));
    cr_expect_eq(stats.bytes[TSH_COLLECTIVE_SEND], 400);
    tsh_tensor_release(x);
    tsh_group_destroy(group);
    cr_expect_eq(tsh_group_create(world, twice, 3, &group), TSH_ERR_ARGUMENT);
    cr_expect_eq(tsh_group_split(tsh_world_group(world), 0, 0, &group), TSH_ERR_UNSUPPORTED);
    cr_expect(strstr(tsh_error_message(), "does not know the colours"), "%s", tsh_error_message());
    const tsh_tensor_config line = {.dtype = TSH_FLOAT64, .ndim = 1, .shape = {1}};
    double value = 0;
    cr_expect_eq(tsh_tensor_create(tsh_world_mesh(world), &line, &x), TSH_OK);
    cr_expect_eq(tsh_tensor_read_parts(x, tsh_world_group(world), &(tsh_box){.length = {1}}, &value),
                 TSH_ERR_UNSUPPORTED);
    cr_expect(strstr(tsh_error_message(), "does not know the boxes"), "%s", tsh_error_message());
    tsh_tensor_release(x);
    tsh_world_destroy(world);
}

Test(plan, needs_no_launcher_and_refuses_a_rank_that_is_none, .timeout = 60) {
    tsh_world *world = NULL;
    setenv("TSHARD_BACKEND", "plan", 1);
    cr_assert_eq(tsh_world_init(NULL, &world), TSH_OK, "%s", tsh_error_message());
    cr_expect_eq(tsh_world_size(world), 1);
    tsh_world_destroy(world);
    setenv("RANK", "4", 1);
    setenv("WORLD_SIZE", "4", 1);
    cr_expect_neq(tsh_world_init(NULL, &world), TSH_OK);
    cr_expect(strstr(tsh_error_message(), "RANK is 4"), "%s", tsh_error_message());
}

/* --- records ------------------------------------------------------------------------------------------------------ */

static void add(tshi_record *record, int64_t size) {
    const tshi_record_call call = {.kind = TSHI_RECORD_PRODUCT, .name = "product", .size = {size, 2, 3}};
    tshi_record_add(record, &call, 12.0 * (double)size, 8);
}

static uint64_t calls_of(const tshi_record *record, int64_t size) {
    for (int i = 0; i < record->count; i++) {
        if (record->entries[i].call.size[0] == size) return record->entries[i].calls;
    }
    return 0;
}

static tshi_record *new_record(void) {
    const tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tshi_record *record = tshi_record_create(&allocator);
    cr_assert(record);
    return record;
}

/* One optimizer's step of two batches, then an evaluation; the tape is reset before the step, or after it. */
static void one_step(tshi_record *r, bool reset_first) {
    for (int batch = 0; batch < 2; batch++) {
        tshi_record_forward(r);
        add(r, 1);
        tshi_record_backward(r);
        add(r, 2);
        if (batch == 0 || reset_first) tshi_record_reset(r);
    }
    add(r, 3);
    tshi_record_step(r);
    if (!reset_first) tshi_record_reset(r);
    tshi_record_forward(r);
    add(r, 4);
    tshi_record_reset(r);
}

Test(plan, a_step_ends_with_the_optimizer) {
    for (int way = 0; way < 2; way++) {
        for (int steps = 1; steps <= 3; steps++) {
            tshi_record *r = new_record();
            add(r, 5);
            for (int i = 0; i < steps; i++) one_step(r, way == 1);
            tshi_record_end(r);
            cr_expect_eq(r->steps, (uint64_t)steps);
            cr_expect_eq(calls_of(r, 1), 2, "way %d, %d steps: %d", way, steps, (int)calls_of(r, 1));
            cr_expect_eq(calls_of(r, 2), 2);
            cr_expect_eq(calls_of(r, 3), 1);
            cr_expect_eq(calls_of(r, 4), 0);
            tshi_record_destroy(r);
        }
    }
}

Test(plan, without_an_optimizer_a_step_is_what_a_reset_ends) {
    tshi_record *r = new_record();
    for (int i = 0; i < 3; i++) {
        tshi_record_forward(r);
        add(r, 1);
        add(r, 1);
        tshi_record_reset(r);
        tshi_record_reset(r);
    }
    tshi_record_end(r);
    cr_expect_eq(r->steps, 0);
    cr_expect_eq(calls_of(r, 1), 2);
    tshi_record_destroy(r);
}

static void keep_record_line(void *user, tsh_log_level level, const char *line) {
    if (level == TSH_LOG_ERROR) snprintf(user, 256, "%s", line);
}

Test(plan, a_record_that_the_disk_does_not_take_is_an_error_with_its_name, .timeout = 60) {
    char text[32], said[256] = "";
    tsh_world *world = NULL;
    int fd = open("/dev/full", O_WRONLY);
    cr_assert_geq(fd, 0);
    snprintf(text, sizeof text, "fd:%d", fd);
    setenv("TSHARD_RECORD", text, 1);
    const tsh_world_config config = {.heap_bytes = 1 << 20, .log = {keep_record_line, said}};
    cr_assert_eq(tsh_world_init(&config, &world), TSH_OK, "%s", tsh_error_message());
    tsh_world_destroy(world);
    cr_assert(strstr(said, "TSHARD_RECORD: writing fd:") && strstr(said, "No space left on device"), "%s", said);
}

Test(plan, a_record_is_read_as_it_was_written) {
    const tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tshi_record *r = new_record(), *copy = NULL;
    for (int64_t size = 1; size < 1000; size++) add(r, size);
    const tshi_record_call call = {.kind = TSHI_RECORD_COLLECTIVE,
                                   .dtype = TSH_BFLOAT16,
                                   .backward = true,
                                   .early = true,
                                   .name = "all_reduce",
                                   .axis = "data",
                                   .size = {4, 800}};
    tshi_record_add(r, &call, 0, 1200);
    r->rank = 3;
    r->size = 4;
    r->peak = (size_t)5 << 40;
    r->planned = true;
    r->axes = 1;
    r->axis[0] = (tshi_record_axis){"data", 4, "3:1:1:0"};
    r->memory.at_peak[TSH_MEMORY_GRADIENTS] = 77;
    snprintf(r->memory.layer, sizeof r->memory.layer, "a layer. weight");
    tshi_record_end(r);
    FILE *file = tmpfile();
    cr_assert_eq(tshi_record_write(r, file), TSH_OK);
    rewind(file);
    cr_assert_eq(tshi_record_read(&allocator, file, &copy), TSH_OK, "%s", tsh_error_message());
    cr_expect(copy->rank == 3 && copy->size == 4 && copy->peak == r->peak && copy->planned && copy->axes == 1);
    cr_expect_str_eq(copy->axis[0].weights, "3:1:1:0");
    cr_expect_str_eq(copy->memory.layer, "a layer. weight");
    cr_expect_eq(copy->memory.at_peak[TSH_MEMORY_GRADIENTS], 77);
    cr_assert_eq(copy->count, 1000);
    for (int i = 0; i < copy->count; i++) {
        cr_expect_eq(memcmp(&copy->entries[i].call, &r->entries[i].call, sizeof call), 0);
        cr_expect_eq(copy->entries[i].calls, r->entries[i].calls);
        cr_expect_eq(copy->entries[i].bytes, r->entries[i].bytes);
    }
    tshi_record_destroy(copy);
    /* Half of it is none. */
    cr_assert_eq(ftruncate(fileno(file), ftell(file) / 2), 0);
    rewind(file);
    cr_expect_eq(tshi_record_read(&allocator, file, &copy), TSH_ERR_IO);
    cr_expect_null(copy);
    fclose(file);
    tshi_record_destroy(r);
}
