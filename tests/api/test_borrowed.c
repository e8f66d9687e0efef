/* What a getter returns is borrowed: a release of it is refused, and it lives on. */
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(borrowed, .timeout = 120);

/* The release of what the program does not hold says so, with words of the tensor, and takes nothing. */
static void refused(tshi_rank *r, const char *what, tsh_tensor *t, const char *words) {
    if (!tshi_check(r, t != NULL, "%s: there is none", what)) return;
    for (int i = 0; i < 2; i++) {
        tsh_tensor_retain(t);
        tsh_tensor_release(t);
        tsh_tensor_release(t);
        const char *message = tsh_error_message();
        tshi_check(r, strstr(message, "tensor_release: ") && strstr(message, words) && strstr(message, "it belongs to"),
                   "%s: %s", what, message);
    }
    tshi_check(r, tsh_tensor_data(t) != NULL, "%s: freed", what);
}

static void gradients(tshi_rank *r, void *arg) {
    const double values[6] = {1, 2, 3, 4, 5, 6}, id[3] = {0, 1, 0};
    tsh_tape *tape = NULL;
    tsh_mesh *mesh = NULL;
    tsh_parameters *list = NULL;
    tsh_data_parallel *dp = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_mesh_create(r->world, "data=-1", &mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    const tsh_tensor_config config = {.ndim = 2, .shape = {3, 2}},
                            ids_of = {.dtype = TSH_INT64, .ndim = 1, .shape = {3}};
    tsh_tensor *w = tshi_test_leaf(r, mesh, &config, values), *table = tshi_test_leaf(r, mesh, &config, values);
    tsh_tensor *summed = tshi_test_leaf(r, mesh, &config, values), *ids = tshi_test_tensor(r, mesh, &ids_of, id);
    tshi_check_ok(r, tsh_tensor_set_sparse_grad(table));
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tshi_check_ok(r, tsh_parameters_add(list, "summed", summed));
    tshi_check_ok(r, tsh_data_parallel_create(tape, list, tsh_mesh_group(mesh, "data"), NULL, &dp));
    tsh_tensor *h = tsh_mul(tape, w, w), *loss = tsh_sum(tape, h, TSH_ALL_DIMS);
    tshi_check_ok(r, tsh_tensor_retain_grad(h));
    loss = tsh_add(tape, loss, tsh_sum(tape, tsh_lookup(tape, table, ids, -1), TSH_ALL_DIMS));
    loss = tsh_add(tape, loss, tsh_sum(tape, summed, TSH_ALL_DIMS));
    tshi_check_ok(r, tsh_backward(tape, loss));
    refused(r, "a leaf's gradient", tsh_tensor_grad(w), "float32 [3,2]");
    refused(r, "a retained gradient", tsh_tensor_grad(h), "float32 [3,2]");
    refused(r, "a sparse gradient", tsh_tensor_sparse_grad(table, NULL, NULL), "float32");
    refused(r, "a gradient that is summed", tsh_tensor_grad(summed), "float32 [3,2]");
    refused(r, "a loss", loss, "float32 []");
    tshi_check(r, tshi_test_element(tsh_tensor_grad(w), 5) == 12, "the gradient is another one");
    tsh_tensor_release(w);
    tsh_tensor_release(w);
    tshi_check(r, strstr(tsh_error_message(), "tensor_release: float32 [3,2] cannot be released: it has been released"),
               "a second release: %s", tsh_error_message());
    tsh_data_parallel_destroy(dp);
    tsh_parameters_destroy(list);
    tsh_tensor_release(ids);
    tsh_tensor_release(table);
    tsh_tensor_release(summed);
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(mesh);
}

Test(borrowed, gradients_are) {
    cr_assert_str_empty(tshi_test_run_each(1, 2, gradients, NULL));
}

static void parameters(tshi_rank *r, void *arg) {
    tsh_group *group = tsh_world_group(r->world);
    tsh_linear *linear = NULL;
    tsh_embedding *embedding = NULL;
    tsh_norm *norm = NULL;
    tsh_kv_cache *cache = NULL;
    tsh_parameters *list = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    const tsh_linear_config l = {.in_features = 4, .out_features = 4, .bias = true};
    const tsh_embedding_config e = {.num_embeddings = 4, .embedding_dim = 4};
    const tsh_norm_config n = {.features = 4};
    const tsh_kv_cache_config c = {.batch = 1, .positions = 4, .kv_heads = 1, .head_dim = 4};
    tshi_check_ok(r, tsh_linear_create(group, &l, &linear));
    tshi_check_ok(r, tsh_linear_register(linear, list, "first"));
    tshi_check_ok(r, tsh_embedding_create(group, &e, &embedding));
    tshi_check_ok(r, tsh_norm_create(group, &n, &norm));
    tshi_check_ok(r, tsh_kv_cache_create(tsh_world_mesh(r->world), &c, &cache));
    refused(r, "a weight", tsh_linear_weight(linear), "'first.weight', float32 [4,4]");
    refused(r, "a bias", tsh_linear_bias(linear), "'first.bias', float32 [4]");
    refused(r, "a parameter of a list", tsh_parameters_tensor(list, 0), "'first.weight'");
    refused(r, "a table", tsh_embedding_weight(embedding), "float32 [4,4]");
    refused(r, "a norm's weight", tsh_norm_weight(norm), "float32 [4]");
    refused(r, "keys", tsh_kv_cache_keys(cache), "float32 [1,4,1,4]");
    refused(r, "values", tsh_kv_cache_values(cache), "float32 [");
    tsh_kv_cache_destroy(cache);
    tsh_parameters_destroy(list);
    tsh_linear_destroy(linear);
    tsh_embedding_destroy(embedding);
    tsh_norm_destroy(norm);
}

Test(borrowed, parameters_are) {
    cr_assert_str_empty(tshi_test_run_each(1, 2, parameters, NULL));
}

static void results(tshi_rank *r, void *arg) {
    const double values[4] = {1, 2, 3, 4};
    tsh_tape *tape = NULL;
    tsh_tensor *indices = NULL, *made = NULL;
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tensor *x = tshi_test_leaf(r, mesh, &(tsh_tensor_config){.ndim = 1, .shape = {4}}, values);
    refused(r, "the largest", tsh_topk(tape, x, 2, 0, &indices), "float32 [2]");
    refused(r, "their indices", indices, "int64 [2]");
    refused(r, "argmax", tsh_argmax(tape, x, 0), "int64");
    /* What the program has made it releases. */
    tsh_tensor *all[3] = {NULL};
    tshi_check_ok(r, tsh_tensor_clone(x, &all[0]));
    tshi_check_ok(r, tsh_tensor_create_uniform(mesh, &(tsh_tensor_config){.ndim = 1, .shape = {4}}, 0, 1, &all[1]));
    const tsh_tensor_config own = {.ndim = 1, .shape = {4}, .layout = {TSH_LOCAL}};
    tsh_tensor *local = NULL;
    tshi_check_ok(r, tsh_tensor_create(mesh, &own, &local));
    tshi_check_ok(r, tsh_from_local(local, (tsh_layout[]){TSH_REPLICATED}, NULL, &all[2]));
    for (int i = 0; i < 3; i++) {
        tsh_tensor_release(all[i]);
        tshi_check(r, tsh_tensor_mesh(all[i]) == NULL, "tensor %d lives on", i);
    }
    if (r->size == 2 && r->rank == 0) tshi_check_ok(r, tsh_send_new(tsh_world_group(r->world), x, 1));
    if (r->rank == 1) tshi_check_ok(r, tsh_recv_new(tsh_world_group(r->world), mesh, 0, NULL, &made));
    tsh_tensor_release(made);
    tshi_check(r, !made || !tsh_tensor_mesh(made), "what was received lives on");
    tsh_tensor_release(local);
    tsh_tensor_release(x);
    tsh_tape_destroy(tape);
    size_t left = tsh_device_stats(tsh_world_device(r->world)).bytes_in_use;
    tshi_check(r, left == 0, "%zu bytes are left", left);
}

Test(borrowed, results_are_and_what_the_program_makes_is_not) {
    cr_assert_str_empty(tshi_test_run_each(1, 2, results, NULL));
}
