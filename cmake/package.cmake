# cpack -G DEB in the build folder: libtshard (the library), libtshard-dev and tshard-tools. A build that is configured with
# -DCMAKE_INSTALL_PREFIX=/usr has its library in Debian's folder of the architecture.

set(TSHARD_PACKAGE_CONTACT "The tshard authors <tshard@noreply.invalid>" CACHE STRING "Maintainer of the Debian packages")
set(CPACK_PACKAGE_CONTACT ${TSHARD_PACKAGE_CONTACT})
set(CPACK_PACKAGE_VENDOR "The tshard authors")
set(CPACK_PACKAGE_NAME tshard)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_GENERATOR DEB)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
# CPack takes the architecture of the machine that it runs on. dpkg-shlibdeps finds libraries of another one where they are
# installed beside those of the machine.
if(CMAKE_CROSSCOMPILING AND CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
    set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
elseif(CMAKE_CROSSCOMPILING AND CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
    set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE amd64)
elseif(CMAKE_CROSSCOMPILING)
    set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE ${CMAKE_SYSTEM_PROCESSOR})
endif()
set(CPACK_COMPONENTS_ALL library development tools)

# The package of a library has the number of its SONAME.
set(package_library libtshard${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
set(package_development libtshard-dev)
set(package_tools tshard-tools)
set(summary_library "Tensor-parallel model sharding, shared library")
set(summary_development "Tensor-parallel model sharding, headers, static library and examples")
set(summary_tools "Tensor-parallel model sharding, launcher and tools")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION science)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_RECOMMENDS tshard-tools)
if(TSHARD_HAVE_UCX)
    string(APPEND CPACK_DEBIAN_LIBRARY_PACKAGE_RECOMMENDS ", libucx0") # opened by ranks on several machines
endif()
# Tools call what only the library of their own version has.
set(CPACK_DEBIAN_TOOLS_PACKAGE_DEPENDS "${package_library} (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "${package_library} (= ${PROJECT_VERSION})")
# For programs with libtshard.a in them, and those that include tshard/mpi.h.
set(recommended "tshard-tools, pkg-config, libblas-dev | libblas.so, libjansson-dev")
if(TSHARD_USE_ONEDNN)
    string(APPEND recommended ", libdnnl-dev")
endif()
if(TSHARD_HAVE_TOKENIZERS)
    string(APPEND recommended ", libpcre2-dev, libutf8proc-dev")
endif()
if(TSHARD_HAVE_MPI)
    if(TSHARD_MPI_IS_OPEN_MPI)
        string(APPEND recommended ", libopenmpi-dev")
    else()
        string(APPEND recommended ", libmpich-dev")
    endif()
endif()
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_RECOMMENDS ${recommended})

# Files that each package must have, and that no other installation has.
set(folder ${CMAKE_CURRENT_BINARY_DIR}/package)
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
file(WRITE ${folder}/changelog "tshard (${PROJECT_VERSION}) unstable; urgency=medium

  * Release ${PROJECT_VERSION}.

 -- ${TSHARD_PACKAGE_CONTACT}  ${date}
")
find_program(TSHARD_GZIP gzip)
if(TSHARD_GZIP)
    execute_process(COMMAND ${TSHARD_GZIP} -9nf ${folder}/changelog)
endif()
file(WRITE ${folder}/triggers "activate-noawait ldconfig\n")
file(CHMOD ${folder}/triggers PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${folder}/triggers)
foreach(component IN LISTS CPACK_COMPONENTS_ALL)
    string(TOUPPER ${component} upper)
    set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${package_${component}})
    set(CPACK_COMPONENT_${upper}_DESCRIPTION "${summary_${component}}
 tshard splits the weights of linear and embedding layers by row or column
 across a group of ranks, runs forward and backward, and inserts every
 collective that the mathematics needs.")
    set(pages ${CMAKE_INSTALL_DATADIR}/doc/${package_${component}})
    install(FILES LICENSE DESTINATION ${pages} RENAME copyright COMPONENT ${component} EXCLUDE_FROM_ALL)
    install(FILES ${folder}/changelog.gz DESTINATION ${pages} COMPONENT ${component} EXCLUDE_FROM_ALL OPTIONAL)
endforeach()
include(CPack)
