# An overlay port, which builds the checkout that it stands in:
#
#     vcpkg install tshard --overlay-ports=packaging/vcpkg/ports
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../../.." ABSOLUTE)

set(options -DTSHARD_BUILD_TESTS=OFF -DTSHARD_BUILD_EXAMPLES=OFF -DTSHARD_CUDA=OFF -DTSHARD_ONEDNN=OFF -DTSHARD_UCX=OFF)
foreach(feature IN ITEMS hwloc mpi tokenizers)
    string(TOUPPER ${feature} option)
    if(feature IN_LIST FEATURES)
        list(APPEND options -DTSHARD_${option}=ON)
    else()
        list(APPEND options -DTSHARD_${option}=OFF)
    endif()
endforeach()

vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}" OPTIONS ${options})
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/tshard)
vcpkg_fixup_pkgconfig()
vcpkg_copy_tools(TOOL_NAMES tshard-run tshard-plan tshard-trace tshard-checkpoint tshard-quantize tshard-bench AUTO_CLEAN)
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
