/* dist: worlds, groups, meshes, and collectives on tensors' memory.
 *
 * "Collective" means: every rank of the group makes the call, in the same order, with matching arguments. All
 * calls here wait until this rank's part is done and its buffers may be used again. A collective called with bad
 * arguments is still a call: the caller gets the error, its peers get TSH_ERR_PEER with the cause, and the group stays
 * usable. Calls that do not match (operation, dtype, count, root) give TSH_ERR_MISMATCH on every rank, both sides
 * printed, and change nothing. A "local" rank that only gives, and 4 KiB at most (the root of a broadcast or scatter,
 * the others of a reduce or gather), has returned already: its next call that waits fails with that, or one of the next
 * few that only give, and the others get TSH_ERR_PEER from that call. If the group is destroyed instead, the log tells.
 * If it fails (tsh_world_fail) before the others have come to what it gave, they get TSH_ERR_PEER there.
 *
 * A rank that dies makes every pending and later call of its peers return TSH_ERR_PEER within a second; no collective
 * waits longer than the world's deadline (TSH_ERR_TIMEOUT). After either, the world can only be destroyed. A wait
 * warns, in the log or on stderr, after 5 s (TSHARD_WARN; at most half the deadline), and whenever it has lasted twice
 * as long. Warnings and deadlines name the ranks that keep the others: on one machine a rank that waits itself is
 * followed to the one that it waits for, and a stopped process is said to be stopped. Over MPI there is one wait that
 * no rank can end: inside MPI's own collective (an all_reduce, or any of more than two ranks) for a member that stops
 * or dies there. The warnings come all the same, from the deadline on with the last calls. With TSHARD_CHECK=1 such
 * calls end as all others do, and take longer.
 *
 * GPUs: where every rank has one of its own and there is NCCL, groups are "nccl": collectives are queued, in the order
 * of the calls and behind the kernels queued before; kernels queued later find the result, and the host does not wait.
 * A started call is done when its result is there. Failures show in what waits (tsh_tensor_read, tsh_work_wait,
 * tsh_barrier) and in later calls. A call that cannot be made fails the world as tsh_world_fail does, and calls that do
 * not match end at the deadline; with TSHARD_CHECK=1 ranks agree on each call first, and both are told as above. MIN
 * and MAX of NaNs are NCCL's. Messages are queued as well, once both sides have called: tsh_send and tsh_recv wait for
 * the other's call, and kernels queued later find the result; a graph cannot hold them. Otherwise groups are "local" or
 * "mpi", whose calls on a GPU's tensors wait. Collectives of "local" work in place where every rank reaches every
 * other's GPU memory (tsh_world_destroy waits a little then for those who have this rank's mapped); all else goes
 * through the host's memory.
 *
 * Thread safety: tsh_thread_rendezvous_create, tsh_world_init, tsh_collective_name and tsh_backend_supports are any thread's, at
 * any time. So are, while their object lives, the questions whose answers never change: tsh_world_rank, _size,
 * _local_rank, _node_count, _uses_rdma, _device, _group and _mesh; tsh_group_rank, _size, _world_rank, _rank_of,
 * _backend, _world, _mesh and _supports; tsh_mesh_group, _axes, _axis_group, _axis_name and _world. All else is the
 * world's thread's, works included: they are tested, waited for and released by the thread that started them. */
#ifndef TSHARD_DIST_H
#define TSHARD_DIST_H

#include "tshard/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tsh_world tsh_world;

/* --- world -------------------------------------------------------------------------------------------------------- */

/* The rendezvous of ranks that are threads of one process (for sanitizers and embedding). Created before the threads
 * start, destroyed after every thread has destroyed its world. */
typedef struct tsh_thread_rendezvous tsh_thread_rendezvous;
TSH_API tsh_status tsh_thread_rendezvous_create(int world_size, tsh_thread_rendezvous **out);
TSH_API void tsh_thread_rendezvous_destroy(tsh_thread_rendezvous *threads);

