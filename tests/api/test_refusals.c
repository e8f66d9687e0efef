/* Every public function with NULL and out-of-range arguments, each call in a process of its own: it returns what the
 * headers say, with a message where it fails, and does not crash. A public function that is not in the list fails the
 * test. */
#include "base/base.h"
#include "support/headers.h"
#include "tshard/graph.h"
#ifdef TSHARD_HAVE_MPI
#include "tshard/mpi.h"
#endif
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CALL_SECONDS = 60, WORDS = 256 };

#define STRING_OF_(x) #x
#define STRING_OF(x)  STRING_OF_(x)
#define VERSION       STRING_OF(TSH_VERSION_MAJOR) "." STRING_OF(TSH_VERSION_MINOR) "." STRING_OF(TSH_VERSION_PATCH)

/* Good arguments, for the places of a call that are not at fault, and places for results. */
typedef struct kit {
    tsh_world *world;
    tsh_device *device;
    const tsh_mesh *mesh;
    tsh_group *group;
    tsh_tape *tape;
    tsh_tensor_config config;
    tsh_tensor *x, *y, *local, *row, *weight; /* float32 [2,3], [2,3], [2,3] LOCAL, [3], [3,3] */
    tsh_tensor *ids, *bad_ids;                /* int64 [2]; bad_ids have more dims than a tensor may have with a row */
    tsh_tensor *heads;                        /* float32 [1,2,1,1] */
    tsh_tensor *leaf, *loss;                  /* float64 [2] with a gradient; the tape's, of weight */
    tsh_tensor *tensors[1], *no_tensors[1], *leaves[1];
    tsh_event *event;
    tsh_work *work;
    tsh_parameters *list; /* of weight */
    tsh_linear *linear;
    tsh_embedding *embedding;
    tsh_kv_cache *cache; /* of one position for k->heads, which has two */
    tsh_norm *norm;
    tsh_mlp *mlp;
    tsh_experts *experts;
    tsh_self_attention *attention;
    tsh_block *block;
    tsh_sharding_choice choice;
    int ranks[1], bad_ranks[1];
    int64_t sizes[1], bad_counts[1], start, length;
    double values[16], number;
    bool flag;
    char text[64];
    union {
        void *any;
        tsh_tensor *tensor;
        struct DLManagedTensor *dlpack;
        tsh_thread_rendezvous *threads;
        tsh_world *world;
        tsh_group *group;
        tsh_mesh *mesh;
        tsh_work *work;
        tsh_tape *tape;
        tsh_parameters *list;
        tsh_optimizer *optimizer;
        tsh_data_parallel *dp;
        tsh_protection *protection;
        tsh_event *event;
        tsh_graph *graph;
        tsh_linear *linear;
        tsh_embedding *embedding;
        tsh_kv_cache *cache;
        tsh_norm *norm;
        tsh_mlp *mlp;
        tsh_experts *experts;
        tsh_self_attention *attention;
        tsh_block *block;
        tsh_lora_config *lora;
        tsh_tokenizer *tokenizer;
        tsh_text_stream *stream;
        const char *words;
    } out;
} kit;

#define tensor_out      out.tensor
#define dlpack_out      out.dlpack
#define threads_out     out.threads
#define world_out       out.world
#define group_out       out.group
#define mesh_out        out.mesh
#define work_out        out.work
#define tape_out        out.tape
#define list_out        out.list
#define optimizer_out   out.optimizer
#define dp_out          out.dp
#define protection_out  out.protection
#define event_out       out.event
#define graph_out       out.graph
#define linear_out      out.linear
#define embedding_out   out.embedding
#define cache_out       out.cache
#define norm_out        out.norm
#define mlp_out         out.mlp
#define experts_out     out.experts
#define EXPERTS(...)    WITH(tsh_experts_config, .embed = 2, .experts = 2, .router.top_k = 1, __VA_ARGS__)
#define attention_out   out.attention
#define block_out       out.block
#define lora_out        out.lora
#define tokenizer_out   out.tokenizer
#define stream_out      out.stream
#define words_out       out.words
#define SEQUENCES(n)    (&(tsh_sequences){.batch = (n)})
#define SELF(...)       WITH(tsh_self_attention_config, .embed = 2, __VA_ARGS__)
#define BLOCK(...)      WITH(tsh_block_config, .embed = 2, .mlp.hidden = 3, __VA_ARGS__)
#define WITH(type, ...) (&(type){__VA_ARGS__})
#define LAYOUT(k, d)    ((tsh_layout){.kind = (tsh_layout_kind)(k), .dim = (d)})
#define INS             ((const tsh_tensor *const *)k->tensors)
#define NO_INS          ((const tsh_tensor *const *)k->no_tensors)
#define BAD_INIT        ((tsh_init_kind)99)
#define CACHE           WITH(tsh_kv_cache_config, .batch = 1, .positions = 1, .kv_heads = 1, .head_dim = 1)
#define TABLE(how)      ((const tsh_sharding_rule[]){{"*", how}, {NULL, NULL}})

