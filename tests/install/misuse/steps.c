/* Functions, backward and optimizers. */
#include "misuse.h"

#include <stdio.h>

static void no_tape(job *j) {
    tsh_add(NULL, leaf(j, 2, 2), leaf(j, 2, 2));
    say(TSH_ERR_ARGUMENT);
}

static void no_input(job *j) {
    tsh_add(j->tape, leaf(j, 2, 2), NULL);
    say_step(j);
}

static void shapes_differ(job *j) {
    tsh_add(j->tape, leaf(j, 2, 3), leaf(j, 4, 5));
    say_step(j);
}

static void dtypes_differ(job *j) {
    tsh_add(j->tape, leaf(j, 2, 2), ones(j, TSH_FLOAT64, 2, 2, 2));
    say_step(j);
}

static void matmul_inner(job *j) {
    tsh_matmul(j->tape, leaf(j, 2, 3), leaf(j, 4, 5));
    say_step(j);
}

static void dim_out_of_range(job *j) {
    tsh_softmax(j->tape, leaf(j, 2, 3), 7);
    say_step(j);
}

static void reshape_to_more(job *j) {
    tsh_reshape(j->tape, leaf(j, 2, 3), 1, (int64_t[]){7});
    say_step(j);
}

static void dropout_of_two(job *j) {
    tsh_dropout(j->tape, leaf(j, 2, 3), 2);
    say_step(j);
}

static void label_out_of_range(job *j) {
    tsh_tensor *target = ones(j, TSH_INT64, 1, 2, 0);
    say(tsh_tensor_fill(target, 9));
    tsh_cross_entropy(j->tape, leaf(j, 2, 3), target, NULL);
    say_step(j);
}

static tsh_tensor *loss_of(const job *j, tsh_tensor *x) {
    return tsh_sum(j->tape, tsh_mul(j->tape, x, x), TSH_ALL_DIMS);
}

static void loss_of_many(job *j) {
    tsh_tensor *x = leaf(j, 2, 3);
    say(tsh_backward(j->tape, tsh_mul(j->tape, x, x)));
}

static void backward_twice(job *j) {
    tsh_tensor *loss = loss_of(j, leaf(j, 2, 3));
    say(tsh_backward(j->tape, loss));
    say(tsh_backward(j->tape, loss));
}

static void nothing_recorded(job *j) {
    say(tsh_backward(j->tape, loss_of(j, ones(j, TSH_FLOAT32, 2, 2, 3))));
}

static void no_loss(job *j) {
    say(tsh_backward(j->tape, NULL));
}

static void two_tapes(job *j) {
    tsh_tape *other = NULL;
    tsh_tensor *x = leaf(j, 2, 3);
    say(tsh_tape_create(j->world, &other));
    tsh_relu(other, tsh_mul(j->tape, x, x));
    printf("%s\n", tsh_tape_message(other));
    tsh_tape_destroy(other);
}

static void freed_by_backward(job *j) {
    float values[6];
    tsh_tensor *x = leaf(j, 2, 3), *y = tsh_mul(j->tape, x, x);
    say(tsh_backward(j->tape, tsh_sum(j->tape, tsh_mul(j->tape, y, y), TSH_ALL_DIMS)));
    say(tsh_tensor_read(y, values, 6));
}

static void data_freed_by_backward(job *j) {
    tsh_tensor *x = leaf(j, 2, 3), *y = tsh_mul(j->tape, x, x);
    say(tsh_backward(j->tape, tsh_sum(j->tape, tsh_mul(j->tape, y, y), TSH_ALL_DIMS)));
    if (!tsh_tensor_data(y)) say(TSH_ERR_STATE);
}

static void never_reset(job *j) {
    tsh_tensor *x = leaf(j, 2, 3);
    for (int i = 0; i < 120; i++) say(tsh_backward(j->tape, loss_of(j, x)));
}

static tsh_optimizer *sgd(const job *j, tsh_tensor *x, double lr) {
    tsh_parameters *list = NULL;
    tsh_optimizer *optimizer = NULL;
    say(tsh_parameters_create(j->world, &list));
    say(tsh_parameters_add(list, "x", x));
    say(tsh_sgd_create(list, &(tsh_sgd_config){.lr = lr}, &optimizer));
    return optimizer;
}

static void seeds_differ(job *j) {
    tsh_world_seed(j->world, (uint64_t)j->rank);
    sgd(j, leaf(j, 2, 3), 0.1);
}

static void parameters_in_another_order(job *j) {
    tsh_parameters *list = NULL;
    tsh_optimizer *optimizer = NULL;
    tsh_tensor *x = leaf(j, 2, 3), *y = leaf(j, 3, 2);
    say(tsh_parameters_create(j->world, &list));
    say(tsh_parameters_add(list, j->rank == 0 ? "x" : "y", j->rank == 0 ? x : y));
    say(tsh_parameters_add(list, j->rank == 0 ? "y" : "x", j->rank == 0 ? y : x));
    say(tsh_sgd_create(list, &(tsh_sgd_config){.lr = 0.1}, &optimizer));
}

