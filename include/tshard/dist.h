/* dist: worlds, groups, meshes, and collectives on the memory of tensors.
 *
 * "Collective" means that every rank of the group makes the call, in the same order, with matching arguments. A
 * blocking call returns when this rank's part is done and its buffers may be reused. Calls that do not match
 * (operation, dtype, count, root) return TSH_ERR_MISMATCH on every rank; a wrong argument on one rank is an error
 * there, and TSH_ERR_PEER on its peers. Any call that waits may return TSH_ERR_PEER (a peer failed or died) or
 * TSH_ERR_TIMEOUT. The rules are in docs/collectives.md, docs/failures.md and, for GPUs, docs/gpus.md.
 *
 * Thread safety: the world's thread, apart from the functions that docs/threads.md names. */
#ifndef TSHARD_DIST_H
#define TSHARD_DIST_H

#include "tshard/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All ranks of a job, and the connections of this rank to them. */
typedef struct tsh_world tsh_world;

/* --- world -------------------------------------------------------------------------------------------------------- */

/* The rendezvous of ranks that are threads of one process (for sanitizers and embedding). Create it before the threads
 * start, and destroy it after every thread has destroyed its world. */
typedef struct tsh_thread_rendezvous tsh_thread_rendezvous;
TSH_API tsh_status tsh_thread_rendezvous_create(int world_size, tsh_thread_rendezvous **out);
TSH_API void tsh_thread_rendezvous_destroy(tsh_thread_rendezvous *threads);

/* Zeroed members take the value of the environment, then the default. */
typedef struct tsh_world_config {
    int rank, world_size;    /* both, in place of launchers' variables; or neither (world_size 0) */
    const char *init_method; /* how the ranks find each other; TSHARD_INIT, default "env://":
                              *   env://            MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE
                              *   tcp://HOST:PORT   rank 0 listens there; with a multicast HOST (239.1.2.3, [ff15::1])
                              *                     ranks are assigned when all have arrived
                              *   file:///PATH      a file that every rank can lock; ranks are assigned
                              *   mpi://            the ranks of MPI_COMM_WORLD, with the mpi backend */
    const char *group_name;  /* TSHARD_GROUP, default "": jobs with different names may share an address or a file */
    tsh_thread_rendezvous *threads; /* for ranks that are threads of one process; rank is then required */
    tsh_device_kind device;         /* where tensors live; TSHARD_DEVICE (cpu or cuda), default the CPU */
    double timeout;                 /* seconds; TSHARD_TIMEOUT, default 600 (rendezvous: at most 120) */
    size_t heap_bytes;  /* address space for this rank's tensors; TSHARD_HEAP (bytes, or 512M, 4G), default all of the
                        * machine's memory. Pages are allocated when they are first used. */
    int blas_threads;   /* of this rank; TSHARD_BLAS_THREADS, default: granted cores / ranks on the machine */
    uint64_t seed;      /* TSHARD_SEED, default 0: see tsh_world_seed */
    bool deterministic; /* or TSHARD_DETERMINISTIC: the same bits of losses and gradients at any number of ranks, see
                         * docs/layouts.md; the same on every rank */
    tsh_log_sink log;
    tsh_allocator allocator;
} tsh_world_config;

/* Join the world; without RANK in the environment it has one rank. Collective; waits at most 120 s for all ranks, and
 * warns every 5 s (TSHARD_WARN) of missing ones. config may be NULL. Ranks on several machines start MPI; ranks on GPUs
 * need no MPI, as NCCL moves their data, and start it only if an MPI launcher has started them. A call that starts MPI
 * without an MPI launcher sets environment variables, so no other thread may use the environment during it. A program
 * that uses MPI itself calls tsh_world_init_mpi (mpi.h). TSH_ERR_ARGUMENT for malformed or contradicting variables that
 * the configuration does not replace, TSH_ERR_TIMEOUT, TSH_ERR_SYSTEM, TSH_ERR_MEMORY; TSH_ERR_UNSUPPORTED when the
 * build lacks the backend, and on GPUs of several machines when a rank cannot use NCCL; TSH_ERR_STATE when MPI already
 * runs with other ranks; TSH_ERR_PEER when a rank is lost during the call. */
