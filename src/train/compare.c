/* With TSHARD_CHECK=1 optimizers and schedules compare what must be equal on all ranks: seeds, lists of parameters,
 * values of replicas, REPLICATED inputs. */
#include "train/optimizer.h"

#include "autograd/tape.h"
#include "base/hash.h"
#include "train/bucket.h"

#include <stdio.h>

/* TSH_ERR_MISMATCH, with both texts, unless all ranks of each axis of t's mesh (with `copies`, of each axis along which
 * t is REPLICATED) have the same text. A failure along one axis reaches the ranks of the next ones. */
static tsh_status compare_words(const tsh_tensor *t, bool copies, const char *text) {
    tsh_status status = TSH_OK;
    for (int a = 0; a < t->mesh->axes; a++) {
        tsh_group *group = tsh_mesh_axis_group(t->mesh, a);
        if (copies && t->layout[a].kind != TSH_KIND_REPLICATED) continue;
        if (tsh_group_size(group) > 1 && tsh_group_rank(group) >= 0) status = tshi_group_agree(group, text, status);
    }
    return status;
}

/* A fingerprint of this rank's values, or of nothing if the host cannot read them. */
static uint64_t fingerprint_of(const tsh_tensor *t) {
    uint64_t fingerprint = TSHI_FINGERPRINT;
    if (!tshi_data(t) || tshi_device_of(t)->captures) return fingerprint;
    tshi_pieces p = tshi_pieces_to_read(t, NULL);
    while (tshi_pieces_next(&p)) {
        const unsigned char *byte = p.values;
        size_t bytes = (size_t)p.count * tsh_dtype_size(t->dtype);
        for (size_t i = 0; i < bytes; i++) fingerprint = tshi_fingerprint_add(fingerprint, byte[i]);
    }
    return fingerprint;
}

/* An empty list has no mesh: its rank compares along the world, as do ranks with a parameter on all ranks. */
static bool spans_world(const tsh_parameters *list) {
    bool spans = list->count == 0;
    for (int i = 0; i < list->count; i++) spans = spans || list->items[i].tensor->mesh->members == list->world->size;
    return spans;
}

/* What must be equal for the lists of one model. */
typedef struct list_summary {
    uint64_t count, seed, streams; /* streams: random streams drawn, one for each initialised parameter */
} list_summary;

/* Random numbers differ between ranks from now on, for replicated parameters and dropout. */
static void warn_of_streams(const tsh_world *world, uint64_t ours, int rank, uint64_t theirs) {
    tshi_log(
        &world->log, TSH_LOG_WARNING,
        "optimizer: rank 0 has drawn %llu tensors of random numbers, rank %d %llu: a layer, or a random tensor, is "
        "created on some ranks only",
        (unsigned long long)ours, rank, (unsigned long long)theirs);
}

/* For lists that differ in length, names the first parameter that one of them lacks. */
static tsh_status compare_summaries(const tsh_parameters *list) {
    const tsh_world *world = list->world;
    tsh_group *group = tsh_world_group(list->world);
    const list_summary mine = {(uint64_t)list->count, world->seed, world->next_stream};
    char text[TSHI_LINE + 160], shape[TSHI_LINE] = "";
    tsh_status status = TSH_OK;
    uint64_t most = 0, least = UINT64_MAX;
    int other = 0;
    list_summary *all = tshi_group_gather(group, "optimizer: parameters", &mine, sizeof mine, &status);
    for (int i = 0; all && i < world->size; i++) {
        if (all[i].streams != all[0].streams && world->rank == 0 && !other++)
            warn_of_streams(world, all[0].streams, i, all[i].streams);
        most = all[i].count > most ? all[i].count : most;
        least = all[i].count < least ? all[i].count : least;
    }
    world->host->ops->memory.release(world->host, all);
    for (uint64_t i = 0; i < most && most > least && least > 0 && status == TSH_OK; i++) {
        const tshi_parameter *p = i < mine.count ? &list->items[i] : NULL;
        if (p) tshi_tensor_describe_whole(p->tensor, shape, sizeof shape);
        snprintf(text, sizeof text, "optimizer: parameter %d is %.100s%s%s", (int)i, p ? p->name : "missing",
                 p ? ", " : "", p ? shape : "");
        status = tshi_group_agree(group, text, status);
    }
    snprintf(text, sizeof text, "optimizer of %d parameters, of seed %llu", list->count,
             (unsigned long long)world->seed);
    return status == TSH_OK ? tshi_group_agree(group, text, status) : status;
}

