/* The metadata of a checkpoint: names, numbers and values, and their comparison with those of a load. */
#include "io/checkpoint_state.h"
#include "io/load.h"
#include "io/problems.h"
#include "train/optimizer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- tensors ------------------------------------------------------------------------------------------------------ */

static tsh_status check_value(const char *call, const tsh_value *v) {
    if (!v->name || !v->data) return tshi_fail(TSH_ERR_ARGUMENT, "%s: every value needs a name and data", call);
    if ((unsigned)v->kind > TSH_VALUE_BYTES) {
        return tshi_fail(TSH_ERR_ARGUMENT, "%s: the value '%.100s' has the unknown kind %d", call, v->name,
                         (int)v->kind);
    }
    return TSH_OK;
}

tsh_status tshi_checkpoint_check(const char *call, const char *path, const tsh_checkpoint *what) {
    tsh_status status = TSH_OK;
    if (!path || !path[0]) return tshi_fail(TSH_ERR_ARGUMENT, "%s: a path is required", call);
    if (what->step < 0 || what->keep < 0 || what->value_count < 0 || (what->value_count > 0 && !what->values)) {
        return tshi_fail(TSH_ERR_ARGUMENT, "%s: step %" PRId64 ", keep %d and %d values; all must be at least 0", call,
                         what->step, what->keep, what->value_count);
    }
    for (int i = 0; i < what->value_count && status == TSH_OK; i++) {
        status = check_value(call, &what->values[i]);
        for (int j = 0; j < i && status == TSH_OK; j++) {
            if (strcmp(what->values[j].name, what->values[i].name) != 0) continue;
            status = tshi_fail(TSH_ERR_ARGUMENT, "%s: two values are named '%.100s'", call, what->values[i].name);
        }
    }
    if (status == TSH_OK && what->optimizer && what->optimizer->world != what->parameters->world) {
        return tshi_fail(TSH_ERR_ARGUMENT, "%s: the optimizer and the parameters belong to different worlds", call);
    }
    return status;
}

/* The name under which the list has the tensor, or NULL. */
static const char *state_name(const tsh_parameters *list, const tsh_tensor *tensor, int hint) {
    if (hint < list->count && list->items[hint].tensor == tensor) return list->items[hint].name;
    for (int i = 0; i < list->count; i++) {
        if (list->items[i].tensor == tensor) return list->items[i].name;
    }
    return NULL;
}

static tsh_status add_state_tensor(tsh_parameters *list, const char *name, const char *part, tsh_tensor *tensor) {
    tsh_status status = tshi_check_parameter("checkpoint", name, tensor);
    return status == TSH_OK ? tshi_parameters_add_part(list, name, part, tensor) : status;
}

/* The state tensors of a slot, with the names of their kinds: the optimizer's, then the master weights. */
enum { STATE_PARTS = TSHI_MAX_STATES + 1 };

static tsh_tensor *state_part(const tsh_optimizer *o, int slot, int part, const char **kind) {
    *kind = part < TSHI_MAX_STATES ? o->kind->state[part] : "master";
    return part < TSHI_MAX_STATES ? o->slots[slot].state[part] : o->slots[slot].master;
}

static bool has_steps(const tshi_checkpoint_files *files, const char *name) {
    const json_t *steps = json_object_get(json_object_get(files->state, "optimizer"), "steps");
    return json_is_integer(json_object_get(steps, name));
}

/* True when a load with other_states starts the slot's state anew, because the files lack some of it. */
static bool starts_anew(const tshi_checkpoint_files *files, const tsh_checkpoint *what, int slot) {
    char name[1024];
    const char *parameter = state_name(what->parameters, what->optimizer->slots[slot].parameter, slot), *kind;
    if (!files || !what->other_states || !parameter) return false;
    bool whole = has_steps(files, parameter);
    for (int part = 0; part < STATE_PARTS && whole; part++) {
        if (!state_part(what->optimizer, slot, part, &kind)) continue;
        snprintf(name, sizeof name, "optimizer.%s.%s", parameter, kind);
        whole = tshi_checkpoint_find(files, name, 0) != NULL;
    }
    return !whole;
}

static tsh_status add_slot(const tsh_optimizer *o, int slot, const char *name, tsh_parameters *list) {
    size_t size = strlen(name) + sizeof "optimizer.";
    char *prefixed = tshi_calloc(&list->world->allocator, size, 1);
    const char *kind;
    if (!prefixed) return TSH_ERR_MEMORY;
    snprintf(prefixed, size, "optimizer.%s", name);
    tsh_status status = TSH_OK;
    for (int part = 0; part < STATE_PARTS && status == TSH_OK; part++) {
        tsh_tensor *state = state_part(o, slot, part, &kind);
        if (state) status = add_state_tensor(list, prefixed, kind, state);
    }
    tshi_free(&list->world->allocator, prefixed);
    return status;
}