TSH_API tsh_status tsh_world_init(const tsh_world_config *config, tsh_world **out);
/* Leave the world. Not collective, but ranks that still wait for this one get TSH_ERR_PEER. The caller first destroys
 * the groups, meshes, tensors and tapes of the world, and all objects that hold them. Objects that are still alive are
 * listed in the log, lose their memory, and can only be released or destroyed. */
TSH_API void tsh_world_destroy(tsh_world *world);

/* True if this rank has joined a running job: TSHARD_JOIN, which tshard-run --join sets, was the job's address, and
 * tsh_world_init has waited until the job's ranks took this rank in (tsh_world_joiners). tsh_protection_move gives such
 * a rank the values and the step of the others. */
TSH_API bool tsh_world_has_joined(const tsh_world *world);
/* This rank, the number of ranks, and the index of this rank among those on its machine. */
TSH_API int tsh_world_rank(const tsh_world *world);
TSH_API int tsh_world_size(const tsh_world *world);
TSH_API int tsh_world_local_rank(const tsh_world *world);
/* The number of machines that the ranks run on. */
TSH_API int tsh_world_node_count(const tsh_world *world);
/* True when the backend reports that collectives between machines go over RDMA; the transport chooses, not tshard. */
TSH_API bool tsh_world_uses_rdma(const tsh_world *world);
/* This rank's device. Owned by the world. */
TSH_API tsh_device *tsh_world_device(const tsh_world *world);
/* The group of all ranks and its one-axis mesh, "world=N". Owned by the world. */
TSH_API tsh_group *tsh_world_group(const tsh_world *world);
TSH_API const tsh_mesh *tsh_world_mesh(const tsh_world *world);

/* Random numbers (Philox 4x32-10) are keyed by (seed, stream, global element index). Each initialisation of a parameter
 * and each dropout takes the next stream, so a program that makes the same calls draws the same values at any number of
 * ranks. tsh_world_seed sets the seed and starts again at stream 0. Not collective; every rank makes the same call. */
TSH_API void tsh_world_seed(tsh_world *world, uint64_t seed);

/* Report that this rank cannot continue: until tsh_world_recover, pending and later calls of its peers return
 * TSH_ERR_PEER with "rank 2: reason", and its own calls return TSH_ERR_STATE. Only the first reason counts. Does not
 * wait. */
TSH_API void tsh_world_fail(tsh_world *world, const char *reason);
/* Make the world usable again after failures (not deaths): drops the failures and the calls in flight, and brings all
 * ranks to the same random stream and the same step of each tape (a step that is in progress on all ranks may
 * continue). Collective over the world, waits. Programs that work in steps need not call it: tsh_tape_reset does.
 * TSH_ERR_PEER or TSH_ERR_TIMEOUT when a rank does not make the call. See docs/failures.md. */
TSH_API tsh_status tsh_world_recover(tsh_world *world);

/* Options of tsh_world_continue, the same on every rank apart from `step`. */
typedef struct tsh_continue_config {
    int64_t step;  /* the number of steps that this rank's optimizer has completed */
    int min_ranks; /* TSHARD_MIN_RANKS, default 1: with fewer ranks the job ends */
    double wait;   /* seconds to wait for living ranks to make the call; default: the world's timeout */
} tsh_continue_config;

/* What the ranks have agreed on. */
typedef struct tsh_continued {
    int former_size, former_rank; /* of the world that has broken */
    /* The smallest and the largest `step` of the ranks. They differ if some ranks had completed a step when they
     * noticed the death and others had not: tsh_protection_move takes all ranks to one step. */
    int64_t first_step, last_step;
    int joined; /* ranks that have joined: the last ones of the new world */
} tsh_continued;