static tsh_tensor *objective(tsh_tape *tape, tsh_tensor *const *inputs, void *user) {
    (void)user;
    return tsh_sum(tape, inputs[0], TSH_ALL_DIMS);
}

static tsh_tensor *no_objective(tsh_tape *tape, tsh_tensor *const *inputs, void *user) {
    (void)tape, (void)inputs, (void)user;
    return NULL;
}

static tsh_status no_values(void *user, const tsh_box *box, void *values) {
    (void)user, (void)box, (void)values;
    return TSH_ERR_IO;
}

static void no_join(void *user, tsh_dtype dtype, int64_t count, const void *from, void *into) {
    (void)user, (void)dtype, (void)count, (void)from, (void)into;
}

/* An operation that is in order, and what makes others that are not. */
static const tsh_rule same_rules[] = {{{TSH_AS_R}, TSH_AS_R}, {{TSH_ROW_END}, TSH_ROW_END}};
static const tsh_rule bad_rules[] = {{{(tsh_pattern)77}, TSH_AS_R}, {{TSH_ROW_END}, TSH_ROW_END}};

static tsh_status same_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const tsh_tensor *x = tsh_call_input(call, 0);
    *dtype = tsh_tensor_dtype(x);
    out->ndim = tsh_tensor_ndim(x);
    memcpy(out->global, tsh_tensor_shape(x), sizeof *out->global * (size_t)out->ndim);
    return TSH_OK;
}

static tsh_status bad_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    (void)call, (void)dtype;
    out->ndim = TSH_MAX_DIMS + 1;
    return TSH_OK;
}

static tsh_status does_nothing(tsh_call *call) {
    (void)call;
    return TSH_OK;
}

static const tsh_op same_op = {"same", same_rules, same_shape, does_nothing, does_nothing, .inputs = 1};
/* same_op with one member more, or NULL there. */
#define SAME_OP(...) changed(&(tsh_op){__VA_ARGS__}, #__VA_ARGS__)

static const tsh_op *changed(tsh_op *op, const char *members) {
    if (!op->name && strncmp(members, ".name", 5)) op->name = same_op.name;
    if (!op->rules && strncmp(members, ".rules", 6)) op->rules = same_op.rules;
    if (!op->shape && strncmp(members, ".shape", 6)) op->shape = same_op.shape;
    if (!op->forward && strncmp(members, ".forward", 8)) op->forward = same_op.forward;
    if (!op->backward && strncmp(members, ".backward", 9)) op->backward = same_op.backward;
    if (!op->inputs) op->inputs = 1;
    return op;
}

/* --- the calls, a function each: NULL, or what is wrong with the answer ------------------------------------------- */

static const char *check_words(void) {
    return tsh_error_message()[0] ? NULL : "no words";
}

static const char *check_refused(tsh_status status) {
    return status == TSH_OK ? "TSH_OK" : check_words();
}

static const char *check_nothing(const void *pointer) {
    return pointer ? "something" : check_words();
}

static const char *check_failed(kit *k, const void *pointer, const char *arguments) {
    bool on_tape = !strncmp(arguments, "(k->tape", 8);
    if (!pointer && on_tape && tsh_tape_status(k->tape) == TSH_OK) return "no failure of the tape";
    return check_nothing(pointer);
}

static const char *check_numbers(long long got, long long wanted) {
    return got == wanted ? NULL : "another value";
}

static const char *check_pointers(const void *got, const void *wanted) {
    return got == wanted ? NULL : "another pointer";
}

static const char *check_strings(const char *got, const char *wanted) {
    if (!got || !wanted) return got == wanted ? NULL : "NULL or not";
    return strcmp(got, wanted) ? "another text" : NULL;
}

#define numbers(value, wanted)   check_numbers((long long)(value), (wanted))
#define pointers(value, wanted)  check_pointers((value), (wanted))
#define strings(value, wanted)   check_strings((value), (wanted))
#define unordered(value, wanted) (isnan(value) ? NULL : "a number")

