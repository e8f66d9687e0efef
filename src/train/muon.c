/* Muon: matrices are stepped along their orthogonalized momentum, all other parameters by AdamW. A matrix has one owner
 * among its mesh's ranks, which gets the whole update, orthogonalizes it and sends each rank its part back. */
#include "train/optimizer.h"

#include "autograd/grad/sparse.h"
#include "dist/collectives/redistribute.h"

#include <math.h>
#include <string.h>

/* --- matrices and their owners ------------------------------------------------------------------------------------ */

/* sqrt(max(1, rows / columns)) for a matrix that is stepped whole, else 0. */
static double matrix_scale(const void *config, const tsh_tensor *p, const char *name) {
    const char *const *other = ((const tsh_muon_config *)config)->adamw;
    if (p->shape.ndim != 2 || tshi_shape_numel(&p->shape) == 0) return 0;
    if (tshi_layouts_have_local(p->mesh->axes, p->layout)) return 0;
    for (; other && *other; other++) {
        if (tshi_parameter_matches(*other, name)) return 0;
    }
    return sqrt(fmax(1, (double)p->shape.global[0] / (double)p->shape.global[1]));
}

static double matrix_work(const tsh_tensor *p) {
    double rows = (double)p->shape.global[0], cols = (double)p->shape.global[1];
    return rows * cols * fmin(rows, cols);
}

static bool steps_whole(const tsh_optimizer *optimizer, const tshi_optimizer_slot *slot) {
    return optimizer->rates[slot->rate].scale > 0;
}

/* Each matrix goes to the rank with the least work so far, in the order of the list; every rank finds the same. */
static tsh_status choose_owners(tsh_optimizer *optimizer) {
    const tsh_allocator *allocator = &tsh_world_device(optimizer->world)->allocator;
    double *work = tshi_calloc(allocator, (size_t)tsh_world_size(optimizer->world), sizeof *work);
    if (!work) return TSH_ERR_MEMORY;
    for (int i = 0; i < optimizer->count; i++) {
        tshi_optimizer_slot *slot = &optimizer->slots[i];
        const tsh_mesh *mesh = slot->parameter->mesh;
        if (!steps_whole(optimizer, slot)) continue;
        slot->owner = mesh->ranks[0];
        for (int m = 1; m < mesh->members; m++) {
            if (work[mesh->ranks[m]] < work[slot->owner]) slot->owner = mesh->ranks[m];
        }
        work[slot->owner] += matrix_work(slot->parameter);
    }
    tshi_free(allocator, work);
    return TSH_OK;
}

/* --- orthogonalization -------------------------------------------------------------------------------------------- */

/* The matrices of an iteration, at the owner. */
typedef struct iteration {
    int64_t rows, cols, least; /* least: of both */
    tsh_tensor *x, *next, *gram, *mixed;
} iteration;

static tsh_status multiply_whole(const tsh_tensor *like, bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                                 int64_t k, double alpha, const tsh_tensor *a, int64_t lda, const tsh_tensor *b,
                                 int64_t ldb, double beta, const tsh_tensor *c, int64_t ldc) {
    tsh_device *device = tshi_device_of(like);
    return device->ops->product.gemm(device, like->dtype, transpose_a, transpose_b, m, n, k, alpha, tshi_data(a), lda,
                                     tshi_data(b), ldb, beta, tshi_data(c), ldc);
}

static void copy_matrix(const tsh_tensor *from, const tsh_tensor *to) {
    tsh_device *device = tshi_device_of(from);
    device->ops->copy.within(device, tsh_tensor_local_nbytes(from), tshi_data(from), tshi_data(to));
}

/* A step of the Newton-Schulz iteration of Jordan, 2024: X becomes a X + (b A + c A^2) X with A = X X^T, or with more
 * rows than columns a X + X (b A + c A^2) with A = X^T X. */
