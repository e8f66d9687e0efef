/* Plans of calls, from metadata alone: no ranks, no tape, no tensor has memory. The answers follow from the rows of
 * each operation and the table of transitions, and are written by hand. */
#include "autograd/grad/state.h"
#include "autograd/plan/plan.h"
#include "functional/functional.h"
#include "support/mesh_view.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

TestSuite(plan_steps, .timeout = 60);

#define R   TSH_REPLICATED_INIT
#define P   TSH_PARTIAL_INIT
#define L   TSH_LOCAL_INIT
#define S0  TSH_SHARD_INIT(0)
#define S1  TSH_SHARD_INIT(1)
#define ALL 7u

enum { INPUTS = 3 };

typedef struct input {
    int64_t dims[3]; /* a 0 ends them */
    tsh_layout layout[2];
    tsh_dtype dtype;
    unsigned sums; /* the axes along which a schedule sums the leaf's gradient */
} input;

typedef struct plan_case {
    const char *name;
    const tsh_op *op;
    int dim; /* of an operation that has one */
    input in[INPUTS];
    int64_t out[3];
    unsigned leaves, parameters; /* bit i: input i wants a gradient; it is a layer's */
    bool reaches;                /* a layer wants `wish` along axis 0 */
    tsh_layout wish;
    tsh_dtype arithmetic; /* TSH_FLOAT32: as the inputs are */
    bool deterministic, silent;
    const char *steps;
} plan_case;

static int ndim_of(const int64_t *dims) {
    int n = 0;
    while (n < 3 && dims[n]) n++;
    return n;
}

/* "0 cast bfloat16 [4,6] REPLICATED; out kernel float32 [4,10] SHARD(1) holds [4,5]": what a step makes, and what this
 * rank holds of it where that is not the whole. */
static void print_step(const tshi_plan_step *s, char *text, size_t size) {
    static const char *const kinds[] = {"cast", "copy", "transition", "exchange", "kernel"};
    char dims[64], name[TSHI_LAYOUT_NAME];
    int n = s->shape.ndim;
    if (*text) tshi_append(text, size, "; ");
    if (s->input < 0)
        tshi_append(text, size, "out ");
    else
        tshi_append(text, size, "%d ", s->input);
    tshi_append(text, size, "%s ", kinds[s->kind]);
    if (s->dtype != TSH_FLOAT32) tshi_append(text, size, "%s ", tsh_dtype_name(s->dtype));
    tshi_append(text, size, "%s", tshi_dims_name(n, s->shape.global, dims, sizeof dims));
    for (int a = 0; a < s->mesh->axes; a++)
        tshi_append(text, size, " %s",
                    tshi_layout_name(s->layout[a], tshi_axis_parts(&s->mesh->axis[a]), name, sizeof name));
    if (memcmp(s->shape.local, s->shape.global, sizeof *s->shape.local * (size_t)n))
        tshi_append(text, size, " holds %s", tshi_dims_name(n, s->shape.local, dims, sizeof dims));
}

/* The plan's steps as text, or the message of a call that has none. */
static void print_plan(const tsh_mesh *mesh, const plan_case *c, char *text, size_t size) {
    static const tshi_target_ops target_ops = {0};
    tsh_tensor given[INPUTS] = {{0}}, cast[INPUTS], *as_given[INPUTS], *in[INPUTS];
    tshi_gradient gradient[INPUTS] = {{0}};
    tshi_gradient_target target[INPUTS] = {{0}};
    int params[4] = {c->dim}, inputs = 0;
    for (; inputs < INPUTS && c->in[inputs].dims[0]; inputs++) {
        const input *i = &c->in[inputs];
        tsh_tensor *t = as_given[inputs] = in[inputs] = &given[inputs];
        *t = (tsh_tensor){.dtype = i->dtype, .mesh = mesh, .shape.ndim = ndim_of(i->dims)};
        memcpy(t->shape.global, i->dims, sizeof i->dims);
        memcpy(t->layout, i->layout, sizeof i->layout);
        cr_assert_eq(tshi_shape_resolve(mesh, &t->shape, t->layout), TSH_OK);
        gradient[inputs].required = c->leaves >> inputs & 1u;
        target[inputs] = (tshi_gradient_target){.ops = &target_ops, .sums = i->sums};
        if (i->sums) gradient[inputs].target = &target[inputs];
        t->gradient = &gradient[inputs];
        if (c->arithmetic == TSH_FLOAT32 || i->dtype != TSH_FLOAT32) continue;
        cast[inputs] = *t;
        cast[inputs].dtype = c->arithmetic;
        in[inputs] = &cast[inputs];
    }
    tsh_call call = {.op = c->op, .inputs = inputs, .in = in, .params = params};
    tsh_shape shape = {.ndim = ndim_of(c->out)};
    memcpy(shape.global, c->out, sizeof c->out);
    tshi_want want = {.parameters = c->parameters, .axis = c->reaches ? 0 : -1, .out = c->wish};
    tshi_goal goal = {c->arithmetic, &shape, &want, c->deterministic, !c->silent};
    tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tshi_plan plan = {.allocator = &allocator};
    *text = '\0';
    if (tshi_plan_make(&call, as_given, &goal, &plan) != TSH_OK) {
        tshi_append(text, size, "%s", tsh_error_message());
    } else {
        for (int k = 0; k < plan.count; k++) print_step(&plan.step[k], text, size);
    }
    tshi_free(&allocator, plan.step);
}

