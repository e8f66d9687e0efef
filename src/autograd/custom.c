/* A program's operations, and the functions that they may call. */
#include "autograd/apply.h"
#include "device/record.h"

#include <stdio.h>

/* --- the public call ---------------------------------------------------------------------------------------------- */

#define MOST_ROWS 1024

static tsh_status check_rules(const tsh_op *op) {
    if (!op->rules || op->rules[0].out == TSH_ROW_END) {
        return tshi_fail(TSH_ERR_ARGUMENT, "the operation has no rows of layouts");
    }
    for (int i = 0; op->rules[i].out != TSH_ROW_END; i++) {
        bool good = i < MOST_ROWS && (unsigned)op->rules[i].out <= TSH_AS_OTHER && op->rules[i].in[0] != TSH_ROW_END;
        for (int k = 0; good && k < TSH_ROW_INPUTS; k++) good = (unsigned)op->rules[i].in[k] <= TSH_AS_OTHER;
        if (good) continue;
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "row %d of the layouts is not a row (the last row is {{TSH_ROW_END}, TSH_ROW_END})", i);
    }
    return TSH_OK;
}

static tsh_status check_op(const tsh_op *op, int inputs, const void *params) {
    tsh_status status = check_rules(op);
    if (status != TSH_OK) return status;
    if (!op->forward && !op->views) return tshi_fail(TSH_ERR_ARGUMENT, "the operation has no forward");
    if (op->backward_rest && !op->backward) {
        return tshi_fail(TSH_ERR_ARGUMENT, "the operation has a backward_rest and no backward");
    }
    if (op->has_dim && op->params_size < sizeof(int)) {
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "the operation has a dim, so its parameters begin with an int, but they have %zu bytes",
                         op->params_size);
    }
    if (op->params_size && !params) {
        return tshi_fail(TSH_ERR_ARGUMENT, "params is NULL, %zu bytes wanted", op->params_size);
    }
    if (op->inputs < 0 || (op->inputs && op->inputs != inputs)) {
        return tshi_fail(TSH_ERR_ARGUMENT, "%d inputs, %d wanted", inputs, op->inputs);
    }
    return TSH_OK;
}

/* Checks that the operation takes the device and the dtypes of the inputs. */
static tsh_status check_takes(const tsh_op *op, int inputs, tsh_tensor *const *in) {
    const tsh_device *device = tshi_device_of(in[0]);
    unsigned devices = op->devices ? op->devices : 1u << TSH_CPU;
    if (!(devices >> tsh_device_kind_of(device) & 1u)) {
        return tshi_fail(TSH_ERR_UNSUPPORTED, "the operation does not run on a %s (tsh_op.devices)",
                         tsh_device_kind_of(device) == TSH_CUDA ? "GPU" : "CPU");
    }
    for (int i = 0; op->dtypes && i < inputs; i++) {
        if (!tshi_differentiable(in[i]) || op->dtypes >> in[i]->dtype & 1u) continue;
        return tshi_fail(TSH_ERR_DTYPE, "input %d is %s, which the operation does not take (tsh_op.dtypes)", i,
                         tsh_dtype_name(in[i]->dtype));
    }
    return TSH_OK;
}

static const tshi_want asked = {.asks = true, .axis = -1};

tsh_tensor *tsh_apply(tsh_tape *tape, const tsh_op *op, int inputs, tsh_tensor *const *in, const void *params) {
    const char *name = op && op->name ? op->name : "apply";
    if (!tape) tshi_tape_missing(name);
    if (!tape || tape->status != TSH_OK) return NULL;
    if (!op) return tshi_tape_fail(tape, TSH_ERR_ARGUMENT, "apply: op is NULL");
    if (!op->name) return tshi_tape_fail(tape, TSH_ERR_ARGUMENT, "apply: the operation has no name");
    if (inputs < 1 || !in) {
        return tshi_tape_fail(tape, TSH_ERR_ARGUMENT, "%s: %d inputs at %s; at least one is required", name, inputs,
                              in ? "an array" : "NULL");
    }
    tsh_status status = check_op(op, inputs, params);
    if (tshi_tape_check(tape, status, name) != TSH_OK) return NULL;
    if (!tshi_tape_ready(tape, name, inputs, in)) return NULL;
    status = check_takes(op, inputs, in);
    if (tshi_tape_check(tape, status, name) != TSH_OK) return NULL;
    const tsh_call call = {.tape = tape, .op = op, .inputs = inputs, .in = (tsh_tensor **)(uintptr_t)in};
    bool records = tshi_call_records(&call);
    if (!op->backward && records) {
        return tshi_tape_fail(tape, TSH_ERR_STATE, "%s: the operation has no backward, and an input wants a gradient",
                              name);
    }
    void *copy = op->params_size ? tshi_tape_copy(tape, params, 1, op->params_size) : NULL;
    const tsh_op *own = records ? tshi_tape_copy(tape, op, 1, sizeof *op) : op;
    status = own && (copy || !op->params_size) ? TSH_OK : TSH_ERR_MEMORY;
    return tshi_tape_check(tape, status, name) == TSH_OK ? tshi_apply_as(tape, own, inputs, in, copy, &asked) : NULL;
}

