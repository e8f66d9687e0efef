/* A program as text. */
#include "differential/functions.h"

#include <string.h>

static void print_dims(const tshi_dims *d, FILE *to) {
    fprintf(to, "[");
    for (int i = 0; i < d->ndim; i++) fprintf(to, "%s%lld", i ? "," : "", (long long)d->dim[i]);
    fprintf(to, "]");
}

static void print_layout(const tshi_program *p, tsh_layout layout, FILE *to) {
    const tshi_program_cuts *cuts = tshi_layout_cuts(p, layout);
    static const char letters[] = "RSPL";
    fprintf(to, "%c", letters[layout.kind]);
    if (layout.kind == TSH_KIND_SHARD) fprintf(to, "%d", layout.dim);
    if (layout.order) fprintf(to, "/%d", layout.order);
    if (layout.units || layout.sharing) fprintf(to, " of %lld units", (long long)layout.units);
    if (layout.blocks) fprintf(to, " and %lld blocks", (long long)layout.blocks);
    if (layout.sharing) fprintf(to, layout.sharing == TSH_SHARED_NEXT ? " and then the next dim" : " shared");
    for (int i = 0; cuts && i <= cuts->parts; i++) fprintf(to, "%s%lld", i ? ":" : " at ", (long long)cuts->at[i]);
}

static void print_layouts(const tshi_program *p, const tshi_step *s, FILE *to) {
    for (int a = 0; a < p->axes; a++) {
        fprintf(to, a ? "," : " ");
        print_layout(p, s->layout[a], to);
    }
}

static void print_leaf(const tshi_program *p, const tshi_step *s, FILE *to) {
    print_layouts(p, s, to);
    if (s->grad) fprintf(to, " grad");
    if (tshi_leaf_flags(s) & FLAG_RAGGED) fprintf(to, " ragged along axis %d", p->ragged);
    if (s->call == CALL_IDS) {
        fprintf(to, " below %lld", (long long)s->n[IDS_LIMIT]);
        if (s->n[IDS_FLAGS] & FLAG_TARGET) fprintf(to, " or %lld", (long long)s->n[IDS_IGNORE]);
        return;
    }
    if (s->n[LEAF_FLAGS] & FLAG_FROM_PARTS) fprintf(to, " from_parts");
    if (s->n[LEAF_FLAGS] & FLAG_INIT) fprintf(to, " drawn");
    if (s->n[LEAF_FLAGS] & FLAG_POSITIVE) fprintf(to, " positive");
}

static void print_layer(const tshi_step *s, FILE *to) {
    static const char *const shardings[] = {"dense", "row", "column", "whole"};
    static const char *const activations[] = {"", " gelu", " gelu_tanh", " relu", " silu"};
    int64_t flags = s->n[LAYER_FLAGS];
    fprintf(to, " %s along axis %lld", shardings[s->n[LAYER_SHARDING]], (long long)s->n[LAYER_AXIS]);
    if (s->call == CALL_PREPARE) return;
    fprintf(to, " out=%lld", (long long)s->n[LAYER_OUT]);
    if (s->call == CALL_EMBEDDING) fprintf(to, " rows=%lld", (long long)s->n[EMBEDDING_ROWS]);
    if (s->call == CALL_LINEAR)
        fprintf(to, "%s init=%lld", activations[s->n[LAYER_ACTIVATION]], (long long)s->n[LAYER_INIT]);
    if (flags & FLAG_BIAS) fprintf(to, " bias");
    if (flags & FLAG_GATHER) fprintf(to, " gather_output");
    if (flags & FLAG_SEQUENCE) fprintf(to, " sequence_parallel");
    if (flags & FLAG_LOAD) fprintf(to, " loaded");
    if (flags & FLAG_PADDING) fprintf(to, " padding=%lld", (long long)s->n[EMBEDDING_PADDING]);
}

