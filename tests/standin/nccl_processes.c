/* NCCL on the host, for ranks that are processes: what they have for each other are files in STANDIN_NCCL_FOLDER, each
 * of which is there as a whole or not at all. The files of collectives stay; the receiver removes that of a message. */
#include "standin/nccl_state.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool standin_nccl_apart(void) {
    return getenv("STANDIN_NCCL_FOLDER") != NULL;
}

static const char *path_of(char *path, size_t size, const clique *c, const char *what, uint64_t number, int rank) {
    const char *id = c->id[0] ? c->id : c->id + ID_AT;
    snprintf(path, size, "%s/%s.%s.%llu.%d", getenv("STANDIN_NCCL_FOLDER"), id, what, (unsigned long long)number, rank);
    return path;
}

static bool is_there(const clique *c, const char *what, uint64_t number, int rank) {
    char path[512];
    return access(path_of(path, sizeof path, c, what, number, rank), F_OK) == 0;
}

static bool all_are_there(const clique *c, const char *what, uint64_t number) {
    int rank = 0;
    while (rank < c->size && is_there(c, what, number, rank)) rank++;
    return rank == c->size;
}

static void publish(const clique *c, const char *what, uint64_t number, int rank, const void *data, size_t bytes) {
    char path[512], draft[540];
    path_of(path, sizeof path, c, what, number, rank);
    snprintf(draft, sizeof draft, "%s.draft", path);
    int fd = open(draft, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool written = fd >= 0 && (bytes == 0 || write(fd, data, bytes) == (ssize_t)bytes);
    if (fd >= 0) close(fd);
    if (!written || rename(draft, path) != 0) standin_nccl_die("a file for the other ranks is not written");
}

static void fetch(const clique *c, const char *what, uint64_t number, int rank, void *data, size_t bytes) {
    char path[512];
    struct stat found;
    int fd = open(path_of(path, sizeof path, c, what, number, rank), O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &found) != 0) standin_nccl_die("a file of another rank is not read");
    if ((size_t)found.st_size != bytes) standin_nccl_die("a call does not fit that of another rank");
    if (bytes && read(fd, data, bytes) != (ssize_t)bytes) standin_nccl_die("a file of another rank is not read");
    close(fd);
}

/* --- communicators ------------------------------------------------------------------------------------------------ */

void standin_nccl_publish_join(const clique *c, int rank) {
    if (standin_nccl_apart()) publish(c, "join", 0, rank, NULL, 0);
}

bool standin_nccl_is_complete(clique *c) {
    if (standin_nccl_apart() && c->joined < c->size && all_are_there(c, "join", 0)) c->joined = c->size;
    return c->joined == c->size;
}

void standin_nccl_publish_split(const split *s, int rank) {
    const int choice[] = {s->member[0].color, s->member[0].key};
    if (standin_nccl_apart()) publish(s->parent, "split", s->number, rank, choice, sizeof choice);
}

void standin_nccl_complete_split(split *s) {
    if (!standin_nccl_apart() || s->here == s->size || !all_are_there(s->parent, "split", s->number)) return;
    int own = s->member[0].rank;
    for (int rank = 0; rank < s->size; rank++) {
        int choice[2];
        if (rank == own) continue;
        fetch(s->parent, "split", s->number, rank, choice, sizeof choice);
        s->member[s->here].color = choice[0];
        s->member[s->here].key = choice[1];
        s->member[s->here++].rank = rank;
    }
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

static void message(part *p) {
    ncclComm_t comm = p->comm;
    bool sends = p->kind == SEND;
    char what[32];
    size_t bytes = p->count * standin_nccl_size(p->type);
    int to = sends ? p->root : comm->rank, from = sends ? comm->rank : p->root;
    if (!p->published) p->number = sends ? ++comm->sent[to] : ++comm->received[from];
    snprintf(what, sizeof what, "to.%d", to);
    if (!p->published && sends) publish(comm->clique, what, p->number, from, p->in, bytes);
    p->published = true;
    bool there = is_there(comm->clique, what, p->number, from);
    if (!sends && there) {
        char path[512];
        fetch(comm->clique, what, p->number, from, p->out, bytes);
        unlink(path_of(path, sizeof path, comm->clique, what, p->number, from));
    }
    p->done = sends != there;
}

static void collective(part *p) {
    const clique *c = p->comm->clique;
    size_t bytes = p->count * standin_nccl_size(p->type), size = (size_t)p->comm->size;
    size_t in = p->kind == REDUCE_SCATTER ? bytes * size : bytes, out = p->kind == ALL_GATHER ? bytes * size : bytes;
    part parts[MOST_RANKS], *all[MOST_RANKS];
    if (!p->published) publish(c, "call", p->number, p->comm->rank, p->in, in);
    p->published = true;
    if (!all_are_there(c, "call", p->number)) return;
    for (int rank = 0; rank < p->comm->size; rank++) {
        void *data = malloc(in + 1);
        fetch(c, "call", p->number, rank, data, in);
        parts[rank] = *p;
        parts[rank].in = data;
        parts[rank].out = rank == p->comm->rank ? p->out : malloc(out + 1);
        all[rank] = &parts[rank];
    }
    standin_nccl_move(all, p->comm->size);
    for (int rank = 0; rank < p->comm->size; rank++) {
        free((void *)(uintptr_t)parts[rank].in);
        if (rank != p->comm->rank) free(parts[rank].out);
    }
    p->done = true;
}

void standin_nccl_progress_apart(part *p) {
    if (p->kind >= SEND)
        message(p);
    else
        collective(p);
}