static void check_cases(int axes, const int *sizes, const plan_case *cases, int count) {
    tshi_mesh_view view = tshi_mesh_view_make(axes, sizes, (int[]){0, 0});
    for (int k = 0; k < count; k++) {
        char text[TSHI_MESSAGE_SIZE];
        print_plan(&view.mesh, &cases[k], text, sizeof text);
        cr_expect_str_eq(text, cases[k].steps, "%s:\n  made:   %s\n  wanted: %s", cases[k].name, text, cases[k].steps);
    }
    tshi_mesh_view_free(&view);
}

#define CHECK(axes, ...) check_cases(axes, (int[]){__VA_ARGS__}, cases, (int)(sizeof cases / sizeof *cases))

/* --- what layers call --------------------------------------------------------------------------------------------- */

#define LINEAR .op = &tshi_linear_op, .leaves = ALL, .parameters = 6, .out = {4, 10}

Test(plan_steps, linear_layers_over_two_ranks) {
    static const plan_case cases[] = {
        {"column", LINEAR, .in = {{{4, 6}, {R}}, {{10, 6}, {S0}}, {{10}, {S0}}},
         .steps = "0 transition [4,6] LOCAL; out kernel [4,10] SHARD(1) holds [4,5]"},
        {"column, output gathered", LINEAR, .in = {{{4, 6}, {R}}, {{10, 6}, {S0}}, {{10}, {S0}}}, .reaches = true,
         .wish = R,
         .steps = "0 transition [4,6] LOCAL; out kernel [4,10] SHARD(1) holds [4,5]; out transition [4,10] REPLICATED"},
        {"column, rows of a sequence", LINEAR, .in = {{{4, 6}, {S0}}, {{10, 6}, {S0}}, {{10}, {S0}}},
         .steps = "0 transition [4,6] LOCAL; out kernel [4,10] SHARD(1) holds [4,5]"},
        {"row", LINEAR, .in = {{{4, 6}, {S1}}, {{10, 6}, {S1}}, {{10}, {R}}}, .reaches = true, .wish = R,
         .steps = "2 transition [10] PARTIAL; out kernel [4,10] PARTIAL; out transition [4,10] REPLICATED"},
        {"row, rows of a sequence", LINEAR, .in = {{{4, 6}, {S1}}, {{10, 6}, {S1}}, {{10}, {R}}}, .reaches = true,
         .wish = S0,
         .steps = "2 transition [10] PARTIAL; out kernel [4,10] PARTIAL; "
                  "out transition [4,10] SHARD(0) holds [2,10]"},
        {"row of an x that is whole", LINEAR, .in = {{{4, 6}, {R}}, {{10, 6}, {S1}}}, .reaches = true, .wish = R,
         .steps = "0 transition [4,6] SHARD(1) holds [4,3]; out kernel [4,10] PARTIAL; "
                  "out transition [4,10] REPLICATED"},
        {"dense, a batch", LINEAR, .in = {{{4, 6}, {S0}}, {{10, 6}, {R}}, {{10}, {R}}},
         .steps = "1 transition [10,6] LOCAL; 2 transition [10] LOCAL; out kernel [4,10] SHARD(0) holds [2,10]"},
        {"dense, the same x everywhere", LINEAR, .in = {{{4, 6}, {R}}, {{10, 6}, {R}}, {{10}, {R}}},
         .steps = "out kernel [4,10] REPLICATED"},
        {"embedding, rows of the vocabulary", .op = &tshi_embedding_op, .in = {{{12, 6}, {S0}}, {{5}, {R}, TSH_INT64}},
         .out = {5, 6}, .leaves = 1, .parameters = 1, .reaches = true, .wish = R,
         .steps = "out kernel [5,6] PARTIAL; out transition [5,6] REPLICATED"},
        {"embedding, features", .op = &tshi_embedding_op, .in = {{{12, 6}, {S1}}, {{5}, {R}, TSH_INT64}}, .out = {5, 6},
         .leaves = 1, .parameters = 1, .steps = "out kernel [5,6] SHARD(1) holds [5,3]"},
        {"embedding, a batch of ids", .op = &tshi_embedding_op, .in = {{{12, 6}, {R}}, {{5}, {S0}, TSH_INT64}},
         .out = {5, 6}, .leaves = 1, .parameters = 1,
         .steps = "0 transition [12,6] LOCAL; out kernel [5,6] SHARD(0) holds [3,6]"},
    };
    CHECK(1, 2);
}

