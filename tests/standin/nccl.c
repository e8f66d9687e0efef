/* NCCL on the host. */
#include "standin/nccl.h"
#include "standin/standin.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_RANKS 16
#define MOST_COMMS 512

/* One rank's side of one call; collectives have a number, messages a peer. */
typedef struct part {
    enum { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SEND, RECV } kind;
    const void *in;
    void *out;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int root; /* or the peer */
    uint64_t number;
    bool done;
    ncclComm_t comm;
    struct part *next_launched;
    struct part *next; /* of the batch */
} part;

/* What one call, or one group of calls, queues on a stream for one communicator. */
typedef struct batch {
    ncclComm_t comm;
    cudaStream_t stream;
    part *first, *last;
    bool launched;
    struct batch *next;
} batch;

typedef struct clique {
    char id[NCCL_UNIQUE_ID_BYTES];
    int size, joined, uses;
    part *launched;
    struct clique *next;
} clique;

typedef struct split {
    clique *parent;
    uint64_t number;
    int size, here;
    struct {
        int color, key, rank;
        ncclComm_t comm;
    } member[MOST_RANKS];
    struct split *next;
} split;

struct ncclComm {
    clique *clique; /* NULL until a split is decided */
    int rank, size, uses;
    uint64_t calls, splits; /* so far */
    int busy, asked;        /* looks until the call under way is done; those since then */
    bool splitting, aborted, finalizing, closed;
    ncclResult_t error;
};

/* Held inside the runtime's lock, never around it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static clique *cliques;
static split *splits;
static ncclComm_t comms[MOST_COMMS];
static int ids;
static _Thread_local int depth;
static _Thread_local batch *batches;

static void die(const char *words) {
    fprintf(stderr, "NCCL stand-in: %s\n", words);
    abort();
}

static bool fails(const char *name, ncclResult_t usual, ncclResult_t *result) {
    int code = (int)usual;
    if (!standin_call(name, &code)) return false;
    *result = (ncclResult_t)code;
    return true;
}

/* --- communicators, under the lock -------------------------------------------------------------------------------- */

static clique *clique_new(const char *id, int size) {
    clique *c = calloc(1, sizeof *c);
    memcpy(c->id, id, sizeof c->id);
    c->size = size;
    c->next = cliques;
    cliques = c;
    return c;
}

static void clique_release(clique *c) {
    if (!c || --c->uses > 0) return;
    clique **link = &cliques;
    while (*link != c) link = &(*link)->next;
    *link = c->next;
    /* Splits that not all have come to: another clique may get this address. */
    for (split **at = &splits; *at;) {
        split *gone = *at;
        if (gone->parent != c) {
            at = &gone->next;
            continue;
        }
        *at = gone->next;
        free(gone);
    }
    free(c);
}

static ncclComm_t comm_new(clique *c, int rank, int size) {
    ncclComm_t comm = calloc(1, sizeof *comm);
    *comm = (struct ncclComm){.clique = c, .rank = rank, .size = size, .uses = 1};
    for (int i = 0;; i++) {
        if (i == MOST_COMMS) die("too many communicators");
        if (comms[i]) continue;
        comms[i] = comm;
        break;
    }
    return comm;
}

static void comm_release(ncclComm_t comm) {
    if (--comm->uses > 0) return;
    clique_release(comm->clique);
    free(comm);
}

/* The handle is given back; what is queued keeps the rest. */
static void comm_close(ncclComm_t comm) {
    for (int i = 0; i < MOST_COMMS; i++)
        if (comms[i] == comm) comms[i] = NULL;
    if (comm->closed) die("a communicator is given back twice");
    comm->closed = true;
    comm_release(comm);
}

static void check(ncclComm_t comm) {
    for (int i = 0; i < MOST_COMMS; i++)
        if (comm && comms[i] == comm) return;
    die("a communicator that is none");
}

static void join(ncclComm_t comm, clique *c, int rank) {
    comm->clique = c;
    comm->rank = rank;
    comm->size = c->size;
    c->uses++;
    c->joined++;
}