/* Zeroed members take the value of the environment, then the default. */
typedef struct tsh_world_config {
    int rank, world_size; /* both, or neither (world_size 0): RANK, WORLD_SIZE as tshard-run, torchrun, mpirun, srun set
                             them */
    const char *init_method; /* how the ranks meet; TSHARD_INIT, default "env://":
                              *   env://            MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE
                              *   tcp://HOST:PORT   rank 0 listens there; a multicast HOST (239.1.2.3, [ff15::1]):
                              *                     ranks are given out when all have come
                              *   file:///PATH      a file that all can lock; ranks are given out
                              *   mpi://            the ranks of MPI_COMM_WORLD, over the mpi backend */
    const char *group_name;  /* TSHARD_GROUP, default "": jobs of different names may share an address or a file */
    tsh_thread_rendezvous *threads; /* ranks are threads that share this object; rank is then required */
    tsh_device_kind device;         /* where tensors live; TSHARD_DEVICE (cpu or cuda), default the CPU */
    double timeout;                 /* seconds; TSHARD_TIMEOUT, default 600 (rendezvous: at most 120) */
    size_t heap_bytes; /* address space for this rank's tensors; TSHARD_HEAP (bytes, or 512M, 4G), default all of the
                        * machine's memory. Pages are taken as they are used. */
    int blas_threads;  /* TSHARD_BLAS_THREADS, default the cores granted to the process over the ranks on the machine */
    uint64_t seed;     /* TSHARD_SEED, default 0: see tsh_world_seed */
    tsh_log log;
    tsh_allocator allocator;
} tsh_world_config;

/* Join the world. No RANK in the environment: a world of one rank. Collective; waits at most 120 s for the others,
 * warning of the ranks that it waits for every 5 s (TSHARD_WARN). config may be NULL. On several machines MPI is
 * started; where no launcher of MPI has started the ranks, with a process tshard-pmix on each machine, and variables
 * that are in the environment meanwhile: no other thread may then use it. TSH_ERR_ARGUMENT for malformed or contradicting variables,
 * TSH_ERR_TIMEOUT, TSH_ERR_SYSTEM, TSH_ERR_MEMORY; TSH_ERR_UNSUPPORTED without what that takes, TSH_ERR_STATE where
 * MPI, which a process starts once, has other ranks, TSH_ERR_PEER when one is lost meanwhile. */
TSH_API tsh_status tsh_world_init(const tsh_world_config *config, tsh_world **out);
/* Leave. Not collective, but ranks that still wait for this one get TSH_ERR_PEER. Groups, meshes, tensors and tapes of
 * the world are destroyed first by their owner. */
TSH_API void tsh_world_destroy(tsh_world *world);

/* This rank in the world, the number of ranks, this rank among those of its machine, and its device (owned by the
 * world). */
TSH_API int tsh_world_rank(const tsh_world *world);
TSH_API int tsh_world_size(const tsh_world *world);
TSH_API int tsh_world_local_rank(const tsh_world *world);
/* Distinct machines that the ranks run on. */
TSH_API int tsh_world_node_count(const tsh_world *world);
/* Whether collectives between machines go over RDMA, as far as the backend can tell. It is the transport's own choice,
 * reported here, not switched. */
TSH_API bool tsh_world_uses_rdma(const tsh_world *world);
TSH_API tsh_device *tsh_world_device(const tsh_world *world);
/* The group of all ranks and its one-axis mesh, "world=N". Owned by the world. */
TSH_API tsh_group *tsh_world_group(const tsh_world *world);
TSH_API const tsh_mesh *tsh_world_mesh(const tsh_world *world);

/* Random numbers (Philox 4x32-10) are keyed by (seed, stream, global element index). Every parameter initialised and
 * every dropout takes the next stream, so a program that makes the same calls draws the same values at any number of
 * ranks. tsh_world_seed sets the seed and starts again at stream 0. Not collective; call it alike on every rank. */
TSH_API void tsh_world_seed(tsh_world *world, uint64_t seed);

/* Tell the peers that this rank cannot go on: their pending and later calls return TSH_ERR_PEER with "rank 2: reason",
 * and this rank's own return TSH_ERR_STATE, until tsh_world_recover. The first reason stands. Waits for nobody. */
TSH_API void tsh_world_fail(tsh_world *world, const char *reason);
/* After failures (not deaths) make the world usable again: forgets them and what was in flight, and has all ranks go on
 * with the same random stream and the same step of each tape (one that is under way on all ranks alike may go on).
 * Collective over the world, waits. A program that works in steps need not call it: tsh_tape_reset does, on every rank.
 * TSH_ERR_PEER or TSH_ERR_TIMEOUT when a rank does not come. */
TSH_API tsh_status tsh_world_recover(tsh_world *world);

/* --- groups and meshes -------------------------------------------------------------------------------------------- */

/* Group of world ranks[0..n), in that order. Collective over the WORLD, in the same order everywhere; the lists are
 * compared first (TSH_ERR_MISMATCH). Ranks outside it get *out = NULL and TSH_OK. */
