/* The stand-in of cuBLASLt: which of its algorithms run, and how long they take by the clock of events. */
#ifndef STANDIN_CUBLASLT_H
#define STANDIN_CUBLASLT_H

#include <stdint.h>

#define STANDIN_ALGORITHMS 5 /* cublaslt.c says what they are */

/* Products that algorithm `number` has computed in this process. */
uint64_t standin_cublaslt_runs(int number);
/* From now on a product takes algorithm `number` so long. */
void standin_cublaslt_takes(int number, double ms);

#endif