Test(plan_steps, linear_layers_over_three_ranks_and_two_axes) {
    static const plan_case uneven[] = {
        {"column", LINEAR, .in = {{{4, 6}, {R}}, {{10, 6}, {S0}}, {{10}, {S0}}},
         .steps = "0 transition [4,6] LOCAL; out kernel [4,10] SHARD(1) holds [4,4]"},
    };
    static const plan_case cases[] = {
        {"column, a batch over the other axis", LINEAR, .in = {{{4, 6}, {S0, R}}, {{10, 6}, {R, S0}}, {{10}, {R, S0}}},
         .steps = "0 transition [4,6] SHARD(0) LOCAL holds [2,6]; 1 transition [10,6] LOCAL SHARD(0) holds [5,6]; "
                  "2 transition [10] LOCAL SHARD(0) holds [5]; out kernel [4,10] SHARD(0) SHARD(1) holds [2,5]"},
    };
    check_cases(1, (int[]){3}, uneven, 1);
    CHECK(2, 2, 2);
}

/* --- functions ---------------------------------------------------------------------------------------------------- */

#define MATMUL  .op = &tshi_matmul_op, .leaves = ALL, .out = {4, 10}
#define ADD     .op = &tshi_arithmetic_ops[TSHI_ADD], .leaves = ALL, .out = {4, 6}
#define SOFTMAX .op = &tshi_softmax_op, .leaves = ALL, .out = {4, 6}
#define ENTROPY .op = &tshi_cross_entropy_op, .leaves = 1
#define NORM    .op = &tshi_layer_norm_op, .leaves = ALL, .out = {4, 6}

