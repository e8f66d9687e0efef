# tshard_flags: the warnings and sanitizers of everything compiled here. Never exported.

add_library(tshard_flags INTERFACE)
target_compile_features(tshard_flags INTERFACE c_std_11)
# Kernels have flags of their own (cuda.cmake).
target_compile_options(tshard_flags INTERFACE "$<$<COMPILE_LANGUAGE:C>:-Wall;-Wextra;-Wconversion;-Wshadow>")
if(TSHARD_WERROR)
    target_compile_options(tshard_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-Werror>)
endif()

if(TSHARD_SANITIZE)
    list(JOIN TSHARD_SANITIZE "," sanitizers)
    set(sanitize_options -fsanitize=${sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_compile_options(tshard_flags INTERFACE ${sanitize_options})
    # Every link needs the runtime, also that of a program that only uses the library.
    add_link_options(${sanitize_options})
endif()

# Clones of a function for several instruction sets, chosen at load time, need the compiler, the linker and the C
# library to agree. A sanitizer's runtime is not yet up when the choice is made, so they never go together.
include(CheckCSourceCompiles)
check_c_source_compiles("__attribute__((target_clones(\"default\", \"avx2\"))) static int one(int x) { return x + 1; }
int (*const volatile pointer)(int) = one;
int main(void) { return pointer(-1); }" TSHARD_CLONES_WORK)
if(TSHARD_SANITIZE OR NOT TSHARD_CLONES_WORK)
    target_compile_definitions(tshard_flags INTERFACE TSHARD_NO_CLONES)
endif()

# GCC clears and copies what is larger than a few words by string instructions, which start slowly: vectors are faster for
# the engine's small structs.
include(CheckCCompilerFlag)
set(TSHARD_CLEARING "")
set(clearing vector_loop:512:noalign,libcall:-1:noalign)
check_c_compiler_flag("-mmemset-strategy=${clearing} -mmemcpy-strategy=${clearing}" TSHARD_CLEARS_BY_VECTORS)
if(TSHARD_CLEARS_BY_VECTORS)
    set(TSHARD_CLEARING -mmemset-strategy=${clearing} -mmemcpy-strategy=${clearing})
endif()

# GCC links units that were compiled for it into one object (CMakeLists.txt). Builds for a debugger or a sanitizer keep
# their units.
set(TSHARD_LINKS_UNITS OFF)
if(CMAKE_C_COMPILER_ID STREQUAL "GNU" AND NOT TSHARD_SANITIZE AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
    set(TSHARD_UNIT_FLAGS -flto=auto -r -flinker-output=nolto-rel)
    list(JOIN TSHARD_UNIT_FLAGS " " CMAKE_REQUIRED_FLAGS)
    check_c_source_compiles("int main(void) { return 0; }" TSHARD_LINKS_UNITS_WORK)
    unset(CMAKE_REQUIRED_FLAGS)
    set(TSHARD_LINKS_UNITS ${TSHARD_LINKS_UNITS_WORK})
endif()
