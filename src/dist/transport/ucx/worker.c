/* The worker of a rank and its endpoints.
 *
 * An endpoint that fails, or cannot be made, tells no cause: the rank may have died or left, which the control channel
 * knows soon. If it does not, the connection itself has failed.
 *
 * UCX ends the process (an assertion of 1.13 to 1.19) if it makes an endpoint over a connection from the peer that the
 * peer has just closed. The ranks of a small world are therefore all connected before world_init returns; in others a
 * rank makes an endpoint for its first message to another, after UCX has noted what has been closed. No
 * endpoint is closed before the worker is destroyed, except failed ones when this rank leaves. */
#include "dist/control/agree.h"
#include "dist/rendezvous/rendezvous.h"
#include "dist/transport/ucx/ucx.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* Seconds for the control channel to say why an endpoint has failed, and for messages to leave a rank that leaves. */
#define NEWS_GRACE  2.0
#define FLUSH_GRACE 2.5
/* The most ranks of a world in which each is connected to all from the start. */
#define MAX_CONNECTED 64

static tsh_status ucx_fail(const tshi_ucx *ucx, const char *call, ucs_status_t status) {
    return tshi_fail(TSH_ERR_SYSTEM, "world_init: %s: UCX error %d: %s", call, (int)status,
                     ucx->call->status_string(status));
}

/* --- the worker --------------------------------------------------------------------------------------------------- */

/* What this transport sets where the user has not. Groups on one machine share its memory: UCX needs no named memory
 * objects for them. Silence is judged by the control channel alone. One event at a time: an event of a connection that
 * an earlier one of the batch has closed ends the process (UCX 1.13). Over TCP a handshake before 32 KiB takes as long
 * as the data: two ranks took 63 us with it and 22 us without. */
static ucs_status_t configure(const tshi_ucx *ucx, double timeout, ucp_config_t *config) {
    char seconds[32];
    snprintf(seconds, sizeof seconds, "%.0fs", timeout < 1 ? 1 : timeout);
    const char *const values[][3] = {{"UCX_TLS", "TLS", "^sm"},
                                     {"UCX_NET_DEVICES", "NET_DEVICES", ucx->devices},
                                     {"UCX_KEEPALIVE_INTERVAL", "KEEPALIVE_INTERVAL", "inf"},
                                     {"UCX_TCP_KEEPIDLE", "KEEPIDLE", seconds},
                                     {"UCX_TCP_MAX_POLL", "MAX_POLL", "1"},
                                     {"UCX_RNDV_THRESH", "RNDV_THRESH", tshi_has_adapter() ? "auto" : "256K"}};
    ucs_status_t status = UCS_OK;
    for (size_t i = 0; i < sizeof values / sizeof *values && status == UCS_OK; i++) {
        if (!tshi_variable(values[i][0])) status = ucx->call->config_modify(config, values[i][1], values[i][2]);
    }
    return status;
}

static tsh_status make_context(tsh_world *world, tshi_ucx *ucx) {
    ucp_config_t *config = NULL;
    const ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS | UCP_PARAM_FIELD_NAME,
        .features = UCP_FEATURE_TAG,
        .estimated_num_eps = (size_t)world->size,
        .name = "tshard",
    };
    ucs_status_t status = ucx->call->config_read(NULL, NULL, &config);
    if (status != UCS_OK) return ucx_fail(ucx, "ucp_config_read", status);
    status = configure(ucx, world->settings->timeout, config);
    if (status == UCS_OK)
        status = ucx->call->init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &ucx->context);
    ucx->call->config_release(config);
    return status == UCS_OK ? TSH_OK : ucx_fail(ucx, "ucp_init", status);
}

