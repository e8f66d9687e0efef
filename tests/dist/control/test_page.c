/* What the page of a machine keeps of the news of other machines' ranks. */
#include "dist/control/page.h"

#include <criterion/criterion.h>
#include <stdlib.h>

static tshi_page *new_page(int size) {
    tshi_page *page = aligned_alloc(TSHI_LINE_BYTES, tshi_page_bytes(size));
    memset(page, 0, tshi_page_bytes(size));
    page->size = size;
    return page;
}

static void apply(tshi_page *page, uint32_t state, uint32_t recover, const char *reason) {
    tshi_rank_news news = {.rank = 1, .state = state, .recover = recover, .step = {1, recover + 1}};
    strcpy(news.reason, reason);
    tshi_page_apply(page, &news);
}

/* A relay sends the latest only, so that a failure, a recovery and another failure may be one piece of news. */
Test(page, a_second_failure_has_its_own_words, .timeout = 60) {
    tshi_page *page = new_page(2);
    apply(page, TSHI_FAILED, 0, "the first");
    apply(page, TSHI_FAILED, 3, "the second");
    cr_assert_str_eq(page->record[1].reason, "the second");
    cr_assert_eq(page->record[1].step.number, 4);
    cr_assert_eq(page->failures, 1);
    apply(page, TSHI_ALIVE, 6, "");
    cr_assert_eq(page->failures, 0);
    free(page);
}

Test(page, what_is_lost_stays_so, .timeout = 60) {
    tshi_page *page = new_page(2);
    apply(page, TSHI_STUCK, 0, "it is stuck");
    apply(page, TSHI_ALIVE, 3, "");
    cr_assert_eq(tshi_page_state(page, 1), TSHI_STUCK);
    cr_assert_str_eq(page->record[1].reason, "it is stuck");
    cr_assert_eq(page->record[1].recover, 3);
    cr_assert_eq(page->failures, 1);
    cr_assert_eq(page->cause, 2);
    free(page);
}