ncclResult_t ncclGetVersion(int *version) {
    ncclResult_t result;
    if (fails("ncclGetVersion", ncclInternalError, &result)) return result;
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    ncclResult_t result;
    if (fails("ncclGetUniqueId", ncclSystemError, &result)) return result;
    pthread_mutex_lock(&lock);
    memset(id, 0, sizeof *id);
    /* To the last byte: all of it has to travel. */
    snprintf(id->internal + sizeof id->internal - 16, 16, "id %d", ++ids);
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id, int rank, ncclConfig_t *config) {
    ncclResult_t result;
    if (config->blocking != 0) die("a communicator that blocks");
    *out = NULL;
    if (fails("ncclCommInitRankConfig", ncclInvalidArgument, &result)) return result;
    pthread_mutex_lock(&lock);
    clique *c = cliques;
    while (c && memcmp(c->id, id.internal, sizeof c->id) != 0) c = c->next;
    if (!c) c = clique_new(id.internal, size);
    if (c->size != size || rank < 0 || rank >= size || c->joined == size) die("ranks of a communicator do not fit");
    *out = comm_new(NULL, rank, size);
    join(*out, c, rank);
    pthread_mutex_unlock(&lock);
    standin_count("communicator", 1);
    return ncclInProgress;
}

static void decide_split(split *s) {
    for (int i = 0; i < s->size; i++) {
        int size = 0, rank = 0;
        char id[NCCL_UNIQUE_ID_BYTES] = "";
        for (int k = 0; k < s->size; k++) {
            if (s->member[k].color != s->member[i].color) continue;
            size++;
            rank += s->member[k].key < s->member[i].key ||
                    (s->member[k].key == s->member[i].key && s->member[k].rank < s->member[i].rank);
        }
        if (!s->member[i].comm) continue;
        snprintf(id, sizeof id, "split %llu of %.60s, %d", (unsigned long long)s->number,
                 s->parent->id[0] ? s->parent->id : s->parent->id + sizeof s->parent->id - 16, s->member[i].color);
        clique *c = cliques;
        while (c && memcmp(c->id, id, sizeof c->id) != 0) c = c->next;
        join(s->member[i].comm, c ? c : clique_new(id, size), rank);
    }
    for (int i = 0; i < MOST_COMMS; i++)
        if (comms[i] && comms[i]->clique == s->parent && comms[i]->splits == s->number) comms[i]->splitting = false;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out, ncclConfig_t *config) {
    ncclResult_t result;
    if (config->blocking != 0) die("a communicator that blocks");
    *out = NULL;
    if (fails("ncclCommSplit", ncclInvalidArgument, &result)) return result;
    pthread_mutex_lock(&lock);
    check(comm);
    if (comm->busy || comm->splitting) die("a call before the last is done");
    comm->splits++;
    comm->splitting = true;
    split *s = splits;
    while (s && (s->parent != comm->clique || s->number != comm->splits)) s = s->next;
    if (!s) {
        s = calloc(1, sizeof *s);
        *s = (split){.parent = comm->clique, .number = comm->splits, .size = comm->size, .next = splits};
        splits = s;
    }
    if (color != NCCL_SPLIT_NOCOLOR) *out = comm_new(NULL, 0, 0);
    s->member[s->here].color = color;
    s->member[s->here].key = key;
    s->member[s->here].rank = comm->rank;
    s->member[s->here++].comm = *out;
    if (s->here == s->size) {
        decide_split(s);
        split **link = &splits;
        while (*link != s) link = &(*link)->next;
        *link = s->next;
        free(s);
    }
    pthread_mutex_unlock(&lock);
    if (*out) standin_count("communicator", 1);
    return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *now) {
    ncclResult_t result;
    if (fails("ncclCommGetAsyncError", ncclInternalError, &result)) return result;
    /* Other GPUs go on by themselves, but not before they are waited for. */
    if (comm->asked++ > 16) standin_progress();
    pthread_mutex_lock(&lock);
    check(comm);
    bool joining = !comm->clique || comm->clique->joined < comm->size;
    if (comm->busy) comm->busy--;
    bool waits = joining || comm->splitting || comm->busy || (comm->finalizing && comm->uses > 1);
    *now = comm->error != ncclSuccess ? comm->error : waits ? ncclInProgress : ncclSuccess;
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    ncclResult_t result;
    if (fails("ncclCommFinalize", ncclSystemError, &result)) return result;
    pthread_mutex_lock(&lock);
    check(comm);
    comm->finalizing = true;
    pthread_mutex_unlock(&lock);
    return ncclInProgress;
}

