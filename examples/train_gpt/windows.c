/* The batches of train_gpt: windows of a text. */
#include "train_gpt.h"

#include <stdio.h>

/* Where window number `number` starts. The windows of an epoch do not overlap, come in a shuffled order, and cover the
 * part; the next epoch cuts it elsewhere. They depend only on the part's seed and their number, so any number of ranks
 * gets the same batches. */
static int64_t window_start(const windows *w, const options *o, int64_t number) {
    int64_t places = w->length - o->block, count = places > o->block ? places / o->block : 1;
    const tsh_batches order = {.items = count, .batch = o->batch, .seed = w->seed};
    int64_t starts = places - (count - 1) * o->block; /* of the first window */
    uint64_t bits = random_bits(w->seed, (uint64_t)(number / count));
    return tsh_batches_item(&order, number) * o->block + (int64_t)(bits % (uint64_t)starts);
}

void windows_draw(const windows *w, const options *o, int64_t number, int64_t *inputs, int64_t *targets) {
    for (int64_t b = 0; b < o->batch; b++) {
        int64_t start = w->first + window_start(w, o, number * o->batch + b);
        for (int64_t i = 0; i < o->block; i++) {
            inputs[b * o->block + i] = text_symbol(w->t, start + i);
            targets[b * o->block + i] = text_symbol(w->t, start + i + 1);
        }
    }
}

bool windows_split(const char *program, const text *t, const options *o, windows *training, windows *validation) {
    int64_t first = t->length * 9 / 10;
    *training = (windows){t, 0, first, o->seed};
    *validation = (windows){t, first, t->length - first, ~o->seed};
    if (validation->length > o->block) return true;
    fprintf(stderr,
            "%s: the text has %lld symbols, of which the last %lld are for validation: a block of %lld wants more\n",
            program, (long long)t->length, (long long)validation->length, (long long)o->block);
    return false;
}
