/* NCCL's header, of 2.18 or later, with the names that only later versions have. */
#ifndef TSHI_NCCL_HEADER_H
#define TSHI_NCCL_HEADER_H

#include <nccl.h>

/* Before 2.24 a compiler of C does not see this type. */
#if NCCL_VERSION_CODE < 22400
#define ncclBfloat16 ((ncclDataType_t)9)
#endif

#endif
