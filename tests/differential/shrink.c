/* A smaller program that fails as a given one does: one change after another is tried, and kept where the failure
 * stays, until none helps. */
#include "differential/shrink.h"

#include <string.h>

typedef struct shrinking {
    tshi_program *best;
    int tries;
    tshi_fails_fn *fails;
    void *user;
} shrinking;

/* True when the changed program is valid and fails; it then becomes the best one. */
static bool keep(shrinking *s, tshi_program *changed) {
    if (s->tries <= 0 || !memcmp(changed, s->best, sizeof *changed) || !tshi_program_infer(changed)) return false;
    s->tries--;
    if (!s->fails(changed, s->user)) return false;
    *s->best = *changed;
    return true;
}

/* --- settings ----------------------------------------------------------------------------------------------------- */

static void drop_setting(tshi_program *p, int which) {
    switch (which) {
    case 0: p->evaluate = false; break;
    case 1: p->rounds = 1; break;
    case 2: p->rounds = 0; break;
    case 3:
        p->dp_axis = -1;
        for (int i = 0; i < p->objectives; i++) p->objective[i].sync = true;
        break;
    case 4: p->stepper = STEPPER_NONE; break;
    case 5: p->clip = 0; break;
    case 6: p->dp_average = false; break;
    case 7: p->dp_bucket = 0; break;
    case 8: p->dp_keep = true; break;
    case 9:
        p->momentum = 0;
        p->nesterov = false;
        break;
    case 13: p->ragged = -1; break;
    case 14: p->order = 0; break;
    case 10: p->weight_decay = 0; break;
    case 11: p->zero = ZERO_OPTIMIZER; break;
    case 12: p->objectives = 0; break;
    case 15: p->dp_level = 0; break;
    case 16: p->rewrite = false; break;
    case 17: p->spoil = -1; break;
    case 18: p->tapes = 0; break;
    case 19: p->policy = POLICY_NONE; break;
    case 20: p->deterministic = false; break;
    case 21: p->sparse = false; break;
    case 22: p->fail_round = 0; break;
    case 23: p->fused = false; break;
    default: break;
    }
}

static bool shrink_settings(shrinking *s) {
    bool any = false;
    for (int i = 0; i <= 23; i++) {
        tshi_program p = *s->best;
        drop_setting(&p, i);
        any |= keep(s, &p);
    }
    return any;
}

