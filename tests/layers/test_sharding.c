/* Tables that shard a model by the names of its layers. */
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(sharding, .timeout = 120);

/* Llama's table, as transformers has it, and an embedding and a head beside it. */
static const tsh_sharding_rule llama[] = {
    {"model.layers.*.self_attn.q_proj", "colwise"}, {"model.layers.*.self_attn.o_proj", "rowwise"},
    {"model.layers.*.mlp.*_proj", "row_sequence"},  {"model.embed_tokens", "vocabulary"},
    {"lm_head", "colwise_gather_output"},           {NULL, NULL}};

Test(sharding, finds_the_first_row_whose_pattern_is_the_whole_name) {
    static const struct {
        const char *name;
        tsh_sharding_choice wanted;
    } cases[] = {{"model.layers.0.self_attn.q_proj", {TSH_COLUMN, false, false}},
                 {"model.layers.31.self_attn.o_proj", {TSH_ROW, false, false}},
                 {"model.layers.31.mlp.gate_proj", {TSH_ROW, false, true}},
                 {"model.layers.31.mlp.up_proj", {TSH_ROW, false, true}},
                 {"model.embed_tokens", {TSH_ROW, false, false}},
                 {"lm_head", {TSH_COLUMN, true, false}},
                 {"lm_head.more", {TSH_DENSE, false, false}},
                 {"lm_hea", {TSH_DENSE, false, false}},
                 {"model.layers.31.mlp._proj", {TSH_DENSE, false, false}}, /* '*' stands for one character at least */
                 {"model.layers.1.2.self_attn.q_proj", {TSH_DENSE, false, false}}, /* and for no dot */
                 {"layers.0.self_attn.q_proj", {TSH_DENSE, false, false}}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tsh_sharding_choice got = {.shard = TSH_ROW};
        cr_assert_eq(tsh_sharding_find(llama, cases[i].name, &got), TSH_OK, "%s", tsh_error_message());
        cr_assert_eq(got.shard, cases[i].wanted.shard, "%s", cases[i].name);
        cr_assert_eq(got.gather_output, cases[i].wanted.gather_output, "%s", cases[i].name);
        cr_assert_eq(got.sequence_parallel, cases[i].wanted.sequence_parallel, "%s", cases[i].name);
    }
}

Test(sharding, a_star_takes_what_leads_to_a_match) {
    static const tsh_sharding_rule table[] = {{"a*c.x*", "row"}, {"*", "column"}, {NULL, NULL}};
    tsh_sharding_choice got;
    cr_assert(tsh_sharding_find(table, "abcc.xy", &got) == TSH_OK && got.shard == TSH_ROW);
    cr_assert(tsh_sharding_find(table, "abcc.x", &got) == TSH_OK && got.shard == TSH_DENSE);
    cr_assert(tsh_sharding_find(table, "abcc", &got) == TSH_OK && got.shard == TSH_COLUMN);
}

Test(sharding, refuses_malformed_tables_in_words) {
    static const tsh_sharding_rule unknown[] = {{"a", "row"}, {"b.*", "rows"}, {NULL, NULL}};
    static const tsh_sharding_rule missing[] = {{"a", "row"}, {"b", NULL}, {NULL, NULL}};
    static const tsh_sharding_rule nameless[] = {{"a", "row"}, {"", "row"}, {NULL, NULL}};
    tsh_sharding_choice got;
    cr_assert_eq(tsh_sharding_find(unknown, "a", &got), TSH_ERR_ARGUMENT);
    cr_assert(strstr(tsh_error_message(), "'rows' of 'b.*' is not a sharding; use column"), "%s", tsh_error_message());
    cr_assert_eq(tsh_sharding_find(missing, "a", &got), TSH_ERR_ARGUMENT);
    cr_assert(strstr(tsh_error_message(), "'NULL' of 'b'"), "%s", tsh_error_message());
    cr_assert_eq(tsh_sharding_find(nameless, "a", &got), TSH_ERR_ARGUMENT);
    cr_assert(strstr(tsh_error_message(), "row 1 of the table has no layers"), "%s", tsh_error_message());
}

/* --- a layer that takes its sharding from a table ----------------------------------------------------------------- */

static const tsh_sharding_rule table[] = {{"h.*.mlp.up_proj", "column"}, {"h.*.mlp.down_proj", "row"}, {NULL, NULL}};

static tsh_layout layout_of(tshi_rank *r, const tsh_mlp *mlp, tsh_mlp_part part) {
    return tsh_tensor_layout(tsh_linear_weight(tsh_mlp_linear(mlp, part)), tsh_world_group(r->world));
}

static void by_table(tshi_rank *r, void *arg) {
    static const tsh_sharding_rule unused[] = {
        {"h.*.mlp.up_proj", "column"}, {"h.*.mpl.down_proj", "row"}, {NULL, NULL}};
    static const tsh_sharding_rule hidden[] = {{"h.*.mlp.*", "column"}, {"h.0.mlp.up_proj", "row"}, {NULL, NULL}};
    tsh_mlp_config config = {.embed = 4, .hidden = 8, .gated = true, .table = table, .name = "h.0.mlp"};
    tsh_mlp *mlp = NULL;
    tsh_parameters *list = NULL;
    (void)arg;
    if (!tshi_check_ok(r, tsh_mlp_create(tsh_world_group(r->world), &config, &mlp))) return;
    tsh_layout up = layout_of(r, mlp, TSH_MLP_UP), down = layout_of(r, mlp, TSH_MLP_DOWN);
    tshi_check(r, up.kind == TSH_KIND_SHARD && up.dim == 0, "up_proj is no column layer");
    tshi_check(r, down.kind == TSH_KIND_SHARD && down.dim == 1, "down_proj is no row layer");
    tshi_check(r, layout_of(r, mlp, TSH_MLP_GATE).kind == TSH_KIND_REPLICATED, "gate_proj, without a row, is split");
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tshi_check_ok(r, tsh_mlp_register(mlp, list, "h.0.mlp"));
    tshi_check_ok(r, tsh_sharding_check(table, list));
    tshi_check_status(r, tsh_sharding_check(unused, list), TSH_ERR_ARGUMENT,
                      "no layer is sharded by 'h.*.mpl.down_proj'; the 3 parameters are named "
                      "'h.0.mlp.gate_proj.weight' and so on");
    tshi_check_status(r, tsh_sharding_check(hidden, list), TSH_ERR_ARGUMENT,
                      "no layer is sharded by 'h.0.mlp.up_proj'");
    tsh_parameters_destroy(list);
    tsh_mlp_destroy(mlp);
}

Test(sharding, a_table_decides_the_layouts_of_a_layers_parts_and_unused_rows_are_found) {
    cr_assert_str_empty(tshi_test_run(2, by_table, NULL));
}