/* *count = the number of ranks that wait to join, at most 16, the same on every rank. If it is above 0, all ranks call
 * tsh_world_continue, which takes the waiting ranks in. The first call opens the job's entrance: rank 0 listens at
 * MASTER_ADDR and MASTER_PORT, or at the address of tcp://HOST:PORT, for ranks that have the job's token. Costs two
 * small messages a rank. Collective over the world, waits. TSH_ERR_UNSUPPORTED for worlds that cannot continue, and
 * with file:// or a multicast address; TSH_ERR_SYSTEM when rank 0 cannot listen. */
TSH_API tsh_status tsh_world_joiners(tsh_world *world, int *count);

/* Continue with other ranks: with fewer, after a call has returned TSH_ERR_PEER or TSH_ERR_TIMEOUT because ranks have
 * died or are lost; with more, after tsh_world_joiners has found ranks that wait; or both. All living ranks make the
 * call, and get a new world: first the ranks that have made the call, in the order of their former ranks, then those
 * that join. `world` remains, broken, so that its tensors can be read, until the caller destroys it. Ranks that die
 * during the call are left out. A rank that is alive but does not make the call within `wait` is lost: if it makes the
 * call later, it gets TSH_ERR_STATE. The ranks of rank 0's machine decide: a rank that cannot reach them gets
 * TSH_ERR_TIMEOUT. Collective, waits. config and what may be NULL. TSH_ERR_STATE if no rank is lost or waits to join,
 * or if the world has been continued already; TSH_ERR_PEER with fewer than min_ranks; TSH_ERR_UNSUPPORTED over MPI and
 * NCCL, on GPUs, and where ranks are threads. See docs/elastic.md. */
TSH_API tsh_status tsh_world_continue(tsh_world *world, const tsh_continue_config *config, tsh_world **out,
                                      tsh_continued *what);

/* --- groups and meshes -------------------------------------------------------------------------------------------- */

/* A group of world ranks[0..n), in that order, owned by the caller. Collective over the WORLD; lists that differ by
 * rank are TSH_ERR_MISMATCH. Ranks outside the group get *out = NULL and TSH_OK. */
TSH_API tsh_status tsh_group_create(tsh_world *world, const int *ranks, int n, tsh_group **out);
/* A group of ranks[0..n) of `parent`, collective only over parent; otherwise as tsh_group_create. */
TSH_API tsh_status tsh_group_create_in(tsh_group *parent, const int *ranks, int n, tsh_group **out);
/* The ranks of parent with equal colors become a group, in the order of (key, parent rank). A rank with a negative
 * color joins no group: *out = NULL. Collective over parent. */
TSH_API tsh_status tsh_group_split(tsh_group *parent, int color, int key, tsh_group **out);
/* Not collective; call it after the group's last call and after its works are released. A group that a mesh or the
 * world owns does not change: its owner destroys it. */
TSH_API void tsh_group_destroy(tsh_group *group);
/* This rank's number in the group, and the number of the group's ranks. */
TSH_API int tsh_group_rank(const tsh_group *group);
TSH_API int tsh_group_size(const tsh_group *group);
/* Group rank to world rank and back; -1 for a rank outside the group. */
TSH_API int tsh_group_world_rank(const tsh_group *group, int group_rank);
TSH_API int tsh_group_rank_of(const tsh_group *group, int world_rank);
/* "self", "local", "ucx", "mpi" or "nccl": the backend that moves the group's data. */
TSH_API const char *tsh_group_backend(const tsh_group *group);
TSH_API tsh_world *tsh_group_world(const tsh_group *group);
/* The mesh whose axis the group is. A group that was not made by a mesh is the only axis of a mesh of its own. */
TSH_API const tsh_mesh *tsh_group_mesh(const tsh_group *group);

/* The part that rank `index` of the group holds of a dim of n >= 0 items that is SHARD along the group: *length items
 * from *start on, by the weights of the group's mesh axis if it has any, else balanced; either may be NULL. Invalid
 * arguments set both to 0. */
