# mpi_run RANKS PROGRAM ARGUMENT...: the program as ranks of MPI, started by $launcher.
# shellcheck shell=bash
case $("${launcher:?}" --version 2>&1) in
    *"Open MPI"* | *OpenRTE* | *PRRTE*)
        mpi_flags=(--oversubscribe --bind-to none)
        [ "$(id -u)" = 0 ] && mpi_flags+=(--allow-run-as-root)
        export OMPI_MCA_mpi_yield_when_idle=1
        ;;
    *) mpi_flags=() ;;
esac
export TSHARD_HEAP=${TSHARD_HEAP:-512M} TSHARD_TIMEOUT=${TSHARD_TIMEOUT:-60} OPENBLAS_NUM_THREADS=1
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 # MPI itself leaks
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
mpi_folder=$(mktemp -d)
export TEST_FOLDER=$mpi_folder OMPI_MCA_orte_tmpdir_base=$mpi_folder # launchers side by side race for the default's
trap 'rm -rf "$mpi_folder"' EXIT

mpi_run() {
    local ranks=$1
    shift
    timeout -k 5 300 "$launcher" "${mpi_flags[@]}" -n "$ranks" "$@" < /dev/null
}
