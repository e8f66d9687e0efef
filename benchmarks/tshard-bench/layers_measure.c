/* Steps of linear layers, measured by turns with the same matrix products alone, so that noise hits both equally. */
#include "layers.h"
#include "products.h"
#include "timing.h"

#include "device/device.h"
#include "tshard/graph.h"

#include <stdio.h>
#include <unistd.h>

enum { WARM_UP_STEPS = 3, FEWEST_STEPS = 7 };

static const double silent_seconds = 2.0; /* what takes longer tells how far it is */

enum { BEGIN, MIDDLE, END, CLEARED, EVENTS };

typedef struct samples {
    double forward[BENCH_MAX_SAMPLES], backward[BENCH_MAX_SAMPLES], step[BENCH_MAX_SAMPLES];
    double communication[BENCH_MAX_SAMPLES], products[BENCH_MAX_SAMPLES], host[BENCH_MAX_SAMPLES];
} samples;

typedef struct trial {
    const layers_place *place;
    const layers_model *model;
    tsh_group *group;
    tsh_tape *tape;
    tsh_parameters *parameters;
    tsh_linear *layer[LAYERS_MOST];
    tsh_tensor *x, *dy;
    products *products;
    tsh_event *event[EVENTS];
    tsh_graph *graph;     /* of a step, or NULL */
    size_t foreign_bytes; /* bytes of tensors that do not belong to the model */
    samples *samples;
} trial;

static size_t bytes_in_use(const trial *t) {
    return tsh_device_stats(tsh_world_device(t->place->world)).bytes_in_use;
}

/* --- building ----------------------------------------------------------------------------------------------------- */

static tsh_status create_input(const trial *t, int64_t features, tsh_layout layout, tsh_tensor **out) {
    const tsh_tensor_config config = {
        .dtype = t->model->dtype, .ndim = 2, .shape = {t->model->batch, features}, .layout = {layout}};
    tsh_status status = tsh_tensor_create(tsh_group_mesh(t->group), &config, out);
    return status == TSH_OK ? tsh_tensor_init(*out, &(tsh_init){.kind = TSH_INIT_NORMAL, .b = 1.0}) : status;
}

static tsh_status create_layers(trial *t) {
    const layers_model *m = t->model;
    tsh_status status = tsh_parameters_create(tsh_group_world(t->group), &t->parameters);
    for (int i = 0; i < m->count && status == TSH_OK; i++) {
        char name[2] = {(char)('0' + i), '\0'};
        const tsh_linear_config config = {.in_features = m->layer[i].in,
                                          .out_features = m->layer[i].out,
                                          .shard = m->layer[i].shard,
                                          .bias = true,
                                          .activation = i < m->count - 1 ? TSH_ACTIVATION_GELU : TSH_ACTIVATION_NONE,
                                          .dtype = m->dtype};
        status = tsh_linear_create(t->group, &config, &t->layer[i]);
        if (status == TSH_OK) status = tsh_linear_register(t->layer[i], t->parameters, name);
    }
    return status;
}

/* This rank's sizes are those of its weights. */
static tsh_status create_products(trial *t) {
    products_layer layers[LAYERS_MOST];
    for (int i = 0; i < t->model->count; i++) {
        const int64_t *shape = tsh_tensor_local_shape(tsh_linear_weight(t->layer[i]));
        layers[i] = (products_layer){t->model->batch, shape[1], shape[0]};
    }
    size_t before = bytes_in_use(t);
    tsh_status status =
        products_create(tsh_group_mesh(t->group), t->model->dtype, layers, t->model->count, &t->products);
    t->foreign_bytes += bytes_in_use(t) - before;
    return status;
}

static tsh_status create_trial(trial *t) {
    const layers_model *m = t->model;
    const int last = m->count - 1;
    tsh_layout in = m->layer[0].shard == TSH_ROW ? TSH_SHARD(1) : TSH_REPLICATED;
    tsh_layout out = m->layer[last].shard == TSH_COLUMN ? TSH_SHARD(1) : TSH_REPLICATED;
    tsh_status status = create_layers(t);
    if (status == TSH_OK) status = create_input(t, m->layer[0].in, in, &t->x);
    if (status == TSH_OK) status = create_input(t, m->layer[last].out, out, &t->dy);
    if (status == TSH_OK) status = tsh_tensor_require_grad(t->x, true);
    if (status == TSH_OK) status = tsh_parameters_add(t->parameters, "x", t->x);
    if (status == TSH_OK) status = tsh_tape_create(tsh_group_world(t->group), &t->tape);
    if (status == TSH_OK) status = create_products(t);
    tsh_device *device = tsh_world_device(t->place->world);
    for (int i = 0; i < EVENTS && status == TSH_OK; i++) status = tsh_event_create(device, &t->event[i]);
    t->samples = calloc(1, sizeof *t->samples);
    return status == TSH_OK && !t->samples ? TSH_ERR_MEMORY : status;
}

