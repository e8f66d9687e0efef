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
    target_compile_definitions(tshard_flags INTERFACE TSHARD_SANITIZED)
    # Every link needs the runtime, also that of a program that only uses the library.
    add_link_options(${sanitize_options})
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

# The engine's units are compiled as one (CMakeLists.txt), but for a debugger or a sanitizer.
set(TSHARD_ONE_ENGINE ON)
if(TSHARD_SANITIZE OR CMAKE_BUILD_TYPE STREQUAL "Debug")
    set(TSHARD_ONE_ENGINE OFF)
endif()
