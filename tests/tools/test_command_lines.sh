#!/usr/bin/env bash
# test_command_lines.sh BUILD: what every program says of a command line that it cannot take, and of output that cannot
# be written. tshard-run, which has suites of its own, starts ranks here.
set -uo pipefail
bin=$1/bin
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE TSHARD_INIT TSHARD_BACKEND
export OPENBLAS_NUM_THREADS=1 TSHARD_TIMEOUT=60
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 # an example that fails does not tidy up
code=0
fail() { code=1; echo "FAILED: $*"; }

# expect CODE WORDS PROGRAM [ARGS...]: on stderr, where there are words. Programs that this build lacks are left out.
expect() {
    local wanted=$1 words=$2 program=$3 got
    shift 3
    [ -x "$bin/$program" ] || return 0
    timeout -k 5 300 "$bin/$program" "$@" < /dev/null > "$folder/out" 2> "$folder/err"
    got=$?
    [ $got = "$wanted" ] || fail "$program $*: exit code $got, not $wanted: $(cat "$folder/err")"
    grep -qF -- "$words" "$folder/err" || fail "$program $*: no word of '$words': $(cat "$folder/err")"
}

# full PROGRAM [ARGS...]: succeeds, and fails with words where the disk is full.
full() {
    local program=$1 got
    shift
    [ -x "$bin/$program" ] || return 0
    timeout -k 5 300 "$bin/$program" "$@" < /dev/null > "$folder/out" 2> "$folder/err" ||
        fail "$program $*: exit code $?: $(cat "$folder/err")"
    [ -s "$folder/out" ] || fail "$program $*: no output"
    timeout -k 5 300 "$bin/$program" "$@" < /dev/null > /dev/full 2> "$folder/err"
    got=$?
    [ $got = 1 ] || fail "$program $* > /dev/full: exit code $got"
    grep -q "^$program: .*writ\(e\|ten\)" "$folder/err" ||
        fail "$program $* > /dev/full: $(cat "$folder/err")"
}

# A file of vectors with nothing in it that is known: quick.
mkdir "$folder/vectors"
printf 'tensor x f64 0\n1\n' > "$folder/vectors/unknown.txt"

full train_text --help
full train_text --steps 2 --batch 2 --context 2 --sample 3
full train_gpt --help
full train_gpt --steps 2 --layers 1 --embed 8 --block 4 --batch 1 --sample 3
full mlp --help
full mlp
full data_parallel --help
full data_parallel
full pipeline --help
full pipeline
full generate --help
full generate --model tests/data/models/llama --prompt-ids 1 --tokens 2
full embed --help
full tshard-bench --help
full tshard-bench --version
full tshard-bench linear --help
full tshard-bench support
full tshard-bench linear --batch 2 --in 2 --out 2 --seconds 0.001
full tshard-bench collectives --max-bytes 4 --seconds 0.001
full check_vectors --help
full check_vectors "$folder/vectors"
full tshard-rendezvous --help
full tshard-checkpoint --help
full tshard-quantize --help
full tshard-plan --help
full tshard-plan -n 2 "$bin/mlp"
full tshard-trace --help
full tshard-run --help
full tshard-run --settings

