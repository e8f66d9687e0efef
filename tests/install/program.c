/* A user's first program: a world of one rank, and a layer on it. It is valid C and C++. */
#include <stdio.h>
#include <string.h>
#include <tshard/tshard.h>

int main(void) {
    tsh_world *world = NULL;
    if (tsh_world_init(NULL, &world) != TSH_OK) return 1;
    tsh_linear_config config;
    memset(&config, 0, sizeof config);
    config.in_features = 4;
    config.out_features = 3;
    tsh_linear *layer = NULL;
    tsh_linear_create(tsh_world_group(world), &config, &layer);
    printf("tshard %s: %d ranks, a layer: %s\n", tsh_version(), tsh_world_size(world), layer ? "yes" : "no");
    tsh_linear_destroy(layer);
    tsh_world_destroy(world);
    return layer ? 0 : 1;
}
