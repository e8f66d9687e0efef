/* A step as text, as a graph, and its memory by function. */
#include "autograd/dump.h"
#include "autograd/run/movement.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static size_t bytes_here(const tsh_tensor *x) {
    return x && x->storage && x->storage->data ? tsh_tensor_local_nbytes(x) : 0;
}

/* "all_reduce, 4096 bytes sent", or "" for a call that moves nothing between ranks. */
static char *movement_of(const tsh_call *call, char *text, size_t size) {
    const tsh_tensor *x = call->in[0], *y = call->out;
    tshi_route_step step = {.axis = -1};
    int changes = 0;
    text[0] = '\0';
    if (!tshi_op_moves(call->op)) return text;
    memcpy(step.to, y->layout, sizeof step.to);
    for (int a = 0; a < x->mesh->axes && x->mesh == y->mesh; a++) {
        if (tshi_layout_equal(x->layout[a], y->layout[a])) continue;
        step.axis = a;
        changes++;
    }
    if (changes > 1) step.axis = -1;
    if (changes == 0 && x->mesh == y->mesh) return text;
    if (step.axis >= 0 && !tshi_transition_find(x->layout[step.axis], y->layout[step.axis], false)) return text;
    tshi_cost cost = tshi_route_step_cost(x->mesh, y->mesh, &x->shape, x->layout, &step);
    return tshi_movement_describe(&cost, x, true, text, size);
}

/* "#3", or the leaf's name, or "". */
static char *node_name(const tsh_tape *tape, const tsh_tensor *x, char *text, size_t size) {
    int node = tshi_tape_node(tape, x);
    if (node >= 0)
        snprintf(text, size, "#%d ", node);
    else
        snprintf(text, size, "%s%s", x->name ? x->name : "", x->name ? " " : "");
    return text;
}

static void print_call_tensor(const tsh_tape *tape, const tsh_tensor *x, FILE *to) {
    char name[128];
    fprintf(to, "%s%s", node_name(tape, x, name, sizeof name), TSHI_WHOLE_TEXT(x));
}

static void print_call(const tsh_tape *tape, int index, FILE *to) {
    const tsh_call *call = &tape->nodes[index];
    char moves[128];
    if (call->flags.used) {
        fprintf(to, "#%d freed by a backward\n", index);
        return;
    }
    fprintf(to, "#%d %s: ", index, call->op->name);
    for (int i = 0; i < call->inputs; i++) {
        if (i) fprintf(to, ", ");
        print_call_tensor(tape, call->in[i], to);
    }
    movement_of(call, moves, sizeof moves);
    fprintf(to, " -> %s; %zu bytes%s%s%s\n", TSHI_WHOLE_TEXT(call->out), call->flags.shares ? 0 : bytes_here(call->out),
            call->flags.shares ? " (a view)" : "", moves[0] ? "; " : "", moves);
}

/* --- leaves ------------------------------------------------------------------------------------------------------- */

/* True when the input is a leaf that no earlier call has. */
static bool is_new_leaf(const tsh_tape *tape, int index, int input) {
    const tsh_tensor *x = tape->nodes[index].in[input];
    if (tshi_tape_node(tape, x) >= 0) return false;
    for (int n = 0; n <= index; n++) {
        const tsh_call *call = &tape->nodes[n];
        for (int i = 0; !call->flags.used && i < (n < index ? call->inputs : input); i++) {
            if (call->in[i] == x) return false;
        }
    }
    return true;
}

static void print_leaf(const tsh_tensor *x, FILE *to) {
    const tsh_tensor *gradient = tsh_tensor_grad(x);
    fprintf(to, "%12zu  leaf %s\n", bytes_here(x), TSHI_WHOLE_TEXT(x));
    if (gradient) fprintf(to, "%12zu  gradient of that leaf\n", bytes_here(gradient));
}

/* --- formats ------------------------------------------------------------------------------------------------------ */

static void print_text(const tsh_tape *tape, FILE *to) {
    for (int n = 0; n < tape->node_count; n++) print_call(tape, n, to);
}