TSH_API tsh_status tsh_group_create(tsh_world *world, const int *ranks, int n, tsh_group **out);
/* As tsh_group_create, but collective over `parent` alone, and ranks[0..n) are parent's group ranks. */
TSH_API tsh_status tsh_group_create_in(tsh_group *parent, const int *ranks, int n, tsh_group **out);
/* The ranks of parent that give the same colour become a group, in the order of (key, parent rank). A negative colour
 * joins none: *out = NULL. Collective over parent. */
TSH_API tsh_status tsh_group_split(tsh_group *parent, int color, int key, tsh_group **out);
/* Not collective; after the group's last call and the release of its works. A mesh's groups and the world's own go with
 * their owner, and are left alone here. */
TSH_API void tsh_group_destroy(tsh_group *group);
TSH_API int tsh_group_rank(const tsh_group *group); /* mine, in the group */
TSH_API int tsh_group_size(const tsh_group *group);
TSH_API int tsh_group_world_rank(const tsh_group *group, int group_rank); /* -1 outside */
TSH_API const char *tsh_group_backend(const tsh_group *group);            /* "self", "local", "mpi", "nccl" */
TSH_API int tsh_group_rank_of(const tsh_group *group, int world_rank);    /* -1 for one that is no member */
TSH_API tsh_world *tsh_group_world(const tsh_group *group);
/* The mesh that the group is an axis of; a group that no mesh made is the one axis of its own. */
TSH_API const tsh_mesh *tsh_group_mesh(const tsh_group *group);

/* Carve the world: "data=2,model=2" numbers ranks with the last axis fastest, so that model groups are contiguous
 * blocks. One size may be -1: what is left. The product must be the world's size (TSH_ERR_ARGUMENT names both numbers).
 * Collective over the world. */
TSH_API tsh_status tsh_mesh_create(tsh_world *world, const char *axes, tsh_mesh **out);
/* Carve a group instead of the world: a sub-mesh. Collective over parent. */
TSH_API tsh_status tsh_mesh_create_in(tsh_group *parent, const char *axes, tsh_mesh **out);
TSH_API void tsh_mesh_destroy(tsh_mesh *mesh);
/* My group along the named axis, owned by the mesh; NULL (and the message names the axes there are) for an unknown
 * name. */
TSH_API tsh_group *tsh_mesh_group(const tsh_mesh *mesh, const char *axis);
TSH_API int tsh_mesh_axes(const tsh_mesh *mesh);
TSH_API tsh_group *tsh_mesh_axis_group(const tsh_mesh *mesh, int axis);
TSH_API const char *tsh_mesh_axis_name(const tsh_mesh *mesh, int axis);
TSH_API tsh_world *tsh_mesh_world(const tsh_mesh *mesh);

/* --- collectives -------------------------------------------------------------------------------------------------- */

/* AVG: floats and complex; MIN, MAX: not complex; BAND, BOR, BXOR: integers. */
typedef enum tsh_reduce_op {
    TSH_SUM = 0,
    TSH_PROD,
    TSH_MIN,
    TSH_MAX,
    TSH_AVG,
    TSH_BAND,
    TSH_BOR,
    TSH_BXOR,
    TSH_REDUCE_OP_COUNT
} tsh_reduce_op;

/* They work on memory: shapes matter only where said, layouts and gradients not at all (those are autograd's). */

/* tensor = op over ranks of tensor, in place, the same bits on every rank. Same shape everywhere. complex: SUM, PROD,
 * AVG. */
TSH_API tsh_status tsh_all_reduce(tsh_group *group, tsh_tensor *tensor, tsh_reduce_op op);
/* out on every rank = the ranks' `in` one after another. in holds counts[rank] elements, out their sum; counts NULL:
 * the balanced split of out's dim 0 (equal parts where it divides). in may be the part of out that it becomes. */
TSH_API tsh_status tsh_all_gather_into_tensor(tsh_group *group, tsh_tensor *out, const tsh_tensor *in,
                                              const int64_t *counts);
/* out = this rank's part of the op over ranks of in. out holds counts[rank] elements, in their sum; counts NULL as
 * above. out may be that part of in; otherwise in is left as it was. */
TSH_API tsh_status tsh_reduce_scatter_tensor(tsh_group *group, tsh_tensor *out, const tsh_tensor *in, tsh_reduce_op op,
                                             const int64_t *counts);
/* tensor on every rank = tensor of `root`, a rank of the group. Here and in the next three, ranks that only give may
 * return before the others have come, and hear later of a call that did not match: see above. */
