/* Which part of n units each rank along an axis holds. */
#include "layout/layout.h"

#include <limits.h>

typedef __int128 wide;

void tsh_split(int64_t n, int parts, int index, int64_t *start, int64_t *length) {
    bool exists = n >= 0 && parts >= 1 && index >= 0 && index < parts;
    int64_t base = exists ? n / parts : 0, extra = exists ? n % parts : 0;
    if (!exists) index = 0;
    if (start) *start = index * base + (index < extra ? index : extra);
    if (length) *length = base + (index < extra ? 1 : 0);
}

void tsh_zigzag(int64_t n, int parts, int64_t *order) {
    if (n < 0 || parts < 1 || parts > INT_MAX / 2 || !order) return;
    for (int i = 0; i < 2 * parts; i++) {
        int64_t start, length;
        tsh_split(n, 2 * parts, i % 2 ? 2 * parts - 1 - i / 2 : i / 2, &start, &length);
        for (int64_t token = start; token < start + length; token++) *order++ = token;
    }
}

/* --- weights ------------------------------------------------------------------------------------------------------ */

static int64_t sum_of_weights(tshi_parts parts) {
    int64_t sum = 0;
    for (int i = 0; i < parts.count; i++) sum += tshi_parts_weight(parts, i);
    return sum;
}

double tshi_parts_share(tshi_parts parts, int index) {
    return index < 0 ? 1.0 / parts.count : (double)tshi_parts_weight(parts, index) / (double)sum_of_weights(parts);
}

int tshi_parts_holders(tshi_parts parts) {
    int holders = 0;
    for (int i = 0; i < parts.count; i++) holders += tshi_parts_weight(parts, i) > 0;
    return holders;
}

/* A dim of n = rounds * sum + rest units: each part holds rounds * weight, and of the rest its share. Where shares are
 * not whole, units are left: a part whose remainder is above `least` holds one of them, and so do the first `ties`
 * parts whose remainder is `least`. */
typedef struct shares {
    int64_t sum, rounds, rest, least;
    int ties;
} shares;

static int64_t rest_of(const shares *s, int64_t weight, int64_t *remainder) {
    wide product = (wide)s->rest * weight;
    *remainder = (int64_t)(product % s->sum);
    return (int64_t)(product / s->sum);
}

/* The number of parts whose remainder is at least `least`. */
static int remainders_from(const shares *s, tshi_parts parts, int64_t least) {
    int count = 0;
    for (int i = 0; i < parts.count; i++) {
        int64_t remainder;
        rest_of(s, parts.weights[i], &remainder);
        count += remainder >= least;
    }
    return count;
}

static shares shares_of(tshi_parts parts, int64_t n) {
    shares s = {.sum = sum_of_weights(parts)};
    int64_t remainder, left, above = s.sum;
    s.rounds = n / s.sum;
    s.rest = left = n % s.sum;
    for (int i = 0; i < parts.count; i++) left -= rest_of(&s, parts.weights[i], &remainder);
    while (above - s.least > 1) { /* `left` parts have remainders of at least `least`, but not of at least `above` */
        int64_t middle = s.least + (above - s.least) / 2;
        if (remainders_from(&s, parts, middle) >= left)
            s.least = middle;
        else
            above = middle;
    }
    s.ties = (int)left - remainders_from(&s, parts, above);
    return s;
}

void tshi_parts_split(tshi_parts parts, int64_t n, int index, int64_t *start, int64_t *length) {
    int64_t at = 0, held = 0, remainder;
    if (!parts.weights || n <= 0 || index < 0 || index >= parts.count) {
        tsh_split(n, parts.count, index, start, length);
        return;
    }
    shares s = shares_of(parts, n);
    for (int i = 0; i <= index; i++) {
        at += held;
        held = s.rounds * parts.weights[i] + rest_of(&s, parts.weights[i], &remainder);
        if (remainder > s.least || (remainder == s.least && s.ties-- > 0)) held++;
    }
    if (start) *start = at;
    if (length) *length = held;
}

void tsh_split_by_weight(int64_t n, int parts, const int64_t *weights, int index, int64_t *start, int64_t *length) {
    int64_t sum = 0;
    bool valid = true;
    for (int i = 0; weights && i < parts; i++)
        valid = valid && weights[i] >= 0 && !__builtin_add_overflow(sum, weights[i], &sum);
    if (weights && (!valid || sum == 0)) parts = 0;
    tshi_parts_split((tshi_parts){.count = parts, .weights = weights}, n, index, start, length);
}

bool tshi_parts_equal(tshi_parts a, tshi_parts b) {
    int i = 0;
    while (i < a.count && i < b.count && tshi_parts_weight(a, i) == tshi_parts_weight(b, i)) i++;
    return a.count == b.count && i == a.count;
}

