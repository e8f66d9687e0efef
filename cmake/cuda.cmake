# CUDA and NCCL. The runtime is linked statically and harmless without a driver; cuBLASLt and NCCL are opened when a
# CUDA device is asked for, so that the library loads fast and on machines that have neither.
#   TSHARD_HAVE_CUDA, TSHARD_HAVE_NCCL   what is built

set(TSHARD_HAVE_CUDA OFF)
set(TSHARD_HAVE_NCCL OFF)

# --- the toolkit --------------------------------------------------------------------------------------------------

set(cuda_missing "")
if(NOT TSHARD_CUDA STREQUAL "OFF")
    find_package(CUDAToolkit QUIET)
    if(NOT CUDAToolkit_FOUND)
        set(cuda_missing "there is no CUDA toolkit (nvcc, headers, libcudart_static)")
    elseif(CUDAToolkit_VERSION VERSION_LESS 12.0)
        set(cuda_missing "the CUDA toolkit is ${CUDAToolkit_VERSION}, and at least 12.0 is wanted")
    elseif(NOT CUDA_cudart_static_LIBRARY)
        set(cuda_missing "the CUDA toolkit at ${CUDAToolkit_TARGET_DIR} has no libcudart_static")
    else()
        if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
            set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
        endif()
        # Machine code for A100 and H100; for the newest also PTX, which later GPUs translate when they load it.
        set(cuda_architectures 80-real 90-real 100)
        if(CUDAToolkit_VERSION VERSION_LESS 12.8)
            set(cuda_architectures 80-real 90)
            message(STATUS "CUDA ${CUDAToolkit_VERSION} knows no architecture 100: left out; later GPUs take the PTX of 90")
        endif()
        set(TSHARD_CUDA_ARCHITECTURES "${cuda_architectures}" CACHE STRING
            "GPU architectures, as in CMAKE_CUDA_ARCHITECTURES")
        set(CMAKE_CUDA_ARCHITECTURES ${TSHARD_CUDA_ARCHITECTURES})
        include(CheckLanguage)
        check_language(CUDA)
        if(CMAKE_CUDA_COMPILER)
            enable_language(CUDA)
            set(TSHARD_HAVE_CUDA ON)
        else()
            set(cuda_missing "nvcc does not compile (see CMakeFiles/CMakeError.log); it needs a C++ compiler that it knows")
        endif()
    endif()
    if(cuda_missing AND TSHARD_CUDA STREQUAL "ON")
        message(FATAL_ERROR "TSHARD_CUDA=ON, but ${cuda_missing}.")
    elseif(cuda_missing)
        message(STATUS "Without CUDA: ${cuda_missing}")
    endif()
endif()

if(TSHARD_HAVE_CUDA)
    target_include_directories(tshard_backends SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
    target_compile_definitions(tshard_backends INTERFACE TSHARD_HAVE_CUDA)
    # Kernels' launches guard their first time with the C++ runtime. CMake need not add a CUDA runtime of its own.
    # By its path: the toolkit's folder is none that packages may name to the linker.
    list(APPEND TSHARD_LINK_LIBRARIES ${CUDA_cudart_static_LIBRARY} stdc++ dl rt)
    set(CMAKE_CUDA_RUNTIME_LIBRARY None)
    message(STATUS "CUDA ${CUDAToolkit_VERSION} for ${TSHARD_CUDA_ARCHITECTURES}")
endif()

# --- NCCL ---------------------------------------------------------------------------------------------------------

if(TSHARD_NCCL STREQUAL "ON" AND NOT TSHARD_HAVE_CUDA)
    message(FATAL_ERROR "TSHARD_NCCL=ON needs CUDA: TSHARD_CUDA=ON and a toolkit.")
endif()
if(TSHARD_HAVE_CUDA AND NOT TSHARD_NCCL STREQUAL "OFF")
    list(APPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_LIST_DIR})
    find_package(NCCL 2.18 QUIET) # the first with ncclCommSplit
    if(NCCL_FOUND)
        set(TSHARD_HAVE_NCCL ON)
        target_include_directories(tshard_backends SYSTEM INTERFACE ${NCCL_INCLUDE_DIR})
        target_compile_definitions(tshard_backends INTERFACE TSHARD_HAVE_NCCL)
        message(STATUS "NCCL ${NCCL_VERSION}: ${NCCL_INCLUDE_DIR}/nccl.h")
    elseif(TSHARD_NCCL STREQUAL "ON")
        message(FATAL_ERROR "TSHARD_NCCL=ON, but there is no nccl.h of NCCL 2.18 or later. Set NCCL_ROOT to where it is.")
    else()
        message(STATUS "Without NCCL: ranks on GPUs meet through the host's memory. Set NCCL_ROOT to where nccl.h is.")
    endif()
endif()

# --- tshard_cuda: the device's host code and kernels, and the nccl backend ------------------------------------------

# Names a folder where a library may lie that the loader's own paths lack.
function(tshard_library_folder file name library)
    if(library)
        cmake_path(GET library PARENT_PATH folder)
        set_property(SOURCE ${file} APPEND PROPERTY COMPILE_DEFINITIONS "${name}=\"${folder}\"")
    endif()
endfunction()

# Makes the object library of the CUDA device and the nccl backend; `stubs`: the files that stand in for what is not
# built.
function(tshard_add_cuda stubs)
    if(NOT TSHARD_HAVE_CUDA)
        set(${stubs} src/device/stub/cuda.c PARENT_SCOPE)
        return()
    endif()
    file(GLOB_RECURSE host CONFIGURE_DEPENDS src/device/cuda/*.c)
    file(GLOB_RECURSE kernels CONFIGURE_DEPENDS src/device/cuda/*.cu)
    if(TSHARD_HAVE_NCCL)
        file(GLOB nccl CONFIGURE_DEPENDS src/dist/transport/nccl/*.c)
        list(APPEND host ${nccl})
    endif()
    set(${stubs} "" PARENT_SCOPE)
    add_library(tshard_cuda OBJECT ${host} ${kernels})
    set_target_properties(tshard_cuda PROPERTIES POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden
        CUDA_VISIBILITY_PRESET hidden CUDA_STANDARD 17 CUDA_RUNTIME_LIBRARY None)
    target_compile_options(tshard_cuda PRIVATE
        "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-fno-exceptions;--expt-relaxed-constexpr>")
    if(TSHARD_WERROR)
        target_compile_options(tshard_cuda PRIVATE
            "$<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings;-Xcompiler=-Werror>")
    endif()
    target_link_libraries(tshard_cuda PRIVATE tshard_flags tshard_backends)
    target_include_directories(tshard_cuda PRIVATE include src)
    tshard_library_folder(src/device/cuda/gemm.c TSHARD_CUBLASLT_FOLDER "${CUDA_cublasLt_LIBRARY}")
    find_library(TSHARD_CUDNN_LIBRARY NAMES libcudnn.so.9 HINTS ${CUDAToolkit_LIBRARY_DIR})
    mark_as_advanced(TSHARD_CUDNN_LIBRARY)
    tshard_library_folder(src/device/cuda/cudnn/attention.c TSHARD_CUDNN_FOLDER "${TSHARD_CUDNN_LIBRARY}")
    tshard_library_folder(src/dist/transport/nccl/library.c TSHARD_NCCL_FOLDER "${NCCL_LIBRARY}")
    set(TSHARD_CUDA_HOST_SOURCES ${host} PARENT_SCOPE)
    set(TSHARD_CUDA_KERNEL_SOURCES ${kernels} PARENT_SCOPE)
endfunction()
