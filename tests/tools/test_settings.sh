#!/usr/bin/env bash
# test_settings.sh BUILD: the table in docs/environment.md is what `tshard-run --settings` prints.
set -uo pipefail
page=$(cd "$(dirname "$0")/../.." && pwd)/docs/environment.md
diff <(sed -n '/^| variable | value/,/^$/p' "$page" | sed '/^$/d') <("$1/bin/tshard-run" --settings) ||
    { echo "FAILED: the table of $page is not that of tshard-run --settings (>)"; exit 1; }
