#include "layers.h"

#include <stdlib.h>
#include <unistd.h>

static void *counted_alloc(void *user, size_t size) {
    ((layers_counter *)user)->calls++;
    return malloc(size);
}

static int measure_all(const layers_command *command, const bench_common *common, const layers_place *place,
                       const layers_model *models, int n) {
    layers_result results[LAYERS_MOST_RESULTS];
    bool first = tsh_world_rank(place->world) == 0;
    if (first && !common->json) layers_print_heading(command, place->world);
    for (int i = 0; i < n; i++) {
        if (layers_measure(place, &models[i], &results[i]) != TSH_OK) {
            return bench_failed(place->world, models[i].shard);
        }
        if (first && common->json) layers_print_json(command, place->world, &results[i]);
        if (first && !common->json) layers_print_row(&results[i]);
        fflush(stdout);
    }
    if (first && !common->json) layers_print_end(place->world);
    bool drawn = !first || !common->plot || layers_draw(common->plot, command, place->world, results, n);
    return drawn ? 0 : 1;
}

int layers_run(const layers_command *command, const bench_common *common, const layers_model *models, int n) {
    layers_counter counter = {0};
    const tsh_world_config config = {.allocator = {.alloc = counted_alloc, .user = &counter}};
    tsh_world *world = NULL;
    int code;
    if (tsh_world_init(&config, &world) != TSH_OK) return bench_failed(NULL, "world_init");
    layers_place place = {.world = world, .counter = &counter, .seconds = common->seconds};
    place.progress = tsh_world_rank(world) == 0 && isatty(STDERR_FILENO);
    if (bench_meter_create(world, common->seconds, &place.meter) == TSH_OK)
        code = measure_all(command, common, &place, models, n);
    else
        code = bench_failed(world, "meter");
    bench_meter_destroy(place.meter);
    tsh_world_destroy(world);
    return code;
}
