/* Segments: recorded calls whose results are freed, and recomputed when backward reaches them. Which calls run again
 * depends only on the calls and layouts, so that every rank runs the same collectives again. */
#include "autograd/run/segment.h"
#include "autograd/run/call.h"
#include "autograd/run/offload.h"

/* One of a segment's calls. */
typedef struct tshi_segment_call {
    bool reruns;    /* must run again with the segment */
    int references; /* references to its output that are not the program's */
} tshi_segment_call;

static tshi_segment *segment_of(const tsh_tape *tape, int number) {
    return &tape->segments[number - 1];
}

static tshi_segment_call *call_in(const tshi_segment *s, int node) {
    return &s->calls[node - s->first];
}

/* --- dropping ----------------------------------------------------------------------------------------------------- */

static void release_saved(tsh_call *node) {
    for (int i = 0; i < TSH_CALL_SLOTS; i++) {
        tshi_tensor_release(node->saved[i]);
        node->saved[i] = NULL;
    }
}

/* True when the call's output has no memory while this segment is dropped; an inner segment may have dropped it. */
static bool drops(const tsh_call *node, int number) {
    return node->freed_by > 0 && node->freed_by <= number;
}

/* Counts the library's references to the outputs of the segment's calls: one is the tape's. A call's inputs come before
 * it. */
static void count_holders(const tsh_tape *tape, const tshi_segment *s) {
    for (int n = s->first; n < s->end; n++) {
        const tsh_call *node = &tape->nodes[n];
        call_in(s, n)->references = 2;
        for (int i = 0; i < node->inputs; i++) {
            int k = tshi_tape_node(tape, node->in[i]);
            if (k >= s->first) call_in(s, k)->references++;
        }
    }
}

/* Frees the results of the segment's calls; a tensor that the program has retained keeps its memory. */
static tsh_status drop_segment(tsh_tape *tape, int number) {
    tshi_segment *s = segment_of(tape, number);
    s->dropped = true;
    count_holders(tape, s);
    for (int n = s->first; n < s->end; n++) {
        tsh_call *node = &tape->nodes[n];
        if (node->flags.used) continue;
        release_saved(node);
        bool held = node->out->references > call_in(s, n)->references;
        if (drops(node, number) && !held) tshi_tensor_drop_storage(node->out);
    }
    return s->offloads ? tshi_tape_check(tape, tshi_offload_inputs(tape, s), "offloading a segment's inputs") : TSH_OK;
}

/* --- running again ------------------------------------------------------------------------------------------------ */

static void need_inputs(const tsh_tape *tape, const tsh_call *node, const tshi_segment *s) {
    for (int i = 0; i < node->inputs; i++) {
        int k = tshi_tape_node(tape, node->in[i]);
        if (k >= s->first) call_in(s, k)->reruns = true;
    }
}

/* The segment directly inside this one that contains the call, or this one. */
static int inner_of(const tsh_tape *tape, const tsh_call *node, int number) {
    int k = node->segment;
    while (k != number && segment_of(tape, k)->parent != number) k = segment_of(tape, k)->parent;
    return k;
}

/* For a call in an inner segment, which stays dropped: marks its inputs from the outer segment, and its results that
 * the outer segment uses. */
static void choose_inner(const tsh_tape *tape, int n, const tshi_segment *s, int number) {
    const tsh_call *node = &tape->nodes[n];
    int inner = inner_of(tape, node, number);
    if (node->freed_by == number) call_in(s, n)->reruns = true;
    for (int i = 0; i < node->inputs; i++) {
        int k = tshi_tape_node(tape, node->in[i]);
        if (k >= s->first && inner_of(tape, &tape->nodes[k], number) != inner) call_in(s, k)->reruns = true;
    }
}

/* Marks the calls whose results backward reads, and those whose results these read. An exchange between meshes always
 * runs again: a rank knows only its own calls, and all ranks of both meshes must take part. */