static tsh_status newton_schulz_step(iteration *w) {
    static const double a = 3.4445, b = -4.7750, c = 2.0315;
    const bool tall = w->rows > w->cols;
    const int64_t k = w->least;
    tsh_tensor *x = w->x;
    tsh_status status =
        multiply_whole(x, tall, !tall, k, k, tall ? w->rows : w->cols, 1, x, w->cols, x, w->cols, 0, w->gram, k);
    if (status != TSH_OK) return status;
    copy_matrix(w->gram, w->mixed);
    status = multiply_whole(x, false, false, k, k, k, c, w->gram, k, w->gram, k, b, w->mixed, k);
    if (status != TSH_OK) return status;
    copy_matrix(x, w->next);
    status = tall ? multiply_whole(x, false, false, w->rows, k, k, 1, x, k, w->mixed, k, a, w->next, k)
                  : multiply_whole(x, false, false, k, w->cols, k, 1, w->mixed, k, x, w->cols, a, w->next, w->cols);
    w->x = w->next;
    w->next = x;
    return status;
}

/* X / (|X| + 1e-7), |X| the square root of the sum of squares. Waits. */
static tsh_status normalize_update(const tsh_tensor *x) {
    tsh_device *device = tshi_device_of(x);
    tsh_tensor *squares = NULL;
    double sum = 0;
    tsh_status status = tshi_tensor_scratch(x->mesh, TSH_FLOAT64, 1, &squares);
    if (status == TSH_OK) status = tsh_tensor_fill(squares, 0);
    if (status == TSH_OK) {
        device->ops->sum[x->dtype].squares(device, x->numel, tshi_data(x), tshi_data(squares));
        status = tsh_tensor_read(squares, &sum, 1);
    }
    tshi_tensor_release(squares);
    if (status != TSH_OK) return status;
    device->ops->elementwise[x->dtype].axpby(device, x->numel, 1 / (sqrt(sum) + 1e-7), tshi_data(x), 0, NULL,
                                             tshi_data(x));
    return TSH_OK;
}

/* *whole, at its owner, becomes the product of its singular vectors, about. */
static tsh_status orthogonalize(const tsh_optimizer *optimizer, const tsh_tensor *p, tsh_tensor **whole) {
    const int64_t *size = p->shape.global, least = size[0] < size[1] ? size[0] : size[1];
    const tsh_mesh *mesh = p->mesh;
    tsh_dtype dtype = (*whole)->dtype;
    iteration w = {.rows = size[0], .cols = size[1], .least = least, .x = *whole};
    tsh_status status = normalize_update(w.x);
    if (status == TSH_OK) status = tshi_tensor_buffer(mesh, dtype, size[0] * size[1], &w.next);
    if (status == TSH_OK) status = tshi_tensor_scratch(mesh, dtype, least * least, &w.gram);
    if (status == TSH_OK) status = tshi_tensor_scratch(mesh, dtype, least * least, &w.mixed);
    for (int i = 0; i < optimizer->config.muon.iterations && status == TSH_OK; i++) status = newton_schulz_step(&w);
    *whole = w.x;
    tshi_tensor_release(w.next);
    tshi_tensor_release(w.gram);
    tshi_tensor_release(w.mixed);
    return status;
}

/* --- the owner's whole -------------------------------------------------------------------------------------------- */

/* Gathers the parts of the update at its owner, or sends the owner's result back to the ranks. If this rank has failed
 * before (`early`), it sends its failure to the others instead. */
static tsh_status exchange_update(tshi_optimizer_slot *slot, bool to_owner, tsh_status early) {
    const tsh_tensor *p = slot->parameter;
    const tshi_placement parts = tshi_mesh_placement(p->mesh, p->layout),
                         owner = {.axes = 1, .size = {1}, .ranks = &slot->owner, .layout = {TSH_REPLICATED}};
    tshi_exchange e = {.ndim = 2, .from = to_owner ? parts : owner, .to = to_owner ? owner : parts};
    memcpy(e.shape, p->shape.global, sizeof e.shape);
    if (early != TSH_OK) {
        bool awaited = tshi_mesh_has_me(p->mesh) && tshi_exchange_moves(&e);
        return awaited ? tshi_call_failed(p->mesh->group, TSH_COLLECTIVE_ALL_TO_ALL, early) : early;
    }
    return tshi_exchange_run(p->mesh->group, &e, to_owner ? slot->update : slot->whole,
                             to_owner ? slot->whole : slot->update);
}

