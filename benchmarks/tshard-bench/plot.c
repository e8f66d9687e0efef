/* Pictures, drawn by gnuplot. */
#include "bench.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* In gnuplot's double quotes, which may hold several lines. */
static void put_quoted(FILE *to, const char *text) {
    fputc('"', to);
    for (; *text; text++) {
        if (*text == '\n') {
            fputs("\\n", to);
            continue;
        }
        if (*text == '"' || *text == '\\') fputc('\\', to);
        fputc(*text, to);
    }
    fputc('"', to);
}

static void put_setting(FILE *to, const char *name, const char *value) {
    fprintf(to, "set %s ", name);
    put_quoted(to, value);
    fputs(strcmp(name, "output") == 0 ? "\n" : " noenhanced\n", to);
}

static void put_head(FILE *to, const char *path, const char *title, const char *y_label) {
    fputs("set terminal svg size 900,540 dynamic background rgb 'white' font 'sans-serif,14'\n", to);
    fputs("set border 3\nset tics nomirror out\nset grid linetype 1 linecolor rgb '#dddddd'\n", to);
    put_setting(to, "output", path);
    put_setting(to, "title", title);
    put_setting(to, "ylabel", y_label);
}

/* --- curves ------------------------------------------------------------------------------------------------------- */

/* 4 B, 64 B, 1 KiB, ...: gnuplot's own prefixes read worse. */
static void put_byte_tics(FILE *to) {
    const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    fputs("set xtics (", to);
    for (int power = 2; power <= 40; power += 4) {
        fprintf(to, "%s'%d %s' %lld", power > 2 ? ", " : "", 1 << power % 10, units[power / 10], 1ll << power);
    }
    fputs(")\n", to);
}

static void put_curves(FILE *to, const bench_plot *plot, const bench_series *series, int n) {
    put_setting(to, "xlabel", plot->x_label);
    fputs("set key top left reverse Left noenhanced\n", to);
    if (plot->bytes_x) fputs("set logscale x 2\n", to);
    if (plot->bytes_x) put_byte_tics(to);
    fputs(plot->log_y ? "set logscale y 10\nset format y '%g'\n" : "set yrange [0:*]\n", to);
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

/* --- bars --------------------------------------------------------------------------------------------------------- */

enum { MOST_BARS = 8 };

static const char *const bar_colours[MOST_BARS] = {"#4c78a8", "#72b7b2", "#b4b4b4", "#e45756",
                                                   "#b279a2", "#eeca3b", "#54a24b", "#9d755d"};

/* Where the bars of a group stand, side by side or on each other. Returns how many places they take. */
static int place_bars(const bench_bars *b, int place[MOST_BARS]) {
    int places = 0;
    for (int i = 0; i < b->bars; i++) place[i] = i > 0 && b->stacked[i] ? places - 1 : places++;
    return places;
}

/* Lines of x, height of the top, value. */
static void put_bar_values(FILE *to, const bench_bars *b, const int *place, double stride) {
    for (int i = 0; i < b->bars; i++) {
        fprintf(to, "$bar%d << end_of_bar\n", i);
        for (int g = 0; g < b->groups; g++) {
            const double *values = b->value + g * b->bars;
            double top = values[i];
            for (int j = i; j > 0 && b->stacked[j]; j--) top += values[j - 1];
            fprintf(to, "%g %.17g %.17g\n", g * stride + place[i], top, values[i]);
        }
        fputs("end_of_bar\n", to);
    }
}

/* What stands on another is drawn first, as a bar of the whole height that the lower one then covers. */
static void put_boxes(FILE *to, const bench_bars *b) {
    for (int i = 0; i < b->bars; i++) {
        fprintf(to, "%s NaN with boxes linecolor rgb '%s' title ", i ? ",\\\n" : "plot", bar_colours[i]);
        put_quoted(to, b->bar[i]);
    }
    for (int i = b->bars - 1; i >= 0; i--) {
        bool in_stack = b->stacked[i] || (i + 1 < b->bars && b->stacked[i + 1]);
        const char *at = in_stack ? "($2 - $3 / 2)" : "2", *look = in_stack ? "textcolor rgb 'white'" : "offset 0,0.6";
        fprintf(to, ",\\\n$bar%d using 1:2:(0.9) with boxes linecolor rgb '%s' notitle", i, bar_colours[i]);
        fprintf(to, ",\\\n$bar%d using 1:%s:(sprintf($3 < 100 ? '%%.3g' : '%%.0f', $3)) with labels %s notitle", i, at,
                look);
    }
    fputc('\n', to);
}

static void put_bars(FILE *to, const bench_bars *b) {
    int place[MOST_BARS] = {0};
    int places = place_bars(b, place);
    double stride = places + 1.0, width = b->groups * stride - 1.0;
    double margin = width < 7.0 ? (8.0 - width) / 2 : 0.5; /* a lone group would be a wall */
    fputs("set key bmargin center horizontal width 2 samplen 1.5 maxrows 1 reverse Left noenhanced\nset style fill "
          "solid noborder\nset grid noxtics ytics\n"
          "set yrange [0:*]\nset offsets 0, 0, graph 0.08, 0\nset xtics scale 0 noenhanced (",
          to);
    for (int g = 0; g < b->groups; g++) {
        fputs(g ? ", " : "", to);
        put_quoted(to, b->group[g]);
        fprintf(to, " %g", g * stride + (places - 1) / 2.0);
    }
    fprintf(to, ")\nset xrange [%g:%g]\n", -0.5 - margin, width - 0.5 + margin);
    if (b->bars == 1) fputs("unset key\nset bmargin 4\n", to); /* the axis says what it is */
    put_bar_values(to, b, place, stride);
    put_boxes(to, b);
}

/* --- gnuplot ------------------------------------------------------------------------------------------------------ */

bool bench_plot_can_write(const char *path) {
    /* Opening a FIFO without a reader is an error at once. */
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC, 0666);
    if (fd >= 0)
        close(fd);
    else
        bench_say("--plot: cannot write '%s': %s", path, strerror(errno));
    return fd >= 0;
}

