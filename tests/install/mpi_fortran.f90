! A Fortran program with MPI of its own: a world of half of its ranks, through the Fortran handle of a communicator.
program mpi_fortran
    use, intrinsic :: iso_c_binding
    use mpi
    implicit none
    interface
        integer(c_int) function tsh_world_init_mpi_f(comm, config, world) bind(c)
            import :: c_int, c_ptr
            integer(c_int), value :: comm ! MPI_Fint
            type(c_ptr), value :: config
            type(c_ptr) :: world
        end function
        integer(c_int) function tsh_world_rank(world) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: world
        end function
        integer(c_int) function tsh_world_size(world) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: world
        end function
        type(c_ptr) function tsh_world_group(world) bind(c)
            import :: c_ptr
            type(c_ptr), value :: world
        end function
        integer(c_int) function tsh_barrier(group) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: group
        end function
        subroutine tsh_world_destroy(world) bind(c)
            import :: c_ptr
            type(c_ptr), value :: world
        end subroutine
    end interface
    integer :: rank, ranks, half, error, good, all_good
    type(c_ptr) :: world

    call MPI_Init(error)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
    call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
    call MPI_Comm_split(MPI_COMM_WORLD, mod(rank, 2), rank, half, error)
    good = 0
    if (tsh_world_init_mpi_f(half, c_null_ptr, world) == 0) then
        if (tsh_world_rank(world) == rank / 2 .and. tsh_world_size(world) == ranks / 2) then
            if (tsh_barrier(tsh_world_group(world)) == 0) good = 1
        end if
        call tsh_world_destroy(world)
    end if
    call MPI_Allreduce(good, all_good, 1, MPI_INTEGER, MPI_MIN, MPI_COMM_WORLD, error)
    if (rank == 0 .and. all_good == 1) print '(a)', 'fortran: good'
    call MPI_Comm_free(half, error)
    call MPI_Finalize(error)
    if (all_good == 0) stop 1
end program
