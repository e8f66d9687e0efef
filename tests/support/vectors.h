/* Golden vectors: text files of named tensors. '#' starts a comment line; a tensor is a line
 * "tensor NAME f64|i64 NDIM DIMS..." and a line of its values, row-major. */
#ifndef TSHI_TEST_VECTORS_H
#define TSHI_TEST_VECTORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TSHI_VECTOR_DIMS 8
#define TSHI_VECTOR_NAME 64

typedef struct tshi_vector {
    char name[TSHI_VECTOR_NAME];
    bool integer;
    int ndim;
    int64_t shape[TSHI_VECTOR_DIMS];
    int64_t count;
    double *values;    /* integers too */
    int64_t *integers; /* NULL for f64 */
} tshi_vector;

typedef struct tshi_vectors {
    tshi_vector *items;
    int count;
} tshi_vectors;

/* False with "PATH:LINE: what is wrong" in `error`, and *out empty. */
bool tshi_vectors_read(const char *path, tshi_vectors *out, char *error, size_t size);
void tshi_vectors_free(tshi_vectors *vectors);
/* NULL when there is none of that name. */
const tshi_vector *tshi_vectors_find(const tshi_vectors *vectors, const char *name);

#endif
