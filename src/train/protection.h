/* Values that outlive ranks: the copies, and the steps to which they belong. */
#ifndef TSHI_PROTECTION_H
#define TSHI_PROTECTION_H

#include "train/optimizer.h"

/* Copies of the boxes of other ranks: one is whole, and the next one may be in flight. */
#define TSHI_COPIES 2

/* The numbers of a step, beside its tensors. */
typedef struct tshi_progress {
    int64_t step; /* steps completed; -1: no step */
    uint64_t seed, next_stream;
    double lr;
    int64_t *steps; /* [slots] of the optimizer */
} tshi_progress;

/* A tensor that is protected. */
typedef struct tshi_protected {
    char *name; /* "layer.weight", "layer.weight.exp_avg" */
    tsh_tensor *tensor;
    size_t own_at; /* bytes before it in the copy of this rank's boxes */
} tshi_protected;

/* A rank whose boxes this one holds: those of item i in copy n are boxes[n % TSHI_COPIES][i], or NULL where that rank
 * has none. */
typedef struct tshi_ward {
    int rank;
    tsh_tensor **boxes[TSHI_COPIES];
} tshi_ward;

/* A copy goes from the tensors themselves into memory of the holder, in the background, until the optimizer is about to
 * step. Then the ranks agree that all parts have arrived, and only now each rank's own copy of its boxes is replaced.
 *
 *   what a rank has of step         before copy k + 1   while it is sent          after the agreement
 *   k,     of its own boxes         own                 own                       -
 *   k,     of its wards' boxes      a copy              a copy                    a copy, which k + 2 replaces
 *   k + 1, of its own boxes         -                   the tensors               own
 *   k + 1, of its wards' boxes      -                   a part of a copy          a copy
 *
 * Invariant: after the death of a rank, or of all ranks of a machine, the others together hold all values of step k, or
 * all of step k + 1. Before the agreement no rank has replaced what it has of step k. A rank that finds the agreement
 * made knows that all parts of k + 1 have arrived, and that no rank has stepped since; one that finds it broken has not
 * stepped either. */
struct tsh_protection {
    tsh_world *world;
    tsh_group *group; /* of all ranks, for the copies' messages */
    tshi_protected *items;
    int count;
    tsh_optimizer *optimizer; /* or NULL */
    int slots, every, holder;
    tshi_ward *wards;
    int ward_count;
    int64_t copies_made;
    tshi_progress now;    /* at the last tsh_protection_step */
    uint64_t fingerprint; /* of the tensors' versions then: a step in progress may change them */
    tshi_progress kept;   /* of `own` */
    tsh_tensor *own;      /* bytes: the copy of this rank's boxes */
    struct {
        int64_t step; /* -1: there is none */
        bool arrived; /* all of its parts */
    } copy[TSHI_COPIES];
    /* In flight: receives of the copy, then sends. */
    tsh_work **works;
    int receives, works_count;
};

/* The rank that holds the boxes of that one: the next rank, or, where there are several machines, one of the next
 * machine, so that all ranks of a machine may die. */
int tshi_protection_holder(const tsh_world *world, int rank);
/* The tensors of a list and its optimizer, in an order that only names and kinds determine. The caller frees them with
 * tshi_protected_free. TSH_ERR_LAYOUT for a PARTIAL or LOCAL one. */
tsh_status tshi_protected_list(const tsh_parameters *list, const tsh_optimizer *optimizer, tshi_protected **out,
                               int *count);
void tshi_protected_free(const tsh_allocator *allocator, tshi_protected *items, int count);
/* The box of a rank; without elements where the rank is no member of the mesh. */
tsh_box tshi_protected_box(const tsh_tensor *tensor, int rank);
/* The values are still those of protection->now. */
bool tshi_protection_is_current(const tsh_protection *protection);

#endif