/* buf = momentum buf + g; the update is g + momentum buf (Nesterov), in buf's dtype. */
static tsh_status make_update(const tsh_optimizer *optimizer, tshi_optimizer_slot *slot) {
    const double momentum = optimizer->config.muon.momentum;
    const tsh_tensor *g = slot->gradient, *buffer = slot->state[0];
    tsh_device *device = tshi_device_of(buffer);
    const int64_t n = slot->parameter->numel;
    tsh_status status = tshi_tensor_buffer(buffer->mesh, buffer->dtype, n, &slot->update);
    if (status != TSH_OK || n == 0) return status;
    void *update = tshi_data(slot->update), *buf = tshi_data(buffer);
    device->ops->copy.convert(device, n, g->dtype, tshi_data(g), buffer->dtype, update);
    device->ops->elementwise[buffer->dtype].axpby(device, n, momentum, buf, 1, update, buf);
    device->ops->elementwise[buffer->dtype].axpby(device, n, 1, update, momentum, buf, update);
    return TSH_OK;
}

static tsh_status send_to_owner(const tsh_optimizer *optimizer, tshi_optimizer_slot *slot) {
    const tsh_tensor *p = slot->parameter;
    bool mine = slot->owner == optimizer->world->rank;
    tsh_status status = make_update(optimizer, slot);
    if (status == TSH_OK) {
        int64_t n = mine ? tshi_shape_numel(&p->shape) : 0;
        status = tshi_tensor_buffer(p->mesh, slot->state[0]->dtype, n, &slot->whole);
    }
    return exchange_update(slot, true, status);
}

static tsh_status check_sparse(const tsh_optimizer *optimizer) {
    for (int i = 0; i < optimizer->count; i++) {
        const tshi_optimizer_slot *slot = &optimizer->slots[i];
        if (!steps_whole(optimizer, slot) || !tshi_gradient_is_sparse(slot->parameter)) continue;
        return tshi_fail(
            TSH_ERR_STATE,
            "optimizer_step: '%s' has sparse gradients, and Muon steps whole matrices: its configuration's "
            "`adamw` must name it",
            slot->parameter->name ? slot->parameter->name : "");
    }
    return TSH_OK;
}

/* Gradients of matrices become their updates. All owners work at the same time, between the exchanges. */
static tsh_status muon_prepare(tsh_optimizer *optimizer) {
    tsh_status status = check_sparse(optimizer);
    for (int i = 0; i < optimizer->count && status == TSH_OK; i++) {
        tshi_optimizer_slot *slot = &optimizer->slots[i];
        if (steps_whole(optimizer, slot) && slot->gradient) status = send_to_owner(optimizer, slot);
    }
    tsh_status own = TSH_OK;
    for (int i = 0; i < optimizer->count && status == TSH_OK && own == TSH_OK; i++) {
        tshi_optimizer_slot *slot = &optimizer->slots[i];
        if (!slot->update || slot->owner != optimizer->world->rank) continue;
        own = orthogonalize(optimizer, slot->parameter, &slot->whole);
    }
    for (int i = 0; i < optimizer->count && status == TSH_OK; i++) {
        tshi_optimizer_slot *slot = &optimizer->slots[i];
        if (!slot->update) continue;
        status = exchange_update(slot, false, own);
        slot->gradient = slot->update;
    }
    if (status == TSH_OK) status = own;
    /* No exchange need be under way that tells the other ranks. */
    if (status == TSH_ERR_MEMORY) tshi_world_fail_in(optimizer->world, tsh_error_message(), (tshi_tape_step){0});
    return status;
}

static void muon_finish(tsh_optimizer *optimizer) {
    for (int i = 0; i < optimizer->count; i++) {
        tshi_optimizer_slot *slot = &optimizer->slots[i];
        if (slot->update) slot->gradient = NULL;
        tshi_tensor_release(slot->update);
        tshi_tensor_release(slot->whole);
        slot->update = slot->whole = NULL;
    }
}

/* --- the step ----------------------------------------------------------------------------------------------------- */