TSH_API tsh_status tsh_broadcast(tsh_group *group, tsh_tensor *tensor, int root);
/* in_counts[j] elements of in, one part after another, go to rank j; out_counts[i] elements come from rank i into out.
 * NULL: equal parts (numel must divide). Rank i's in_counts[j] must be rank j's out_counts[i]. out and in do not
 * overlap. */
TSH_API tsh_status tsh_all_to_all(tsh_group *group, tsh_tensor *out, const int64_t *out_counts, const tsh_tensor *in,
                                  const int64_t *in_counts);
/* tensor on `root` = op over ranks of tensor; the others' tensors are left as they were. */
TSH_API tsh_status tsh_reduce_to_root(tsh_group *group, tsh_tensor *tensor, tsh_reduce_op op, int root);
/* out on `root` = the ranks' `in` one after another, with counts as in all_gather; out is NULL elsewhere (then counts
 * must be given, or the parts are equal). in may be the part of out that it becomes. */
TSH_API tsh_status tsh_gather_to_root(tsh_group *group, tsh_tensor *out, const tsh_tensor *in, const int64_t *counts,
                                      int root);
/* out on every rank = its part of `in` of root; in is NULL elsewhere (counts as above). */
TSH_API tsh_status tsh_scatter_from_root(tsh_group *group, tsh_tensor *out, const tsh_tensor *in, const int64_t *counts,
                                         int root);
/* Returns when every rank has called it. */
TSH_API tsh_status tsh_barrier(tsh_group *group);

/* The same with a tensor for each rank, group->size of them: outs[i] = in of rank i; out = op over ranks i of their
 * ins[my rank]; outs[i] = ins[my rank] of rank i. Sizes may differ where both sides agree. */
TSH_API tsh_status tsh_all_gather_list(tsh_group *group, tsh_tensor *const *outs, const tsh_tensor *in);
TSH_API tsh_status tsh_reduce_scatter_list(tsh_group *group, tsh_tensor *out, const tsh_tensor *const *ins,
                                           tsh_reduce_op op);
TSH_API tsh_status tsh_all_to_all_list(tsh_group *group, tsh_tensor *const *outs, const tsh_tensor *const *ins);

/* --- calls that do not wait --------------------------------------------------------------------------------------- */

/* A call under way. It holds its tensors (and a copy of its counts) until it is released; they must not be touched
 * before it is done. Calls of one group run in the order in which they were started, blocking ones included. They
 * progress only inside library calls; there is no progress thread. */
typedef struct tsh_work tsh_work;

/* Whether the call is done, without waiting; its status. */
TSH_API tsh_status tsh_work_test(tsh_work *work, bool *done);
/* Wait until it is done; its status. May be called again. */
TSH_API tsh_status tsh_work_wait(tsh_work *work);
/* Waits if it must. NULL is fine. */
TSH_API void tsh_work_release(tsh_work *work);

/* As the calls above, started. *work is the caller's; NULL on failure. */
TSH_API tsh_status tsh_all_reduce_async(tsh_group *group, tsh_tensor *tensor, tsh_reduce_op op, tsh_work **work);
TSH_API tsh_status tsh_all_gather_into_tensor_async(tsh_group *group, tsh_tensor *out, const tsh_tensor *in,
                                                    const int64_t *counts, tsh_work **work);
TSH_API tsh_status tsh_reduce_scatter_tensor_async(tsh_group *group, tsh_tensor *out, const tsh_tensor *in,
                                                   tsh_reduce_op op, const int64_t *counts, tsh_work **work);
TSH_API tsh_status tsh_broadcast_async(tsh_group *group, tsh_tensor *tensor, int root, tsh_work **work);
TSH_API tsh_status tsh_all_to_all_async(tsh_group *group, tsh_tensor *out, const int64_t *out_counts,
                                        const tsh_tensor *in, const int64_t *in_counts, tsh_work **work);
TSH_API tsh_status tsh_reduce_to_root_async(tsh_group *group, tsh_tensor *tensor, tsh_reduce_op op, int root,
                                            tsh_work **work);
TSH_API tsh_status tsh_gather_to_root_async(tsh_group *group, tsh_tensor *out, const tsh_tensor *in,
                                            const int64_t *counts, int root, tsh_work **work);
TSH_API tsh_status tsh_scatter_from_root_async(tsh_group *group, tsh_tensor *out, const tsh_tensor *in,
                                               const int64_t *counts, int root, tsh_work **work);
TSH_API tsh_status tsh_barrier_async(tsh_group *group, tsh_work **work);
TSH_API tsh_status tsh_all_gather_list_async(tsh_group *group, tsh_tensor *const *outs, const tsh_tensor *in,
                                             tsh_work **work);