TSH_API void tsh_group_part(const tsh_group *group, int64_t n, int index, int64_t *start, int64_t *length);

/* weights[0..size) = the measured speed of each of the group's ranks, from 1 to 20: for about a second all ranks run
 * matrix products and copy memory at the same time. Every rank gets the same numbers; in a dry run all are 1. Other
 * work on the machines distorts them. TSH_ERR_ARGUMENT. Collective over the group, waits. */
TSH_API tsh_status tsh_group_measure(tsh_group *group, int64_t *weights);

/* A mesh of the world's ranks: "data=2,model=2" numbers them with the last axis fastest, so that model groups are
 * contiguous blocks. One size may be -1, and is then computed from the others. The product must be the world's size
 * (TSH_ERR_ARGUMENT names both numbers). Owned by the caller. Collective over the world.
 *
 * "model=3:1" is an axis of two ranks with weights: dims that are SHARD along it are split as by tsh_split_by_weight,
 * in items or in the layout's units and blocks, so that machines of different speed finish together. Everything that
 * follows from layouts follows the weights: batches, heads, vocabularies, gradients, ZeRO slices, checkpoints. A rank
 * of weight 0 holds nothing. REPLICATED, PARTIAL and LOCAL do not depend on weights, and equal weights give the
 * balanced split. Weights are from 0 to 2147483647, at least one of them above 0. "model=auto" is "model=-1" with
 * weights measured as by tsh_group_measure; if the axis has several groups, an index gets the smallest weight that its
 * ranks have measured. tsh_mesh_create_on does not take "auto". */
TSH_API tsh_status tsh_mesh_create(tsh_world *world, const char *axes, tsh_mesh **out);
/* A mesh of a group's ranks. Owned by the caller. Collective over parent. */
TSH_API tsh_status tsh_mesh_create_in(tsh_group *parent, const char *axes, tsh_mesh **out);
/* A mesh of world ranks[0..n) in any order, row-major over the axes: {2,3,0,1} as "stage=2,model=2" has the stages
 * {2,3} and {0,1}. Several meshes may share ranks. On ranks outside the mesh *out is a mesh too, whose tensors are
 * empty and whose functions and collectives do nothing, so that all ranks can run one program. Owned by the caller.
 * Collective over the world. */
TSH_API tsh_status tsh_mesh_create_on(tsh_world *world, const int *ranks, int n, const char *axes, tsh_mesh **out);
/* The part of a mesh in which the named axis has this index: a mesh of the other axes (a mesh with only that axis keeps
 * it, with one rank). Owned by the caller. Collective over the mesh. */
TSH_API tsh_status tsh_mesh_fix(const tsh_mesh *mesh, const char *axis, int index, tsh_mesh **out);
/* True on a rank that is a member of the mesh. */
TSH_API bool tsh_mesh_is_member(const tsh_mesh *mesh);
/* The group of all members, row-major. Owned by the mesh, or by its parent. */
TSH_API tsh_group *tsh_mesh_members(const tsh_mesh *mesh);
TSH_API void tsh_mesh_destroy(tsh_mesh *mesh);
/* This rank's group along the named axis, owned by the mesh; NULL for an unknown name, with a message that lists the
 * mesh's axes. */
TSH_API tsh_group *tsh_mesh_group(const tsh_mesh *mesh, const char *axis);
TSH_API int tsh_mesh_axes(const tsh_mesh *mesh);
TSH_API tsh_group *tsh_mesh_axis_group(const tsh_mesh *mesh, int axis);
TSH_API const char *tsh_mesh_axis_name(const tsh_mesh *mesh, int axis);
TSH_API tsh_world *tsh_mesh_world(const tsh_mesh *mesh);

/* --- collectives -------------------------------------------------------------------------------------------------- */