const int64_t *tshi_weights_simplify(int64_t *weights, int count) {
    int64_t divisor = 0;
    bool equal = true;
    for (int i = 0; i < count; i++) {
        equal = equal && weights[i] == weights[0];
        for (int64_t a = weights[i]; a;) {
            int64_t rest = divisor % a;
            divisor = a;
            a = rest;
        }
    }
    for (int i = 0; i < count; i++) weights[i] /= divisor;
    return equal ? NULL : weights;
}

int64_t tshi_parts_enough(tshi_parts parts, int index, int64_t wanted) {
    int64_t sum = sum_of_weights(parts), weight = tshi_parts_weight(parts, index);
    wide enough = weight ? ((wide)wanted * sum + weight - 1) / weight : 0;
    return enough < INT64_MAX ? (int64_t)enough : INT64_MAX;
}

/* --- cut points --------------------------------------------------------------------------------------------------- */

/* The offsets [parts.count + 1], or NULL where the layout has none, or none of these parts. */
static const int64_t *cuts_of(const tsh_layout *layout, tshi_parts parts) {
    const tshi_cuts *cuts = tshi_cuts_find(parts.cuts, layout->cuts);
    return cuts && cuts->parts == parts.count ? cuts->at : NULL;
}

bool tshi_layout_cuts_fit(const tsh_layout *layout, int64_t n, tshi_parts parts) {
    const int64_t *at = cuts_of(layout, parts);
    return !layout->cuts || (at && at[parts.count] == n);
}

/* Items [*start, *start + *length) between the cut points of part `index`. */
static void split_at(const int64_t *at, int index, int64_t *start, int64_t *length) {
    int64_t end = *start + *length, last = end;
    if (index < 0 || at[index + 1] < end) last = index < 0 ? *start : at[index + 1];
    if (index >= 0 && at[index] > *start) *start = at[index] < end ? at[index] : end;
    *length = last > *start ? last - *start : 0;
}

/* --- units -------------------------------------------------------------------------------------------------------- */

/* The ranks [first, end) that share a unit; `count` of them have a weight. */
typedef struct sharers {
    int64_t unit;
    int first, end, count;
} sharers;

/* The sharers with rank `index`, which has a weight, of more ranks with a weight than units. Each unit in turn takes
 * ranks until it has its part of the weights that are left, and leaves a rank for each unit after it. */
static sharers sharers_of(int64_t units, tshi_parts parts, int index) {
    sharers s = {.unit = -1};
    int64_t left = sum_of_weights(parts), ranks = tshi_parts_holders(parts);
    while (s.end <= index) {
        int64_t taken = 0, units_left = units - ++s.unit;
        for (s.count = 0; !taken || (ranks >= units_left && (wide)taken * units_left < left); s.end++) {
            int64_t weight = tshi_parts_weight(parts, s.end);
            if (weight == 0) continue;
            if (!taken) s.first = s.end;
            taken += weight;
            s.count++;
            ranks--;
        }
        left -= taken;
    }
    return s;
}

void tshi_layout_split(const tsh_layout *layout, int64_t n, tshi_parts parts, int index, int64_t *start,
                       int64_t *length) {
    const int64_t *at = layout->cuts ? cuts_of(layout, parts) : NULL;
    if (at) {
        split_at(at, index, start, length);
        return;
    }
    int64_t size = layout->units ? n / layout->units : 1, units = size ? *length / size : 0, offset, count;
    bool shared = units > 0 && index >= 0 && (layout->blocks || layout->sharing) && tshi_parts_holders(parts) > units;
    if (!shared || tshi_parts_weight(parts, index) == 0) {
        tshi_parts_split(parts, units, index, &offset, &count);
        *start += offset * size;
        *length = count * size;
        return;
    }
    sharers s = sharers_of(units, parts, index);
    *start += s.unit * size;
    *length = size;
    if (layout->sharing) return;
    int64_t block = n / layout->blocks;
    tshi_parts among = {.count = s.end - s.first, .weights = parts.weights ? parts.weights + s.first : NULL};
    tshi_parts_split(among, size / block, index - s.first, &offset, &count);
    *start += offset * block;
    *length = count * block;
}

int tshi_layout_sharers(const tsh_layout *layout, tshi_parts parts, int index, int *first) {
    *first = index;
    if (index < 0 || layout->kind != TSH_KIND_SHARD || !layout->sharing || !layout->units) return 1;
    if (layout->sharing == TSH_SHARED_NEXT) return 1;
    if (tshi_parts_weight(parts, index) == 0 || tshi_parts_holders(parts) <= layout->units) return 1;
    sharers s = sharers_of(layout->units, parts, index);
    *first = s.first;
    return s.count;
}