#define NAME_(line)              call_##line
#define NAME(line)               NAME_(line)
/* Not every call looks at the kit. */
#define DEFINE(answer)                                                                                                 \
    static const char *NAME(__LINE__)(kit * k) {                                                                       \
        (void)k;                                                                                                       \
        return (answer);                                                                                               \
    }
#define REFUSES(function, arguments)             DEFINE(check_refused(function arguments))
#define NOTHING(function, arguments)             DEFINE(check_nothing(function arguments))
#define FAILS(function, arguments)               DEFINE(check_failed(k, function arguments, #arguments))
#define GIVES(function, arguments, kind, wanted) DEFINE(kind(function arguments, wanted))
#define LIVES(function, arguments)               DEFINE(((void)(function arguments), NULL))
#include "refusals.inc"
#undef REFUSES
#undef NOTHING
#undef FAILS
#undef GIVES
#undef LIVES

typedef struct call {
    const char *function, *arguments;
    const char *(*make)(kit *k);
} call;

#define REFUSES(function, arguments)             {#function, #arguments, NAME(__LINE__)},
#define NOTHING(function, arguments)             {#function, #arguments, NAME(__LINE__)},
#define FAILS(function, arguments)               {#function, #arguments, NAME(__LINE__)},
#define GIVES(function, arguments, kind, wanted) {#function, #arguments, NAME(__LINE__)},
#define LIVES(function, arguments)               {#function, #arguments, NAME(__LINE__)},
static const call calls[] = {
#include "refusals.inc"
};
enum { CALLS = sizeof calls / sizeof calls[0] };

/* --- making them -------------------------------------------------------------------------------------------------- */

static tsh_tensor *tensor(const kit *k, tsh_dtype dtype, int ndim, int64_t rows, int64_t cols, tsh_layout layout) {
    tsh_tensor *t = NULL;
    tsh_tensor_config config = {.dtype = dtype, .ndim = ndim, .shape = {rows, cols}, .layout = {layout}};
    for (int d = 2; d < ndim; d++) config.shape[d] = 1;
    cr_assert_eq(tsh_tensor_create(k->mesh, &config, &t), TSH_OK, "%s", tsh_error_message());
    return t;
}

static void make_tensors(kit *k) {
    k->x = tensor(k, TSH_FLOAT32, 2, 2, 3, TSH_REPLICATED);
    k->y = tensor(k, TSH_FLOAT32, 2, 2, 3, TSH_REPLICATED);
    k->local = tensor(k, TSH_FLOAT32, 2, 2, 3, TSH_LOCAL);
    k->row = tensor(k, TSH_FLOAT32, 1, 3, 0, TSH_REPLICATED);
    k->weight = tensor(k, TSH_FLOAT32, 2, 3, 3, TSH_REPLICATED);
    k->ids = tensor(k, TSH_INT64, 1, 2, 0, TSH_REPLICATED);
    k->bad_ids = tensor(k, TSH_INT64, TSH_MAX_DIMS, 2, 1, TSH_REPLICATED);
    k->heads = tensor(k, TSH_FLOAT32, 4, 1, 2, TSH_REPLICATED);
    k->leaf = tensor(k, TSH_FLOAT64, 1, 2, 0, TSH_REPLICATED);
    cr_assert_eq(tsh_tensor_require_grad(k->weight, true), TSH_OK);
    cr_assert_eq(tsh_tensor_require_grad(k->leaf, true), TSH_OK);
    k->loss = tsh_sum(k->tape, k->weight, TSH_ALL_DIMS);
    k->tensors[0] = k->x;
    k->leaves[0] = k->leaf;
}

static void open_kit(kit *k) {
    *k = (kit){.bad_ranks = {7}, .sizes = {6}, .bad_counts = {-5}};
    tsh_world_config config = {.world_size = 1, .heap_bytes = (size_t)64 << 20, .blas_threads = 1, .timeout = 20};
    cr_assert_eq(tsh_world_init(&config, &k->world), TSH_OK, "%s", tsh_error_message());
    k->device = tsh_world_device(k->world);
    k->mesh = tsh_world_mesh(k->world);
    k->group = tsh_world_group(k->world);
    cr_assert_eq(tsh_tape_create(k->world, &k->tape), TSH_OK);
    make_tensors(k);
    cr_assert_eq(tsh_event_create(k->device, &k->event), TSH_OK);
    cr_assert_eq(tsh_barrier_async(k->group, &k->work), TSH_OK);
    cr_assert_eq(tsh_parameters_create(k->world, &k->list), TSH_OK);
    cr_assert_eq(tsh_parameters_add(k->list, "weight", k->weight), TSH_OK);
    tsh_linear_create(k->group, &(tsh_linear_config){.in_features = 3, .out_features = 2}, &k->linear);
    tsh_embedding_create(k->group, &(tsh_embedding_config){.num_embeddings = 3, .embedding_dim = 2}, &k->embedding);
    tsh_kv_cache_create(k->mesh, CACHE, &k->cache);
    tsh_norm_create(k->group, &(tsh_norm_config){.features = 3}, &k->norm);
    tsh_mlp_create(k->group, &(tsh_mlp_config){.embed = 3, .hidden = 2}, &k->mlp);
    tsh_experts_create(k->group, &(tsh_experts_config){.embed = 3, .hidden = 2, .experts = 2, .router = {.top_k = 1}},
                       &k->experts);
    tsh_self_attention_create(k->group, &(tsh_self_attention_config){.embed = 3, .heads = 1}, &k->attention);
    tsh_block_create(k->group, &(tsh_block_config){.embed = 3, .attention.heads = 1, .mlp.hidden = 2}, &k->block);
    cr_assert(k->linear && k->embedding && k->norm && k->mlp && k->experts && k->attention && k->block && k->cache);
}