/* AVG is for floats and complex, MIN and MAX for floats and integers, BAND, BOR and BXOR for integers. */
typedef enum tsh_reduce_op {
    TSH_REDUCE_SUM = 0,
    TSH_REDUCE_PROD,
    TSH_REDUCE_MIN,
    TSH_REDUCE_MAX,
    TSH_REDUCE_AVG,
    TSH_REDUCE_BAND,
    TSH_REDUCE_BOR,
    TSH_REDUCE_BXOR,
    TSH_REDUCE_OP_COUNT
} tsh_reduce_op;

/* Collectives work on memory: shapes matter only where the comment says so, layouts and gradients not at all. Their
 * arguments have one order: the group, what is sent, what is received, counts, the reduction, the root. */

/* tensor = op over ranks of tensor, in place, with the same bits on every rank. The shape is the same on every rank. */
TSH_API tsh_status tsh_all_reduce(tsh_group *group, tsh_tensor *tensor, tsh_reduce_op op);
/* into = into o from, item by item, for count > 0 elements, where `into` comes from lower ranks; o is associative, and
 * need not commute. */
typedef void tsh_join_fn(void *user, tsh_dtype dtype, int64_t count, const void *from, void *into);
/* tsh_all_reduce with the program's function: items of `item` elements each (pairs, matrices) are joined in rank order,
 * each on one rank, with the same bits on every rank. item and join are the same on every rank. Runs as an all-to-all
 * of slices and an all-gather, which together send as much as a ring all-reduce; waits. TSH_ERR_UNSUPPORTED for GPU
 * memory. */
TSH_API tsh_status tsh_all_reduce_with(tsh_group *group, tsh_tensor *tensor, int64_t item, tsh_join_fn *join,
                                       void *user);
/* out on every rank = the `in` of all ranks, in the order of ranks. in holds counts[rank] elements, out their sum;
 * counts NULL: the balanced split of out's dim 0, whatever the weights of the group's axis. in may be this rank's part
 * of out. */
TSH_API tsh_status tsh_all_gather_into_tensor(tsh_group *group, const tsh_tensor *in, tsh_tensor *out,
                                              const int64_t *counts);
/* out = this rank's part of (op over ranks of in). out holds counts[rank] elements, in their sum; counts NULL: as
 * for tsh_all_gather_into_tensor. out may be this rank's part of in; otherwise in does not change. */
TSH_API tsh_status tsh_reduce_scatter_tensor(tsh_group *group, const tsh_tensor *in, tsh_tensor *out,
                                             const int64_t *counts, tsh_reduce_op op);
/* tensor on every rank = tensor of `root`, a rank of the group. In this and the other calls with a root, a rank that
 * receives nothing may return early and learn of a mismatch in a later call (docs/collectives.md). */
TSH_API tsh_status tsh_broadcast(tsh_group *group, tsh_tensor *tensor, int root);
/* in_counts[j] elements of in, in the order of ranks, go to rank j; out_counts[i] elements come from rank i into out.
 * NULL: equal parts (the number of elements must divide). in_counts[j] of rank i must be out_counts[i] of rank j. out
 * and in do not overlap. */
TSH_API tsh_status tsh_all_to_all(tsh_group *group, const tsh_tensor *in, const int64_t *in_counts, tsh_tensor *out,
                                  const int64_t *out_counts);
/* tensor on `root` = op over ranks of tensor; on the other ranks it does not change. */
TSH_API tsh_status tsh_reduce_to_root(tsh_group *group, tsh_tensor *tensor, tsh_reduce_op op, int root);
/* out on `root` = the `in` of all ranks, in the order of ranks; out is NULL on the other ranks. counts as for
 * tsh_all_gather_into_tensor; NULL on a rank without out means equal parts. On the root, in may be its part of out. */
TSH_API tsh_status tsh_gather_to_root(tsh_group *group, const tsh_tensor *in, tsh_tensor *out, const int64_t *counts,
                                      int root);
/* out on every rank = its part of `in` of `root`; in is NULL on the other ranks. counts as for tsh_gather_to_root. */
TSH_API tsh_status tsh_scatter_from_root(tsh_group *group, const tsh_tensor *in, tsh_tensor *out, const int64_t *counts,
                                         int root);