static void destroy_trial(trial *t) {
    free(t->samples);
    tsh_graph_destroy(t->graph);
    for (int i = 0; i < EVENTS; i++) tsh_event_destroy(t->event[i]);
    products_destroy(t->products);
    tsh_tape_destroy(t->tape);
    tsh_parameters_destroy(t->parameters);
    tsh_tensor_release(t->x);
    tsh_tensor_release(t->dy);
    for (int i = 0; i < LAYERS_MOST; i++) tsh_linear_destroy(t->layer[i]);
}

/* --- one step ----------------------------------------------------------------------------------------------------- */

static tsh_tensor *forward(trial *t) {
    tsh_tensor *y = t->x;
    for (int i = 0; i < t->model->count; i++) y = tsh_linear_forward(t->tape, t->layer[i], y);
    return y;
}

/* The parts of a step, with a point of time between them unless the step is to be captured. */
static tsh_status step(trial *t, bool timed) {
    tsh_status status = TSH_OK;
    tsh_parameters_zero_grad(t->parameters);
    tsh_tensor *y = forward(t);
    if (timed) status = tsh_event_record(t->event[MIDDLE]);
    tsh_status ran = tsh_backward_with(t->tape, y, &(tsh_backward_config){.gradient = t->dy});
    if (timed && status == TSH_OK) status = tsh_event_record(t->event[END]);
    tsh_status reset = tsh_tape_reset(t->tape);
    return ran != TSH_OK ? ran : reset != TSH_OK ? reset : status;
}

static tsh_status replay(const trial *t) {
    tsh_status status = tsh_event_record(t->event[MIDDLE]);
    if (status == TSH_OK) status = tsh_graph_launch(t->graph);
    return status == TSH_OK ? tsh_event_record(t->event[END]) : status;
}

static tsh_status elapsed(const trial *t, int from, int to, double *seconds) {
    return tsh_event_elapsed(t->event[from], t->event[to], seconds);
}

static tsh_status measure_step(trial *t, int i) {
    samples *s = t->samples;
    tsh_status status = tsh_barrier(t->group);
    if (status != TSH_OK) return status;
    tsh_group_reset_stats(t->group);
    double begin = bench_now();
    status = tsh_event_record(t->event[BEGIN]);
    if (status == TSH_OK) status = t->graph ? replay(t) : step(t, true);
    if (status == TSH_OK) status = tsh_event_record(t->event[CLEARED]);
    s->host[i] = bench_now() - begin;
    if (status == TSH_OK) status = elapsed(t, BEGIN, CLEARED, &s->step[i]);
    if (status == TSH_OK) status = elapsed(t, BEGIN, MIDDLE, &s->forward[i]);
    if (status == TSH_OK) status = elapsed(t, MIDDLE, END, &s->backward[i]);
    s->communication[i] = tsh_group_stats(t->group).seconds;
    return status;
}

static tsh_status measure_products(trial *t, int i) {
    tsh_status status = tsh_barrier(t->group);
    if (status == TSH_OK) status = tsh_event_record(t->event[BEGIN]);
    if (status == TSH_OK) status = products_run(t->products);
    if (status == TSH_OK) status = tsh_event_record(t->event[END]);
    return status == TSH_OK ? elapsed(t, BEGIN, END, &t->samples->products[i]) : status;
}

/* After a step as usual, which has made what is made once. */
static tsh_status capture(trial *t) {
    tsh_device *device = tsh_world_device(t->place->world);
    tsh_status status = tsh_graph_capture_begin(device);
    if (status != TSH_OK) return status;
    tsh_status captured = step(t, false);
    status = tsh_graph_capture_end(device, &t->graph);
    return captured != TSH_OK ? captured : status;
}

static tsh_status measure_both(trial *t, int i) {
    tsh_status status = measure_step(t, i);
    return status == TSH_OK ? measure_products(t, i) : status;
}

/* --- all steps ---------------------------------------------------------------------------------------------------- */

/* Steps that first take memory and touch it; from the last one's time follows how many there will be. */
static tsh_status warm_up(trial *t, int *steps) {
    tsh_status status = TSH_OK;
    for (int i = 0; i < WARM_UP_STEPS && status == TSH_OK; i++) status = measure_both(t, 0);
    if (status == TSH_OK && t->model->graph) status = capture(t);
    if (status == TSH_OK && t->graph) status = measure_both(t, 0);
    double took = t->samples->step[0] + t->samples->products[0];
    if (status == TSH_OK) status = bench_max(t->place->meter, took, &took);
    *steps = timing_clamp(t->place->seconds / took, FEWEST_STEPS, BENCH_MAX_SAMPLES);
    return status;
}

