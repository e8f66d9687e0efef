# cmake --build build --target docs (or make docs): the site in build/docs/html.

add_custom_target(docs
    COMMAND ${CMAKE_COMMAND} -DSITE=${CMAKE_BINARY_DIR}/docs/html -P ${PROJECT_SOURCE_DIR}/cmake/site/build.cmake VERBATIM)