static ncclResult_t give_back(const char *name, ncclComm_t comm, bool aborts) {
    ncclResult_t result = ncclSuccess;
    fails(name, ncclSystemError, &result);
    pthread_mutex_lock(&lock);
    check(comm);
    if (!aborts && (!comm->finalizing || comm->uses > 1)) die("a communicator is destroyed with calls under way");
    comm->aborted = aborts;
    /* A split that others may still come to. */
    for (split *s = splits; s; s = s->next) {
        for (int i = 0; i < s->here; i++)
            if (s->member[i].comm == comm) s->member[i].comm = NULL;
    }
    comm_close(comm);
    pthread_mutex_unlock(&lock);
    standin_count("communicator", -1);
    return result;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    return give_back("ncclCommDestroy", comm, false);
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    return give_back("ncclCommAbort", comm, true);
}

void standin_nccl_error(int rank, ncclResult_t error) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_COMMS; i++)
        if (comms[i] && comms[i]->rank == rank) comms[i]->error = error;
    pthread_mutex_unlock(&lock);
}

const char *ncclGetErrorString(ncclResult_t result) {
    return result == ncclRemoteError ? "remote process exited or there was a network error"
                                     : "an error of the stand-in";
}

const char *ncclGetLastError(ncclComm_t comm) {
    (void)comm;
    return "the stand-in's last words";
}

/* --- numbers ------------------------------------------------------------------------------------------------------ */

static size_t type_size(ncclDataType_t type) {
    switch (type) {
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt64:
    case ncclFloat64: return 8;
    default: return 4;
    }
}

static double half_value(uint16_t bits) {
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double value = exponent == 0 ? fraction / 1024.0 : 1 + fraction / 1024.0;
    for (int i = exponent == 0 ? 1 : exponent; i < 15; i++) value /= 2;
    for (int i = 15; i < exponent; i++) value *= 2;
    return bits & 0x8000 ? -value : value;
}

/* To nearest even. Positive halves are in the order of their bits. */
static uint16_t half_bits(double value) {
    uint16_t sign = value < 0 ? 0x8000 : 0;
    uint32_t low = 0, high = 0x7c00;
    if (value < 0) value = -value;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (half_value((uint16_t)middle) <= value)
            low = middle;
        else
            high = middle;
    }
    double below = value - half_value((uint16_t)low), above = half_value((uint16_t)high) - value;
    bool up = above < below || (above == below && low % 2 == 1);
    return (uint16_t)(sign | (up ? high : low));
}

static uint16_t bfloat_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static double load(ncclDataType_t type, const void *from, size_t i) {
    const char *at = (const char *)from + i * type_size(type);
    union {
        uint8_t u8;
        int32_t i32;
        int64_t i64;
        float f32;
        double f64;
        uint16_t u16;
        uint32_t u32;
    } v = {0};
    memcpy(&v, at, type_size(type));
    switch (type) {
    case ncclUint8: return v.u8;
    case ncclInt32: return v.i32;
    case ncclInt64: return (double)v.i64;
    case ncclFloat32: return v.f32;
    case ncclFloat64: return v.f64;
    case ncclFloat16: return half_value(v.u16);
    default: v.u32 = (uint32_t)v.u16 << 16; return v.f32;
    }
}

static void store(ncclDataType_t type, void *to, size_t i, double value) {
    char *at = (char *)to + i * type_size(type);
    union {
        uint8_t u8;
        int32_t i32;
        int64_t i64;
        float f32;
        double f64;
        uint16_t u16;
        uint32_t u32;
    } v = {0};
    switch (type) {
    case ncclUint8: v.u8 = (uint8_t)(int64_t)value; break;
    case ncclInt32: v.i32 = (int32_t)value; break;
    case ncclInt64: v.i64 = (int64_t)value; break;
    case ncclFloat32: v.f32 = (float)value; break;
    case ncclFloat64: v.f64 = value; break;
    case ncclFloat16: v.u16 = half_bits((double)(float)value); break;
    default: v.u16 = bfloat_bits((float)value); break;
    }
    memcpy(at, &v, type_size(type));
}