/* Returns when every rank of the group has made the call. */
TSH_API tsh_status tsh_barrier(tsh_group *group);

/* Collectives with an array of tensors, one for each rank of the group (r is the calling rank). Sizes may differ by
 * tensor; sender and receiver must agree.
 *   all_gather      outs[i] = in of rank i
 *   reduce_scatter  out = op over ranks i of ins[r] of rank i
 *   all_to_all      outs[i] = ins[r] of rank i */
TSH_API tsh_status tsh_all_gather_list(tsh_group *group, const tsh_tensor *in, tsh_tensor *const *outs);
TSH_API tsh_status tsh_reduce_scatter_list(tsh_group *group, const tsh_tensor *const *ins, tsh_tensor *out,
                                           tsh_reduce_op op);
TSH_API tsh_status tsh_all_to_all_list(tsh_group *group, const tsh_tensor *const *ins, tsh_tensor *const *outs);

/* --- asynchronous calls ------------------------------------------------------------------------------------------- */

/* A call in flight. It holds references to its tensors, and a copy of its counts, until it is released; the tensors
 * must not be used before the call is done. Calls in one group, blocking ones included, run in the order in which they
 * were started. Asynchronous calls progress only inside library calls; there is no progress thread. */
typedef struct tsh_work tsh_work;

/* Progresses the call without waiting: *done tells whether it has ended. Returns the call's status; TSH_OK while it
 * runs. */
TSH_API tsh_status tsh_work_test(tsh_work *work, bool *done);
/* Waits until the call has ended, and returns its status. May be called again. */
TSH_API tsh_status tsh_work_wait(tsh_work *work);
/* Releases the work; waits for a call that has not ended. NULL is accepted. */
TSH_API void tsh_work_release(tsh_work *work);

/* Start the blocking call of the same name, and return. The caller releases *work; it is NULL on failure. */
TSH_API tsh_status tsh_all_reduce_async(tsh_group *group, tsh_tensor *tensor, tsh_reduce_op op, tsh_work **work);
TSH_API tsh_status tsh_all_gather_into_tensor_async(tsh_group *group, const tsh_tensor *in, tsh_tensor *out,
                                                    const int64_t *counts, tsh_work **work);
TSH_API tsh_status tsh_reduce_scatter_tensor_async(tsh_group *group, const tsh_tensor *in, tsh_tensor *out,
                                                   const int64_t *counts, tsh_reduce_op op, tsh_work **work);
TSH_API tsh_status tsh_broadcast_async(tsh_group *group, tsh_tensor *tensor, int root, tsh_work **work);
TSH_API tsh_status tsh_all_to_all_async(tsh_group *group, const tsh_tensor *in, const int64_t *in_counts,
                                        tsh_tensor *out, const int64_t *out_counts, tsh_work **work);
TSH_API tsh_status tsh_reduce_to_root_async(tsh_group *group, tsh_tensor *tensor, tsh_reduce_op op, int root,
                                            tsh_work **work);
TSH_API tsh_status tsh_gather_to_root_async(tsh_group *group, const tsh_tensor *in, tsh_tensor *out,
                                            const int64_t *counts, int root, tsh_work **work);
TSH_API tsh_status tsh_scatter_from_root_async(tsh_group *group, const tsh_tensor *in, tsh_tensor *out,
                                               const int64_t *counts, int root, tsh_work **work);
TSH_API tsh_status tsh_barrier_async(tsh_group *group, tsh_work **work);
TSH_API tsh_status tsh_all_gather_list_async(tsh_group *group, const tsh_tensor *in, tsh_tensor *const *outs,
                                             tsh_work **work);
TSH_API tsh_status tsh_reduce_scatter_list_async(tsh_group *group, const tsh_tensor *const *ins, tsh_tensor *out,
                                                 tsh_reduce_op op, tsh_work **work);
