/* Name maps: the tensors and elements in files that belong to a parameter. Pure functions of metadata. */
#ifndef TSHI_NAMES_H
#define TSHI_NAMES_H

#include "layers/layers.h"
#include "layout/box.h"
#include "tshard/io.h"

/* The elements that a parameter and a file's tensor share. */
typedef struct tshi_link {
    int parameter; /* its number in the list */
    char *tensor;
    bool transpose, squeeze;
    int dim;
    int64_t length; /* 0: all elements */
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

/* True when the name matches the pattern, whose '*' stands for any characters. */
bool tshi_name_matches(const char *pattern, const char *name);
/* TSH_ERR_ARGUMENT for a pattern with more than one '*'. NULL ends the list, which may be NULL. */
tsh_status tshi_patterns_check(const char *const *patterns);

/* The number of links of the parameter whose first link is `first`. */
int tshi_links_of(const tshi_links *links, int first);
/* NULL if a parameter's `count` links fill each of its elements once, else what is wrong. */
const char *tshi_links_check(const tshi_link *first, int count, const tsh_tensor *parameter);
/* NULL if a tensor of this shape has the link's elements, else what is wrong. */
const char *tshi_link_check(const tshi_link *link, const tsh_tensor *parameter, int ndim, const int64_t *shape);
/* The tensor's number of dims, for a parameter that has `ndim`; and the parameter's dim that is its dim d. */
static inline int tshi_link_ndim(const tshi_link *link, int ndim) {
    return ndim - link->squeeze;
}
static inline int tshi_link_dim(const tshi_link *link, int d) {
    return (link->transpose ? 1 - d : d) + link->squeeze;
}
/* The link's elements within a box of the parameter: *piece of the parameter, *place of the tensor, in its dims. False
 * if there are none. */
bool tshi_link_box(const tshi_link *link, int ndim, const tsh_box *box, tsh_box *piece, tsh_box *place);

#endif
