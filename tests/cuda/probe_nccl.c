/* The probe's NCCL on the stand-in is one that takes several ranks on a GPU. */
#include "standin/nccl.h"

__attribute__((constructor)) static void be_new_enough(void) {
    standin_nccl_version(23000);
}
