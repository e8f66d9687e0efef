/* Name maps: patterns, and the geometry of slices and transpositions. */
#include "io/names.h"

#include <string.h>

/* --- rules -------------------------------------------------------------------------------------------------------- */

static bool has_stars(const char *name) {
    const char *star = strchr(name, '*');
    return star && strchr(star + 1, '*');
}

static tsh_status check_rule(const tsh_name_rule *rule, int number) {
    const char *wrong = NULL;
    if (!rule->parameter || !rule->tensor) return tshi_fail(TSH_ERR_ARGUMENT, "rule %d: a name is NULL", number);
    if (has_stars(rule->parameter) || has_stars(rule->tensor))
        wrong = "a name may have only one '*'";
    else if (strchr(rule->tensor, '*') && !strchr(rule->parameter, '*'))
        wrong = "the tensor's name has a '*', the parameter's has none";
    else if (rule->length < 0 || rule->parameter_start < 0 || rule->tensor_start < 0 || rule->dim < 0)
        wrong = "a number is negative";
    else if (rule->parameter_start > INT64_MAX - rule->length || rule->tensor_start > INT64_MAX - rule->length)
        wrong = "a slice ends past 2^63";
    else if (rule->length == 0 && (rule->dim || rule->parameter_start || rule->tensor_start))
        wrong = "a slice needs a length";
    else if (rule->squeeze && (rule->dim || rule->length != 1 || rule->tensor_start))
        wrong = "squeeze needs length 1 of dim 0, and tensor_start 0";
    if (!wrong) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT, "rule %d ('%.80s', '%.80s'): %s", number, rule->parameter, rule->tensor, wrong);
}

/* True when the name matches; the '*' stands for its characters [*begin, *end). */
static bool matches(const char *pattern, const char *name, size_t *begin, size_t *end) {
    const char *star = strchr(pattern, '*');
    size_t length = strlen(name);
    *begin = *end = length;
    if (!star) return strcmp(pattern, name) == 0;
    size_t before = (size_t)(star - pattern), after = strlen(star + 1);
    if (length < before + after || memcmp(pattern, name, before) != 0) return false;
    *begin = before;
    *end = length - after;
    return memcmp(star + 1, name + *end, after) == 0;
}

bool tshi_name_matches(const char *pattern, const char *name) {
    size_t begin, end;
    return matches(pattern, name, &begin, &end);
}

tsh_status tshi_patterns_check(const char *const *patterns) {
    for (; patterns && *patterns; patterns++) {
        if (has_stars(*patterns))
            return tshi_fail(TSH_ERR_ARGUMENT, "ignored '%.80s': a name may have only one '*'", *patterns);
    }
    return TSH_OK;
}

/* The pattern with its '*' replaced by `length` characters of text; NULL without memory. */
static char *fill_in(const tsh_allocator *allocator, const char *pattern, const char *text, size_t length) {
    const char *star = strchr(pattern, '*');
    size_t before = star ? (size_t)(star - pattern) : strlen(pattern), after = star ? strlen(star + 1) : 0;
    char *name = tshi_calloc(allocator, before + length + after + 1, 1);
    if (!name) return NULL;
    memcpy(name, pattern, before);
    if (!star) return name;
    memcpy(name + before, text, length);
    memcpy(name + before + length, star + 1, after);
    return name;
}

/* Adds a parameter's link by a rule whose '*' stands for [begin, end) of its name. */
static tsh_status add_link_of_rule(tshi_links *links, const tsh_parameters *list, int parameter,
                                   const tsh_name_rule *rule, size_t begin, size_t end) {
    tsh_status status =
        tshi_grow(&links->allocator, (void **)&links->items, &links->capacity, links->count + 1, sizeof *links->items);
    if (status != TSH_OK) return status;
    char *tensor = fill_in(&links->allocator, rule->tensor, list->items[parameter].name + begin, end - begin);
    if (!tensor) return TSH_ERR_MEMORY;
    links->items[links->count++] = (tshi_link){.parameter = parameter,
                                               .tensor = tensor,
                                               .transpose = rule->transpose,
                                               .squeeze = rule->squeeze,
                                               .dim = rule->dim,
                                               .length = rule->length,
                                               .parameter_start = rule->parameter_start,
                                               .tensor_start = rule->tensor_start};
    return TSH_OK;
}

