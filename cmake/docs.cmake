# cmake --build build --target docs (or make docs): the site in build/docs/html. mkdocs makes it of docs/, and Doxygen its
# reference of the public headers.

find_program(TSHARD_DOXYGEN doxygen)
find_program(TSHARD_MKDOCS mkdocs)
set(TSHARD_SITE ${CMAKE_BINARY_DIR}/docs/html)
if(TSHARD_DOXYGEN AND TSHARD_MKDOCS)
    add_custom_target(docs
        COMMAND ${TSHARD_MKDOCS} build --quiet --clean --site-dir ${TSHARD_SITE}
        COMMAND ${CMAKE_COMMAND} -E env TSHARD_DOCS=${TSHARD_SITE} TSHARD_VERSION=${PROJECT_VERSION} ${TSHARD_DOXYGEN} Doxyfile
        COMMAND ${CMAKE_COMMAND} -E echo "The site begins at ${TSHARD_SITE}/index.html"
        WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} VERBATIM)
else()
    add_custom_target(docs
        COMMAND ${CMAKE_COMMAND} -E echo "The site needs mkdocs and Doxygen. On Debian and Ubuntu: apt-get install mkdocs python3-pygments doxygen"
        COMMAND ${CMAKE_COMMAND} -E false VERBATIM)
endif()