static void print_transformer(const tshi_step *s, FILE *to) {
    static const char *const names[] = {"gated", "causal", "rotary", "lengths", "post_norm", "rms", "weight"};
    int64_t flags = s->n[LAYER_FLAGS];
    fprintf(to, " along axis %lld", (long long)s->n[LAYER_AXIS]);
    if (flags & FLAG_BIAS) fprintf(to, " bias");
    if (flags & FLAG_SEQUENCE) fprintf(to, " sequence_parallel");
    for (int i = 0; i < 7; i++) {
        if (flags & FLAG_GATED << i) fprintf(to, " %s", names[i]);
    }
    if (s->call == CALL_MLP || s->call == CALL_BLOCK)
        fprintf(to, " hidden=%lld activation=%lld", (long long)s->n[LAYER_OUT], (long long)s->n[LAYER_ACTIVATION]);
    if (s->call < CALL_SELF_ATTENTION) return;
    fprintf(to, " heads=%lld kv_heads=%lld head_dim=%lld batch=%lld dropout %g", (long long)s->n[ATTENTION_HEADS],
            (long long)s->n[ATTENTION_KV_HEADS], (long long)s->n[ATTENTION_HEAD_DIM], (long long)s->n[ATTENTION_BATCH],
            s->f);
}

static void print_numbers(const tshi_program *p, const tshi_step *s, FILE *to) {
    static const char *const forms[] = {"merge", "split", "flatten", "insert", "swap"};
    switch (s->call) {
    case CALL_SCALE:
    case CALL_DROPOUT:
    case CALL_LAYER_NORM:
    case CALL_RMS_NORM: fprintf(to, " %g", s->f); break;
    case CALL_RESHAPE:
        fprintf(to, " %s %lld by %lld%s", forms[s->n[0]], (long long)s->n[1], (long long)s->n[2],
                s->n[3] ? " (-1)" : "");
        break;
    case CALL_SLICE:
        fprintf(to, " dim %lld from %lld, %lld", (long long)s->n[0], (long long)s->n[1], (long long)s->n[2]);
        break;
    case CALL_CONCAT:
    case CALL_SOFTMAX:
    case CALL_LOG_SOFTMAX: fprintf(to, " dim %lld", (long long)s->n[0]); break;
    case CALL_SUM:
    case CALL_MEAN:
        if (s->n[0] != TSH_ALL_DIMS) fprintf(to, " dim %lld", (long long)s->n[0]);
        break;
    case CALL_LOOKUP: fprintf(to, " padding %lld", (long long)s->n[0]); break;
    case CALL_REDISTRIBUTE:
        fprintf(to, " axis %lld to ", (long long)s->n[0]);
        print_layout(p, s->layout[0], to);
        break;
    case CALL_SCATTER: fprintf(to, " axis %lld dim %lld", (long long)s->n[0], (long long)s->n[1]); break;
    case CALL_GATHER:
    case CALL_REDUCE:
    case CALL_COPY: fprintf(to, " axis %lld", (long long)s->n[0]); break;
    case CALL_ATTENTION:
        fprintf(to, "%s%s%s dropout %g", s->n[0] ? " causal" : "", s->n[1] ? " scale 0.5" : "",
                s->n[2] == 1   ? " positions"
                : s->n[2] == 2 ? " documents"
                               : "",
                s->f);
        break;
    case CALL_ROTARY:
        fprintf(to, "%s dims %lld%s", s->n[0] ? " pairs" : "", (long long)s->n[1], s->n[2] ? " theta 100" : "");
        break;
    case CALL_CROSS_ENTROPY: fprintf(to, " reduction %lld smoothing %g", (long long)s->n[0], s->f); break;
    default: tshi_function_print(s, to); break;
    }
}

static void print_step(const tshi_program *p, int k, FILE *to) {
    const tshi_step *s = &p->step[k];
    fprintf(to, "  v%d = %s", k, tshi_verbs[s->call].name);
    for (int i = 0; i < s->inputs; i++) fprintf(to, " v%d", s->in[i]);
    if (s->call == CALL_LEAF || s->call == CALL_IDS) print_leaf(p, s, to);
    if (s->call == CALL_LINEAR || s->call == CALL_EMBEDDING || s->call == CALL_PREPARE) print_layer(s, to);
    if (tshi_verb_has_layer(s->call) && s->call >= CALL_NORM) print_transformer(s, to);
    if (s->call == CALL_MOVE_ALL) print_layouts(p, s, to);
    print_numbers(p, s, to);
    fprintf(to, " -> ");
    print_dims(&s->shape, to);
    fprintf(to, "%s%s\n", s->retain ? " retain_grad" : "", s->detached ? " not recorded" : "");
}