expect 2 "--steps wants a whole number" train_text --steps ' 3'
expect 2 "--steps wants a whole number" train_text --steps +3
expect 2 "--steps wants a whole number" train_text --steps 4294967297000000000000
expect 2 "--steps wants a whole number" train_text --steps ''
expect 2 "--lr wants a number above 0" train_text --lr nan
expect 2 "--lr wants a number above 0" train_text --lr ' 1'
expect 2 "--seed wants" train_text --seed -1
expect 2 "--text wants a path" train_text --text ''
expect 2 "--text wants a value" train_text --text
expect 2 "is no option (--help names them)" train_text --what
expect 2 "is no option" train_text what
expect 2 "is no option" generate --what
expect 2 "wants a value" generate --model
expect 2 "is no option" embed what
expect 2 "--embed wants a whole number" train_gpt --embed ' 3'
expect 2 "--min-lr wants a number, 0 or more" train_gpt --min-lr -0
expect 1 "/nowhere cannot be read: No such file" train_text --text /nowhere
expect 1 "/tmp cannot be read: Is a directory" train_text --text /tmp
expect 1 "/dev/zero cannot be read: File too large" train_text --text /dev/zero
expect 1 "is empty" train_text --text /dev/null
expect 2 "--max-bytes wants bytes" tshard-bench collectives --max-bytes '4 '
expect 2 "--max-bytes wants bytes" tshard-bench collectives --max-bytes 4KB
expect 2 "--factor wants a whole number" tshard-bench collectives --factor ' 2'
expect 2 "--factor must be 2 or more" tshard-bench collectives --factor 1
expect 2 "--seconds wants seconds" tshard-bench linear --seconds inf
expect 2 "--seconds wants seconds" tshard-bench linear --seconds 1e7
expect 2 "--batch wants a whole number" tshard-bench linear --batch 9999999999
expect 2 "--plot wants a file name" tshard-bench linear --plot ''
expect 2 "--plot: cannot write '/nowhere/x'" tshard-bench linear --plot /nowhere/x
expect 2 "--batch wants a value" tshard-bench linear --batch
expect 2 "unknown option '--what'" tshard-bench linear --what
expect 2 "unknown command 'what'" tshard-bench what
expect 2 "unknown command ''" tshard-bench ''
RANK=nonsense expect 2 "unknown command 'what'" tshard-bench what
expect 2 "--ranks wants a list" check_vectors "$folder/vectors" --ranks 1,,2
expect 2 "--ranks wants a list" check_vectors "$folder/vectors" --ranks '1, 2'
expect 2 "--ranks wants a list" check_vectors "$folder/vectors" --ranks 65
expect 2 "--device wants cpu or cuda" check_vectors "$folder/vectors" --device gpu
expect 2 "--device wants a value" check_vectors "$folder/vectors" --device
expect 2 "'more' is another" check_vectors "$folder/vectors" more
expect 2 "DIR is missing" check_vectors
expect 2 "No such file" check_vectors /nowhere
expect 2 "no .txt files here" check_vectors "$folder"
expect 2 "--most wants 2 to 4096" tshard-rendezvous --most 4x
expect 2 "--most wants a value" tshard-rendezvous --most
expect 2 "'what' is no option and no method" tshard-rendezvous what
expect 1 "usage: " mlp a b
expect 1 "mlp: " mlp data=2x
expect 1 "usage: " data_parallel what
expect 1 "usage: " pipeline stage=1,data=1,model=1 2 3
expect 1 "pipeline: 1 to 50 micro-batches" pipeline stage=1,data=1,model=1 4x
expect 1 'pipeline: mesh_group: no axis "data"' pipeline stage=1,model=1
expect 1 "pipeline: mesh_create: " pipeline stage=2,data=1,model=1
expect 2 "a command is missing" tshard-checkpoint
expect 2 "the FOLDER to read is missing" tshard-quantize --type q8_0
expect 2 "the FILE to write is missing" tshard-quantize tests/data/models/llama
expect 2 "--type is missing" tshard-quantize tests/data/models/llama "$folder/m.gguf"
expect 2 "--type wants q8_0 or q4_0, not 'q5'" tshard-quantize --type q5
expect 1 "\"model_type\" is gpt2; llama and qwen2" tshard-quantize tests/data/models/gpt2 "$folder/m.gguf" --type q4_0
expect 2 "the folder of a trace is missing" tshard-trace
expect 1 "No such file" tshard-trace /tmp/there/is/none
expect 2 "--save wants a path" train_text --save ''
expect 2 "--every wants a whole number" train_text --every 0

# stdin is rank 0's, which reads it for both.
timeout -k 5 300 "$bin/tshard-run" -n 2 --bind none "$bin/train_text" --steps 1 --text /dev/stdin < "$0" \
    > "$folder/out" 2> "$folder/err" || fail "--text /dev/stdin on two ranks: $(cat "$folder/err")"

# Closed descriptors are not those of the sockets that the program opens.
timeout -k 5 300 "$bin/mlp" >&- 2> "$folder/err" && fail "mlp without stdout"
[ -s "$folder/err" ] || fail "mlp without stdout: no words"
exit $code