static void no_parameters_on_one_rank(job *j) {
    tsh_parameters *list = NULL;
    tsh_optimizer *optimizer = NULL;
    tsh_tensor *x = leaf(j, 2, 3);
    say(tsh_parameters_create(j->world, &list));
    if (j->rank == 0) say(tsh_parameters_add(list, "x", x));
    say(tsh_sgd_create(list, &(tsh_sgd_config){.lr = 0.1}, &optimizer));
}

static void copies_differ(job *j) {
    tsh_tensor *x = leaf(j, 2, 3);
    tsh_optimizer *optimizer = sgd(j, x, 0.1);
    say(tsh_tensor_fill(x, 1 + j->rank));
    say(tsh_backward(j->tape, loss_of(j, x)));
    say(tsh_optimizer_step(optimizer));
}

static void step_without_backward(job *j) {
    say(tsh_optimizer_step(sgd(j, leaf(j, 2, 3), 0.1)));
}

static void lr_of_zero(job *j) {
    tsh_tensor *x = leaf(j, 2, 3);
    tsh_optimizer *optimizer = sgd(j, x, 0);
    for (int i = 0; i < 3; i++) {
        say(tsh_backward(j->tape, loss_of(j, x)));
        say(tsh_optimizer_step(optimizer));
        say(tsh_tape_reset(j->tape));
    }
}

static void negative_lr(job *j) {
    sgd(j, leaf(j, 2, 3), -1);
}

static void no_optimizer(job *j) {
    (void)j;
    say(tsh_optimizer_step(NULL));
}

static void name_twice(job *j) {
    tsh_parameters *list = NULL;
    say(tsh_parameters_create(j->world, &list));
    say(tsh_parameters_add(list, "w", leaf(j, 2, 3)));
    say(tsh_parameters_add(list, "w", leaf(j, 2, 3)));
}

const misuse step_rows[] = {
    {"no_tape", BOTH, "", "add: tape is NULL", no_tape, false},
    {"no_input", BOTH, "", "add: input 1 is NULL", no_input, false},
    {"shapes_differ", BOTH, "", "add: float32 [2,3]", shapes_differ, false},
    {"dtypes_differ", BOTH, "", "add: input 1 is float64, input 0 float32", dtypes_differ, false},
    {"matmul_inner", BOTH, "", "matmul: float32 [2,3]", matmul_inner, false},
    {"dim_out_of_range", BOTH, "", "softmax: dim 7 of float32 [2,3]", dim_out_of_range, false},
    {"reshape_to_more", BOTH, "", "reshape: ", reshape_to_more, false},
    {"dropout_of_two", BOTH, "", "dropout: ", dropout_of_two, false},
    {"label_out_of_range", BOTH, "", "cross_entropy: ", label_out_of_range, false},
    {"loss_of_many", BOTH, "", "backward: the loss is float32 [2,3]", loss_of_many, false},
    {"backward_twice", BOTH, "", "backward: a second time over the same step", backward_twice, false},
    {"nothing_recorded", BOTH, "", "backward: no input of ", nothing_recorded, false},
    {"no_loss", BOTH, "", "backward: ", no_loss, false},
    {"two_tapes", BOTH, "", "relu: input 0 belongs to a step of another tape", two_tapes, false},
    {"freed_by_backward", BOTH, "", "tensor_read: the memory of the tensor was freed by backward", freed_by_backward,
     false},
    {"data_freed_by_backward", BOTH, "", "(tsh_tensor_retain keeps it)", data_freed_by_backward, false},
    {"never_reset", BOTH, "", "is tsh_tape_reset missing at the end of a step?", never_reset, false},
    {"step_without_backward", BOTH, "", "sgd: a step, and none of 1 parameters has a gradient", step_without_backward,
     false},
    {"seeds_differ", TWO, "TSHARD_CHECK=1", "optimizer of 1 parameters, of seed 1", seeds_differ, false},
    {"parameters_in_another_order", TWO, "TSHARD_CHECK=1", "parameter 0 is y, float32 [3,2]",
     parameters_in_another_order, false},
    {"no_parameters_on_one_rank", TWO, "TSHARD_CHECK=1", "optimizer of 0 parameters, of seed 0",
     no_parameters_on_one_rank, false},
    {"copies_differ", TWO, "TSHARD_CHECK=1", "optimizer_step: parameter 0, 'x', has values of fingerprint",
     copies_differ, false},
    {"lr_of_zero", BOTH, "", "sgd: the second step in a row with a learning rate of 0", lr_of_zero, false},
    {"negative_lr", BOTH, "", "sgd_create: ", negative_lr, false},
    {"no_optimizer", BOTH, "", "optimizer_step: an optimizer is required", no_optimizer, false},
    {"name_twice", BOTH, "", "a parameter 'w' already exists", name_twice, false},
    {0}};