static void choose_again(const tsh_tape *tape, int number) {
    const tshi_segment *s = segment_of(tape, number);
    for (int n = s->first; n < s->end; n++) call_in(s, n)->reruns = false;
    for (int n = s->end - 1; n >= s->first; n--) {
        const tsh_call *node = &tape->nodes[n];
        bool *again = &call_in(s, n)->reruns, lost = drops(node, number);
        if (node->flags.used) continue;
        *again = lost && (*again || node->in[0]->mesh != node->out->mesh);
        if (node->segment != number) {
            choose_inner(tape, n, s, number);
        } else {
            *again = *again || node->flags.saves || (node->op->reads_output && lost);
            if (!node->op->reads_no_input) need_inputs(tape, node, s);
        }
        if (*again) need_inputs(tape, node, s);
    }
}

/* False when an earlier backward has freed an input of the call: no backward reaches it then. */
static bool can_run(const tsh_tape *tape, const tsh_call *node, int number) {
    const tshi_segment *s = segment_of(tape, number);
    for (int i = 0; i < node->inputs; i++) {
        int k = tshi_tape_node(tape, node->in[i]);
        if (k < 0) continue;
        const tsh_call *from = &tape->nodes[k];
        bool lost = k >= s->first && drops(from, number) && !call_in(s, k)->reruns;
        if (from->flags.used || lost) return false;
    }
    return true;
}

/* Inner segments that end with this call drop their results again. */
static tsh_status leave_inner(tsh_tape *tape, int index, int number) {
    tsh_status status = TSH_OK;
    for (int k = tape->nodes[index].segment; k != number && status == TSH_OK; k = segment_of(tape, k)->parent) {
        if (segment_of(tape, k)->end == index + 1) status = drop_segment(tape, k);
    }
    return status;
}

/* Brings the segment's inputs back, and begins to bring back those of the one that backward reaches next. */
static tsh_status fetch_inputs(tsh_tape *tape, int number) {
    const tshi_segment *s = segment_of(tape, number);
    tsh_status status = s->offloads ? tshi_offload_return(tape, s) : TSH_OK;
    int k = number - 1;
    while (k > 0 && segment_of(tape, k)->end > s->first) k--;
    if (status == TSH_OK && k > 0 && segment_of(tape, k)->offloads) tshi_offload_prefetch(tape, segment_of(tape, k));
    return tshi_tape_check(tape, status, "fetching a segment's inputs");
}

static tsh_status run_segment(tsh_tape *tape, int number) {
    tshi_segment *s = segment_of(tape, number);
    tsh_status status = fetch_inputs(tape, number);
    if (status != TSH_OK) return status;
    bool recording = tsh_tape_set_recording(tape, true);
    choose_again(tape, number);
    for (int n = s->first; n < s->end && status == TSH_OK; n++) {
        tsh_call *node = &tape->nodes[n];
        call_in(s, n)->reruns = call_in(s, n)->reruns && can_run(tape, node, number);
        if (call_in(s, n)->reruns) status = tshi_call_run_again(node);
        if (status == TSH_OK) status = leave_inner(tape, n, number);
    }
    tsh_tape_set_recording(tape, recording);
    s->dropped = false;
    return status;
}

tsh_status tshi_segment_enter(tsh_tape *tape, int number) {
    if (number == 0) return TSH_OK;
    tsh_status status = tshi_segment_enter(tape, segment_of(tape, number)->parent);
    return status == TSH_OK && segment_of(tape, number)->dropped ? run_segment(tape, number) : status;
}

tsh_status tshi_segment_leave(tsh_tape *tape, int index) {
    tsh_status status = TSH_OK;
    for (int k = tape->nodes[index].segment; k > 0 && status == TSH_OK; k = segment_of(tape, k)->parent) {
        if (segment_of(tape, k)->first == index && !segment_of(tape, k)->dropped) status = drop_segment(tape, k);
    }
    return status;
}

tsh_tensor *tshi_segment_take(tsh_tape *tape, tsh_tensor *t) {
    if (!tshi_tape_dropped(tape, t)) return t;
    tsh_call *node = &tape->nodes[t->gradient->node];
    node->freed_by = 0;
    return tshi_call_run_again(node) == TSH_OK ? t : NULL;
}

