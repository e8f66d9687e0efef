# cmake --build build --target docs (or make docs): HTML of the public headers in build/docs/html.

find_program(TSHARD_DOXYGEN doxygen)
if(TSHARD_DOXYGEN)
    add_custom_target(docs
        COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/docs
        COMMAND ${CMAKE_COMMAND} -E env TSHARD_DOCS=${CMAKE_BINARY_DIR}/docs TSHARD_VERSION=${PROJECT_VERSION}
                ${TSHARD_DOXYGEN} Doxyfile
        WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} VERBATIM)
else()
    add_custom_target(docs
        COMMAND ${CMAKE_COMMAND} -E echo "doxygen is not installed. On Debian and Ubuntu: apt-get install doxygen"
        COMMAND ${CMAKE_COMMAND} -E false VERBATIM)
endif()
