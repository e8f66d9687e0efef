#include "model.h"

#include <stdlib.h>

static tsh_status create(const model *m, int64_t count, bool split, tsh_tensor **out) {
    tsh_tensor_config config = {.dtype = TSH_INT64, .ndim = 1, .shape = {count}};
    const tsh_mesh *mesh = tsh_group_mesh(m->group);
    for (int a = 0; split && a < tsh_mesh_axes(mesh); a++) {
        if (tsh_mesh_axis_group(mesh, a) == m->group) config.layout[a] = TSH_SHARD(0);
    }
    return tsh_tensor_create(mesh, &config, out);
}

tsh_status model_input_create(const model *m, int64_t batch, int64_t tokens, bool lengths, model_input *out) {
    *out = (model_input){.batch = batch, .tokens = tokens};
    bool split = m->options.sequence_parallel; /* as the activations that these are looked up for */
    tsh_status status = create(m, batch * tokens, false, &out->ids);
    if (status == TSH_OK && m->positions) status = create(m, batch * tokens, split, &out->places);
    if (status == TSH_OK && m->types) status = create(m, batch * tokens, split, &out->types);
    tsh_tensor_config one_each = {.dtype = TSH_INT64, .ndim = 2, .shape = {batch, 1}};
    if (status == TSH_OK && tokens > 1) status = create(m, tokens, false, &out->positions);
    if (status == TSH_OK && tokens == 1)
        status = tsh_tensor_create(tsh_group_mesh(m->group), &one_each, &out->positions);
    if (status == TSH_OK && lengths) status = create(m, batch, false, &out->lengths);
    if (status == TSH_OK && lengths) status = create(m, batch, false, &out->ends);
    tsh_tensor_config query = {.dtype = m->options.dtype, .ndim = 4, .shape = {batch, 1, 1, m->config.width}};
    if (status == TSH_OK && m->config.family == MODEL_BERT)
        status = tsh_tensor_create(tsh_group_mesh(m->group), &query, &out->query);
    out->numbers = status == TSH_OK ? malloc((size_t)(batch * tokens) * sizeof *out->numbers) : NULL;
    if (status == TSH_OK && !out->numbers) status = TSH_ERR_MEMORY;
    if (status != TSH_OK) model_input_release(out);
    return status;
}

void model_input_release(model_input *in) {
    tsh_tensor_release(in->ids);
    tsh_tensor_release(in->places);
    tsh_tensor_release(in->types);
    tsh_tensor_release(in->positions);
    tsh_tensor_release(in->lengths);
    tsh_tensor_release(in->ends);
    tsh_tensor_release(in->query);
    free(in->numbers);
    *in = (model_input){0};
}

tsh_status model_input_write(model_input *in, const int64_t *ids, const int64_t *first, const int64_t *lengths) {
    int64_t *places = in->numbers;
    for (int64_t i = 0; i < in->batch * in->tokens; i++)
        places[i] = i % in->tokens + (first ? first[i / in->tokens] : 0);
    tsh_status status = tsh_tensor_write_whole(in->ids, ids);
    if (status == TSH_OK && in->places) status = tsh_tensor_write_whole(in->places, places);
    if (status == TSH_OK) status = tsh_tensor_write_whole(in->positions, places);
    if (status == TSH_OK && in->lengths && lengths) status = tsh_tensor_write_whole(in->lengths, lengths);
    for (int64_t b = 0; b < in->batch && in->ends && lengths; b++) places[b] = b * in->tokens + lengths[b] - 1;
    if (status == TSH_OK && in->ends && lengths) status = tsh_tensor_write_whole(in->ends, places);
    return status;
}