Test(plan_steps, functions_over_two_ranks) {
    static const plan_case cases[] = {
        {"matmul, a small sum is summed first", MATMUL, .in = {{{4, 6}, {P}}, {{6, 10}, {R}}},
         .steps = "0 transition [4,6] REPLICATED; out kernel [4,10] REPLICATED"},
        {"matmul, a large sum stays open", .op = &tshi_matmul_op, .leaves = ALL, .out = {40, 10},
         .in = {{{40, 6}, {P}}, {{6, 10}, {R}}}, .steps = "1 transition [6,10] LOCAL; out kernel [40,10] PARTIAL"},
        {"matmul, columns", MATMUL, .in = {{{4, 6}, {R}}, {{6, 10}, {S1}}},
         .steps = "0 transition [4,6] LOCAL; out kernel [4,10] SHARD(1) holds [4,5]"},
        {"matmul, split alike", MATMUL, .in = {{{4, 6}, {S1}}, {{6, 10}, {S0}}}, .steps = "out kernel [4,10] PARTIAL"},
        {"matmul, the other is sliced", MATMUL, .in = {{{4, 6}, {S1}}, {{6, 10}, {R}}},
         .steps = "1 transition [6,10] SHARD(0) holds [3,10]; out kernel [4,10] PARTIAL"},
        {"matmul, rows", MATMUL, .in = {{{4, 6}, {S0}}, {{6, 10}, {R}}},
         .steps = "1 transition [6,10] LOCAL; out kernel [4,10] SHARD(0) holds [2,10]"},
        {"add, one is split", ADD, .in = {{{4, 6}, {S0}}, {{4, 6}, {R}}},
         .steps = "1 transition [4,6] SHARD(0) holds [2,6]; out kernel [4,6] SHARD(0) holds [2,6]"},
        {"add, split unlike", ADD, .in = {{{4, 6}, {S0}}, {{4, 6}, {S1}}},
         .steps = "1 transition [4,6] SHARD(0) holds [2,6]; out kernel [4,6] SHARD(0) holds [2,6]"},
        {"add, a sum and a value", ADD, .in = {{{4, 6}, {P}}, {{4, 6}, {R}}},
         .steps = "1 transition [4,6] PARTIAL; out kernel [4,6] PARTIAL"},
        {"add, two sums", ADD, .in = {{{4, 6}, {P}}, {{4, 6}, {P}}}, .steps = "out kernel [4,6] PARTIAL"},
        {"add, a row to each", ADD, .in = {{{4, 6}, {S0}}, {{1, 6}, {R}}},
         .steps = "1 transition [1,6] LOCAL; out kernel [4,6] SHARD(0) holds [2,6]"},
        {"add, ranks' own", ADD, .in = {{{4, 6}, {L}}, {{4, 6}, {R}}},
         .steps = "1 transition [4,6] LOCAL; out kernel [4,6] LOCAL"},
        {"softmax, over the split dim", SOFTMAX, .dim = 1, .in = {{{4, 6}, {S1}}},
         .steps = "out kernel [4,6] SHARD(1) holds [4,3]"},
        {"softmax, over another dim", SOFTMAX, .dim = 0, .in = {{{4, 6}, {S1}}},
         .steps = "out kernel [4,6] SHARD(1) holds [4,3]"},
        {"softmax, of a sum", SOFTMAX, .dim = 1, .in = {{{4, 6}, {P}}},
         .steps = "0 transition [4,6] REPLICATED; out kernel [4,6] REPLICATED"},
        {"cross entropy, a split vocabulary", ENTROPY, .in = {{{4, 6}, {S1}}, {{4}, {R}, TSH_INT64}},
         .steps = "out kernel [] REPLICATED"},
        {"cross entropy, a batch", ENTROPY, .in = {{{4, 6}, {S0}}, {{4}, {R}, TSH_INT64}},
         .steps = "1 transition int64 [4] SHARD(0) holds [2]; out kernel [] REPLICATED"},
        {"norm, rows", NORM, .in = {{{4, 6}, {S0}}, {{6}, {R}}, {{6}, {R}}},
         .steps = "1 transition [6] LOCAL; 2 transition [6] LOCAL; out kernel [4,6] SHARD(0) holds [2,6]"},
        {"norm, split features", NORM, .in = {{{4, 6}, {S1}}, {{6}, {R}}, {{6}, {R}}},
         .steps = "0 transition [4,6] REPLICATED; out kernel [4,6] REPLICATED"},
    };
    CHECK(1, 2);
}

Test(plan_steps, functions_over_two_axes) {
    static const plan_case cases[] = {
        {"norm, features split twice: one exchange", NORM, .in = {{{4, 6}, {S1, S1}}},
         .steps = "0 exchange [4,6] REPLICATED REPLICATED; out kernel [4,6] REPLICATED REPLICATED"},
        {"matmul, rows and terms", MATMUL, .in = {{{4, 6}, {S0, S1}}, {{6, 10}, {R, S0}}},
         .steps = "1 transition [6,10] LOCAL SHARD(0) holds [3,10]; out kernel [4,10] SHARD(0) PARTIAL holds [2,10]"},
        {"matmul, a leaf goes to its target's axis first", MATMUL,
         .in = {{{4, 6}, {S1, S0}}, {{6, 10}, {R, R}, .sums = 2}},
         .steps = "1 transition [6,10] REPLICATED LOCAL; 1 transition [6,10] SHARD(0) LOCAL holds [3,10]; "
                  "out kernel [4,10] PARTIAL SHARD(0) holds [2,10]"},
        {"matmul, no target", MATMUL, .in = {{{4, 6}, {S1, S0}}, {{6, 10}, {R, R}}},
         .steps = "1 transition [6,10] SHARD(0) REPLICATED holds [3,10]; "
                  "1 transition [6,10] SHARD(0) LOCAL holds [3,10]; out kernel [4,10] PARTIAL SHARD(0) holds [2,10]"},
    };
    CHECK(2, 2, 2);
}