/* --- the public call ---------------------------------------------------------------------------------------------- */

/* Drops tensors that neither a recorded call nor the program has: nothing after the segment needs them. */
static void drop_unrecorded(tsh_tape *tape, int made, const tsh_tensor *keep) {
    for (int i = made; i < tape->owned_count; i++) {
        tsh_tensor *t = tape->owned[i];
        if (!t->computed && t->references == 1 && t != keep) tshi_tensor_drop_storage(t);
    }
}

/* Chooses the outputs that the segment drops: all except `keep` and views of memory that lives on. */
static void choose_drops(tsh_tape *tape, int number, const tsh_tensor *keep) {
    const tshi_segment *s = segment_of(tape, number);
    for (int n = s->first; n < s->end; n++) {
        tsh_call *node = &tape->nodes[n];
        if (node->segment == 0) node->segment = number;
        for (int i = 0; i < TSH_CALL_SLOTS; i++) node->flags.saves = node->flags.saves || node->saved[i];
        if (node->flags.used || node->freed_by || node->out == keep) continue;
        int from = node->flags.shares ? tshi_tape_node(tape, node->in[0]) : s->end;
        bool outlives = from < s->first || (from < s->end && !tape->nodes[from].freed_by);
        if (!outlives) node->freed_by = number;
    }
}

/* Adds a segment of all calls from `first` on; returns its number, 0 without memory. */
static int add_segment(tsh_tape *tape, int first) {
    const tsh_allocator *allocator = &tape->world->allocator;
    tshi_segment s = {.first = first, .end = tape->node_count};
    s.calls = tshi_region_take(&tape->memory, allocator, (size_t)(s.end - first), sizeof *s.calls);
    if (!s.calls || tshi_grow(allocator, (void **)&tape->segments, &tape->segment_capacity, tape->segment_count + 1,
                              sizeof *tape->segments) != TSH_OK)
        return 0;
    tape->segments[tape->segment_count++] = s;
    for (int k = 1; k < tape->segment_count; k++) {
        tshi_segment *inner = segment_of(tape, k);
        if (inner->first >= first && inner->parent == 0) inner->parent = tape->segment_count;
    }
    return tape->segment_count;
}

/* True for a mark of this step that is not inside an ended segment. */
static bool mark_holds(const tsh_tape *tape, const tsh_mark *mark) {
    bool good =
        mark->step == tape->generation && mark->made >= 0 && mark->calls >= 0 && mark->calls <= tape->node_count;
    for (int k = 1; k <= tape->segment_count && good; k++) {
        const tshi_segment *s = segment_of(tape, k);
        good = mark->calls <= s->first || mark->calls >= s->end;
    }
    return good;
}

tsh_tensor *tsh_tape_recompute_since_with(tsh_tape *tape, tsh_mark mark, tsh_tensor *keep,
                                          const tsh_recompute_config *config) {
    if (tape && !tape->recording) return tsh_tape_free_since(tape, mark, keep);
    if (!tshi_tape_ready(tape, "tape_recompute_since", 1, &keep)) return NULL;
    if (!mark_holds(tape, &mark)) {
        return tshi_tape_fail(tape, TSH_ERR_STATE,
                              "tape_recompute_since: the mark is of another step or another tape, or inside a segment "
                              "that has ended");
    }
    drop_unrecorded(tape, mark.made, keep);
    if (mark.calls == tape->node_count) return keep;
    int number = add_segment(tape, mark.calls);
    if (tshi_tape_check(tape, number ? TSH_OK : TSH_ERR_MEMORY, "tape_recompute_since") != TSH_OK) return NULL;
    segment_of(tape, number)->offloads = config && config->offload;
    choose_drops(tape, number, keep);
    return drop_segment(tape, number) == TSH_OK ? keep : NULL;
}

tsh_tensor *tsh_tape_recompute_since(tsh_tape *tape, tsh_mark mark, tsh_tensor *keep) {
    return tsh_tape_recompute_since_with(tape, mark, keep, NULL);
}