/* The links of one parameter. */
static tsh_status add_links_of_parameter(tshi_links *links, const tsh_parameters *list, int parameter,
                                         const tsh_name_rule *rules, int count) {
    static const tsh_name_rule same = {.parameter = "*", .tensor = "*"};
    const char *name = list->items[parameter].name;
    int before = links->count;
    size_t begin, end;
    tsh_status status = TSH_OK;
    for (int i = 0; status == TSH_OK && i < count; i++) {
        if (!matches(rules[i].parameter, name, &begin, &end)) continue;
        if (links->count > before && rules[i].length == 0) continue;
        status = add_link_of_rule(links, list, parameter, &rules[i], begin, end);
        if (rules[i].length == 0) break;
    }
    if (status == TSH_OK && links->count == before)
        status = add_link_of_rule(links, list, parameter, &same, 0, strlen(name));
    return status;
}

tsh_status tshi_links_make(const tsh_parameters *list, const tsh_name_rule *rules, int count, tshi_links *out) {
    tsh_status status = TSH_OK;
    *out = (tshi_links){.allocator = list->world->allocator};
    if (count < 0 || (count > 0 && !rules))
        return tshi_fail(TSH_ERR_ARGUMENT, "rule_count is %d and rules is NULL", count);
    for (int i = 0; status == TSH_OK && i < count; i++) status = check_rule(&rules[i], i);
    for (int i = 0; status == TSH_OK && i < list->count; i++)
        status = add_links_of_parameter(out, list, i, rules, count);
    if (status != TSH_OK) tshi_links_free(out);
    return status;
}

void tshi_links_free(tshi_links *links) {
    for (int i = 0; i < links->count; i++) tshi_free(&links->allocator, links->items[i].tensor);
    tshi_free(&links->allocator, links->items);
    links->items = NULL;
    links->count = links->capacity = 0;
}

int tshi_links_of(const tshi_links *links, int first) {
    int n = 1;
    while (first + n < links->count && links->items[first + n].parameter == links->items[first].parameter) n++;
    return n;
}

/* --- geometry ----------------------------------------------------------------------------------------------------- */

const char *tshi_links_check(const tshi_link *first, int count, const tsh_tensor *parameter) {
    const tsh_shape *s = &parameter->shape;
    int64_t filled = 0;
    if (first->length == 0) return NULL;
    for (int i = 0; i < count; i++) {
        if (first[i].dim != first->dim || first[i].dim >= s->ndim)
            return "must be sliced along one of its dims by all its rules";
        if (first[i].parameter_start + first[i].length > s->global[first->dim])
            return "has a rule that goes past its end";
        filled += first[i].length;
        for (int k = 0; k < i; k++) {
            if (first[i].parameter_start < first[k].parameter_start + first[k].length &&
                first[k].parameter_start < first[i].parameter_start + first[i].length)
                return "has rules that overlap";
        }
    }
    return filled == s->global[first->dim] ? NULL : "is not filled completely by its rules";
}

const char *tshi_link_check(const tshi_link *link, const tsh_tensor *parameter, int ndim, const int64_t *shape) {
    const tsh_shape *s = &parameter->shape;
    if (link->transpose && tshi_link_ndim(link, s->ndim) != 2) return "cannot be transposed: it does not have two dims";
    if (ndim != tshi_link_ndim(link, s->ndim)) return "has another number of dims";
    for (int d = 0; d < ndim; d++) {
        int own = tshi_link_dim(link, d);
        if (link->length && own == link->dim) {
            if (link->tensor_start + link->length > shape[d]) return "is a slice past the end";
        } else if (shape[d] != s->global[own]) {
            return "has another shape";
        }
    }
    return NULL;
}

bool tshi_link_box(const tshi_link *link, int ndim, const tsh_box *box, tsh_box *piece, tsh_box *place) {
    tsh_box slice = *box;
    if (link->length) {
        slice.start[link->dim] = link->parameter_start;
        slice.length[link->dim] = link->length;
    }
    if (!tshi_box_intersect(ndim, box, &slice, piece)) return false;
    tsh_box moved = *piece;
    if (link->length) moved.start[link->dim] += link->tensor_start - link->parameter_start;
    *place = (tsh_box){0};
    for (int d = 0; d < tshi_link_ndim(link, ndim); d++) {
        place->start[d] = moved.start[tshi_link_dim(link, d)];
        place->length[d] = moved.length[tshi_link_dim(link, d)];
    }
    return true;
}
