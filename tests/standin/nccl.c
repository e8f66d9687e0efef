/* NCCL on the host: communicators. */
#include "standin/nccl_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COMM_BYTES ((size_t)1 << 20) /* that NCCL allocates when the ranks of a communicator come together */

pthread_mutex_t standin_nccl_lock = PTHREAD_MUTEX_INITIALIZER;
static clique *cliques;
static split *splits;
static ncclComm_t comms[MOST_COMMS];
static int ids;
static int library_version = NCCL_VERSION_CODE;

void standin_nccl_die(const char *message) {
    fprintf(stderr, "NCCL stand-in: %s\n", message);
    abort();
}

bool standin_nccl_fails(const char *name, ncclResult_t usual, ncclResult_t *result) {
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
    *comm = (struct ncclComm){.clique = c, .rank = rank, .size = size, .uses = 1, .gpu = standin_current()};
    for (int i = 0;; i++) {
        if (i == MOST_COMMS) standin_nccl_die("too many communicators");
        if (comms[i]) continue;
        comms[i] = comm;
        break;
    }
    return comm;
}

void standin_nccl_release(ncclComm_t comm) {
    if (--comm->uses > 0) return;
    clique_release(comm->clique);
    free(comm);
}

/* The handle is given back; what is queued keeps the rest. */
static void comm_close(ncclComm_t comm) {
    for (int i = 0; i < MOST_COMMS; i++)
        if (comms[i] == comm) comms[i] = NULL;
    if (comm->closed) standin_nccl_die("a communicator is given back twice");
    comm->closed = true;
    if (comm->charged) standin_discharge(comm->gpu, COMM_BYTES);
    standin_nccl_release(comm);
}

void standin_nccl_check(ncclComm_t comm) {
    for (int i = 0; i < MOST_COMMS; i++)
        if (comm && comms[i] == comm) return;
    standin_nccl_die("a communicator that is none");
}

/* Several ranks on one GPU are taken from 2.30 on, where each of them asks for it. */
static bool refuses(const clique *c, ncclComm_t comm) {
    const char *asked = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    if (library_version >= 23000 && asked && atoi(asked)) return false;
    for (int i = 0; i < MOST_COMMS; i++)
        if (comms[i] && comms[i] != comm && comms[i]->clique == c && comms[i]->gpu == comm->gpu) return true;
    return false;
}

static void join(ncclComm_t comm, clique *c, int rank) {
    comm->charged = standin_charge(comm->gpu, COMM_BYTES);
    if (!comm->charged) comm->error = ncclUnhandledCudaError;
    if (refuses(c, comm)) comm->error = ncclInvalidUsage;
    comm->clique = c;
    comm->rank = rank;
    comm->size = c->size;
    c->uses++;
    c->joined++;
    standin_nccl_publish_join(c, rank);
}

ncclResult_t ncclGetVersion(int *version) {
    ncclResult_t result;
    if (standin_nccl_fails("ncclGetVersion", ncclInternalError, &result)) return result;
    *version = library_version;
    return ncclSuccess;
}

void standin_nccl_version(int version) {
    library_version = version;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    ncclResult_t result;
    if (standin_nccl_fails("ncclGetUniqueId", ncclSystemError, &result)) return result;
    pthread_mutex_lock(&standin_nccl_lock);
    memset(id, 0, sizeof *id);
    /* To the last byte: all of it has to travel. */
    snprintf(id->internal + ID_AT, sizeof id->internal - ID_AT, "id %d %d", (int)getpid(), ++ids);
    pthread_mutex_unlock(&standin_nccl_lock);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id, int rank, ncclConfig_t *config) {
    ncclResult_t result;
    if (config->blocking != 0) standin_nccl_die("a communicator that blocks");
    *out = NULL;
    if (standin_nccl_fails("ncclCommInitRankConfig", ncclInvalidArgument, &result)) return result;
    pthread_mutex_lock(&standin_nccl_lock);
    clique *c = cliques;
    while (c && memcmp(c->id, id.internal, sizeof c->id) != 0) c = c->next;
    if (!c) c = clique_new(id.internal, size);
    if (c->size != size || rank < 0 || rank >= size || c->joined == size)
        standin_nccl_die("ranks of a communicator do not fit");
    *out = comm_new(NULL, rank, size);
    join(*out, c, rank);
    pthread_mutex_unlock(&standin_nccl_lock);
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
                 s->parent->id[0] ? s->parent->id : s->parent->id + ID_AT, s->member[i].color);
        clique *c = cliques;
        while (c && memcmp(c->id, id, sizeof c->id) != 0) c = c->next;
        join(s->member[i].comm, c ? c : clique_new(id, size), rank);
        *s->member[i].out = s->member[i].comm;
    }
    for (int i = 0; i < MOST_COMMS; i++)
        if (comms[i] && comms[i]->clique == s->parent && comms[i]->splits == s->number) comms[i]->splitting = false;
}

static void end_split(split *s) {
    standin_nccl_complete_split(s);
    if (s->here < s->size) return;
    decide_split(s);
    split **link = &splits;
    while (*link != s) link = &(*link)->next;
    *link = s->next;
    free(s);
}

