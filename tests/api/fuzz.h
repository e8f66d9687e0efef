/* Random public calls. All ranks draw each step's call and arguments from one stream, so that they match; now and then
 * each rank draws its own, what follows is an error on some of them, and the world is recovered.
 *
 * Objects lie in slots. A slot's stamp tells the step that filled it: where the ranks' stamps differ after a step that
 * went wrong, the slot is emptied on all of them, so that the next step's arguments match again. */
#ifndef TSHI_TEST_FUZZ_H
#define TSHI_TEST_FUZZ_H

#include "support/ranks.h"
#include "tshard/graph.h"
#include "tshard/tshard.h"

enum { FUZZ_RANKS = 4, FUZZ_SLOTS = 12, FUZZ_WORDS = 256 };

typedef enum fuzz_kind {
    FUZZ_MESH,  /* slot 0: the world's own */
    FUZZ_GROUP, /* slot 0: the world's own */
    FUZZ_TENSOR,
    FUZZ_TAPE,
    FUZZ_VALUE, /* a tape's tensor, with it for a parent */
    FUZZ_WORK,
    FUZZ_LIST,
    FUZZ_LINEAR,
    FUZZ_EMBEDDING,
    FUZZ_OPTIMIZER,
    FUZZ_DATA_PARALLEL,
    FUZZ_EVENT,
    FUZZ_WORLD, /* of this rank alone */
    FUZZ_KINDS
} fuzz_kind;

typedef struct fuzz_slot {
    void *object;
    uint64_t stamp;     /* 0: never filled */
    const void *parent; /* a tensor's mesh, a value's tape */
} fuzz_slot;

typedef struct fuzz {
    tshi_rank *rank;
    tsh_world *world;
    tsh_thread_rendezvous *threads; /* NULL: ranks are processes */
    int size;
    uint64_t seed, step, stamp; /* stamp: of what this step makes */
    uint64_t draw;              /* state of the generator for this step */
    fuzz_slot slots[FUZZ_KINDS][FUZZ_SLOTS];
    int64_t allocated; /* by the world, not yet released */
    /* What the step's calls have said. */
    tsh_status status; /* the last that was not TSH_OK */
    bool deviates;     /* each rank makes a call of its own */
    bool severe;       /* another rank had a part in a failure */
    bool failed;       /* the world is to be recovered */
    char wrong[FUZZ_WORDS];
} fuzz;

typedef void fuzz_fn(fuzz *f, void (*function)(void));

typedef struct fuzz_call {
    const char *name;
    fuzz_fn *make;
    void (*function)(void); /* the public function, for calls that share one `make` */
    int weight;
} fuzz_call;

/* Tables that end with a NULL name. */
extern const fuzz_call fuzz_tensor_calls[], fuzz_dist_calls[], fuzz_autograd_calls[], fuzz_train_calls[],
    fuzz_layer_calls[], fuzz_io_calls[];
/* Where calls on files write; removed at the end. */
extern const char *fuzz_folder;

void fuzz_make_mesh(fuzz *f, void (*function)(void));
void fuzz_make_tensor(fuzz *f, void (*function)(void));
void fuzz_make_tape(fuzz *f, void (*function)(void));
/* The calls that make objects; the weight is the kind. */
extern const fuzz_call fuzz_makers[];

/* --- drawing ------------------------------------------------------------------------------------------------------ */

uint64_t fuzz_bits(fuzz *f);
int fuzz_below(fuzz *f, int n); /* [0, n) */
bool fuzz_chance(fuzz *f, int percent);
/* Mostly [0, n), seldom far out of it. */
int fuzz_index(fuzz *f, int n);
int fuzz_dim(fuzz *f);
tsh_dtype fuzz_dtype(fuzz *f);
tsh_layout fuzz_layout(fuzz *f);
tsh_reduce_op fuzz_reduce(fuzz *f);
double fuzz_number(fuzz *f);

/* --- objects ------------------------------------------------------------------------------------------------------ */

/* An object of that kind, or NULL: where there is none, and seldom otherwise. */
void *fuzz_pick(fuzz *f, fuzz_kind kind);
tsh_group *fuzz_group(fuzz *f); /* any: one in a slot, or a mesh's */
/* Mostly the group of an axis of the tensor's mesh. */
tsh_group *fuzz_group_of(fuzz *f, const tsh_tensor *x);
const tsh_mesh *fuzz_mesh(fuzz *f);
tsh_tensor *fuzz_tensor(fuzz *f); /* any: one in a slot, a tape's, a layer's, or another world's */
/* Mostly one of the same dtype, shape and mesh. */
tsh_tensor *fuzz_tensor_like(fuzz *f, const tsh_tensor *other);
tsh_tensor *fuzz_ids(fuzz *f); /* mostly one of int64 */
/* Into a slot, whose object goes. A NULL counts as well: other ranks may have got something there. */
void fuzz_put(fuzz *f, fuzz_kind kind, void *object, const void *parent);
/* Make what most calls need, where slots have become empty. */
void fuzz_furnish(fuzz *f);
/* The slot's object and what stands on it. */
void fuzz_empty(fuzz *f, fuzz_kind kind, int index);
void fuzz_empty_above(fuzz *f); /* all but meshes, groups and worlds; tapes are renewed */
void fuzz_empty_all(fuzz *f);
/* Tensors that are its to be kept go; the tape is new. */
void fuzz_renew_tape(fuzz *f, int index);

/* --- what calls have said ----------------------------------------------------------------------------------------- */

/* The status of a call; *out, where one is given, is NULL after a failure. */
void fuzz_said(fuzz *f, const char *name, tsh_status status, const void *out);
/* Checks the status of a call that makes an object, as fuzz_said, and puts the object into a slot, as fuzz_put. */
void fuzz_made(fuzz *f, fuzz_kind kind, const char *name, tsh_status status, void *object, const void *parent);
/* Puts the result of a call on the tape into a slot. */
void fuzz_value(fuzz *f, tsh_tape *tape, tsh_tensor *value);
void fuzz_wrong(fuzz *f, const char *format, ...) TSH_PRINTF(2, 3);

#endif