static void tell_progress(const trial *t, int done, int steps, double spent) {
    double left = spent / done * (steps - done);
    if (done == steps)
        fprintf(stderr, "\r%60s\r", "");
    else
        fprintf(stderr, "\r%s: step %d of %d, %.0f s left ", t->model->shard, done, steps, left);
}

static tsh_status measure_steps(trial *t, int steps) {
    double begin = bench_now(), told = begin + silent_seconds;
    bool telling = false;
    tsh_status status = TSH_OK;
    for (int i = 0; i < steps && status == TSH_OK; i++) {
        status = measure_both(t, i);
        double now = bench_now();
        if (!t->place->progress || (now < told && !(telling && i == steps - 1))) continue;
        telling = true;
        told = now + 0.5;
        tell_progress(t, i + 1, steps, now - begin);
    }
    return status;
}

typedef struct counts {
    tsh_memory_stats device;
    int64_t host;
} counts;

static counts count(const trial *t) {
    return (counts){tsh_device_stats(tsh_world_device(t->place->world)), t->place->counter->calls};
}

/* Of this rank. */
static void collect_counts(const trial *t, const counts *before, layers_result *out) {
    counts after = count(t);
    tsh_communication_stats stats = tsh_group_stats(t->group);
    out->allocations = (int64_t)(after.device.allocations - before->device.allocations) + after.host - before->host;
    out->peak_bytes = (int64_t)(after.device.bytes_peak - t->foreign_bytes);
    out->flops = products_flops(t->products);
    for (int i = 0; i < TSH_COLLECTIVE_COUNT; i++) out->sent_bytes += (int64_t)stats.bytes[i];
    for (int i = 0; i < t->model->count; i++) {
        out->weight_bytes += (int64_t)tsh_tensor_local_nbytes(tsh_linear_weight(t->layer[i]));
    }
}

static tsh_status largest(bench_meter *meter, int64_t *value) {
    double all = 0.0;
    tsh_status status = bench_max(meter, (double)*value, &all);
    *value = (int64_t)all;
    return status;
}

static tsh_status total(bench_meter *meter, int64_t value, int64_t *sum) {
    double all = 0.0;
    tsh_status status = bench_sum(meter, (double)value, &all);
    *sum = (int64_t)all;
    return status;
}

/* From every rank's own to what is said of all. */
static tsh_status combine(trial *t, int n, layers_result *out) {
    bench_meter *meter = t->place->meter;
    samples *s = t->samples;
    tsh_status status = bench_slowest_median(meter, s->forward, n, &out->forward);
    if (status == TSH_OK) status = bench_slowest_median(meter, s->backward, n, &out->backward);
    if (status == TSH_OK) status = bench_slowest_median(meter, s->step, n, &out->step);
    if (status == TSH_OK) status = bench_slowest_median(meter, s->communication, n, &out->communication);
    if (status == TSH_OK) status = bench_slowest_median(meter, s->products, n, &out->products);
    if (status == TSH_OK && tsh_device_kind_of(tsh_world_device(t->place->world)) != TSH_CPU)
        status = bench_slowest_median(meter, s->host, n, &out->host);
    if (status == TSH_OK) status = total(meter, out->weight_bytes, &out->weight_bytes_total);
    if (status == TSH_OK) status = total(meter, out->allocations, &out->allocations);
    if (status == TSH_OK) status = largest(meter, &out->weight_bytes);
    if (status == TSH_OK) status = largest(meter, &out->sent_bytes);
    if (status == TSH_OK) status = largest(meter, &out->peak_bytes);
    if (status == TSH_OK) status = bench_max(meter, out->flops, &out->flops);
    return status;
}

tsh_status layers_measure(const layers_place *place, const layers_model *model, layers_result *out) {
    trial t = {.place = place, .model = model, .group = tsh_world_group(place->world)};
    t.foreign_bytes = bytes_in_use(&t);
    int steps = 0;
    *out = (layers_result){.shard = model->shard};
    tsh_mesh *mesh = NULL;
    char axes[512];
    snprintf(axes, sizeof axes, "model=%s", model->weights ? model->weights : "-1");
    tsh_status status = model->weights ? tsh_mesh_create(place->world, axes, &mesh) : TSH_OK;
    if (status == TSH_OK && mesh) t.group = tsh_mesh_group(mesh, "model");
    if (status == TSH_OK) status = create_trial(&t);
    if (status == TSH_OK) status = warm_up(&t, &steps);
    if (status != TSH_OK) goto done;
    tsh_device_reset_peak(tsh_world_device(place->world));
    counts before = count(&t);
    out->steps = steps;
    status = measure_steps(&t, steps);
    if (status != TSH_OK) goto done;
    collect_counts(&t, &before, out);
    status = combine(&t, steps, out);
    tsh_device *device = tsh_world_device(place->world);
    out->rate = device->ops->matrix_rate(device, model->dtype, &out->clock);
done:
    destroy_trial(&t);
    tsh_mesh_destroy(mesh);
    return status;
}