tsh_status tshi_compare_lists(const tsh_parameters *list) {
    const tsh_world *world = list->world;
    tsh_status status = TSH_OK;
    char text[TSHI_LINE + 160], shape[TSHI_LINE];
    if (!world->checked) return TSH_OK;
    int used = snprintf(text, sizeof text, "optimizer of %d parameters, of seed %llu", list->count,
                        (unsigned long long)world->seed);
    if (world->size > 1 && spans_world(list)) status = compare_summaries(list);
    for (int i = 0; i < list->count && status == TSH_OK; i++) {
        const tsh_tensor *t = list->items[i].tensor;
        snprintf(text + used, sizeof text - (size_t)used, ": parameter %d is %.100s, %s", i, list->items[i].name,
                 tshi_tensor_describe_whole(t, shape, sizeof shape));
        status = compare_words(t, false, text);
    }
    return status;
}

tsh_status tshi_compare_values(const tsh_optimizer *optimizer) {
    tsh_status status = TSH_OK;
    char text[TSHI_LINE];
    for (int i = 0; optimizer->world->checked && i < optimizer->count && status == TSH_OK; i++) {
        const tsh_tensor *t = optimizer->slots[i].parameter;
        snprintf(text, sizeof text, "optimizer_step: parameter %d, '%.100s', has values of fingerprint %016llx", i,
                 t->name ? t->name : "", (unsigned long long)fingerprint_of(t));
        status = compare_words(t, true, text);
    }
    return status;
}

/* --- inputs of a step --------------------------------------------------------------------------------------------- */

/* Calls fn for each input of the calls up to the loss's that is not a parameter and is the same on the ranks of the
 * schedule's axis; stops at a failure. */
typedef tsh_status input_fn(const tsh_data_parallel *dp, const tsh_call *node, const tsh_tensor *input, void *to);
static tsh_status each_input(const tsh_data_parallel *dp, const tsh_tensor *loss, input_fn *fn, void *to) {
    tsh_status status = TSH_OK;
    for (int n = 0; n <= loss->gradient->node; n++) {
        const tsh_call *node = &dp->tape->nodes[n];
        for (int i = 0; i < node->inputs && status == TSH_OK; i++) {
            const tsh_tensor *t = node->in[i];
            bool common = t->mesh == dp->mesh && t->layout[dp->schedule.axis].kind == TSH_KIND_REPLICATED;
            if (common && !t->computed && !tshi_requires_grad(t) && tshi_tensor_is_loaded(t))
                status = fn(dp, node, t, to);
        }
    }
    return status;
}

/* Fingerprints of a rank's inputs: their metadata, and their values. */
typedef struct inputs {
    uint64_t descriptions, values;
} inputs;

static tsh_status add_input(const tsh_data_parallel *dp, const tsh_call *node, const tsh_tensor *input, void *to) {
    inputs *sum = to;
    (void)dp;
    sum->descriptions = tshi_fingerprint_text(sum->descriptions, node->op->name);
    sum->descriptions = tshi_fingerprint_text(sum->descriptions, TSHI_WHOLE_TEXT(input));
    sum->values = tshi_fingerprint_add(sum->values, fingerprint_of(input));
    return TSH_OK;
}

static tsh_status agree_on_input(const tsh_data_parallel *dp, const tsh_call *node, const tsh_tensor *input, void *to) {
    char text[TSHI_LINE], described[TSHI_LINE / 2];
    (void)to;
    snprintf(text, sizeof text, "an input of %.40s, %s, has values of fingerprint %016llx", node->op->name,
             tshi_tensor_describe_whole(input, described, sizeof described), (unsigned long long)fingerprint_of(input));
    return tshi_group_agree(dp->parent, text, TSH_OK);
}

/* Ranks may leave out calls: inputs are compared only if all ranks have made the same calls. */
tsh_status tshi_compare_inputs(const tsh_data_parallel *dp, const tsh_tensor *loss) {
    inputs mine = {TSHI_FINGERPRINT, TSHI_FINGERPRINT};
    tsh_device *host = dp->mesh->world->host;
    tsh_status status = TSH_OK;
    bool alike = true, same = true;
    if (!dp->mesh->world->checked || tsh_group_size(dp->parent) == 1) return TSH_OK;
    each_input(dp, loss, add_input, &mine);
    inputs *all = tshi_group_gather(dp->parent, "backward: inputs", &mine, sizeof mine, &status);
    for (int i = 0; all && i < tsh_group_size(dp->parent); i++) {
        alike = alike && all[i].descriptions == all[0].descriptions;
        same = same && all[i].values == all[0].values;
    }
    host->ops->memory.release(host, all);
    return status == TSH_OK && alike && !same ? each_input(dp, loss, agree_on_input, NULL) : status;
}
