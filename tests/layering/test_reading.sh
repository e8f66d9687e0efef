#!/usr/bin/env bash
# Each file of the reading order in docs/architecture.md exists, and together they have at most 6,000 lines.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
files=$(sed -n '/^## Reading order/,/^x through/s/^| `\([^`]*\)` |.*/\1/p' docs/architecture.md)
[ -n "$files" ] || { echo "docs/architecture.md has no reading order"; exit 1; }
lines=$(xargs cat <<< "$files" | wc -l) || { echo "a file of the reading order is missing"; exit 1; }
[ "$lines" -le 6000 ] || { echo "the reading order has $lines lines; at most 6000 are allowed"; exit 1; }
