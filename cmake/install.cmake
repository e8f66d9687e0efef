# cmake --install: libraries, headers, tools, find_package(tshard) and pkg-config. What belongs to the Debian packages of
# the library and of the tools says so; all else is development.

set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME development)

include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tshard)

install(TARGETS tshard_shared tshard_static EXPORT tshard_targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(NOT TSHARD_HAVE_MPI)
    set(left_out PATTERN mpi.h EXCLUDE)
endif()
install(DIRECTORY include/tshard DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp" ${left_out})
file(GLOB tools RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}/tools tools/tshard-*)
set(installed_tools "")
foreach(tool IN LISTS tools ITEMS tshard-bench)
    if(TARGET ${tool})
        # An installed tree may be moved; in /usr, where packages go, the loader knows the folder.
        if(NOT CMAKE_INSTALL_PREFIX STREQUAL "/usr")
            cmake_path(RELATIVE_PATH CMAKE_INSTALL_FULL_LIBDIR BASE_DIRECTORY ${CMAKE_INSTALL_FULL_BINDIR} OUTPUT_VARIABLE up)
            set_target_properties(${tool} PROPERTIES INSTALL_RPATH "$ORIGIN/${up}")
        endif()
        install(TARGETS ${tool} DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
        list(APPEND installed_tools ${tool})
    endif()
endforeach()
include(cmake/manual.cmake)
# As they lie in the sources, so that links between them hold.
install(FILES README.md CHANGELOG.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs examples DESTINATION ${CMAKE_INSTALL_DOCDIR} PATTERN "__pycache__" EXCLUDE)

install(EXPORT tshard_targets NAMESPACE tshard:: FILE tshard-targets.cmake DESTINATION ${package_dir})
configure_package_config_file(cmake/tshard-config.cmake.in tshard-config.cmake INSTALL_DESTINATION ${package_dir}
    NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(tshard-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tshard-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/tshard-config-version.cmake
    DESTINATION ${package_dir})

# pkg-config wants flags, not target names.
set(private_libraries "")
foreach(directory IN LISTS TSHARD_LINK_DIRECTORIES)
    string(APPEND private_libraries " -L${directory}")
endforeach()
foreach(library IN LISTS TSHARD_LINK_LIBRARIES)
    if(library STREQUAL "Threads::Threads")
        string(APPEND private_libraries " -pthread")
    elseif(library MATCHES "^[/-]")
        string(APPEND private_libraries " ${library}")
    else()
        string(APPEND private_libraries " -l${library}")
    endif()
endforeach()
string(STRIP "${private_libraries}" private_libraries)
cmake_path(IS_ABSOLUTE CMAKE_INSTALL_LIBDIR libdir_absolute)
if(libdir_absolute)
    set(pc_prefix ${CMAKE_INSTALL_PREFIX})
else()
    # Relative to the .pc file, so that an installed tree may be moved.
    cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig OUTPUT_VARIABLE up)
    set(pc_prefix "\${pcfiledir}/${up}")
endif()
foreach(package IN ITEMS tshard tshard-shared)
    configure_file(cmake/${package}.pc.in ${package}.pc @ONLY)
    install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${package}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()

include(cmake/package.cmake)
