# Man pages, from what the programs say of themselves, and completion of their options in bash.

# tshard_manual(PAGE SCRIPT PROGRAM ARGUMENTS...): man/PAGE.gz in the build folder, which is what the script prints.
function(tshard_manual page script program)
    set(file ${CMAKE_BINARY_DIR}/man/${page})
    set(script ${PROJECT_SOURCE_DIR}/cmake/${script})
    list(JOIN CMAKE_CROSSCOMPILING_EMULATOR " " emulator)
    add_custom_command(OUTPUT ${file}.gz DEPENDS ${program} ${script}
        COMMAND ${CMAKE_COMMAND} -E env "TSHARD_EMULATOR=${emulator}"
                sh ${script} $<TARGET_FILE:${program}> ${PROJECT_VERSION} ${ARGN} > ${file}
        COMMAND gzip -9nf ${file} VERBATIM)
    add_custom_target(manual-${page} ALL DEPENDS ${file}.gz)
    string(REGEX REPLACE ".*\\." "man" section ${page})
    install(FILES ${file}.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/${section} COMPONENT tools)
endfunction()

file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/man)
if((NOT CMAKE_CROSSCOMPILING OR CMAKE_CROSSCOMPILING_EMULATOR) AND NOT TSHARD_SANITIZE)
    foreach(tool IN LISTS installed_tools)
        tshard_manual(${tool}.1 manual.sh ${tool})
    endforeach()
    tshard_manual(tshard.7 overview.sh tshard-run)
endif()
# Of the headers. A link that is compressed names the page without .gz.
file(GLOB public_headers CONFIGURE_DEPENDS include/tshard/*.h)
add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/man3/tshard-tensor.3.gz
    DEPENDS ${public_headers} cmake/headers.sh cmake/header.awk
    COMMAND sh ${PROJECT_SOURCE_DIR}/cmake/headers.sh ${PROJECT_SOURCE_DIR}/include ${PROJECT_VERSION} ${CMAKE_BINARY_DIR}/man3
    VERBATIM)
add_custom_target(manual-headers ALL DEPENDS ${CMAKE_BINARY_DIR}/man3/tshard-tensor.3.gz)
install(DIRECTORY ${CMAKE_BINARY_DIR}/man3/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man3)
# bash-completion looks for a file of the program's name.
foreach(tool IN LISTS installed_tools)
    install(FILES tools/completion.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
        RENAME ${tool} COMPONENT tools)
endforeach()
