/* The transport over UCX: tagged messages between two ranks (dist/tagged), for ranks that the rendezvous has found. The
 * addresses of the ranks' workers go over the control channel. UCX is opened when a world needs it: tshard loads
 * without it. UCX guards nothing: a host that reaches a worker's port can send it messages. */
#ifndef TSHI_UCX_H
#define TSHI_UCX_H

#include "base/settings.h"
#include "dist/rendezvous/rendezvous.h"
#include "dist/tagged/tagged.h"

#include <ucp/api/ucp.h>

#define TSHI_UCX_PLACE 6 /* in world->state */

/* --- library.c ---------------------------------------------------------------------------------------------------- */

/* The functions of libucp that are used, by their names without "ucp_". */
typedef struct tshi_ucx_library {
    void (*get_version)(unsigned *, unsigned *, unsigned *);
    ucs_status_t (*config_read)(const char *, const char *, ucp_config_t **);
    ucs_status_t (*config_modify)(ucp_config_t *, const char *, const char *);
    void (*config_release)(ucp_config_t *);
    ucs_status_t (*init_version)(unsigned, unsigned, const ucp_params_t *, const ucp_config_t *, ucp_context_h *);
    void (*cleanup)(ucp_context_h);
    ucs_status_t (*worker_create)(ucp_context_h, const ucp_worker_params_t *, ucp_worker_h *);
    void (*worker_destroy)(ucp_worker_h);
    ucs_status_t (*worker_get_address)(ucp_worker_h, ucp_address_t **, size_t *);
    void (*worker_release_address)(ucp_worker_h, ucp_address_t *);
    unsigned (*worker_progress)(ucp_worker_h);
    ucs_status_ptr_t (*worker_flush_nbx)(ucp_worker_h, const ucp_request_param_t *);
    ucs_status_t (*ep_create)(ucp_worker_h, const ucp_ep_params_t *, ucp_ep_h *);
    ucs_status_ptr_t (*ep_close_nbx)(ucp_ep_h, const ucp_request_param_t *);
    ucs_status_ptr_t (*tag_send_nbx)(ucp_ep_h, const void *, size_t, ucp_tag_t, const ucp_request_param_t *);
    ucs_status_ptr_t (*tag_recv_nbx)(ucp_worker_h, void *, size_t, ucp_tag_t, ucp_tag_t, const ucp_request_param_t *);
    ucs_status_ptr_t (*tag_msg_recv_nbx)(ucp_worker_h, void *, size_t, ucp_tag_message_h, const ucp_request_param_t *);
    ucp_tag_message_h (*tag_probe_nb)(ucp_worker_h, ucp_tag_t, ucp_tag_t, int, ucp_tag_recv_info_t *);
    ucs_status_t (*tag_recv_request_test)(void *, ucp_tag_recv_info_t *);
    ucs_status_t (*request_check_status)(void *);
    void (*request_cancel)(ucp_worker_h, void *);
    void (*request_free)(void *);
    const char *(*status_string)(ucs_status_t);
} tshi_ucx_library;

/* Opens libucp once in a process. TSH_ERR_UNSUPPORTED where there is none, or one older than the header's. */
tsh_status tshi_ucx_library_open(const tshi_ucx_library **out);

/* --- the world ---------------------------------------------------------------------------------------------------- */

typedef struct tshi_ucx_peer {
    ucp_ep_h endpoint;  /* NULL before it is made, and where that failed or it was closed */
    ucs_status_t error; /* of the endpoint; UCS_OK: none */
    double failed;      /* when the error came */
} tshi_ucx_peer;

typedef struct tshi_ucx {
    tshi_tagged tagged;
    const tshi_ucx_library *call;
    char devices[1024]; /* of UCX_NET_DEVICES */
    ucp_context_h context;
    ucp_worker_h worker;
    tshi_ucx_peer *peer; /* [size] */
    char *address;       /* [size] of `address_bytes` each */
    size_t address_bytes;
    bool lost;                    /* the world is broken or has been left: UCX is not called before the end */
    uint32_t groups;              /* that this rank has been the first member of */
    void *discarding, *discarded; /* the message that is being received to be discarded: its request and memory */
} tshi_ucx;

typedef struct tshi_ucx_group {
    tshi_tagged_group tagged;
    uint32_t number; /* the same on all members, and of no other group: see message.c */
} tshi_ucx_group;

static inline tshi_ucx *tshi_ucx_of(const tsh_world *world) {
    return world->state[TSHI_UCX_PLACE];
}

/* --- devices.c ---------------------------------------------------------------------------------------------------- */

/* The network devices for UCX: the interface over which this machine reaches `address`, or all but the loopback where
 * it is not known, and RDMA ports. alone: all ranks are on this machine. */
void tshi_ucx_devices(const char *address, bool alone, char *text, size_t size);

/* --- worker.c ----------------------------------------------------------------------------------------------------- */

/* Makes the context and the worker. */
tsh_status tshi_ucx_worker_open(tsh_world *world);
void tshi_ucx_worker_close(tsh_world *world);
/* Gathers the addresses of all workers. mine: this rank's status so far. Collective over the world, waits. */
tsh_status tshi_ucx_addresses(tsh_world *world, tsh_status mine);
/* Waits until what this rank has sent has left it, for a short while. */
void tshi_ucx_flush(tsh_world *world);
/* No message goes on: from now on UCX uses no memory of a message. */
void tshi_ucx_lose(tsh_world *world);
/* Connects the ranks of a small world (worker.c). Collective over the world, waits. */
tsh_status tshi_ucx_connect(tsh_world *world);
/* The endpoint to a rank of the world; NULL if it has left, its connection has failed, or the world is broken. */
ucp_ep_h tshi_ucx_endpoint(tsh_world *world, int rank);
/* Breaks the world if the connection to a rank has failed that is alive as far as the control channel knows. */
void tshi_ucx_look(tsh_world *world);

/* --- message.c ---------------------------------------------------------------------------------------------------- */

extern const tshi_message_ops tshi_ucx_messages;
/* The most ranks and groups that tags tell apart. */
#define TSHI_UCX_RANKS  (1 << 16)
#define TSHI_UCX_GROUPS (1 << 12)

/* The number of a group whose first member is this rank. */
uint32_t tshi_ucx_number(tsh_world *world);

#endif
