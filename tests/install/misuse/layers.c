/* Layers that cannot be, or that are used with the wrong input. */
#include "misuse.h"

#include <stdio.h>

static tsh_linear *linear(tsh_group *group, int64_t in, int64_t out) {
    tsh_linear *layer = NULL;
    say(tsh_linear_create(group, &(tsh_linear_config){.in_features = in, .out_features = out, .shard = TSH_COLUMN},
                          &layer));
    return layer;
}

static void negative_features(job *j) {
    linear(j->group, -4, 4);
}

static void no_group(job *j) {
    (void)j;
    linear(NULL, 4, 4);
}

static void wrong_features(job *j) {
    tsh_linear_forward(j->tape, linear(j->group, 18, 4), ones(j, TSH_FLOAT32, 2, 2, 4));
    say_step(j);
}

static void no_layer(job *j) {
    tsh_linear_forward(j->tape, NULL, ones(j, TSH_FLOAT32, 2, 2, 4));
    say_step(j);
}

static void id_out_of_range(job *j) {
    tsh_embedding *table = NULL;
    tsh_tensor *ids = ones(j, TSH_INT64, 1, 3, 0);
    say(tsh_embedding_create(j->group, &(tsh_embedding_config){.num_embeddings = 8, .embedding_dim = 4}, &table));
    say(tsh_tensor_fill(ids, 8));
    tsh_embedding_forward(j->tape, table, ids);
    say_step(j);
}

static void ids_that_are_floats(job *j) {
    tsh_embedding *table = NULL;
    say(tsh_embedding_create(j->group, &(tsh_embedding_config){.num_embeddings = 8, .embedding_dim = 4}, &table));
    tsh_embedding_forward(j->tape, table, ones(j, TSH_FLOAT32, 1, 3, 0));
    say_step(j);
}

static void heads_that_do_not_divide(job *j) {
    tsh_self_attention *layer = NULL;
    say(tsh_self_attention_create(j->group, &(tsh_self_attention_config){.embed = 10, .heads = 3}, &layer));
}

/* A layer of another world of this process. */
static void layer_of_another_world(job *j) {
    tsh_world *other = NULL;
    say(tsh_world_init(&(tsh_world_config){.group_name = "other"}, &other));
    tsh_linear_forward(j->tape, linear(tsh_world_group(other), 4, 4), ones(j, TSH_FLOAT32, 2, 2, 4));
    say_step(j);
}

const misuse layer_rows[] = {
    {"negative_features", BOTH, "", "linear_create: ", negative_features, false},
    {"layer_without_group", BOTH, "", "linear_create: ", no_group, false},
    {"wrong_features", BOTH, "", "linear_forward: x is [2,4], layer wants in_features=18", wrong_features, false},
    {"no_layer", BOTH, "", "linear_forward: ", no_layer, false},
    {"id_out_of_range", BOTH, "", "embedding_forward: id 8 at index 0, the vocabulary is [0, 8)", id_out_of_range,
     false},
    {"ids_that_are_floats", BOTH, "", "float32", ids_that_are_floats, false},
    {"heads_that_do_not_divide", BOTH, "", "heads", heads_that_do_not_divide, false},
    {"layer_of_another_world", BOTH, "", "world", layer_of_another_world, false},
    {0}};
