#!/usr/bin/env bash
# Every public function has its comment, every header its word on threads; and the check of the first notices a function
# that has none.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
check=$here/check_comments.sh
header=$(mktemp)
trap 'rm -f "$header"' EXIT
failures=0

# expect good|bad TEXT
expect() {
    local want=$1 got=good
    printf '/* file */\n%b\n' "$2" > "$header"
    bash "$check" "$header" > /dev/null || got=bad
    [ "$got" = "$want" ] || { echo "judged $got, not $want: $2"; failures=$((failures + 1)); }
}

expect good '\n/* one */\nTSH_API int f(void);'
expect good '\n/* for\n * both */\nTSH_API int f(void);\nTSH_API int g(void);'
expect bad '\nTSH_API int f(void);'
expect bad 'TSH_API int f(void);'
expect bad '\n/* one */\nTSH_API int f(void);\n\nTSH_API int g(void);'
expect bad '\n/* no function at all */'

bash "$check" "$here"/../../include/tshard/*.h || failures=$((failures + 1))

# Every header says which of its functions other threads may call.
silent=$(grep -l '^TSH_API' "$here"/../../include/tshard/*.h | xargs grep -L '^ \* Thread safety: ')
[ -z "$silent" ] || { echo "no word on thread safety: $silent"; failures=$((failures + 1)); }
[ $failures = 0 ]
