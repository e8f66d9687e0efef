/* Checkpoints that are saved in the background, with ranks as threads, for a build with ThreadSanitizer. */
#include "support/checkpoints.h"
#include "support/files.h"

#include <stdio.h>

static char folder[64];

/* Values change while they are saved; the folder of a step has those of its save. */
static void background(tshi_rank *r, void *arg) {
    (void)arg;
    for (int way = 0; way < TSHI_TEST_LAYOUTS && !r->failed; way++) {
        tshi_test_model m;
        tshi_test_model_make(r, way, &m);
        for (int64_t step = 1; step <= 3 && !r->failed; step++) {
            tsh_checkpoint c = {.parameters = m.list, .step = step, .keep = 2, .background = true};
            tshi_test_model_fill(r, &m, (uint64_t)step);
            tshi_check_ok(r, tsh_checkpoint_save(folder, &c));
            tshi_test_model_fill(r, &m, 99);
        }
        tsh_checkpoint c = {.parameters = m.list};
        tshi_check_ok(r, tsh_checkpoint_load(folder, &c));
        tshi_test_model_is(r, &m, 3, "the last step");
        tshi_test_model_free(&m);
    }
}

/* Worlds are destroyed while threads write. */
static void leaving(tshi_rank *r, void *arg) {
    (void)arg;
    tshi_test_model m;
    tshi_test_model_make(r, 0, &m);
    tshi_check_ok(r, tsh_checkpoint_save(folder, &(tsh_checkpoint){.parameters = m.list, .background = true}));
    tshi_test_model_free(&m);
}

int main(void) {
    snprintf(folder, sizeof folder, "%s", tshi_test_folder(0));
    int failed = tshi_test_report_threads("background", 1, background);
    failed += tshi_test_report_threads("background", 3, background);
    failed += tshi_test_report_threads("leaving", 4, leaving);
    tshi_test_remove(folder);
    return failed ? 1 : 0;
}
