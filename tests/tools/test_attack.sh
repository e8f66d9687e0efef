#!/usr/bin/env bash
# test_attack.sh BUILD: hostile command lines for every program, for most of a minute; attack.py says more.
command -v python3 > /dev/null || { echo "skipped: there is no python3"; exit 77; }
exec python3 "$(dirname "$0")/attack.py" "$1" --seconds "${TSHARD_TEST_ATTACK_SECONDS:-50}" --seed "${TSHARD_TEST_ATTACK_SEED:-1}"
