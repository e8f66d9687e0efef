/* Tensors that are used after they have ended, or released too often. */
#include "misuse.h"

#include <pthread.h>
#include <stdio.h>

static void released_twice(job *j) {
    tsh_tensor *x = ones(j, TSH_FLOAT32, 1, 4, 0);
    tsh_tensor_release(x);
    tsh_tensor_release(x);
}

static void retained_after_release(job *j) {
    tsh_tensor *x = ones(j, TSH_FLOAT32, 1, 4, 0);
    tsh_tensor_release(x);
    printf("%p\n", (void *)tsh_tensor_retain(x));
}

static void result_released(job *j) {
    tsh_tensor *x = leaf(j, 2, 3), *y = tsh_mul(j->tape, x, x);
    tsh_tensor_release(y);
    say(tsh_backward(j->tape, tsh_sum(j->tape, y, TSH_ALL_DIMS)));
    say(tsh_tape_reset(j->tape));
}

static void weight_released(job *j) {
    tsh_linear *layer = NULL;
    say(tsh_linear_create(j->group, &(tsh_linear_config){.in_features = 4, .out_features = 4}, &layer));
    tsh_tensor_release(tsh_linear_weight(layer));
    tsh_linear_destroy(layer);
}

static void used_after_release(job *j) {
    tsh_tensor *x = leaf(j, 2, 3);
    tsh_tensor_release(x);
    tsh_relu(j->tape, x);
    say_step(j);
}

static void sum_after_release(job *j) {
    tsh_tensor *x = ones(j, TSH_FLOAT32, 1, 4, 0);
    tsh_tensor_release(x);
    say(tsh_all_reduce(j->group, x, TSH_REDUCE_SUM));
}

static void read_after_reset(job *j) {
    float values[6];
    tsh_tensor *x = leaf(j, 2, 3), *y = tsh_mul(j->tape, x, x);
    say(tsh_tape_reset(j->tape));
    say(tsh_tensor_read(y, values, 6));
}

static void backward_after_reset(job *j) {
    tsh_tensor *loss = tsh_sum(j->tape, leaf(j, 2, 3), TSH_ALL_DIMS);
    say(tsh_tape_reset(j->tape));
    say(tsh_backward(j->tape, loss));
}

/* A result of the step before, when this step has made as many tensors: checked, none of these has its handle. */
static void used_in_the_next_step(job *j) {
    tsh_tensor *x = leaf(j, 2, 3), *y = tsh_mul(j->tape, x, x);
    say(tsh_tape_reset(j->tape));
    tsh_add(j->tape, tsh_mul(j->tape, x, x), y);
    say_step(j);
}

static void used_after_world(job *j) {
    float values[6];
    tsh_tensor *x = leaf(j, 2, 3);
    tsh_tape_destroy(j->tape);
    tsh_world_destroy(j->world);
    j->tape = NULL;
    j->world = NULL;
    say(tsh_tensor_read(x, values, 6));
    tsh_tensor_release(x);
}

static void written_before_backward(job *j) {
    tsh_tensor *x = leaf(j, 2, 3), *loss = tsh_sum(j->tape, tsh_mul(j->tape, x, x), TSH_ALL_DIMS);
    say(tsh_tensor_fill(x, 2));
    say(tsh_backward(j->tape, loss));
}

static void stepped_before_backward(job *j) {
    tsh_parameters *list = NULL;
    tsh_optimizer *optimizer = NULL;
    tsh_tensor *x = leaf(j, 2, 3);
    say(tsh_parameters_create(j->world, &list));
    say(tsh_parameters_add(list, "weight", x));
    say(tsh_sgd_create(list, &(tsh_sgd_config){.lr = 0.1}, &optimizer));
    tsh_tensor *first = tsh_sum(j->tape, tsh_mul(j->tape, x, x), TSH_ALL_DIMS);
    tsh_tensor *second = tsh_sum(j->tape, tsh_mul(j->tape, x, x), TSH_ALL_DIMS);
    say(tsh_backward(j->tape, first));
    say(tsh_optimizer_step(optimizer));
    say(tsh_backward(j->tape, second));
}

static void *in_another_thread(void *context) {
    const job *j = context;
    tsh_relu(j->tape, leaf(j, 2, 3));
    say_step(j);
    return NULL;
}

static void another_thread(job *j) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, in_another_thread, j) == 0) pthread_join(thread, NULL);
}

static void parameter_after_release(job *j) {
    tsh_parameters *list = NULL;
    tsh_tensor *x = leaf(j, 2, 3);
    say(tsh_parameters_create(j->world, &list));
    tsh_tensor_release(x);
    say(tsh_parameters_add(list, "x", x));
}

const misuse reference_rows[] = {
    {"released_twice", BOTH, "", "tensor_release: float32 [4] cannot be released: it has been released", released_twice,
     false},
    {"retained_after_release", BOTH, "", "tensor_retain: float32 [4] cannot be retained: it has been released",
     retained_after_release, false},
    {"result_released", BOTH, "", "cannot be released: it belongs to a tape", result_released, false},
    {"weight_released", BOTH, "", "cannot be released: it belongs to a tape, a layer", weight_released, false},
    {"used_after_release", BOTH, "", "relu: input 0 cannot be used: it has been released", used_after_release, false},
    {"sum_after_release", BOTH, "", "all_reduce: tensor cannot be used: it has been released", sum_after_release,
     false},
    {"read_after_reset", BOTH, "", "tensor_read: the tensor cannot be used: its step has ended", read_after_reset,
     false},
    {"backward_after_reset", BOTH, "", "backward: the loss cannot be used: its step has ended", backward_after_reset,
     false},
    {"used_in_the_next_step", BOTH, "TSHARD_CHECK=1", "add: input 1 cannot be used: its step has ended",
     used_in_the_next_step, false},
    {"used_after_world", BOTH, "", "the tensor cannot be used: its world has been destroyed", used_after_world, false},
    {"written_before_backward", BOTH, "", "backward of mul: input 0, float32 [2,3]", written_before_backward, false},
    {"stepped_before_backward", BOTH, "", "backward of mul: input 0 'weight', float32 [2,3]", stepped_before_backward,
     false},
    {"another_thread", BOTH, "", "this thread did not create the world", another_thread, false},
    {"another_thread_checked", BOTH, "TSHARD_CHECK=1",
     "TSH_ERR_STATE: rank 0: relu: this thread did not create the world", another_thread, false},
    {"parameter_after_release", BOTH, "", "parameters_add: x cannot be used: it has been released",
     parameter_after_release, false},
    {0}};