static void close_kit(kit *k) {
    tsh_tensor *const tensors[] = {k->x, k->y, k->local, k->row, k->weight, k->ids, k->bad_ids, k->heads, k->leaf};
    tsh_linear_destroy(k->linear);
    tsh_embedding_destroy(k->embedding);
    tsh_kv_cache_destroy(k->cache);
    tsh_norm_destroy(k->norm);
    tsh_mlp_destroy(k->mlp);
    tsh_experts_destroy(k->experts);
    tsh_self_attention_destroy(k->attention);
    tsh_block_destroy(k->block);
    tsh_parameters_destroy(k->list);
    tsh_work_release(k->work);
    tsh_event_destroy(k->event);
    tsh_tape_destroy(k->tape);
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) tsh_tensor_release(tensors[i]);
    tsh_world_destroy(k->world);
}

/* In the child: what is wrong, into the pipe. */
static void make_call(kit *k, const call *c, int to) {
    char poison;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(CALL_SECONDS);
    k->out.any = &poison;
    tshi_fail(TSH_OK, "%s", "");
    const char *wrong = c->make(k);
    bool has_out = strstr(c->arguments, "_out") != NULL;
    bool refused = tsh_error_message()[0] != '\0';
    if (!wrong && has_out && refused && k->out.any) wrong = "out is not NULL";
    if (wrong && write(to, wrong, strlen(wrong)) < 0) _exit(2);
    _exit(0);
}

static void describe_end(int end, const char *said, char *words) {
    if (WIFSIGNALED(end)) {
        snprintf(words, WORDS, "ended by signal %d (%s)", WTERMSIG(end), strsignal(WTERMSIG(end)));
    } else if (WEXITSTATUS(end)) {
        snprintf(words, WORDS, "ended with exit code %d", WEXITSTATUS(end));
    } else if (said[0]) {
        snprintf(words, WORDS, "returned %.200s", said);
    }
}

/* "" or what is wrong. */
static void try_call(kit *k, const call *c, char *words) {
    char said[WORDS] = "";
    int ends[2], end = 0;
    words[0] = '\0';
    cr_assert_eq(pipe(ends), 0);
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (!child) make_call(k, c, ends[1]);
    close(ends[1]);
    ssize_t got = read(ends[0], said, sizeof said - 1);
    said[got > 0 ? got : 0] = '\0';
    close(ends[0]);
    cr_assert_eq(waitpid(child, &end, 0), child);
    describe_end(end, said, words);
}

Test(refusals, every_function_answers_wrong_arguments, .timeout = 300) {
    kit k;
    char words[WORDS];
    int bad = 0;
    open_kit(&k);
    for (int i = 0; i < CALLS; i++) {
        try_call(&k, &calls[i], words);
        if (!words[0]) continue;
        bad++;
        cr_log_error("%s%s %s", calls[i].function, calls[i].arguments, words);
    }
    close_kit(&k);
    cr_assert_eq(bad, 0, "%d of %d calls", bad, CALLS);
}

/* --- the list is complete ----------------------------------------------------------------------------------------- */

static bool listed(const char *name) {
    for (int i = 0; i < CALLS; i++) {
        if (!strcmp(calls[i].function, name)) return true;
    }
    return false;
}

Test(refusals, no_function_is_missing, .timeout = 120) {
    char missing[4096];
    cr_assert_geq(tshi_test_functions(listed, missing, sizeof missing), 180);
    cr_assert_str_empty(missing, "not in refusals.inc: %s", missing);
}