static tsh_status add_states(const tsh_checkpoint *what, const tshi_checkpoint_files *files, tsh_parameters *list) {
    const tsh_optimizer *o = what->optimizer;
    tsh_status status = TSH_OK;
    for (int i = 0; i < o->count && status == TSH_OK; i++) {
        tshi_optimizer_renew_master(&o->slots[i]);
        const char *name = state_name(what->parameters, o->slots[i].parameter, i);
        if (!name) return tshi_fail(TSH_ERR_ARGUMENT, "checkpoint: a parameter of the optimizer is not in the list");
        if (!starts_anew(files, what, i)) status = add_slot(o, i, name, list);
    }
    return status;
}

tsh_status tshi_checkpoint_tensors(const tsh_checkpoint *what, const tshi_checkpoint_files *files,
                                   tsh_parameters **out) {
    const tsh_parameters *given = what->parameters;
    tsh_parameters *list;
    tsh_status status = tsh_parameters_create(given->world, &list);
    *out = NULL;
    for (int i = 0; i < given->count && status == TSH_OK; i++) {
        status = add_state_tensor(list, given->items[i].name, NULL, given->items[i].tensor);
    }
    if (status == TSH_OK && what->optimizer) status = add_states(what, files, list);
    if (status == TSH_OK) {
        *out = list;
    } else {
        tsh_parameters_destroy(list);
    }
    return status;
}

/* --- states that differ ------------------------------------------------------------------------------------------- */

static bool is_listed(const tsh_parameters *list, const char *name) {
    for (int i = 0; i < list->count; i++) {
        if (!strcmp(list->items[i].name, name)) return true;
    }
    return false;
}

/* True when the optimizer has the parameter, and the load gives it a state. */
static bool gets_state(const tshi_checkpoint_files *files, const tsh_checkpoint *what, const char *name) {
    for (int i = 0; i < what->optimizer->count; i++) {
        const char *have = state_name(what->parameters, what->optimizer->slots[i].parameter, i);
        if (have && !strcmp(have, name)) return !starts_anew(files, what, i);
    }
    return false;
}

static void note_state(char text[TSHI_LINE], int *count, const char *name) {
    tshi_append(text, TSHI_LINE, "%s%s", *count ? ", " : "", name);
    ++*count;
}

void tshi_checkpoint_report_states(const tshi_checkpoint_files *files, tsh_checkpoint *what) {
    char anew[TSHI_LINE] = "", ignored[TSHI_LINE] = "";
    const char *name;
    json_t *value;
    const tsh_world *world = what->parameters->world;
    json_t *steps = json_object_get(json_object_get(files->state, "optimizer"), "steps");
    what->new_states = what->ignored_states = 0;
    for (int i = 0; i < what->optimizer->count; i++) {
        if (starts_anew(files, what, i))
            note_state(anew, &what->new_states, state_name(what->parameters, what->optimizer->slots[i].parameter, i));
    }
    json_object_foreach(steps, name, value) {
        if (!gets_state(files, what, name)) note_state(ignored, &what->ignored_states, name);
    }
    if (world->rank > 0) return;
    if (what->new_states)
        tshi_log(&world->log, TSH_LOG_INFO,
                 "checkpoint_load: the optimizer's states of %d parameters start at zero: %s", what->new_states, anew);
    if (what->ignored_states)
        tshi_log(&world->log, TSH_LOG_INFO, "checkpoint_load: the optimizer's states of %d parameters are ignored: %s",
                 what->ignored_states, ignored);
}

/* --- packing into JSON ------------------------------------------------------------------------------------------ */

static json_t *pack_bytes(const tsh_value *v) {
    const unsigned char *bytes = v->data;
    char *text = malloc(2 * v->size + 1);
    if (!text) return NULL;
    for (size_t i = 0; i < v->size; i++) {
        text[2 * i] = "0123456789abcdef"[bytes[i] >> 4];
        text[2 * i + 1] = "0123456789abcdef"[bytes[i] & 15];
    }
    text[2 * v->size] = '\0';
    json_t *packed = json_pack("{s:s}", "bytes", text);
    free(text);
    return packed;
}