/* Prints the totals of one function, at its first call. */
static void print_function(const tsh_tape *tape, int index, FILE *to) {
    const char *name = tape->nodes[index].op->name;
    size_t results = 0, saved = 0;
    for (int n = 0; n < tape->node_count; n++) {
        const tsh_call *call = &tape->nodes[n];
        if (call->flags.used || strcmp(call->op->name, name) != 0) continue;
        if (n < index) return;
        results += call->flags.shares ? 0 : bytes_here(call->out);
        for (int i = 0; i < TSH_CALL_SLOTS; i++) saved += bytes_here(call->saved[i]);
    }
    fprintf(to, "%12zu  results of %s\n", results, name);
    if (saved) fprintf(to, "%12zu  saved by %s\n", saved, name);
}

void tshi_dump_memory(const tsh_tape *tape, FILE *to) {
    for (int n = 0; n < tape->node_count; n++) {
        for (int i = 0; !tape->nodes[n].flags.used && i < tape->nodes[n].inputs; i++) {
            if (is_new_leaf(tape, n, i) && !tape->nodes[n].in[i]->name) print_leaf(tape->nodes[n].in[i], to);
        }
    }
    for (int n = 0; n < tape->node_count; n++) {
        if (!tape->nodes[n].flags.used) print_function(tape, n, to);
    }
}

static void print_escaped(const char *text, FILE *to) {
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', to);
        fputc(*text, to);
    }
}

static void print_graph_call(const tsh_tape *tape, int index, FILE *to) {
    const tsh_call *call = &tape->nodes[index];
    char moves[128];
    if (call->flags.used) return;
    movement_of(call, moves, sizeof moves);
    fprintf(to, "  n%d [label=\"", index);
    print_escaped(call->op->name, to);
    fprintf(to, "\\n");
    print_escaped(TSHI_WHOLE_TEXT(call->out), to);
    fprintf(to, "\\n%zu bytes%s%s\"%s];\n", call->flags.shares ? 0 : bytes_here(call->out), moves[0] ? "\\n" : "",
            moves, moves[0] ? ", style=filled, fillcolor=\"#f6d9b0\"" : "");
    for (int i = 0; i < call->inputs; i++) {
        const tsh_tensor *x = call->in[i];
        int node = tshi_tape_node(tape, x);
        if (node < 0 && is_new_leaf(tape, index, i)) {
            fprintf(to, "  \"%p\" [shape=ellipse, label=\"", (const void *)x);
            print_escaped(x->name ? x->name : "", to);
            fprintf(to, "\\n");
            print_escaped(TSHI_WHOLE_TEXT(x), to);
            fprintf(to, "\"];\n");
        }
        if (node < 0)
            fprintf(to, "  \"%p\" -> n%d;\n", (const void *)x, index);
        else
            fprintf(to, "  n%d -> n%d;\n", node, index);
    }
}

static void print_graph(const tsh_tape *tape, FILE *to) {
    fprintf(to, "digraph step {\n  node [shape=box];\n");
    for (int n = 0; n < tape->node_count; n++) print_graph_call(tape, n, to);
    fprintf(to, "}\n");
}

tsh_status tsh_tape_dump(const tsh_tape *tape, const char *path, tsh_dump_format format) {
    if (!tape) return tshi_tape_missing("tape_dump");
    if (!path || (unsigned)format > TSH_DUMP_GRAPHVIZ) {
        return tshi_fail(TSH_ERR_ARGUMENT, "tape_dump: a path and a format are required");
    }
    FILE *to = fopen(path, "we");
    if (!to) return tshi_fail_errno(errno, "tape_dump: %s", path);
    errno = 0;
    if (format == TSH_DUMP_TEXT) print_text(tape, to);
    if (format == TSH_DUMP_GRAPHVIZ) print_graph(tape, to);
    bool bad = ferror(to) != 0;
    if (fclose(to) != 0 || bad) return tshi_fail_errno(errno ? errno : EIO, "tape_dump: %s", path);
    return TSH_OK;
}