static double combine(ncclRedOp_t op, double a, double b) {
    switch (op) {
    case ncclProd: return a * b;
    case ncclMin: return b < a ? b : a;
    case ncclMax: return b > a ? b : a;
    default: return a + b;
    }
}

/* Of elements [start, start + n), into memory of its own. */
static void *reduced(part *const *all, int ranks, size_t start, size_t n) {
    const part *p = all[0];
    void *out = malloc(n * type_size(p->type) + 1);
    for (size_t i = 0; i < n; i++) {
        double sum = load(p->type, all[0]->in, start + i);
        for (int r = 1; r < ranks; r++) sum = combine(p->op, sum, load(p->type, all[r]->in, start + i));
        store(p->type, out, i, p->op == ncclAvg ? sum / ranks : sum);
    }
    return out;
}

/* --- data, under both locks --------------------------------------------------------------------------------------- */

static void move(part *const *all, int ranks) {
    const part *p = all[0];
    size_t size = type_size(p->type), bytes = p->count * size;
    bool scatters = p->kind == REDUCE_SCATTER;
    char *whole = NULL;
    if (p->kind == ALL_REDUCE || p->kind == REDUCE || scatters) {
        whole = reduced(all, ranks, 0, scatters ? p->count * (size_t)ranks : p->count);
    } else if (p->kind == BROADCAST) {
        whole = malloc(bytes + 1);
        memcpy(whole, all[p->root]->in, bytes);
    } else {
        whole = malloc(bytes * (size_t)ranks + 1);
        for (int r = 0; r < ranks; r++) memcpy(whole + (size_t)r * bytes, all[r]->in, bytes);
    }
    for (int r = 0; r < ranks; r++) {
        if (p->kind == REDUCE && r != p->root) continue;
        memcpy(all[r]->out, whole + (scatters ? (size_t)r * bytes : 0),
               p->kind == ALL_GATHER ? bytes * (size_t)ranks : bytes);
    }
    free(whole);
}

static bool alike(const part *a, const part *b) {
    bool reduces = a->kind != BROADCAST && a->kind != ALL_GATHER;
    bool rooted = a->kind == BROADCAST || a->kind == REDUCE;
    return a->kind == b->kind && a->count == b->count && a->type == b->type && (!reduces || a->op == b->op) &&
           (!rooted || a->root == b->root);
}

static void meet_collective(part *p) {
    part *all[MOST_RANKS] = {NULL};
    int here = 0, size = p->comm->size;
    for (part *q = p->comm->clique->launched; q; q = q->next_launched) {
        if (q->kind >= SEND || q->number != p->number) continue;
        all[q->comm->rank] = q;
        here++;
        if (!alike(p, q)) die("ranks of a collective do not agree");
    }
    if (here < size) return;
    move(all, size);
    for (int r = 0; r < size; r++) all[r]->done = true;
}

/* The oldest that is not done of one pair and direction: the list is newest first. */
static part *oldest(clique *c, int kind, int from, int to) {
    part *found = NULL;
    for (part *q = c->launched; q; q = q->next_launched) {
        int rank = q->comm->rank;
        if ((int)q->kind != kind || q->done) continue;
        if (kind == SEND ? rank == from && q->root == to : rank == to && q->root == from) found = q;
    }
    return found;
}

static void meet_message(part *p) {
    int from = p->kind == SEND ? p->comm->rank : p->root, to = p->kind == SEND ? p->root : p->comm->rank;
    for (;;) {
        part *send = oldest(p->comm->clique, SEND, from, to), *recv = oldest(p->comm->clique, RECV, from, to);
        if (!send || !recv || p->done) return;
        if (send->count != recv->count || send->type != recv->type) die("a message does not fit its receive");
        memcpy(recv->out, send->in, send->count * type_size(send->type));
        send->done = recv->done = true;
    }
}

static bool batch_ready(void *data) {
    batch *b = data;
    bool done = true;
    standin_open();
    pthread_mutex_lock(&lock);
    for (part *p = b->first; p && !b->launched; p = p->next) {
        p->next_launched = b->comm->clique->launched;
        b->comm->clique->launched = p;
    }
    b->launched = true;
    for (part *p = b->first; p && !b->comm->aborted; p = p->next) {
        if (!p->done && p->kind < SEND) meet_collective(p);
        if (!p->done && p->kind >= SEND) meet_message(p);
        done = done && p->done;
    }
    done = done || b->comm->aborted;
    pthread_mutex_unlock(&lock);
    standin_close();
    return done;
}

