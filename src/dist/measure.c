/* Weights by measured speed: each rank measures matrix products and copies of memory while the others do, and all
 * compute the weights from the same times in whole numbers. */
#include "base/clock.h"
#include "device/record.h"
#include "dist/world.h"

#define MOST_WEIGHT 20
#define SIDE        512         /* of the matrices */
#define COPY_BYTES  (16u << 20) /* at most, and the least memory that two ranks' copies want */
#define SECONDS     0.4         /* of each kind of work */

/* Nanoseconds of a product, and of a copy of COPY_BYTES. */
typedef struct times {
    int64_t product, copy;
} times;

/* Memory of the device: three matrices in it, or two halves of which one is copied to the other. */
typedef struct workload {
    tsh_device *device;
    char *memory;
    size_t bytes;
} workload;

static tsh_status multiply(const workload *w) {
    const float *a = (const void *)w->memory, *b = a + SIDE * SIDE;
    return w->device->ops->product.gemm(w->device, TSH_FLOAT32, false, false, SIDE, SIDE, SIDE, 1, a, SIDE, b, SIDE, 0,
                                        w->memory + 2 * sizeof(float) * SIDE * SIDE, SIDE);
}

static tsh_status copy_half(const workload *w) {
    w->device->ops->copy.within(w->device, w->bytes / 2, w->memory, w->memory + w->bytes / 2);
    return TSH_OK;
}

/* The nanoseconds that one piece of work takes, the first of which is not counted. */
static tsh_status time_work(const workload *w, tsh_status (*work)(const workload *), int64_t *nanoseconds) {
    tsh_device *device = w->device;
    double begin = 0, now = 0;
    int64_t count = -1;
    tsh_status status = TSH_OK;
    while (status == TSH_OK && (count < 1 || now - begin < SECONDS)) {
        status = work(w);
        if (status == TSH_OK) status = device->ops->synchronize(device);
        now = tshi_clock();
        if (count++ < 0) begin = now;
    }
    *nanoseconds = (int64_t)((now - begin) * 1e9 / (double)(count > 0 ? count : 1)) + 1;
    return status;
}

static tsh_status measure(const workload *w, times *out) {
    w->device->ops->copy.zero(w->device, w->bytes, w->memory);
    tsh_status status = time_work(w, multiply, &out->product);
    if (status == TSH_OK) status = time_work(w, copy_half, &out->copy);
    out->copy = (int64_t)((double)out->copy * COPY_BYTES / (double)(w->bytes / 2)) + 1;
    return status;
}

static tsh_status take_memory(workload *w) {
    const size_t least = 3 * sizeof(float) * SIDE * SIDE;
    tsh_memory_purpose before = tshi_device_purpose(w->device, TSH_MEMORY_OTHER);
    for (w->bytes = 2 * COPY_BYTES; !w->memory && w->bytes >= least; w->bytes /= 2)
        w->memory = w->device->ops->memory.alloc(w->device, w->bytes);
    w->bytes *= 2;
    w->device->purpose = before;
    return w->memory ? TSH_OK : TSH_ERR_MEMORY;
}

/* Half of a rank's work is products and half copies, as they are of all ranks together; weights are its inverse. */
static void weigh(const times *all, int n, int64_t *weights) {
    __int128 products = 0, copies = 0, least = 0;
    for (int i = 0; i < n; i++) {
        products += all[i].product;
        copies += all[i].copy;
    }
    for (int i = 0; i < n; i++) {
        __int128 cost = all[i].product * copies + all[i].copy * products;
        if (i == 0 || cost < least) least = cost;
    }
    for (int i = 0; i < n; i++) {
        __int128 cost = all[i].product * copies + all[i].copy * products;
        weights[i] = (int64_t)((MOST_WEIGHT * least + cost / 2) / cost);
        if (weights[i] == 0) weights[i] = 1;
    }
}

tsh_status tsh_group_measure(tsh_group *group, int64_t *weights) {
    if (!group) return tshi_group_missing("group_measure");
    if (!weights) return tshi_fail(TSH_ERR_ARGUMENT, "group_measure: weights is NULL");
    tsh_device *device = group->world->device, *host = group->world->host;
    workload w = {.device = device};
    times mine = {1, 1};
    bool planned = device->record && device->record->planned;
    for (int i = 0; i < group->size; i++) weights[i] = 1;
    if (group->rank < 0 || group->size == 1 || planned) return TSH_OK;
    tsh_status status = take_memory(&w);
    tsh_status ready = tshi_group_agree(group, "group_measure", status); /* all measure at the same time */
    if (status == TSH_OK) status = ready;
    if (status == TSH_OK) {
        status = measure(&w, &mine);
        times *all = tshi_group_gather(group, "group_measure: times", &mine, sizeof mine, &status);
        if (status == TSH_OK) weigh(all, group->size, weights);
        host->ops->memory.release(host, all);
    }
    device->ops->memory.release(device, w.memory);
    return status;
}