TSH_API tsh_status tsh_all_to_all_list_async(tsh_group *group, const tsh_tensor *const *ins, tsh_tensor *const *outs,
                                             tsh_work **work);

/* --- point to point ----------------------------------------------------------------------------------------------- */

/* In place of a rank: receive from any rank. */
#define TSH_ANY_RANK (-1)

/* Messages between two ranks of a group. Messages between one pair of ranks do not overtake each other. A batch never
 * deadlocks: _async calls of one group that each rank makes one after another, in any order, before it waits for them,
 * also in any order. Other messages complete if all ranks make their calls, collectives too, in one order, as with NCCL
 * and MPI_Ssend. On CPUs messages are not ordered with collectives, and any set of messages in which each send has its
 * receive completes.
 * The receiver's tensor must have the sender's dtype and number of elements, else both get TSH_ERR_MISMATCH, and a
 * sender that has already returned gets it from its next send or receive in the group; NCCL does not notice it. A rank
 * that sends to itself gets TSH_ERR_ARGUMENT. from: a group rank, or, but not over NCCL (TSH_ERR_UNSUPPORTED),
 * TSH_ANY_RANK; *sender (may be NULL): the rank that sent. */
TSH_API tsh_status tsh_send(tsh_group *group, const tsh_tensor *tensor, int to);
TSH_API tsh_status tsh_recv(tsh_group *group, tsh_tensor *tensor, int from, int *sender);
TSH_API tsh_status tsh_send_async(tsh_group *group, const tsh_tensor *tensor, int to, tsh_work **work);
TSH_API tsh_status tsh_recv_async(tsh_group *group, tsh_tensor *tensor, int from, tsh_work **work);
/* The sender, for a receive that has ended; otherwise TSH_ANY_RANK. */
TSH_API int tsh_work_sender(const tsh_work *work);
/* Send shape and dtype, then the elements. The receiver gets a new tensor on `mesh`, LOCAL along every axis, which its
 * caller releases. */
TSH_API tsh_status tsh_send_new(tsh_group *group, const tsh_tensor *tensor, int to);
TSH_API tsh_status tsh_recv_new(tsh_group *group, const tsh_mesh *mesh, int from, int *sender, tsh_tensor **out);

/* The kinds of calls that a group counts. */
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

/* "all_reduce", ...; "unknown collective" for any other value. */
TSH_API const char *tsh_collective_name(tsh_collective op);

/* Counts of this rank's calls in a group since its creation or the last reset. bytes is what a rank would send in a
 * ring algorithm, with p ranks and T logical bytes: all_reduce 2T(p-1)/p; all_gather, reduce_scatter, broadcast,
 * reduce, gather and scatter T(p-1)/p; send T; all_to_all T(p-1)/p^2 with T summed over ranks (counted: what this rank
 * sends to its peers). seconds: the time spent in the calls. */
typedef struct tsh_communication_stats {
    uint64_t calls[TSH_COLLECTIVE_COUNT];
    uint64_t bytes[TSH_COLLECTIVE_COUNT];
    double seconds;
} tsh_communication_stats;

/* Read this rank's counters; set them to zero. Not collective. */
TSH_API tsh_communication_stats tsh_group_stats(const tsh_group *group);
TSH_API void tsh_group_reset_stats(tsh_group *group);

/* True when `op` works on `dtype` in this group (for reductions: with `reduce`). Pure. */
TSH_API bool tsh_group_supports(const tsh_group *group, tsh_collective op, tsh_dtype dtype, tsh_reduce_op reduce);
/* As tsh_group_supports, for a backend ("self", "local", "ucx", "mpi", "nccl") and a kind of device, without a world.
 * False for a backend or device that this build lacks. Pure. */
TSH_API bool tsh_backend_supports(const char *backend, tsh_device_kind device, tsh_collective op, tsh_dtype dtype,
                                  tsh_reduce_op reduce);

#ifdef __cplusplus
}
#endif

#endif