static void batch_run(void *data) {
    (void)data;
}

static void batch_drop(void *data) {
    batch *b = data;
    pthread_mutex_lock(&lock);
    while (b->first) {
        part *p = b->first, **link = &b->comm->clique->launched;
        while (*link && *link != p) link = &(*link)->next_launched;
        if (*link) *link = p->next_launched;
        b->first = p->next;
        free(p);
    }
    comm_release(b->comm);
    pthread_mutex_unlock(&lock);
    free(b);
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

static void flush(void) {
    batch *all = batches;
    batches = NULL;
    while (all) {
        batch *b = all;
        all = b->next;
        pthread_mutex_lock(&lock);
        b->comm->busy = 2;
        b->comm->asked = 0;
        pthread_mutex_unlock(&lock);
        if (!standin_queue(b->stream, batch_ready, batch_run, b, batch_drop)) die("a stream that is none");
    }
}

ncclResult_t ncclGroupStart(void) {
    ncclResult_t result;
    if (fails("ncclGroupStart", ncclInternalError, &result)) return result;
    depth++;
    return ncclSuccess;
}

/* The calls of a group that fails in its end are not made. */
static void forget(void) {
    while (batches) {
        batch *b = batches;
        batches = b->next;
        b->launched = true;
        batch_drop(b);
    }
}

ncclResult_t ncclGroupEnd(void) {
    ncclResult_t result;
    if (depth == 0) die("a group ends that has not begun");
    bool failed = fails("ncclGroupEnd", ncclSystemError, &result);
    if (--depth > 0) return failed ? result : ncclSuccess;
    if (failed) {
        forget();
        return result;
    }
    bool any = batches != NULL;
    flush();
    return any ? ncclInProgress : ncclSuccess;
}

static ncclResult_t call(const char *name, ncclComm_t comm, cudaStream_t stream, part what) {
    ncclResult_t result;
    if (fails(name, ncclInvalidArgument, &result)) return result;
    pthread_mutex_lock(&lock);
    check(comm);
    if (comm->busy || comm->splitting || comm->finalizing) die("a call before the last is done");
    part *p = malloc(sizeof *p);
    *p = what;
    p->comm = comm;
    if (p->kind < SEND) p->number = ++comm->calls;
    if (p->kind < SEND ? false : p->root < 0 || p->root >= comm->size) die("a peer that is none");
    batch *b = batches;
    while (b && (b->comm != comm || b->stream != stream)) b = b->next;
    if (!b) {
        b = calloc(1, sizeof *b);
        *b = (batch){.comm = comm, .stream = stream, .next = batches};
        comm->uses++;
        batches = b;
    }
    if (b->last)
        b->last->next = p;
    else
        b->first = p;
    b->last = p;
    pthread_mutex_unlock(&lock);
    if (depth > 0) return ncclSuccess;
    flush();
    return ncclInProgress;
}

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
    return call("ncclAllReduce", comm, stream,
                (part){.kind = ALL_REDUCE, .in = in, .out = out, .count = count, .type = type, .op = op});
}

ncclResult_t ncclReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
    return call("ncclReduce", comm, stream,
                (part){.kind = REDUCE, .in = in, .out = out, .count = count, .type = type, .op = op, .root = root});
}

ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
    return call("ncclBroadcast", comm, stream,
                (part){.kind = BROADCAST, .in = in, .out = out, .count = count, .type = type, .root = root});
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    return call("ncclAllGather", comm, stream,
                (part){.kind = ALL_GATHER, .in = in, .out = out, .count = count, .type = type});
}

ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
    return call("ncclReduceScatter", comm, stream,
                (part){.kind = REDUCE_SCATTER, .in = in, .out = out, .count = count, .type = type, .op = op});
}

ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return call("ncclSend", comm, stream, (part){.kind = SEND, .in = in, .count = count, .type = type, .root = peer});
}

ncclResult_t ncclRecv(void *out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return call("ncclRecv", comm, stream, (part){.kind = RECV, .out = out, .count = count, .type = type, .root = peer});
}