TSH_API tsh_status tsh_reduce_scatter_list_async(tsh_group *group, tsh_tensor *out, const tsh_tensor *const *ins,
                                                 tsh_reduce_op op, tsh_work **work);
TSH_API tsh_status tsh_all_to_all_list_async(tsh_group *group, tsh_tensor *const *outs, const tsh_tensor *const *ins,
                                             tsh_work **work);

/* --- point to point ----------------------------------------------------------------------------------------------- */

#define TSH_ANY_RANK (-1)

/* Messages between two ranks of a group, on their own, not in the order of collectives. Messages of one pair arrive in
 * the order in which they were sent. The receiver's tensor has the sender's dtype and number of elements
 * (TSH_ERR_MISMATCH on both sides; the sender of a message so small that it has left already hears of it in its next
 * send or receive in the group). To oneself: TSH_ERR_ARGUMENT. tsh_send_async and tsh_recv_async do not wait, and any set of them that
 * pairs up completes, whatever the order of the waits.
 * from: a group rank or TSH_ANY_RANK; *sender (may be NULL): the rank it came from. */
TSH_API tsh_status tsh_send(tsh_group *group, const tsh_tensor *tensor, int to);
TSH_API tsh_status tsh_recv(tsh_group *group, tsh_tensor *tensor, int from, int *sender);
TSH_API tsh_status tsh_send_async(tsh_group *group, const tsh_tensor *tensor, int to, tsh_work **work);
TSH_API tsh_status tsh_recv_async(tsh_group *group, tsh_tensor *tensor, int from, tsh_work **work);
/* The sender of a receive that is done, else TSH_ANY_RANK. */
TSH_API int tsh_work_sender(const tsh_work *work);
/* Ship shape, dtype and then the elements; the receiver gets a new tensor on `mesh`, LOCAL along every axis. */
TSH_API tsh_status tsh_send_new(tsh_group *group, const tsh_tensor *tensor, int to);
TSH_API tsh_status tsh_recv_new(tsh_group *group, const tsh_mesh *mesh, int from, int *sender, tsh_tensor **out);

typedef enum tsh_collective {
    TSH_COLLECTIVE_ALL_REDUCE = 0,
    TSH_COLLECTIVE_ALL_GATHER,
    TSH_COLLECTIVE_REDUCE_SCATTER,
    TSH_COLLECTIVE_BROADCAST,
    TSH_COLLECTIVE_ALL_TO_ALL,
    TSH_COLLECTIVE_BARRIER,
    TSH_COLLECTIVE_REDUCE,
    TSH_COLLECTIVE_GATHER,
    TSH_COLLECTIVE_SCATTER,
    TSH_COLLECTIVE_SEND,
    TSH_COLLECTIVE_RECV,
    TSH_COLLECTIVE_COUNT
} tsh_collective;

/* "all_reduce", ... */
TSH_API const char *tsh_collective_name(tsh_collective op);

/* What this rank has done in a group since its creation or the last reset. bytes: what a ring algorithm would send from
 * one rank, p ranks, T logical bytes: all_gather and reduce_scatter T(p-1)/p, all_reduce twice that, broadcast,
 * reduce, gather and scatter T(p-1)/p, send its bytes, all_to_all T(p-1)/p^2 with T summed over ranks (here: what this
 * rank sends to others). seconds: time spent inside the calls. */
typedef struct tsh_communication_stats {
    uint64_t calls[TSH_COLLECTIVE_COUNT];
    uint64_t bytes[TSH_COLLECTIVE_COUNT];
    double seconds;
} tsh_communication_stats;

/* The counters of this rank, and zero them. Not collective. */
TSH_API tsh_communication_stats tsh_group_stats(const tsh_group *group);
TSH_API void tsh_group_reset_stats(tsh_group *group);

/* Whether `op` runs on `dtype` in this group (reductions: with `reduce`). Pure. */
TSH_API bool tsh_group_supports(const tsh_group *group, tsh_collective op, tsh_dtype dtype, tsh_reduce_op reduce);
/* The same without a world: for a backend ("self", "local", "mpi", "nccl") and the kind of device that tensors are on.
 * false for one that this build has not, too. Pure. */
TSH_API bool tsh_backend_supports(const char *backend, tsh_device_kind device, tsh_collective op, tsh_dtype dtype,
                                  tsh_reduce_op reduce);

#ifdef __cplusplus
}
#endif

#endif
