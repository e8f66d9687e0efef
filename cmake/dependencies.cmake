# What the library stands on: a CBLAS, the vector maths library where the C library has one, libm, threads, and MPI
# unless TSHARD_MPI is OFF or there is none.
#   tshard_dependencies      include directories and definitions for compiling
#   TSHARD_LINK_LIBRARIES    for linking; names rather than paths where possible, because they are exported
#   TSHARD_HAVE_MPI          whether the mpi backend is built
#   TSHARD_LINK_DIRECTORIES  where they lie, when that is no default place

include(CheckCSourceCompiles)
include(CheckLibraryExists)
find_package(PkgConfig QUIET)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

set(blas_missing "tshard needs a CBLAS (cblas.h and a library). On Debian and Ubuntu: apt-get install libopenblas-dev")

if(PkgConfig_FOUND)
    pkg_check_modules(OPENBLAS QUIET openblas)
endif()
if(OPENBLAS_FOUND)
    set(blas_libraries ${OPENBLAS_LIBRARIES})
    set(blas_directories ${OPENBLAS_LIBRARY_DIRS})
    set(blas_includes ${OPENBLAS_INCLUDE_DIRS})
else()
    find_package(BLAS QUIET)
    if(NOT BLAS_FOUND)
        message(FATAL_ERROR "${blas_missing}")
    endif()
    set(blas_libraries ${BLAS_LIBRARIES} ${BLAS_LINKER_FLAGS})
    set(blas_directories "")
    find_path(TSHARD_CBLAS_INCLUDE cblas.h PATH_SUFFIXES openblas cblas)
    set(blas_includes ${TSHARD_CBLAS_INCLUDE})
    if(NOT TSHARD_CBLAS_INCLUDE)
        message(FATAL_ERROR "${blas_missing}")
    endif()
endif()

set(CMAKE_REQUIRED_LIBRARIES ${blas_libraries} Threads::Threads m)
set(CMAKE_REQUIRED_INCLUDES ${blas_includes})
list(TRANSFORM blas_directories PREPEND "-L" OUTPUT_VARIABLE CMAKE_REQUIRED_LINK_OPTIONS)
check_c_source_compiles("#include <cblas.h>
int main(void) { float x = 1; cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 1, 1, 1, 1, &x, 1, &x, 1, 0, &x, 1); return 0; }"
    TSHARD_CBLAS_WORKS)
check_c_source_compiles("void openblas_set_num_threads(int); int main(void) { openblas_set_num_threads(1); return 0; }"
    TSHARD_BLAS_IS_OPENBLAS)
unset(CMAKE_REQUIRED_LIBRARIES)
unset(CMAKE_REQUIRED_INCLUDES)
unset(CMAKE_REQUIRED_LINK_OPTIONS)
if(NOT TSHARD_CBLAS_WORKS)
    message(FATAL_ERROR "${blas_missing}. Found ${blas_libraries}, but a program that calls cblas_sgemm does not link.")
endif()

check_library_exists(mvec _ZGVbN4v_expf "" TSHARD_MVEC_WORKS)

add_library(tshard_dependencies INTERFACE)
target_include_directories(tshard_dependencies SYSTEM INTERFACE ${blas_includes})
if(TSHARD_BLAS_IS_OPENBLAS)
    target_compile_definitions(tshard_dependencies INTERFACE TSHARD_HAVE_OPENBLAS)
endif()
set(TSHARD_LINK_LIBRARIES ${blas_libraries})
if(TSHARD_MVEC_WORKS)
    target_compile_definitions(tshard_dependencies INTERFACE TSHARD_HAVE_MVEC)
    list(APPEND TSHARD_LINK_LIBRARIES mvec)
endif()
list(APPEND TSHARD_LINK_LIBRARIES m Threads::Threads)
set(TSHARD_LINK_DIRECTORIES ${blas_directories})

# Headers and libraries alone: the compiler flags of MPI's wrappers are for MPI's own taste.
set(TSHARD_HAVE_MPI OFF)
if(TSHARD_MPI STREQUAL "ON")
    find_package(MPI REQUIRED COMPONENTS C)
elseif(TSHARD_MPI STREQUAL "AUTO")
    find_package(MPI QUIET COMPONENTS C)
endif()
if(NOT TSHARD_MPI STREQUAL "OFF" AND MPI_C_FOUND)
    set(TSHARD_HAVE_MPI ON)
    target_include_directories(tshard_dependencies SYSTEM INTERFACE ${MPI_C_INCLUDE_DIRS})
    target_compile_definitions(tshard_dependencies INTERFACE TSHARD_HAVE_MPI)
    list(APPEND TSHARD_LINK_LIBRARIES ${MPI_C_LIBRARIES})
elseif(TSHARD_MPI STREQUAL "AUTO")
    message(STATUS "No MPI: the mpi backend is left out (Debian: libopenmpi-dev openmpi-bin)")
endif()
