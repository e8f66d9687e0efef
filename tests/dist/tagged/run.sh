#!/usr/bin/env bash
# run.sh LAUNCHER RANKS PROGRAM [SCENARIO]: runs a scenario as ranks of MPI, or those of ../transport/ucx/launch.sh. Fails
# when a rank fails, when the scenario takes too long, or when it leaves a process behind.
set -uo pipefail
launcher=$1 ranks=$2 program=$(realpath "$3") scenario=${4:-}
limit=800 # a guard: polling ranks are slow beside programs that use whole time slices
[ -x "$program" ] || { echo "there is no $program"; exit 1; }

case $("$launcher" --version 2>&1) in
    *"Open MPI"* | *OpenRTE* | *PRRTE*)
        flags="--oversubscribe --bind-to none" recovery=--enable-recovery
        [ "$(id -u)" = 0 ] && flags+=" --allow-run-as-root"
        export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1
        ;;
    ranks) flags="" recovery=--enable-recovery TSHARD_INIT=env:// EXPECT_BACKEND=ucx EXPECT_NODES=${HOSTS:-1} ;;
    *) flags="" recovery="" ;;
esac
export ${EXPECT_BACKEND+EXPECT_BACKEND EXPECT_NODES} TSHARD_INIT=${TSHARD_INIT:-mpi://} TSHARD_HEAP=${TSHARD_HEAP:-512M} TSHARD_TIMEOUT=${TSHARD_TIMEOUT:-60} OPENBLAS_NUM_THREADS=1
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 # MPI itself leaks
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# The program gets a name of its own, by which processes that are left behind are found.
copy=$folder/ranks-$$-$scenario
export TEST_FOLDER=$folder OMPI_MCA_orte_tmpdir_base=$folder # launchers side by side race for the default's
ln -s "$program" "$copy"

launch() {
    rm -f "$folder"/arrived-*
    # shellcheck disable=SC2086
    timeout -k 5 "$limit" "$launcher" $flags -n "$ranks" "$@" < /dev/null
}

left_behind() {
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        pgrep -f "$copy" > "$folder/left" || return 1
        sleep 0.3
    done
    echo "left behind: $(tr '\n' ' ' < "$folder/left")"
}

code=0
case $scenario in
    late | stopped)
        # Ranks whose deadline has passed do not wait in MPI_Finalize, which the launcher reports as a failure.
        TEST_DEADLINE=1 launch "$copy" "$scenario" > "$folder/out" 2>&1
        [ $? = 124 ] && code=1
        grep -q '^rank .* of .*: ' "$folder/out" && code=1
        grep -q '^told: .*did not come within 1 s' "$folder/out" || code=1
        cat "$folder/out"
        ;;
    absent)
        TSHARD_TIMEOUT=0.5 launch "$copy" absent > "$folder/out" 2>&1
        [ $? = 124 ] && code=1
        cat "$folder/out"
        [ "$(grep -c '^told: ' "$folder/out")" = $((ranks - 1)) ] || code=1
        ;;
    named)
        TEST_DEADLINE=10 launch "$copy" named || code=1
        ;;
    exits)
        export TEST_DEADLINE=10
        launch "$copy" exits || code=1
        # Ranks whose recovery has failed do not wait in MPI_Finalize, which the launcher reports as a failure; and MPICH's
        # ends every rank when one dies.
        flags+=" $recovery"
        for ending in 0 killed; do
            [ "$ending$recovery" = killed ] && continue
            TEST_CODE=$ending TEST_RECOVER=1 launch "$copy" exits > "$folder/out" 2>&1
            cat "$folder/out"
            [ "$(grep -cE "^told: .*rank $((ranks - 1)).*( has left| died|: not enough; then it died)" "$folder/out")" = $((ranks - 1)) ] || code=1
        done
        ;;
    ring)
        TSHARD_SIGUSR1=1 launch "$copy" ring > "$folder/out" 2>&1 || code=1
        cat "$folder/out"
        # MPICH has a handler of its own, which tshard keeps.
        for ((i = 0; i < ranks - 1 && ${#recovery} > 0; i++)); do
            grep -q "rank $i's last calls, newest first: .*all_reduce float64 \[77\]" "$folder/out" || code=1
        done
        ;;
    lost)
        plain=$flags
        # MPICH's launcher ends when a rank dies, even with the option to ignore that.
        signals="KILL STOP"
        [ "$recovery" ] || signals=STOP
        for SEED in 1 2; do for WHEN in before inside after; do for SIGNAL in $signals; do
            export SIGNAL WHEN SEED
            # The launcher does not notice a stopped rank, and would wait for it.
            flags=$plain
            [ "$SIGNAL" = KILL ] && flags+=" $recovery"
            TEST_DEADLINE=0.6 launch "$copy" lost > "$folder/out" 2>&1
            [ $? = 124 ] && code=1
            echo "signal $SIGNAL, $WHEN, seed $SEED"
            cat "$folder/out"
            grep -q '^rank .* of .*: ' "$folder/out" && code=1
            [ "$(grep -c '^told: ' "$folder/out")" -ge $((ranks - 1)) ] || { echo "not every peer got an error"; code=1; }
            left_behind && code=1
        done; done; done
        ;;
    blame)
        for SEED in ${SEEDS:-1 2 3 4}; do
            export SEED
            TEST_DEADLINE=2 launch "$copy" blame > "$folder/out" 2>&1
            [ $? = 124 ] && code=1
            echo "seed $SEED"
            cat "$folder/out"
            grep -q '^rank .* of .*: ' "$folder/out" && code=1
            [ "$(grep -c '^told: ' "$folder/out")" -ge $((ranks - 1)) ] || { echo "not every peer got an error"; code=1; }
            left_behind && code=1
        done
        ;;
    dies | missing)
        # MPICH's launcher ends every rank when one dies.
        [ "$recovery" ] || [ "$scenario" = missing ] || { echo "this launcher ends all ranks when one dies"; exit 77; }
        flags+=" $recovery"
        launch "$copy" "$scenario" > "$folder/out" 2>&1
        [ $? = 124 ] && code=1
        cat "$folder/out"
        [ "$(grep -c '^survived: ' "$folder/out")" = $((ranks - 1)) ] || code=1
        ;;
    killed)
        launch "$copy" killed > "$folder/out" 2>&1
        result=$?
        cat "$folder/out"
        grep -q '^killing' "$folder/out" || code=1
        { [ $result = 0 ] || [ $result = 124 ]; } && code=1
        ;;
    numbers)
        # Two launchers, or a launcher and MPI, that number the ranks differently.
        folder_of_tools=$(realpath "$(dirname "$program")/../../bin")
        tool="$folder_of_tools/tshard-run --bind none"
        [ -x "$folder_of_tools/tshard-run" ] || { echo "there is no $tool"; exit 77; }
        export PATH=$folder_of_tools:$PATH
        # refuses WORDS COMMAND...: every rank says so, none makes a world.
        refuses() {
            timeout -k 5 100 "${@:2}" < /dev/null > "$folder/out" 2>&1 && { echo "no error: ${*:2}"; code=1; }
            grep -qF -- "$1" "$folder/out" || { echo "not '$1': ${*:2}"; code=1; cat "$folder/out"; }
        }
        # shellcheck disable=SC2086
        {
            # Ranks that are jobs of their own race for a folder, too.
            # shellcheck disable=SC2016
            refuses "RANK and WORLD_SIZE say rank 1 of $ranks, but MPI says rank 0 of 1" $tool -n "$ranks" \
                sh -c 'mkdir "$TEST_FOLDER/$RANK" && OMPI_MCA_orte_tmpdir_base=$TEST_FOLDER/$RANK exec "$0" place' "$copy"
            export TSHARD_INIT=env://
            refuses "WORLD_SIZE is 1, but" $tool -n 1 "$launcher" $flags -n "$ranks" "$copy" place
            # MPI has not numbered the ranks of tshard-run; the variables of another MPI's are no ranks of this one.
            if [ "$recovery" ]; then
                export TSHARD_BACKEND=mpi
                refuses "no launcher of MPI has started the ranks" $tool -n "$ranks" "$copy" place
                PMI_RANK=1 PMI_SIZE=$ranks \
                    refuses "PMI_RANK and PMI_SIZE say rank 1 of $ranks, but MPI says rank 0 of 1" "$copy" place
            fi
        }
        ;;
    losses)
        TSHARD_INIT=env:// TSHARD_BACKEND="" "$program" losses > "$folder/one" || code=1
        launch "$copy" losses > "$folder/many" || code=1
        # UCX prints messages at the end.
        sed -i '/^loss/!d' "$folder/one" "$folder/many"
        paste "$folder/one" "$folder/many" | tee "$folder/both"
        awk 'function far(a, b) { return a - b > 1e-5 || b - a > 1e-5 }
             NF != 6 || far($2, $5) || far($3, $6) { bad = 1 } END { exit bad || NR != 8 }' "$folder/both" || code=1
        ;;
    *)
        launch "$copy" ${scenario:+"$scenario"} || code=$?
        [ "$code" = 0 ] || echo "${scenario:-$program} on $ranks ranks ended with $code"
        ;;
esac
left_behind && code=1
exit "$code"