/* A matrix is stepped by the kernel of plain SGD, whose weight decay is multiplied by its learning rate. */
static void muon_step(const tsh_optimizer *optimizer, tsh_dtype dtype, int64_t number, const tshi_rate *rate, int count,
                      const tshi_update *updates) {
    const tsh_muon_config *c = &optimizer->config.muon;
    tsh_device *device = tsh_world_device(optimizer->world);
    const double lr = optimizer->lr * rate->lr_factor;
    const tshi_sgd matrices = {.lr = lr * rate->scale, .weight_decay = rate->weight_decay / rate->scale};
    const tshi_adamw others = {.lr = lr * c->adamw_lr_factor,
                               .beta1 = c->beta1,
                               .beta2 = c->beta2,
                               .eps = c->eps,
                               .weight_decay = rate->weight_decay,
                               .step = number};
    if (rate->scale > 0)
        device->ops->optimizer[dtype].sgd(device, &matrices, count, updates);
    else
        device->ops->optimizer[dtype].adamw(device, &others, count, updates);
}

static const tshi_optimizer_kind muon = {.name = "muon",
                                         .state = {"exp_avg", "exp_avg_sq"},
                                         .step = muon_step,
                                         .scale = matrix_scale,
                                         .prepare = muon_prepare,
                                         .finish = muon_finish};

static tsh_status check_muon(const tsh_muon_config *c) {
    const double fractions[] = {c->momentum, c->beta1, c->beta2}, positive[] = {c->adamw_lr_factor, c->eps};
    for (int i = 0; i < 3; i++) {
        if (!(fractions[i] > 0 && fractions[i] < 1)) {
            return tshi_fail(TSH_ERR_ARGUMENT, "muon_create: momentum %g, beta1 %g and beta2 %g must be in (0, 1)",
                             c->momentum, c->beta1, c->beta2);
        }
    }
    for (int i = 0; i < 2; i++) {
        if (!(positive[i] > 0 && isfinite(positive[i]))) {
            return tshi_fail(TSH_ERR_ARGUMENT, "muon_create: adamw_lr_factor %g and eps %g must be above 0",
                             c->adamw_lr_factor, c->eps);
        }
    }
    if (c->iterations >= 1 && c->iterations <= 100) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT, "muon_create: %d iterations; 1 to 100 are possible", c->iterations);
}

static tsh_status check_names(const tsh_parameters *list, const char *const *names) {
    for (; names && *names; names++) {
        int i = 0;
        while (i < list->count && !tshi_parameter_matches(*names, list->items[i].name)) i++;
        if (i == list->count)
            return tshi_fail(TSH_ERR_ARGUMENT, "muon_create: '%.100s' in adamw matches none of %d parameters", *names,
                             list->count);
    }
    return TSH_OK;
}

tsh_status tsh_muon_create(tsh_parameters *list, const tsh_muon_config *config, tsh_optimizer **out) {
    tsh_muon_config c = config ? *config : (tsh_muon_config){0};
    const tshi_optimizer_common common = {c.lr, c.weight_decay, c.decay_matrices, c.low_bits, c.groups, &c};
    tsh_status status = tshi_optimizer_check("muon_create", list, config, &common, out);
    if (status != TSH_OK) return status;
    if (c.momentum == 0) c.momentum = 0.95;
    if (c.iterations == 0) c.iterations = 5;
    if (c.adamw_lr_factor == 0) c.adamw_lr_factor = 1;
    if (c.beta1 == 0) c.beta1 = 0.9;
    if (c.beta2 == 0) c.beta2 = 0.95;
    if (c.eps == 0) c.eps = 1e-8;
    status = check_muon(&c);
    if (status == TSH_OK) status = check_names(list, c.adamw);
    if (status == TSH_OK) status = tshi_optimizer_create(&muon, list, 2, &common, out);
    if (status != TSH_OK) return status;
    (*out)->config.muon = c;
    (*out)->config.muon.adamw = NULL; /* the caller's, and read */
    status = choose_owners(*out);
    if (status == TSH_OK) return TSH_OK;
    tsh_optimizer_destroy(*out);
    *out = NULL;
    return status;
}
