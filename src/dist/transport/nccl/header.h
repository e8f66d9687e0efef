/* NCCL's header, of 2.18 or later, with the names that only later versions have. */
#ifndef TSHI_NCCL_HEADER_H
#define TSHI_NCCL_HEADER_H

#include <nccl.h>

/* Before 2.24 a compiler of C does not see this type. */
#if NCCL_VERSION_CODE < 22400
#define ncclBfloat16 ((ncclDataType_t)9)
#endif

/* Symmetric memory exists since 2.27: older headers do not have its types, nor older libraries its functions. */
#if NCCL_VERSION_CODE < 22700
typedef struct ncclWindow *ncclWindow_t;
#define NCCL_WIN_COLL_SYMMETRIC 1
#endif

/* 2.27 requires this alignment and has no name for it. */
#ifndef NCCL_WIN_REQUIRED_ALIGNMENT
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096
#endif

#endif