/* JSON has no infinities and no NaN. */
static json_t *pack_double(double value) {
    if (isfinite(value)) return json_pack("{s:f}", "double", value);
    return json_pack("{s:s}", "double", isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
}

static json_t *pack_value(const tsh_value *v) {
    switch (v->kind) {
    case TSH_VALUE_INT64: return json_pack("{s:I}", "int64", (json_int_t) * (const int64_t *)v->data);
    case TSH_VALUE_DOUBLE: return pack_double(*(const double *)v->data);
    case TSH_VALUE_STRING: return json_pack("{s:s}", "string", (const char *)v->data);
    default: return pack_bytes(v);
    }
}

static json_t *pack_optimizer(const tsh_checkpoint *what) {
    const tsh_optimizer *o = what->optimizer;
    json_t *steps = json_object();
    for (int i = 0; i < o->count; i++) {
        const char *name = state_name(what->parameters, o->slots[i].parameter, i);
        json_object_set_new(steps, name, json_integer(o->slots[i].steps));
    }
    return json_pack("{s:s, s:o, s:o}", "kind", o->kind->name, "lr", json_real(o->lr), "steps", steps);
}

json_t *tshi_checkpoint_pack(const tsh_checkpoint *what) {
    const tsh_world *world = what->parameters->world;
    char seed[24], stream[24];
    snprintf(seed, sizeof seed, "%" PRIu64, world->seed);
    snprintf(stream, sizeof stream, "%" PRIu64, world->next_stream);
    json_t *values = json_object();
    json_t *state = json_pack("{s:{s:s, s:s}, s:o}", "random", "seed", seed, "next_stream", stream, "values", values);
    if (state && what->optimizer) json_object_set_new(state, "optimizer", pack_optimizer(what));
    for (int i = 0; state && i < what->value_count; i++) {
        json_t *packed = pack_value(&what->values[i]);
        if (packed && json_object_set_new(values, what->values[i].name, packed) == 0) continue;
        tshi_fail(TSH_ERR_ARGUMENT,
                  "checkpoint_save: the value '%.100s' or its name is not UTF-8, or memory is exhausted",
                  what->values[i].name);
        json_decref(state);
        return NULL;
    }
    if (!state) tshi_fail(TSH_ERR_MEMORY, "checkpoint_save: no memory");
    return state;
}

/* --- differences -------------------------------------------------------------------------------------------------- */

static void compare_tensors(const tshi_checkpoint_files *files, const tsh_checkpoint *what, const tsh_parameters *list,
                            tshi_problems *all) {
    for (int i = 0; i < list->count; i++) {
        const tsh_tensor *t = list->items[i].tensor;
        const tshi_stored_tensor *s = tshi_checkpoint_find(files, list->items[i].name, i);
        if (!s) {
            tshi_problem(all, "'%s' is missing", list->items[i].name);
        } else if (s->dtype != t->dtype || s->ndim != t->shape.ndim ||
                   memcmp(s->shape, t->shape.global, sizeof *s->shape * (size_t)s->ndim) != 0) {
            tshi_problem(all, "'%s' is %s %s in the checkpoint, %s %s here", s->name, tsh_dtype_name(s->dtype),
                         TSHI_DIMS_TEXT(s->ndim, s->shape), tsh_dtype_name(t->dtype),
                         TSHI_DIMS_TEXT(t->shape.ndim, t->shape.global));
        }
    }
    for (int i = 0; i < files->tensors; i++) {
        const char *name = files->tensor[i].name;
        bool known = (i < list->count && !strcmp(list->items[i].name, name)) || is_listed(list, name);
        bool may_stay = !what->optimizer || what->other_states;
        if (known || (may_stay && !strncmp(name, "optimizer.", 10))) continue;
        tshi_problem(all, "'%s' is unexpected", name);
    }
}

static void compare_optimizer(const tshi_checkpoint_files *files, const tsh_checkpoint *what, tshi_problems *all) {
    const tsh_optimizer *o = what->optimizer;
    const json_t *packed = json_object_get(files->state, "optimizer");
    const char *kind = json_string_value(json_object_get(packed, "kind"));
    if (!packed && what->other_states) return;
    if (!kind || strcmp(kind, o->kind->name) != 0) {
        tshi_problem(all, "the optimizer is %.20s in the checkpoint, %s here", kind ? kind : "none", o->kind->name);
        return;
    }
    if (!json_is_real(json_object_get(packed, "lr"))) tshi_problem(all, "the optimizer's learning rate is missing");
    for (int i = 0; i < o->count; i++) {
        const char *name = state_name(what->parameters, o->slots[i].parameter, i);
        if (!has_steps(files, name) && !starts_anew(files, what, i))
            tshi_problem(all, "the optimizer's steps of '%s' are missing", name);
    }
}

static const json_t *find_value(const json_t *values, const tsh_value *v) {
    static const char *const kinds[] = {"int64", "double", "string", "bytes"};
    return json_object_get(json_object_get(values, v->name), kinds[v->kind]);
}

static void compare_value(const json_t *values, const tsh_value *v, tshi_problems *all) {
    const json_t *found = find_value(values, v);
    const char *text = json_string_value(found);
    if (!json_object_get(values, v->name)) {
        tshi_problem(all, "the value '%s' is missing", v->name);
    } else if (!found || (v->kind == TSH_VALUE_INT64 && !json_is_integer(found)) ||
               (v->kind == TSH_VALUE_DOUBLE && !json_is_real(found) && !text) ||
               (v->kind >= TSH_VALUE_STRING && !text)) {
        tshi_problem(all, "the value '%s' has another kind", v->name);
    } else if (v->kind == TSH_VALUE_STRING && json_string_length(found) >= v->size) {
        tshi_problem(all, "the value '%s' takes %zu bytes, but has room for %zu", v->name,
                     json_string_length(found) + 1, v->size);
    } else if (v->kind == TSH_VALUE_BYTES &&
               (json_string_length(found) != 2 * v->size || strspn(text, "0123456789abcdef") != 2 * v->size)) {
        tshi_problem(all, "the value '%s' has %zu bytes in the checkpoint, %zu here", v->name,
                     json_string_length(found) / 2, v->size);
    }
}

static bool read_number(const json_t *random, const char *name, uint64_t *out) {
    const char *text = json_string_value(json_object_get(random, name));
    if (!text || !text[0] || strspn(text, "0123456789") != strlen(text)) return false;
    *out = strtoull(text, NULL, 10);
    return true;
}

tsh_status tshi_checkpoint_compare(const tshi_checkpoint_files *files, const tsh_checkpoint *what,
                                   const tsh_parameters *tensors, const char *folder) {
    tshi_problems all = {.world = what->parameters->world, .call = "checkpoint_load", .path = folder};
    uint64_t number;
    const json_t *random = json_object_get(files->state, "random"), *values = json_object_get(files->state, "values");
    compare_tensors(files, what, tensors, &all);
    if (what->optimizer) compare_optimizer(files, what, &all);
    for (int i = 0; i < what->value_count; i++) compare_value(values, &what->values[i], &all);
    if (!read_number(random, "seed", &number) || !read_number(random, "next_stream", &number)) {
        tshi_problem(&all, "the random streams are missing");
    }
    return tshi_problems_report(&all);
}

/* --- unpacking from JSON ------------------------------------------------------------------------------------------ */

static unsigned char nibble(char digit) {
    return (unsigned char)(digit <= '9' ? digit - '0' : digit - 'a' + 10);
}

static void unpack_value(const json_t *values, const tsh_value *v) {
    const json_t *found = find_value(values, v);
    const char *text = json_string_value(found);
    switch (v->kind) {
    case TSH_VALUE_INT64: *(int64_t *)v->data = json_integer_value(found); break;
    case TSH_VALUE_DOUBLE: *(double *)v->data = text ? strtod(text, NULL) : json_real_value(found); break;
    case TSH_VALUE_STRING: memcpy(v->data, text, json_string_length(found) + 1); break;
    case TSH_VALUE_BYTES:
        for (size_t i = 0; i < v->size; i++) {
            ((unsigned char *)v->data)[i] = (unsigned char)(nibble(text[2 * i]) << 4 | nibble(text[2 * i + 1]));
        }
    }
}

static tsh_status start_anew(const tsh_optimizer *o, int slot) {
    const char *kind;
    tsh_status status = TSH_OK;
    o->slots[slot].steps = 0; /* the first step copies the master weights */
    for (int part = 0; part < TSHI_MAX_STATES && status == TSH_OK; part++) {
        tsh_tensor *state = state_part(o, slot, part, &kind);
        if (state) status = tsh_tensor_fill(state, 0);
    }
    return status;
}

static tsh_status unpack_optimizer(const tshi_checkpoint_files *files, const tsh_checkpoint *what) {
    tsh_optimizer *o = what->optimizer;
    const json_t *packed = json_object_get(files->state, "optimizer"), *steps = json_object_get(packed, "steps");
    tsh_status status = TSH_OK;
    if (packed) o->lr = json_real_value(json_object_get(packed, "lr"));
    for (int i = 0; i < o->count && status == TSH_OK; i++) {
        tshi_optimizer_slot *slot = &o->slots[i];
        if (starts_anew(files, what, i)) {
            status = start_anew(o, i);
            continue;
        }
        slot->steps = json_integer_value(json_object_get(steps, state_name(what->parameters, slot->parameter, i)));
        slot->version = tshi_tensor_version(slot->parameter); /* the master weights have been loaded as well */
    }
    return status;
}

tsh_status tshi_checkpoint_unpack(const tshi_checkpoint_files *files, tsh_checkpoint *what) {
    tsh_world *world = what->parameters->world;
    const json_t *random = json_object_get(files->state, "random"), *values = json_object_get(files->state, "values");
    read_number(random, "seed", &world->seed);
    read_number(random, "next_stream", &world->next_stream);
    for (int i = 0; i < what->value_count; i++) unpack_value(values, &what->values[i]);
    what->step = files->step;
    return what->optimizer ? unpack_optimizer(files, what) : TSH_OK;
}
