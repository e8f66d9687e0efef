#define _POSIX_C_SOURCE 200809L
#include "progress.h"
#include "numbers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

double seconds_now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int compare(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

double median_seconds(double *times, int64_t count, int64_t skipped) {
    if (count <= 2 * skipped) skipped = 0;
    if (count <= skipped) return 0;
    qsort(times + skipped, (size_t)(count - skipped), sizeof *times, compare);
    return times[skipped + (count - skipped) / 2];
}

void progress_begin(progress *p, int64_t first_step) {
    p->terminal = p->speaks && isatty(STDERR_FILENO);
    p->first_step = p->line_step = first_step;
    p->start = p->line = seconds_now();
}

void progress_clear(const progress *p) {
    if (p->terminal) fputs("\r\033[K", stderr);
}

static void print_line(FILE *file, const progress *p, int64_t done, double loss, double per_s) {
    double left = (seconds_now() - p->start) / (double)(done - p->first_step) * (double)(p->steps - done);
    fprintf(file, "step %*lld/%lld   loss %.4f   %6.0f %s/s   %.0f s left",
            snprintf(NULL, 0, "%lld", (long long)p->steps), (long long)done, (long long)p->steps, loss, per_s, p->unit,
            left);
}

void progress_step(progress *p, int64_t done, double loss) {
    if (!p->speaks) return;
    int64_t every = p->json || p->steps < 20 ? 1 : p->steps / 20;
    double time = seconds_now(), since = (double)(done - p->line_step);
    double per_s = since * (double)p->per_step / fmax(time - p->line, 1e-9);
    p->loss_sum += loss;
    if (p->terminal && (time - p->fresh > 0.2 || done == p->steps)) {
        progress_clear(p);
        if (done < p->steps) print_line(stderr, p, done, p->loss_sum / since, per_s);
        fflush(stderr);
        p->fresh = time;
    }
    if (done % every != 0 && done != p->steps) return;
    progress_clear(p);
    if (p->json) {
        printf("{\"step\": %lld, \"loss\": %s, \"%s_per_s\": %.1f, \"ranks\": %d}\n", (long long)done,
               json_number(p->loss_sum / since).text, p->unit, per_s, p->ranks);
    } else {
        print_line(stdout, p, done, p->loss_sum / since, per_s);
        putchar('\n');
    }
    p->loss_sum = 0;
    p->line_step = done;
    p->line = time;
}
