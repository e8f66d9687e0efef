# Programs by convention: DIR/NAME.c is the program NAME, and DIR/NAME/*.c together are the program NAME.
# They link the static library, so that build/bin can be copied. The examples have rules of their own
# (examples/CMakeLists.txt), and see the public headers alone.

function(tshard_add_program name)
    add_executable(${name} ${ARGN})
    target_link_libraries(${name} PRIVATE tshard_flags tshard_static)
    target_link_libraries(${name} PRIVATE tshard_dependencies)
    target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/tools")
endfunction()

function(tshard_add_programs room)
    file(GLOB singles CONFIGURE_DEPENDS ${room}/*.c)
    foreach(file IN LISTS singles)
        cmake_path(GET file STEM name)
        tshard_add_program(${name} ${file})
    endforeach()
    file(GLOB folders CONFIGURE_DEPENDS LIST_DIRECTORIES true ${room}/*)
    foreach(folder IN LISTS folders)
        cmake_path(GET folder FILENAME name)
        file(GLOB files CONFIGURE_DEPENDS ${folder}/*.c)
        if(IS_DIRECTORY ${folder} AND files AND NOT name MATCHES "^(common|gpu|peers|tshard-pmix)$")
            tshard_add_program(${name} ${files})
            target_include_directories(${name} PRIVATE ${folder})
        endif()
    endforeach()
endfunction()

# Programs that measure MPI beside tshard, where there is one.
function(tshard_add_mpi_programs folder)
    file(GLOB files CONFIGURE_DEPENDS ${folder}/*.c)
    foreach(file IN LISTS files)
        if(TSHARD_HAVE_MPI)
            cmake_path(GET file STEM name)
            tshard_add_program(${name} ${file})
        endif()
    endforeach()
endfunction()
