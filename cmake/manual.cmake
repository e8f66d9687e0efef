# Man pages, from what the programs say of themselves, and completion of their options in bash.

# tshard_manual(PAGE SCRIPT PROGRAM ARGUMENTS...): man/PAGE.gz in the build folder, which is what the script prints.
function(tshard_manual page script program)
    set(file ${CMAKE_BINARY_DIR}/man/${page})
    set(script ${PROJECT_SOURCE_DIR}/cmake/${script})
    add_custom_command(OUTPUT ${file}.gz DEPENDS ${program} ${script}
        COMMAND sh ${script} $<TARGET_FILE:${program}> ${PROJECT_VERSION} ${ARGN} > ${file}
        COMMAND gzip -9nf ${file} VERBATIM)
    add_custom_target(manual-${page} ALL DEPENDS ${file}.gz)
    string(REGEX REPLACE ".*\\." "man" section ${page})
    install(FILES ${file}.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/${section} COMPONENT tools)
endfunction()

file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/man)
if(NOT CMAKE_CROSSCOMPILING AND NOT TSHARD_SANITIZE)
    foreach(tool IN LISTS installed_tools)
        tshard_manual(${tool}.1 manual.sh ${tool})
    endforeach()
    tshard_manual(tshard.7 overview.sh tshard-run)
endif()
# bash-completion looks for a file of the program's name.
foreach(tool IN LISTS installed_tools)
    install(FILES tools/completion.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
        RENAME ${tool} COMPONENT tools)
endforeach()
