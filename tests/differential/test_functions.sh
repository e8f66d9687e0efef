#!/usr/bin/env bash
# Every public function of functional.h and layers.h is called by the random programs, and so are the changes of layout
# and tsh_from_local; those of train.h by them or in random training steps. What outlives dead ranks, the order of data,
# Muon, experts and adapters are left to train.protection, train.batches, train.muon, examples.any_machines,
# layers.experts, check_vectors, layers.lora and examples.adapters.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
missing=0

# functions HEADER: the names of its public functions.
functions() {
    sed -n 's/^TSH_API [^(]*[ *]\(tsh_[a-z0-9_]*\)(.*/\1/p' "include/tshard/$1"
}

training=$(functions train.h | grep -vE '^tsh_(batches|protection|muon)_' | tr '\n' ' ')
names=$(functions functional.h | grep -vE '^tsh_(route|expert_)'
        functions layers.h | grep -vE '_(adapt|merge|lora_[ab])$|^tsh_(block_)?experts'; echo "$training"
        printf '%s\n' tsh_redistribute_along tsh_scatter tsh_gather tsh_reduce tsh_copy tsh_backward tsh_backward_with \
            tsh_tensor_retain_grad tsh_tape_set_recording tsh_from_local)
count=$(wc -w <<< "$names")
[ "$count" -ge 60 ] || { echo "only $count functions found in the headers"; exit 1; }
for name in $names; do
    grep -qE "\b$name\(" tests/differential/*.c && continue
    [[ " $training " == *" $name "* ]] && grep -qE "\b$name\(" tests/training_steps/*.c && continue
    echo "no random program calls $name"
    missing=$((missing + 1))
done
[ $missing = 0 ]
