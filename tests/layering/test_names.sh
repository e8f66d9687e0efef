#!/usr/bin/env bash
# Every private name of this tree is declared once; and the check that says so notices one that is declared twice.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
check=$here/check_names.sh
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failures=0

# expect good|bad TEXT TEXT [FILE]: two files, the second of the given name, with these texts.
expect() {
    local want=$1 second=$tree/${4:-src/b/b.h} got=good
    rm -rf "${tree:?}"/*
    mkdir -p "$tree/src/a" "$(dirname "$second")"
    printf '%b\n' "$2" > "$tree/src/a/a.h"
    printf '%b\n' "$3" > "$second"
    bash "$check" "$tree" > /dev/null || got=bad
    [ "$got" = "$want" ] || { echo "judged $got, not $want: $2 | $3"; failures=$((failures + 1)); }
}

expect bad '#define TSHI_SIZE 4' '#define TSHI_SIZE 5'
expect bad '#define TSHI_SIZE 4' 'enum { TSH_AS_OTHER, TSHI_SIZE = 5 };'
expect bad 'typedef enum tshi_a { TSHI_ONE, TSHI_IDLE } tshi_a;' 'typedef enum tshi_b {\n    TSHI_TWO = 3, /* two */\n    TSHI_IDLE\n} tshi_b;'
expect bad 'typedef struct tshi_watch {\n    int n;\n} tshi_watch;' 'struct tshi_watch { char c; };'
expect bad 'typedef int tshi_number;' 'typedef long tshi_number;'
expect bad 'typedef int tshi_number;' 'int tshi_number(void);'
expect bad 'typedef void tshi_call(int);' 'typedef int (*tshi_call)(long);'
expect bad 'int tshi_f(int x);' 'void tshi_f(void);'
expect bad 'int tshi_f(int x) {\n    return x;\n}' 'static void tshi_f(void) {}'
expect bad 'extern const int tshi_table[2];' 'extern const char tshi_table;'
expect bad 'extern "C" {\nint tshi_f(void);\n}' 'int tshi_f(void);'
expect bad '#define TSHI_SIZE 4' '#define TSHI_SIZE 5' tests/b/b.c
expect good 'int tshi_f(int x);' 'int tshi_f(int x) {\n    return tshi_f(x - 1);\n}'
expect good 'tshi_add_fn tshi_add;' 'void tshi_add(int x) {}'
expect bad 'tshi_add_fn tshi_add;' 'tshi_sub_fn tshi_add;'
expect good 'typedef struct tshi_watch tshi_watch;' 'struct tshi_watch {\n    struct tshi_watch *next;\n};'
expect good 'extern const int tshi_table[2];' 'const int tshi_table[2] = {TSHI_ONE, TSHI_TWO};'
expect good '#ifdef X\n#define TSHI_SIZE 4\n#else\n#define TSHI_SIZE 5\n#endif' 'int x = TSHI_SIZE;'
expect good '/* int tshi_f(void); */ int tshi_f(void);' '// int tshi_f(void);\nconst char *text = "tshi_f(";'
expect good 'int tshi_f(void) {\n    return 1;\n}' 'int tshi_f(void) {\n    return 0;\n}' src/b/stub/b.c
expect good 'int own(void);\n#define OWN 1' 'int own(void);\n#define OWN 2'
rm -rf "${tree:?}"/*
bash "$check" "$tree" > /dev/null && { echo "an empty tree passed"; failures=$((failures + 1)); }

bash "$check" "$here/../.." || failures=$((failures + 1))
[ $failures = 0 ]
