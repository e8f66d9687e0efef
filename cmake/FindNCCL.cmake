# NCCL's header, which is all that compiling wants: the library is opened when a program asks for it.
#   NCCL_FOUND, NCCL_VERSION, NCCL_INCLUDE_DIR, NCCL_LIBRARY (may be empty)
# Looked for under NCCL_ROOT (variable or environment), beside the CUDA toolkit, in the system's paths, and where pip
# puts the packages nvidia-nccl-cu12 and nvidia-nccl-cu13 (nvidia/nccl, nvidia/cu13).

set(nccl_hints ${NCCL_ROOT} $ENV{NCCL_ROOT} ${CUDAToolkit_INCLUDE_DIRS} ${CUDAToolkit_TARGET_DIR})
set(nccl_wheels "")
foreach(prefix IN ITEMS "$ENV{VIRTUAL_ENV}" "$ENV{CONDA_PREFIX}" "$ENV{HOME}/.local" /usr/local /usr)
    if(prefix)
        file(GLOB packages ${prefix}/lib/python3*/site-packages/nvidia ${prefix}/lib/python3*/dist-packages/nvidia
                           ${prefix}/lib64/python3*/site-packages/nvidia)
        list(APPEND nccl_wheels ${packages})
    endif()
endforeach()

find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${nccl_hints} PATHS ${nccl_wheels} PATH_SUFFIXES include nccl/include cu13/include)
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${nccl_hints} PATHS ${nccl_wheels}
    PATH_SUFFIXES lib lib64 nccl/lib cu13/lib)

set(NCCL_VERSION "")
if(NCCL_INCLUDE_DIR)
    file(STRINGS "${NCCL_INCLUDE_DIR}/nccl.h" nccl_lines REGEX "#define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
    string(REGEX REPLACE "[^0-9;]" "" nccl_numbers "${nccl_lines}")
    list(JOIN nccl_numbers "." NCCL_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION)
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)