/* NULL when it cannot be started. */
static FILE *start_gnuplot(void) {
    return popen("command -v gnuplot >/dev/null || exit 127; exec gnuplot >/dev/null", "w");
}

static bool end_gnuplot(const char *path, FILE *gnuplot) {
    int status = gnuplot ? pclose(gnuplot) : -1;
    if (status == 0) return true;
    if (status == -1)
        bench_say("--plot: cannot start gnuplot: %s", strerror(errno));
    else if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        bench_say("--plot needs gnuplot, which is not installed (Debian: apt-get install gnuplot-nox)");
    else
        bench_say("--plot: gnuplot could not draw '%s' (its own message is above)", path);
    return false;
}

typedef struct bench_drawing {
    const bench_plot *plot;
    const bench_series *series;
    int n;
    const bench_bars *bars;
} bench_drawing;

static bool draw(const char *path, const bench_drawing *drawing) {
    /* A gnuplot that is not there must not end us with SIGPIPE. */
    void (*before)(int) = signal(SIGPIPE, SIG_IGN);
    FILE *gnuplot = start_gnuplot();
    if (gnuplot && drawing->bars) {
        put_head(gnuplot, path, drawing->bars->title, drawing->bars->y_label);
        put_bars(gnuplot, drawing->bars);
    } else if (gnuplot) {
        put_head(gnuplot, path, drawing->plot->title, drawing->plot->y_label);
        put_curves(gnuplot, drawing->plot, drawing->series, drawing->n);
    }
    bool drawn = end_gnuplot(path, gnuplot);
    signal(SIGPIPE, before);
    return drawn;
}

bool bench_plot_write(const char *path, const bench_plot *plot, const bench_series *series, int n) {
    return draw(path, &(bench_drawing){.plot = plot, .series = series, .n = n});
}

bool bench_bars_write(const char *path, const bench_bars *bars) {
    return draw(path, &(bench_drawing){.bars = bars});
}
