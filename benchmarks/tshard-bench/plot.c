/* Pictures, drawn by gnuplot. */
#include "bench.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

/* In gnuplot's single quotes: a quote is written twice. */
static void put_quoted(FILE *to, const char *text) {
    fputc('\'', to);
    for (; *text; text++) {
        if (*text == '\'') fputc('\'', to);
        fputc(*text, to);
    }
    fputc('\'', to);
}

static void put_setting(FILE *to, const char *name, const char *value) {
    fprintf(to, "set %s ", name);
    put_quoted(to, value);
    fputc('\n', to);
}

static void put_script(FILE *to, const char *path, const bench_plot *plot, const bench_series *series, int n) {
    fputs("set terminal svg size 900,540 dynamic background rgb 'white' font 'sans-serif,14'\n", to);
    fputs("set key top left noenhanced\nset grid\n", to);
    put_setting(to, "output", path);
    put_setting(to, "title", plot->title);
    put_setting(to, "xlabel", plot->x_label);
    put_setting(to, "ylabel", plot->y_label);
    if (plot->bytes_x) fputs("set logscale x 2\nset format x '%.0b %BB'\n", to);
    fputs("set yrange [0:*]\n", to);
    for (int i = 0; i < n; i++) {
        fprintf(to, "$series%d << end_of_series\n", i);
        for (int j = 0; j < series[i].n; j++) fprintf(to, "%.17g %.17g\n", series[i].x[j], series[i].y[j]);
        fputs("end_of_series\n", to);
    }
    for (int i = 0; i < n; i++) {
        fprintf(to, "%s $series%d using 1:2 with linespoints linewidth 2 pointtype 7 pointsize 0.5 title ",
                i ? ",\\\n" : "plot", i);
        put_quoted(to, series[i].name);
    }
    fputc('\n', to);
}

bool bench_plot_can_write(const char *path) {
    FILE *file = fopen(path, "a");
    if (file)
        fclose(file);
    else
        bench_say("--plot: cannot write '%s': %s", path, strerror(errno));
    return file != NULL;
}

bool bench_plot_write(const char *path, const bench_plot *plot, const bench_series *series, int n) {
    /* A gnuplot that is not there must not end us with SIGPIPE. */
    void (*before)(int) = signal(SIGPIPE, SIG_IGN);
    FILE *gnuplot = popen("command -v gnuplot >/dev/null || exit 127; exec gnuplot >/dev/null", "w");
    int status = -1;
    if (gnuplot) {
        put_script(gnuplot, path, plot, series, n);
        status = pclose(gnuplot);
    }
    signal(SIGPIPE, before);
    if (status == 0) return true;
    if (status == -1)
        bench_say("--plot: cannot start gnuplot: %s", strerror(errno));
    else if (WIFEXITED(status) && WEXITSTATUS(status) == 127) {
        bench_say("--plot needs gnuplot, which is not installed (Debian: apt-get install gnuplot-nox)");
    } else
        bench_say("--plot: gnuplot could not draw '%s' (its words are above)", path);
    return false;
}