/* Signals are for the program's own threads: UCX starts one that accepts connections. */
tsh_status tshi_ucx_worker_open(tsh_world *world) {
    tshi_ucx *ucx = tshi_ucx_of(world);
    const ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                        .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    tsh_status status = make_context(world, ucx);
    if (status == TSH_OK) {
        ucs_status_t made = ucx->call->worker_create(ucx->context, &params, &ucx->worker);
        if (made != UCS_OK) status = ucx_fail(ucx, "ucp_worker_create", made);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

void tshi_ucx_worker_close(tsh_world *world) {
    tshi_ucx *ucx = tshi_ucx_of(world);
    if (ucx->worker) ucx->call->worker_destroy(ucx->worker);
    if (ucx->context) ucx->call->cleanup(ucx->context);
    ucx->worker = NULL;
    ucx->context = NULL;
}

/* --- addresses ---------------------------------------------------------------------------------------------------- */

static void longest(void *mine, const void *theirs, size_t bytes) {
    uint64_t *most = mine;
    const uint64_t *other = theirs;
    (void)bytes;
    if (*other > *most) *most = *other;
}

static tsh_status gather_addresses(tsh_world *world, const ucp_address_t *own, size_t length, size_t most) {
    tshi_ucx *ucx = tshi_ucx_of(world);
    char *padded = tshi_calloc(&world->allocator, 1, most);
    ucx->address = tshi_calloc(&world->allocator, (size_t)world->size, most);
    ucx->address_bytes = most;
    if (padded) memcpy(padded, own, length);
    tsh_status status =
        tshi_control_gather(world->group, "world_init: addresses", padded && ucx->address ? TSH_OK : TSH_ERR_MEMORY,
                            padded, most, ucx->address);
    tshi_free(&world->allocator, padded);
    return status;
}

tsh_status tshi_ucx_addresses(tsh_world *world, tsh_status mine) {
    const tshi_ucx *ucx = tshi_ucx_of(world);
    ucp_address_t *own = NULL;
    size_t length = 0;
    if (mine == TSH_OK) {
        ucs_status_t got = ucx->call->worker_get_address(ucx->worker, &own, &length);
        if (got != UCS_OK) mine = ucx_fail(ucx, "ucp_worker_get_address", got);
    }
    uint64_t most = length;
    tsh_status status = tshi_control_reduce(world->group, "world_init", mine, &most, sizeof most, longest);
    if (status == TSH_OK) status = gather_addresses(world, own, length, (size_t)most);
    if (own) ucx->call->worker_release_address(ucx->worker, own);
    return status;
}

/* --- endpoints ---------------------------------------------------------------------------------------------------- */

static void note_error(void *user, ucp_ep_h endpoint, ucs_status_t status) {
    tshi_ucx_peer *peer = user;
    (void)endpoint;
    peer->error = status;
    peer->failed = tshi_clock();
}

static ucp_ep_h make_endpoint(tsh_world *world, int rank) {
    tshi_ucx *ucx = tshi_ucx_of(world);
    tshi_ucx_peer *peer = &ucx->peer[rank];
    const ucp_ep_params_t params = {
        .field_mask =
            UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = (const ucp_address_t *)(const void *)(ucx->address + (size_t)rank * ucx->address_bytes),
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = note_error, .arg = peer},
    };
    ucs_status_t status = ucx->call->ep_create(ucx->worker, &params, &peer->endpoint);
    if (status == UCS_OK) return peer->endpoint;
    peer->endpoint = NULL;
    note_error(peer, NULL, status);
    return NULL;
}

ucp_ep_h tshi_ucx_endpoint(tsh_world *world, int rank) {
    const tshi_ucx *ucx = tshi_ucx_of(world);
    const tshi_ucx_peer *peer = &ucx->peer[rank];
    if (ucx->lost || tshi_control_is_lost(world, rank) || tshi_control_has_left(world, rank)) return NULL;
    if (peer->endpoint || peer->error != UCS_OK) return peer->endpoint;
    /* At most one event for each rank, since peers may go on sending. */
    for (int i = 0; i < world->size && ucx->call->worker_progress(ucx->worker); i++) continue;
    return make_endpoint(world, rank);
}

static void await(const tshi_ucx *ucx, ucs_status_ptr_t request, double seconds) {
    double end = tshi_clock() + seconds;
    if (!UCS_PTR_IS_PTR(request)) return;
    while (ucx->call->request_check_status(request) == UCS_INPROGRESS && tshi_clock() < end) {
        if (!ucx->call->worker_progress(ucx->worker)) sched_yield();
    }
    ucx->call->request_free(request);
}

static void close_endpoint(const tshi_ucx *ucx, tshi_ucx_peer *peer) {
    const ucp_request_param_t force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};
    if (!peer->endpoint) return;
    ucs_status_ptr_t request = ucx->call->ep_close_nbx(peer->endpoint, &force);
    if (UCS_PTR_IS_PTR(request)) ucx->call->request_free(request);
    peer->endpoint = NULL;
}

void tshi_ucx_lose(tsh_world *world) {
    tshi_ucx_of(world)->lost = true;
}

void tshi_ucx_flush(tsh_world *world) {
    const tshi_ucx *ucx = tshi_ucx_of(world);
    const ucp_request_param_t plain = {0};
    for (int i = 0; i < world->size; i++) {
        if (ucx->peer[i].error != UCS_OK) close_endpoint(ucx, &ucx->peer[i]);
    }
    double seconds = world->timeout < FLUSH_GRACE ? world->timeout : FLUSH_GRACE;
    await(ucx, ucx->call->worker_flush_nbx(ucx->worker, &plain), seconds);
}

tsh_status tshi_ucx_connect(tsh_world *world) {
    if (world->size > MAX_CONNECTED) return TSH_OK;
    for (int i = 0; i < world->size; i++) {
        if (i != world->rank) make_endpoint(world, i);
    }
    tshi_ucx_flush(world);
    return tshi_control_agree(world->group, "world_init: connections", TSH_OK);
}

void tshi_ucx_look(tsh_world *world) {
    const tshi_ucx *ucx = tshi_ucx_of(world);
    for (int i = 0; i < world->size && !ucx->lost; i++) {
        const tshi_ucx_peer *peer = &ucx->peer[i];
        if (peer->error == UCS_OK || tshi_control_has_left(world, i) || tshi_control_has_failed(world)) continue;
        if (tshi_clock() - peer->failed < NEWS_GRACE) continue;
        tshi_control_stick(world, TSH_ERR_SYSTEM,
                           "no connection to rank %d over %.200s (UCX_NET_DEVICES, UCX_TLS): UCX error %d: %s", i,
                           ucx->devices, (int)peer->error, ucx->call->status_string(peer->error));
    }
}
