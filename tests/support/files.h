/* Folders for tests, and safetensors files with known values. */
#ifndef TSHI_TEST_FILES_H
#define TSHI_TEST_FILES_H

#include "io/safetensors.h"
#include "support/tensors.h"

/* A tensor of a file: its elements are tshi_test_integers(seed), or with uint8 their magnitudes. */
typedef struct tshi_test_content {
    const char *name;
    tsh_dtype dtype;
    int ndim;
    int64_t shape[4];
    int seed;
} tshi_test_content;

/* A new folder in /tmp or, with a size in MiB, a file system of that size mounted there. NULL where none can be
 * mounted. The text is static. */
const char *tshi_test_folder(int mebibytes);
/* Removes the folder and all that is in it. */
void tshi_test_remove(const char *folder);

/* A new folder in /tmp for the functions below, and its end. */
void tshi_test_enter(void);
void tshi_test_leave(void);
/* "FOLDER/NAME" in static memory, of which there are four in turns. */
const char *tshi_test_path(const char *name);
/* Writes a file of the folder. Aborts the test program where that fails. */
void tshi_test_write(const char *name, const tshi_test_content *contents, int count);
void tshi_test_write_text(const char *name, const char *text);
/* Element i of a tensor of that content, and all of them. */
double tshi_test_content_value(tsh_dtype dtype, int seed, int64_t i);
void tshi_test_content_values(const tshi_test_content *content, double *out);

#endif