/* --- inside of a call --------------------------------------------------------------------------------------------- */

int tsh_call_inputs(const tsh_call *call) {
    return call ? call->inputs : 0;
}

tsh_tensor *tsh_call_input(const tsh_call *call, int i) {
    return call && i >= 0 && i < call->inputs ? call->in[i] : NULL;
}

tsh_tensor *tsh_call_output(const tsh_call *call) {
    return call ? call->out : NULL;
}

const void *tsh_call_params(const tsh_call *call) {
    return call ? call->params : NULL;
}

bool tsh_call_records(const tsh_call *call) {
    return call && tshi_call_records(call);
}

static tsh_tensor *call_memory(const tsh_call *call, tsh_dtype dtype, int64_t count, const char *what) {
    tsh_tensor *made = NULL;
    if (!call || !call->tape->inside || !call->out || (unsigned)dtype >= TSH_DTYPE_COUNT || count < 0) {
        tshi_fail(TSH_ERR_ARGUMENT,
                  "%s: a call, a dtype and a count of at least 0 are required, in forward or backward", what);
        return NULL;
    }
    return tshi_tensor_scratch(call->out->mesh, dtype, count, &made) == TSH_OK ? made : NULL;
}

tsh_tensor *tsh_call_scratch(tsh_call *call, tsh_dtype dtype, int64_t count) {
    tsh_tensor *made = call_memory(call, dtype, count, "call_scratch");
    if (!made) return NULL;
    tsh_tape *tape = call->tape;
    if (tshi_grow(&tape->world->allocator, (void **)&tape->scratch, &tape->scratch_capacity, tape->scratch_count + 1,
                  sizeof(tsh_tensor *)) != TSH_OK) {
        tshi_tensor_release(made);
        return NULL;
    }
    tape->scratch[tape->scratch_count++] = made;
    return made;
}

tsh_tensor *tsh_call_save(tsh_call *call, int slot, tsh_dtype dtype, int64_t count) {
    if (slot < 0 || slot >= TSH_CALL_SLOTS) {
        tshi_fail(TSH_ERR_ARGUMENT, "call_save: slot %d does not exist; there are %d slots", slot, TSH_CALL_SLOTS);
        return NULL;
    }
    tsh_tensor *made = call_memory(call, dtype, count, "call_save");
    if (!made) return NULL;
    tshi_tensor_release(call->saved[slot]);
    call->saved[slot] = made;
    return made;
}

tsh_tensor *tsh_call_saved(const tsh_call *call, int slot) {
    tsh_tensor *saved = call && slot >= 0 && slot < TSH_CALL_SLOTS ? call->saved[slot] : NULL;
    if (!saved) tshi_fail(TSH_ERR_STATE, "forward has saved nothing in slot %d", slot);
    return saved;
}

tsh_status tsh_call_fail(const tsh_call *call, tsh_status status, const char *format, ...) {
    va_list arguments;
    if (!call || !format) return tshi_fail(TSH_ERR_ARGUMENT, "call_fail: a call and a format are required");
    va_start(arguments, format);
    tshi_vfail(status, format, arguments);
    va_end(arguments);
    return status;
}

bool tsh_call_computes(const tsh_call *call, double flops, double bytes) {
    if (!call) return false;
    tsh_device *device = tshi_device_of(call->in[0]);
    if (!device->record || !device->record->planned) return true;
    tshi_record_call made = {.kind = TSHI_RECORD_KERNEL,
                             .dtype = call->in[0]->dtype,
                             .backward = device->place.backward,
                             .size = {(int64_t)bytes}};
    snprintf(made.name, sizeof made.name, "%s", call->op->name);
    if (bytes > 0 || flops > 0) tshi_record_add(device->record, &made, flops, (uint64_t)bytes);
    return false;
}
