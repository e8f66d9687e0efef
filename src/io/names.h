/* Name maps: which elements of which tensor in a file are which elements of a parameter. Pure functions of metadata. */
#ifndef TSHI_NAMES_H
#define TSHI_NAMES_H

#include "layers/layers.h"
#include "layout/box.h"
#include "tshard/io.h"

/* Elements that a parameter and a tensor of a file have in common. */
typedef struct tshi_link {
    int parameter; /* its number in the list */
    char *tensor;
    bool transpose;
    int dim;
    int64_t length; /* 0: all of both */
    int64_t parameter_start, tensor_start;
} tshi_link;

/* The links of all parameters of a list, in the list's order. */
typedef struct tshi_links {
    tsh_allocator allocator;
    tshi_link *items;
    int count, capacity;
} tshi_links;

/* TSH_ERR_ARGUMENT for contradictory rules. */
tsh_status tshi_links_make(const tsh_parameters *list, const tsh_name_rule *rules, int count, tshi_links *out);
void tshi_links_free(tshi_links *links);

/* The name matches the pattern, whose '*' stands for any characters. */
bool tshi_name_matches(const char *pattern, const char *name);
/* TSH_ERR_ARGUMENT where one of the patterns, which end with NULL, has more than one '*'. patterns may be NULL. */
tsh_status tshi_patterns_check(const char *const *patterns);

/* The number of links that the parameter of link `first`, its first one, has. */
int tshi_links_of(const tshi_links *links, int first);
/* NULL when a parameter's links, `count` from `first` on, fill each of its elements once, else what is wrong. */
const char *tshi_links_check(const tshi_link *first, int count, const tsh_tensor *parameter);
/* What a tensor of this shape lacks for the link's elements: NULL, or words. */
const char *tshi_link_check(const tshi_link *link, const tsh_tensor *parameter, int ndim, const int64_t *shape);
/* The elements of a box of the parameter that the link has (*piece, of the parameter), and where they are in the tensor
 * (*place; for a transposing link its dims are in the other order). False when there are none. */
bool tshi_link_box(const tshi_link *link, int ndim, const tsh_box *box, tsh_box *piece, tsh_box *place);

#endif