static split *find_split(ncclComm_t comm) {
    split *s = splits;
    while (s && (s->parent != comm->clique || s->number != comm->splits)) s = s->next;
    return s;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out, ncclConfig_t *config) {
    ncclResult_t result;
    if (config->blocking != 0) standin_nccl_die("a communicator that blocks");
    *out = NULL;
    if (standin_nccl_fails("ncclCommSplit", ncclInvalidArgument, &result)) return result;
    pthread_mutex_lock(&standin_nccl_lock);
    standin_nccl_check(comm);
    if (comm->busy || comm->splitting) standin_nccl_die("a call before the last is done");
    if (comm->uses > comm->captured + 1) standin_nccl_die("a communicator is split while it has calls under way");
    comm->splits++;
    comm->splitting = true;
    split *s = find_split(comm);
    if (!s) {
        s = calloc(1, sizeof *s);
        *s = (split){.parent = comm->clique, .number = comm->splits, .size = comm->size, .next = splits};
        splits = s;
    }
    ncclComm_t made = color == NCCL_SPLIT_NOCOLOR ? NULL : comm_new(NULL, 0, 0);
    s->member[s->here].color = color;
    s->member[s->here].key = key;
    s->member[s->here].rank = comm->rank;
    s->member[s->here].out = out;
    s->member[s->here++].comm = made;
    standin_nccl_publish_split(s, comm->rank);
    end_split(s);
    pthread_mutex_unlock(&standin_nccl_lock);
    if (made) standin_count("communicator", 1);
    return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *now) {
    ncclResult_t result;
    if (standin_nccl_fails("ncclCommGetAsyncError", ncclInternalError, &result)) return result;
    /* Other GPUs run their queues, but not before a rank waits for them. */
    if (comm->asked++ > 16) standin_progress();
    if (comm->busy) comm->busy--;
    standin_nccl_enqueue(comm);
    pthread_mutex_lock(&standin_nccl_lock);
    standin_nccl_check(comm);
    split *s = comm->splitting ? find_split(comm) : NULL;
    if (s) end_split(s);
    bool joining = !comm->clique || !standin_nccl_is_complete(comm->clique);
    bool waits = joining || comm->splitting || comm->busy || (comm->finalizing && comm->uses > 1);
    *now = comm->error != ncclSuccess ? comm->error : waits ? ncclInProgress : ncclSuccess;
    pthread_mutex_unlock(&standin_nccl_lock);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    ncclResult_t result;
    if (standin_nccl_fails("ncclCommFinalize", ncclSystemError, &result)) return result;
    pthread_mutex_lock(&standin_nccl_lock);
    standin_nccl_check(comm);
    if (comm->busy) standin_nccl_die("a call before the last is done");
    comm->finalizing = true;
    pthread_mutex_unlock(&standin_nccl_lock);
    return ncclInProgress;
}

/* A split that others may still come to: the communicator that this rank would have got goes with its parent. */
static void leave_splits(ncclComm_t comm) {
    for (split *s = splits; s; s = s->next) {
        for (int i = 0; s->parent == comm->clique && i < s->here; i++) {
            if (s->member[i].rank != comm->rank || !s->member[i].comm) continue;
            comm_close(s->member[i].comm);
            s->member[i].comm = NULL;
            standin_count("communicator", -1);
        }
    }
}

void standin_nccl_reclaim(ncclComm_t comm) {
    if (!standin_wait_idle(comm->gpu))
        standin_nccl_die("the end of a communicator waits for ever: other calls that nothing ends keep the GPU");
    if (comm->captured > 0) standin_nccl_die("a communicator ends for ever: a graph that lives holds calls of it");
    pthread_mutex_lock(&standin_nccl_lock);
    leave_splits(comm);
    comm_close(comm);
    pthread_mutex_unlock(&standin_nccl_lock);
    standin_count("communicator", -1);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    ncclResult_t result = ncclSuccess;
    standin_nccl_fails("ncclCommDestroy", ncclSystemError, &result);
    pthread_mutex_lock(&standin_nccl_lock);
    standin_nccl_check(comm);
    if (!comm->finalizing || comm->uses > 1) standin_nccl_die("a communicator is destroyed with calls under way");
    pthread_mutex_unlock(&standin_nccl_lock);
    standin_nccl_reclaim(comm);
    return result;
}

/* Its calls end at once; what it has is freed when the GPU has come to the end of all that it has been given. */
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    ncclResult_t result = ncclSuccess;
    standin_nccl_fails("ncclCommAbort", ncclSystemError, &result);
    pthread_mutex_lock(&standin_nccl_lock);
    standin_nccl_check(comm);
    comm->aborted = true;
    pthread_mutex_unlock(&standin_nccl_lock);
    standin_nccl_forget(comm);
    if (!standin_nccl_abort_later(comm)) standin_nccl_reclaim(comm);
    return result;
}

void standin_nccl_error(int rank, ncclResult_t error) {
    pthread_mutex_lock(&standin_nccl_lock);
    for (int i = 0; i < MOST_COMMS; i++)
        if (comms[i] && comms[i]->rank == rank) comms[i]->error = error;
    pthread_mutex_unlock(&standin_nccl_lock);
}

const char *ncclGetErrorString(ncclResult_t result) {
    return result == ncclRemoteError ? "remote process exited or there was a network error"
                                     : "an error of the stand-in";
}

const char *ncclGetLastError(ncclComm_t comm) {
    (void)comm;
    return "the stand-in's last words";
}