static bool shrink_objectives(shrinking *s) {
    bool any = false;
    for (int i = 0; i < s->best->objectives; i++) {
        tshi_program p = *s->best;
        memmove(&p.objective[i], &p.objective[i + 1], sizeof *p.objective * (size_t)(p.objectives - i - 1));
        p.objectives--;
        if (p.objectives > 0) p.objective[p.objectives - 1].retain_graph = false;
        if (p.objectives > 0) p.objective[p.objectives - 1].sync = true;
        any |= keep(s, &p);
    }
    for (int i = 0; i < s->best->objectives; i++) {
        tshi_program p = *s->best;
        p.objective[i].given = false;
        any |= keep(s, &p);
        p = *s->best;
        p.objective[i].sync = true;
        any |= keep(s, &p);
    }
    return any;
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

/* Without step k; what used it uses `instead`. */
static void remove_step(tshi_program *p, int k, int instead) {
    for (int j = k + 1; j < p->steps; j++) {
        for (int i = 0; i < p->step[j].inputs; i++) {
            int *in = &p->step[j].in[i];
            if (*in == k) *in = instead;
            if (*in > k) --*in;
        }
    }
    for (int i = 0; i < p->objectives; i++) {
        int *value = &p->objective[i].value;
        if (*value == k) *value = instead;
        if (*value > k) --*value;
    }
    if (p->spoil == SPOIL_VALUE + k) p->spoil = SPOIL_VALUE + instead;
    if (p->spoil > SPOIL_VALUE + k) p->spoil--;
    memmove(&p->step[k], &p->step[k + 1], sizeof *p->step * (size_t)(p->steps - k - 1));
    p->steps--;
    memset(&p->step[p->steps], 0, sizeof *p->step);
}

static bool is_used(const tshi_program *p, int k) {
    for (int j = k + 1; j < p->steps; j++) {
        for (int i = 0; i < p->step[j].inputs; i++) {
            if (p->step[j].in[i] == k) return true;
        }
    }
    for (int i = 0; i < p->objectives; i++) {
        if (p->objective[i].value == k) return true;
    }
    return false;
}

static bool remove_unused(shrinking *s) {
    bool any = false;
    for (int k = s->best->steps - 1; k >= 0; k--) {
        tshi_program p = *s->best;
        if (is_used(&p, k) || p.steps == 1) continue;
        remove_step(&p, k, 0);
        any |= keep(s, &p);
    }
    return any;
}

/* Only its inputs are left of a step. */
static bool bypass_steps(shrinking *s) {
    bool any = false;
    for (int k = s->best->steps - 1; k > 0; k--) {
        for (int i = 0; k < s->best->steps && i < s->best->step[k].inputs; i++) {
            tshi_program p = *s->best;
            remove_step(&p, k, p.step[k].in[i]);
            if (!keep(s, &p)) continue;
            any = true;
            break;
        }
    }
    return any;
}

/* Replaces a step by a leaf of its shape. */
static bool replace_by_leaves(shrinking *s) {
    bool any = false;
    for (int k = s->best->steps - 1; k >= 0; k--) {
        tshi_program p = *s->best;
        tshi_step *step = &p.step[k];
        if (step->call == CALL_LEAF || step->call == CALL_IDS || step->integer) continue;
        *step = (tshi_step){.call = CALL_LEAF, .shape = step->shape, .salt = step->salt, .grad = step->wants_grad};
        any |= keep(s, &p);
    }
    return any;
}

static void simplify(tshi_step *s, int way, int axis) {
    switch (way) {
    case 0: s->layout[axis] = TSH_REPLICATED; break;
    case 1: s->grad = false; break;
    case 2: s->retain = false; break;
    case 6: s->detached = false; break;
    case 9:
        for (int a = 0; a < TSH_MAX_AXES; a++) {
            s->layout[a].units = s->layout[a].blocks = s->layout[a].sharing = 0;
            s->layout[a].cuts = 0;
        }
        break;
    case 8:
        for (int a = 0; a < TSH_MAX_AXES; a++) s->layout[a].order = 0;
        break;
    case 3:
        if (s->call == CALL_LEAF) s->n[LEAF_FLAGS] &= ~(int64_t)(FLAG_FROM_PARTS | FLAG_INIT | FLAG_RAGGED);
        if (s->call == CALL_IDS) s->n[IDS_FLAGS] &= ~(int64_t)FLAG_RAGGED;
        if (tshi_verb_has_layer(s->call)) s->n[LAYER_FLAGS] = 0;
        break;
    case 4:
        if (s->call == CALL_LINEAR) s->n[LAYER_ACTIVATION] = 0;
        if (s->call == CALL_CROSS_ENTROPY) s->f = 0;
        if (s->call == CALL_LOOKUP) s->n[0] = -1;
        if (s->call == CALL_RESHAPE) s->n[3] = 0;
        break;
    case 5:
        if (s->call == CALL_LINEAR || s->call == CALL_EMBEDDING) s->n[LAYER_SHARDING] = TSH_DENSE;
        break;
    default:
        if (s->inputs > tshi_verbs[s->call].least) s->inputs--;
        break;
    }
}

static bool simplify_steps(shrinking *s) {
    bool any = false;
    for (int k = 0; k < s->best->steps; k++) {
        for (int way = 0; way <= 9; way++) {
            for (int axis = 0; axis < (way == 0 ? s->best->axes : 1); axis++) {
                tshi_program p = *s->best;
                simplify(&p.step[k], way, axis);
                any |= keep(s, &p);
            }
        }
    }
    return any;
}

/* --- sizes -------------------------------------------------------------------------------------------------------- */

/* Wherever a size stands, another one. */
static void change_size(tshi_program *p, int64_t from, int64_t to) {
    for (int k = 0; k < p->steps; k++) {
        tshi_step *s = &p->step[k];
        bool leaf = s->call == CALL_LEAF || s->call == CALL_IDS;
        for (int d = 0; leaf && d < s->shape.ndim; d++) {
            if (s->shape.dim[d] == from) s->shape.dim[d] = to;
        }
        if (s->call == CALL_IDS && s->n[IDS_LIMIT] == from) s->n[IDS_LIMIT] = to;
        bool layer = tshi_verb_has_layer(s->call);
        if (layer && s->n[LAYER_OUT] == from) s->n[LAYER_OUT] = to;
        if (s->call == CALL_EMBEDDING && s->n[EMBEDDING_ROWS] == from) s->n[EMBEDDING_ROWS] = to;
        if (s->call == CALL_RESHAPE && s->n[2] == from) s->n[2] = to;
    }
}

static bool shrink_sizes(shrinking *s) {
    bool any = false;
    for (int64_t from = 12; from > 1; from--) {
        for (int64_t to = 1; to < from; to++) {
            tshi_program p = *s->best;
            change_size(&p, from, to);
            if (!keep(s, &p)) continue;
            any = true;
            break;
        }
    }
    return any;
}

/* --- meshes ------------------------------------------------------------------------------------------------------- */

static bool uses_axis(const tshi_program *p, int axis) {
    for (int k = 0; k < p->steps; k++) {
        const tshi_step *s = &p->step[k];
        bool layer = tshi_verb_has_layer(s->call) || s->call == CALL_PREPARE;
        if (layer && s->n[LAYER_AXIS] == axis) return true;
        if (!layer && tshi_verb_moves(s->call) && s->n[0] == axis) return true;
    }
    return p->dp_axis == axis || p->ragged == axis;
}

static void remove_axis(tshi_program *p, int axis) {
    for (int a = axis; a + 1 < p->axes; a++) {
        p->size[a] = p->size[a + 1];
        memcpy(p->weight[a], p->weight[a + 1], sizeof p->weight[a]);
    }
    memset(p->weight[p->axes - 1], 0, sizeof *p->weight);
    p->axes--;
    p->size[p->axes] = 0;
    if (p->dp_axis > axis) p->dp_axis--;
    if (p->ragged > axis) p->ragged--;
    for (int k = 0; k < p->steps; k++) {
        tshi_step *s = &p->step[k];
        bool layer = tshi_verb_has_layer(s->call) || s->call == CALL_PREPARE;
        int64_t *at = layer ? &s->n[LAYER_AXIS] : tshi_verb_moves(s->call) ? &s->n[0] : NULL;
        if (at && *at > axis) --*at;
        if (s->call != CALL_LEAF && s->call != CALL_IDS && s->call != CALL_MOVE_ALL) continue;
        for (int a = axis; a + 1 < TSH_MAX_AXES; a++) s->layout[a] = s->layout[a + 1];
    }
}

static bool shrink_mesh(shrinking *s) {
    bool any = false;
    for (int a = s->best->axes - 1; a >= 0; a--) {
        tshi_program p = *s->best;
        if (p.axes == 1 || uses_axis(&p, a)) continue;
        remove_axis(&p, a);
        any |= keep(s, &p);
    }
    for (int a = 0; a < s->best->axes; a++) {
        tshi_program even = *s->best;
        memset(even.weight[a], 0, sizeof even.weight[a]);
        any |= keep(s, &even);
        for (int size = 1; size < s->best->size[a]; size++) {
            tshi_program p = *s->best;
            p.size[a] = size;
            if (!keep(s, &p)) continue;
            any = true;
            break;
        }
    }
    return any;
}

void tshi_program_shrink(tshi_program *p, int tries, tshi_fails_fn *fails, void *user) {
    shrinking s = {p, tries, fails, user};
    bool any = true;
    while (any && s.tries > 0) {
        any = shrink_settings(&s);
        any |= shrink_objectives(&s);
        any |= bypass_steps(&s);
        any |= remove_unused(&s);
        any |= replace_by_leaves(&s);
        any |= remove_unused(&s);
        any |= simplify_steps(&s);
        any |= shrink_mesh(&s);
        any |= shrink_sizes(&s);
    }
}
