/* The backends of this build, and which of them a world takes. */
#ifndef TSHI_REGISTRY_H
#define TSHI_REGISTRY_H

#include "dist/backend.h"

/* Not all of them are in every build. Each is named by its own folder and by registry.c. */
extern const tshi_group_ops tshi_self_ops, tshi_shm_ops, tshi_mpi_ops, tshi_ucx_ops, tshi_nccl_ops, tshi_hosts_ops,
    tshi_plan_ops;

/* The backend of that name; NULL: this build has none. */
const tshi_group_ops *tshi_backend_find(const char *name);
/* The backend of groups of one rank. */
const tshi_group_ops *tshi_backend_of_one(void);
/* The backend that connects the ranks of one machine by memory that they share; it has open_bytes and message_bytes. */
const tshi_group_ops *tshi_backend_of_machine(void);
/* TSHARD_BACKEND names this backend. */
bool tshi_backend_is(const char *name);
/* What TSHARD_BACKEND may be: "local, mpi, nccl, plan or ucx". */
TSHI_TOOLS const char *tshi_backend_names(void);
/* The control backend that takes the world, see tshi_group_ops.probe. *out is NULL where none does before the
 * rendezvous; after it that is TSH_ERR_UNSUPPORTED. */
tsh_status tshi_backend_connect(const tshi_start *start, const tshi_group_ops **out);
/* The most that any backend of this build wants, see tshi_group_ops.area_bytes. */
size_t tshi_backend_area_bytes(int size);
/* Chooses the backend that runs the calls on tensors in a world whose ranks are connected. */
tsh_status tshi_backend_take_data(tsh_world *world);

#endif