static void print_weights(const tshi_program *p, FILE *to) {
    for (int a = 0; a < p->axes; a++) {
        if (!tshi_axis_has_weights(p, a)) continue;
        fprintf(to, "  axis %d by", a);
        for (int i = 0; i < p->size[a]; i++) fprintf(to, "%c%lld", i ? ':' : ' ', (long long)p->weight[a][i]);
        fprintf(to, "\n");
    }
}

static void print_training(const tshi_program *p, FILE *to) {
    static const char *const steppers[] = {"no optimizer", "SGD", "AdamW"};
    static const char *const zeros[] = {"optimizer_zero_grad", "parameters_zero_grad", "gradients kept"};
    for (int i = 0; i < p->objectives; i++) {
        const tshi_objective *o = &p->objective[i];
        fprintf(to, "  backward v%d%s%s%s\n", o->value, o->given ? " with a gradient" : "",
                o->retain_graph ? " retain_graph" : "", o->sync ? "" : " without sync");
    }
    fprintf(to, "  %d rounds%s, %s lr %g momentum %g%s decay %g, clip %g, %s\n", p->rounds,
            p->evaluate ? " after one that is not recorded" : "", steppers[p->stepper], p->lr, p->momentum,
            p->nesterov ? " nesterov" : "", p->weight_decay, p->clip, zeros[p->zero]);
    if (p->evaluate && p->rewrite) fprintf(to, "  parameters are written to between two evaluations of one step\n");
    bool value = p->spoil >= SPOIL_VALUE;
    if (p->spoil >= 0)
        fprintf(to, "  %s%d is written to after each forward\n", value ? "v" : "parameter ",
                p->spoil - (value ? SPOIL_VALUE : 0));
    if (p->fail_round)
        fprintf(to, "  before step %d one fails at %d, rank %d of %d\n", p->fail_round, p->fail_at, p->fail_rank,
                MAX_RANKS);
    if (p->fused) fprintf(to, "  matrices are stepped in backward\n");
    if (p->sparse) fprintf(to, "  gradients of tables are sparse\n");
    if (p->tapes) fprintf(to, "  beside %d tapes\n", p->tapes);
    if (p->dp_axis < 0) return;
    fprintf(to, "  data_parallel along axis %d, level %d, buckets of %lld bytes%s%s\n", p->dp_axis, p->dp_level,
            (long long)p->dp_bucket, p->dp_average ? ", average" : "", p->dp_keep ? ", keep_values" : "");
}

static void print_parameters(const tshi_program *p, FILE *to) {
    static const char *const parts[] = {"", ".weight", ".bias", " part"};
    tshi_owned owned[MAX_PARAMETERS];
    int count = tshi_program_parameters(p, owned);
    fprintf(to, "  parameters:");
    for (int i = 0; i < count; i++) fprintf(to, " %d=v%d%s", i, owned[i].step, parts[owned[i].part]);
    fprintf(to, "\n");
}

void tshi_program_print(const tshi_program *p, FILE *to) {
    fprintf(to, "  mesh ");
    for (int a = 0; a < p->axes; a++) fprintf(to, "%s%d", a ? "x" : "", p->size[a]);
    int ranks[MAX_RANKS], count = tshi_program_ranks(p);
    tshi_program_order(p, ranks);
    for (int i = 0; i < count && p->order; i++) fprintf(to, "%s%d", i ? "," : " of ranks ", ranks[i]);
    static const char *const policies[] = {"", ", stored in ", ", computed in ", ", computed in float32, stored in "};
    fprintf(to, ", %s%s%s%s%s\n", tsh_dtype_name(p->dtype), p->exact ? ", whole numbers, exact" : "",
            policies[p->policy], p->policy ? tsh_dtype_name(p->narrow) : "", p->deterministic ? ", deterministic" : "");
    print_weights(p, to);
    for (int k = 0; k < p->steps; k++) print_step(p, k, to);
    print_training(p, to);
    print_parameters(p, to);
}
