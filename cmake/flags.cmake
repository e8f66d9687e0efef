# tshard_flags: the warnings and sanitizers of everything compiled here. Never exported.

add_library(tshard_flags INTERFACE)
target_compile_features(tshard_flags INTERFACE c_std_11)
target_compile_options(tshard_flags INTERFACE -Wall -Wextra -Wconversion -Wshadow)
if(TSHARD_WERROR)
    target_compile_options(tshard_flags INTERFACE -Werror)
endif()

if(TSHARD_SANITIZE)
    list(JOIN TSHARD_SANITIZE "," sanitizers)
    set(sanitize_options -fsanitize=${sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_compile_options(tshard_flags INTERFACE ${sanitize_options})
    # Resolvers of function clones run before a sanitizer's runtime is up, and crash there.
    target_compile_definitions(tshard_flags INTERFACE TSHARD_NO_CLONES)
    # Every link needs the runtime, also that of a program that only uses the library.
    add_link_options(${sanitize_options})
endif()
