#include "autograd/plan/whole.h"
#include "autograd/grad/state.h"

/* True when the gradient of an input that is used whole beside sharded ones is a sum over ranks. */
static bool sums_gradients(const tsh_rule *row) {
    for (int k = 0; k < TSH_ROW_INPUTS && row->in[k] != TSH_ROW_END; k++) {
        if (row->in[k] == TSH_AS_L || row->in[k] == TSH_AS_COPY) return true;
    }
    return false;
}

/* True when an input is broadcast: its gradient is a sum whose bits depend on the sizes of a rank's part. */
static bool sums_repeats(const tsh_call *call) {
    bool repeats = false;
    for (int i = 0; i < call->inputs; i++) {
        const tsh_shape *x = &call->in[i]->shape;
        for (int k = 0; k < call->inputs && tshi_requires_grad(call->in[i]); k++) {
            const tsh_shape *y = &call->in[k]->shape;
            for (int d = 0; x->ndim == y->ndim && d < x->ndim; d++) repeats = repeats || x->global[d] < y->global[d];
        }
    }
    return repeats;
}

bool tshi_whole_wanted(const tsh_call *call, const tshi_rule_rows *rows, unsigned local, bool recording) {
    bool wanted = !call->op->by_element || (recording && sums_repeats(call));
    for (int a = 0; a < call->in[0]->mesh->axes && !wanted; a++) {
        wanted = sums_gradients(rows->row[a]) && !(local >> a & 1u);
    }
    return wanted;
}

void tshi_whole_apply(const tsh_mesh *mesh, unsigned local, tsh_layout layout[TSH_MAX_AXES]) {
    for (int a = 0; a < mesh->axes; a++) {
        if (!(local >> a & 1u)) layout[a] = TSH_REPLICATED;
    }
}