/* --- edits of plans ----------------------------------------------------------------------------------------------- */

Test(plan_steps, casts_come_before_movements) {
    static const plan_case cases[] = {
        {"column", LINEAR, .in = {{{4, 6}, {R}}, {{10, 6}, {S0}}}, .arithmetic = TSH_BFLOAT16,
         .steps = "0 cast bfloat16 [4,6] REPLICATED; 1 cast bfloat16 [10,6] SHARD(0) holds [5,6]; "
                  "0 transition bfloat16 [4,6] LOCAL; out kernel bfloat16 [4,10] SHARD(1) holds [4,5]"},
        {"an x that is there in 16 bits", LINEAR, .in = {{{4, 6}, {R}, TSH_BFLOAT16}, {{10, 6}, {R}}},
         .arithmetic = TSH_BFLOAT16,
         .steps = "1 cast bfloat16 [10,6] REPLICATED; out kernel bfloat16 [4,10] REPLICATED"},
        {"a sum over ranks is summed in its own dtype", ADD, .in = {{{4, 6}, {P}}, {{4, 6}, {R}}},
         .arithmetic = TSH_BFLOAT16,
         .steps = "0 transition [4,6] REPLICATED; 0 cast bfloat16 [4,6] REPLICATED; "
                  "1 cast bfloat16 [4,6] REPLICATED; out kernel bfloat16 [4,6] REPLICATED"},
    };
    CHECK(1, 2);
}

Test(plan_steps, deterministic_calls_run_whole) {
    static const plan_case cases[] = {
        {"column", LINEAR, .in = {{{4, 6}, {R}}, {{10, 6}, {S0}}}, .deterministic = true,
         .steps = "1 copy [10,6] SHARD(0) holds [5,6]; 1 transition [10,6] REPLICATED; 0 copy [4,6] REPLICATED; "
                  "out kernel [4,10] REPLICATED; out transition [4,10] SHARD(1) holds [4,5]"},
        {"column, nothing is recorded", LINEAR, .in = {{{4, 6}, {R}}, {{10, 6}, {S0}}}, .deterministic = true,
         .silent = true,
         .steps = "1 transition [10,6] REPLICATED; out kernel [4,10] REPLICATED; "
                  "out transition [4,10] SHARD(1) holds [4,5]"},
        {"add, element by element", ADD, .in = {{{4, 6}, {S0}}, {{4, 6}, {S0}}}, .deterministic = true,
         .steps = "out kernel [4,6] SHARD(0) holds [2,6]"},
        {"add, a row's gradient is a sum", ADD, .in = {{{4, 6}, {S0}}, {{1, 6}, {R}}}, .deterministic = true,
         .steps = "1 copy [1,6] REPLICATED; 0 copy [4,6] SHARD(0) holds [2,6]; 0 transition [4,6] REPLICATED; "
                  "out kernel [4,6] REPLICATED; out transition [4,6] SHARD(0) holds [2,6]"},
    };
    CHECK(1, 2);
}

/* --- an operation of a program's own ------------------------------------------------------------------------------ */

Test(plan_steps, a_programs_own_operation) {
    static const tsh_rule rules[] = {
        {{TSH_AS_R}, TSH_AS_R}, {{TSH_AS_BATCH}, TSH_AS_BATCH}, {{TSH_ROW_END}, TSH_ROW_END}};
    static const tsh_op own = {.name = "own", .rules = rules};
    static const plan_case cases[] = {
        {"rows", .op = &own, .in = {{{4, 6}, {S0}}}, .out = {4, 6}, .steps = "out kernel [4,6] SHARD(0) holds [2,6]"},
        {"split features become rows", .op = &own, .in = {{{4, 6}, {S1}}}, .out = {4, 6},
         .steps = "0 transition [4,6] REPLICATED; out kernel [4,6] REPLICATED"},
        {"ranks' own have no row", .op = &own, .in = {{{4, 6}, {L}}}, .out = {4, 6},
         .steps = "no layout rule along axis axis0 for float32 [4,6] axis0=LOCAL"},
    };
    CHECK(1, 2);
}
