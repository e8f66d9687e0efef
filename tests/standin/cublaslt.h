/* The stand-in of cuBLASLt: which of its algorithms run. */
#ifndef STANDIN_CUBLASLT_H
#define STANDIN_CUBLASLT_H

#include <stdint.h>

#define STANDIN_ALGORITHMS 5 /* cublaslt.c says what they are */

/* Products that algorithm `number` has computed in this process. */
uint64_t standin_cublaslt_runs(int number);

#endif
