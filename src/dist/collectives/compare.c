/* Compares the calls that the ranks of a group publish, and prints both sides of a mismatch. */
#include "dist/collectives/collectives.h"

#include <stdio.h>
#include <string.h>

void tshi_signature_of_text(tshi_signature *signature, const char *text, uint64_t number) {
    *signature = (tshi_signature){.kind = TSHI_KIND_TEXT,
                                  .number = (uint32_t)number,
                                  .count = (int64_t)strlen(text),
                                  .check = tshi_fingerprint_text(TSHI_FINGERPRINT, text)};
}

char *tshi_signature_describe(const tshi_signature *signature, const char *text, char *line, size_t size) {
    char part[48] = "", root[32] = "";
    unsigned number = signature->number;
    if (signature->kind == TSHI_KIND_TEXT || signature->kind == TSHI_KIND_FAILED) {
        snprintf(line, size, "%s #%u", text, number);
        return line;
    }
    tsh_collective op = (tsh_collective)(signature->kind & 0xff);
    const tshi_collective *c = &tshi_collectives[op];
    const char *dtype = tsh_dtype_name(tshi_kind_dtype(signature->kind));
    tsh_reduce_op reduce = (tsh_reduce_op)(signature->kind >> 16 & 0xff);
    if (c->in == TSHI_PART || c->out == TSHI_PART) {
        snprintf(part, sizeof part, ", %lld of them its own,", (long long)signature->part);
    }
    if (tshi_is_rooted(op)) snprintf(root, sizeof root, " root %d", signature->root);
    if (c->in == TSHI_NONE && c->out == TSHI_NONE)
        snprintf(line, size, "%s #%u", c->name, number);
    else if (c->in == TSHI_LISTED && signature->count)
        snprintf(line, size, "redistribute %s of %lld elements #%u", dtype, (long long)signature->count, number);
    else if (c->in == TSHI_LISTED)
        snprintf(line, size, "%s %s #%u", c->name, dtype, number);
    else if (tshi_is_message(op))
        snprintf(line, size, "%s %s [%lld]%s", c->name, dtype, (long long)signature->count,
                 reduce ? " (a description)" : "");
    else
        snprintf(line, size, "%s %s [%lld]%s%s%s%s #%u", c->name, dtype, (long long)signature->count,
                 c->reduces ? " " : "", c->reduces ? tshi_reduction_name(reduce) : "", part, root, number);
    return line;
}

tsh_status tshi_signature_mismatch(const tsh_group *group, int a, const tshi_signature *first, const char *first_text,
                                   int b, const tshi_signature *other, const char *other_text) {
    char ours[TSHI_SIDE], theirs[TSHI_SIDE];
    bool counts = other->kind == first->kind && other->count == first->count && other->root == first->root &&
                  other->kind != TSHI_KIND_TEXT;
    return tshi_fail(TSH_ERR_MISMATCH, "rank %d: %s, rank %d: %s%s", group->ranks[a],
                     tshi_signature_describe(first, first_text, ours, sizeof ours), group->ranks[b],
                     tshi_signature_describe(other, other_text, theirs, sizeof theirs),
                     counts ? " (their counts differ)" : "");
}

tsh_status tshi_compare_signatures(const tsh_group *group, const tshi_signature *signatures, size_t stride,
                                   size_t text_at) {
    const char *first = (const char *)signatures;
    for (int i = 0; i < group->size; i++) {
        const char *at = first + (size_t)i * stride;
        if (((const tshi_signature *)(const void *)at)->kind != TSHI_KIND_FAILED) continue;
        return tshi_fail(TSH_ERR_PEER, "rank %d: %.480s", group->ranks[i], at + text_at);
    }
    for (int i = 1; i < group->size; i++) {
        const char *at = first + (size_t)i * stride;
        const tshi_signature *signature = (const void *)at;
        if (tshi_signatures_equal(signatures, signature)) continue;
        return tshi_signature_mismatch(group, 0, signatures, first + text_at, i, signature, at + text_at);
    }
    return TSH_OK;
}

static const int64_t *row(const int64_t *counts, size_t stride, int member) {
    return (const void *)((const char *)counts + (size_t)member * stride);
}

tsh_status tshi_compare_counts(const tsh_group *group, const int64_t *counts, size_t stride) {
    for (int i = 0; i < group->size; i++) {
        for (int j = 0; j < group->size; j++) {
            int64_t sends = row(counts, stride, i)[j], expects = row(counts, stride, j)[group->size + i];
            if (sends == expects) continue;
            return tshi_fail(TSH_ERR_MISMATCH, "all_to_all: rank %d sends %lld elements to rank %d, which expects %lld",
                             group->ranks[i], (long long)sends, group->ranks[j], (long long)expects);
        }
    }
    return TSH_OK;
}

tsh_status tshi_message_mismatch(const tsh_group *group, int sender, const tshi_signature *sent, int receiver,
                                 const tshi_signature *wanted, const char *after) {
    char out[TSHI_SIDE], in[TSHI_SIDE];
    return tshi_fail(TSH_ERR_MISMATCH, "rank %d: %s%s, rank %d: %s", group->ranks[sender],
                     tshi_signature_describe(sent, NULL, out, sizeof out), after, group->ranks[receiver],
                     tshi_signature_describe(wanted, NULL, in, sizeof in));
}
