/* Addresses of host names until a deadline: the system's resolver has none, so that it runs on a thread. */
#include "base/owner.h"
#include "dist/rendezvous/sockets.h"

#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A search, which may outlast the world that started it: its memory is the system's, freed by the last user. */
typedef struct search {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    int users;
    bool has_ended;
    char host[256], service[16];
    struct addrinfo *found;
    int error, system_error;
} search;

static const struct addrinfo any_stream = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};

static void leave(search *s) {
    bool last = --s->users == 0;
    pthread_mutex_unlock(&s->lock);
    if (!last) return;
    if (s->found) freeaddrinfo(s->found);
    pthread_cond_destroy(&s->ended);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static void *run(void *argument) {
    search *s = argument;
    struct addrinfo *found = NULL;
    int error = getaddrinfo(s->host, s->service, &any_stream, &found), system_error = errno;
    pthread_mutex_lock(&s->lock);
    s->found = error == 0 ? found : NULL;
    s->error = error;
    s->system_error = system_error;
    s->has_ended = true;
    pthread_cond_signal(&s->ended);
    leave(s);
    return NULL;
}

static search *search_new(const char *host, const char *service) {
    pthread_condattr_t monotonic;
    search *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    if (pthread_condattr_init(&monotonic) != 0) {
        free(s);
        return NULL;
    }
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    s->users = 2;
    snprintf(s->host, sizeof s->host, "%s", host);
    snprintf(s->service, sizeof s->service, "%s", service);
    return s;
}

/* The search's end, or EAI_SYSTEM with ETIMEDOUT. */
static int await(search *s, double deadline, struct addrinfo **found) {
    const struct timespec until = {(time_t)deadline, (long)((deadline - (double)(time_t)deadline) * 1e9)};
    int waited = 0;
    pthread_mutex_lock(&s->lock);
    while (!s->has_ended && waited == 0) waited = pthread_cond_timedwait(&s->ended, &s->lock, &until);
    int error = s->has_ended ? s->error : EAI_SYSTEM, system_error = s->has_ended ? s->system_error : waited;
    *found = s->has_ended ? s->found : NULL;
    if (s->has_ended) s->found = NULL;
    leave(s);
    errno = system_error;
    return error;
}

static int resolve(const char *host, const char *service, double deadline, struct addrinfo **found) {
    struct addrinfo here = any_stream;
    pthread_t thread;
    here.ai_flags |= host ? AI_NUMERICHOST : AI_PASSIVE;
    int error = getaddrinfo(host, service, &here, found);
    if (error == 0 || !host) return error;
    search *s = search_new(host, service);
    if (!s) return EAI_MEMORY;
    errno = tshi_thread_start(&thread, run, s);
    if (errno == 0) {
        pthread_detach(thread);
        return await(s, deadline, found);
    }
    s->users = 1;
    pthread_mutex_lock(&s->lock);
    leave(s);
    return EAI_SYSTEM;
}

tsh_status tshi_resolve(const char *host, int port, double deadline, struct addrinfo **found) {
    char service[16];
    *found = NULL;
    snprintf(service, sizeof service, "%d", port);
    int error = resolve(host, service, deadline, found);
    if (error == 0) return TSH_OK;
    *found = NULL;
    bool late = error == EAI_SYSTEM && errno == ETIMEDOUT;
    const char *why = error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error);
    return tshi_fail(late ? TSH_ERR_TIMEOUT : TSH_ERR_SYSTEM, "rendezvous: no address for %.100s: %s",
                     host ? host : "this machine", late ? "the resolver does not answer" : why);
}
