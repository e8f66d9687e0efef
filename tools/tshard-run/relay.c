/* Output of the ranks: whole lines, each with its rank before it. */
#define _GNU_SOURCE
#include "base/hash.h"
#include "run.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = 65536, LONGEST_LINE = 1 << 20 };

/* --- sinks -------------------------------------------------------------------------------------------------------- */

/* A disk may have room again later, so every write is tried; each error is reported once. */
static void report_loss(run_sink *sink, int error) {
    sink->lost = true;
    if (error == sink->error) return;
    sink->error = error;
    run_say("cannot write the ranks' output to %s: %s", sink->name, strerror(error));
}

/* At most 4096 bytes at once: so much a pipe takes as a whole when poll says that it can be written. */
static void sink_flush(run_sink *sink) {
    size_t done = 0;
    bool failed = false;
    while (done < sink->used && !sink->broken && !failed) {
        size_t left = sink->used - done;
        if (!sink->wait_writable(sink->user, sink->fd)) {
            sink->broken = sink->lost = true;
            break;
        }
        ssize_t n = run_write(sink->fd, sink->buffer + done, left < 4096 ? left : 4096);
        if (n >= 0) {
            done += (size_t)n;
            continue;
        }
        failed = true;
        sink->broken = errno == EPIPE;
        if (!sink->broken) report_loss(sink, errno);
    }
    sink->used = 0;
}

static void sink_put(run_sink *sink, const char *text, size_t size) {
    while (size > 0 && !sink->broken) {
        size_t room = sizeof sink->buffer - sink->used;
        size_t n = size < room ? size : room;
        memcpy(sink->buffer + sink->used, text, n);
        sink->used += n;
        text += n;
        size -= n;
        if (sink->used == sizeof sink->buffer) sink_flush(sink);
    }
}

void run_sink_end_line(run_sink *sink) {
    if (!sink->screen->owner) return;
    sink_put(sink, "\n", 1);
    sink_flush(sink);
    sink->screen->owner = NULL;
    sink->screen->returned = false;
}

/* Has another rank just written this line to stderr? An error that all ranks have in common is shown once. */
static bool is_shown(const run_stream *stream, uint64_t fingerprint) {
    const run_sink *sink = stream->sink;
    if (!sink->prefix || sink->fd != STDERR_FILENO) return false;
    for (unsigned long i = 0; i < RUN_NEWEST && i < sink->lines; i++) {
        if (sink->newest[i] == fingerprint && sink->newest_rank[i] != stream->rank) return true;
    }
    return false;
}

/* A piece that ends with a newline, a carriage return, or with nothing. */
static void put_piece(run_stream *stream, const char *text, size_t size) {
    run_sink *sink = stream->sink;
    run_screen *screen = sink->screen;
    if (screen->owner != stream) run_sink_end_line(sink);
    if (sink->prefix && (screen->owner != stream || screen->returned)) {
        char prefix[24];
        int length = snprintf(prefix, sizeof prefix, "[%d] ", stream->rank);
        sink_put(sink, prefix, (size_t)length);
    }
    sink_put(sink, text, size);
    screen->owner = text[size - 1] == '\n' ? NULL : stream;
    screen->returned = text[size - 1] == '\r';
}

static void put_line(run_stream *stream, const char *text, size_t size) {
    run_sink *sink = stream->sink;
    uint64_t fingerprint = TSHI_FINGERPRINT;
    for (size_t i = 0; i < size; i++) fingerprint = tshi_fingerprint_add(fingerprint, (unsigned char)text[i]);
    if (!is_shown(stream, fingerprint)) {
        put_piece(stream, text, size);
        sink->newest[sink->lines % RUN_NEWEST] = fingerprint;
        sink->newest_rank[sink->lines++ % RUN_NEWEST] = stream->rank;
    }
    stream->shown = sink->lines;
}

/* --- streams ------------------------------------------------------------------------------------------------------ */

/* The end of the first line in text, one past its last byte; NULL when there is none. On a terminal a carriage return
 * ends a line as well: what it was written for is to be seen at once. */
static const char *line_end(const run_stream *stream, const char *text, size_t size) {
    const char *newline = memchr(text, '\n', size);
    const char *back = stream->sink->terminal ? memchr(text, '\r', newline ? (size_t)(newline - text) : size) : NULL;
    const char *end = back ? back : newline;
    return end ? end + 1 : NULL;
}

/* Pass on what is complete; the first `scanned` bytes are known to hold no end of line. */
static void pass_lines(run_stream *stream, size_t scanned) {
    const char *start = stream->line, *past = stream->line + stream->used, *from = start + scanned, *end;
    while (from < past && (end = line_end(stream, from, (size_t)(past - from)))) {
        put_line(stream, start, (size_t)(end - start));
        start = from = end;
    }
    stream->used = (size_t)(past - start);
    memmove(stream->line, start, stream->used);
}

/* Room for one more chunk; false when there is no memory. */
static bool make_room(run_stream *stream) {
    if (stream->capacity - stream->used >= CHUNK) return true;
    size_t capacity = stream->capacity ? 2 * stream->capacity : 2 * CHUNK;
    char *line = realloc(stream->line, capacity);
    if (!line) return false;
    stream->line = line;
    stream->capacity = capacity;
    return true;
}

static void write_log(run_stream *stream, const char *text, size_t size) {
    for (size_t done = 0; stream->log >= 0 && done < size;) {
        ssize_t n = write(stream->log, text + done, size - done);
        if (n > 0) {
            done += (size_t)n;
        } else if (errno != EINTR) {
            if (stream->log_error != errno) {
                run_say("cannot write rank %d's log: %s", stream->rank, strerror(errno));
            }
            stream->log_error = errno;
            return;
        }
    }
}

/* The file and the tail; a full disk does not end the job. */
static void keep(run_stream *stream, const char *text, size_t size) {
    for (size_t i = size > RUN_TAIL ? size - RUN_TAIL : 0; i < size; i++) {
        stream->tail[(stream->total + i) % RUN_TAIL] = text[i];
    }
    stream->total += size;
    write_log(stream, text, size);
}

size_t run_stream_tail(const run_stream *stream, char text[RUN_TAIL + 1]) {
    enum { LINES = 10 };
    size_t n = stream->total < RUN_TAIL ? stream->total : RUN_TAIL, first = stream->total - n;
    for (size_t i = 0; i < n; i++) text[i] = stream->tail[(first + i) % RUN_TAIL];
    while (n > 0 && text[n - 1] == '\n') n--;
    size_t start = n;
    for (int lines = 0; start > 0; start--) {
        if (text[start - 1] == '\n' && ++lines == LINES) break;
    }
    /* Cut off before: from the first whole line on, if there is one. */
    if (start == 0 && stream->total > RUN_TAIL) {
        char *end = memchr(text, '\n', n);
        start = end ? (size_t)(end - text) + 1 : 0;
    }
    memmove(text, text + start, n - start);
    text[n - start] = '\0';
    return n - start;
}

/* What is left becomes a line, though it has no end. */
static void pass_rest(run_stream *stream) {
    if (stream->used == 0) return;
    put_piece(stream, stream->line, stream->used);
    stream->used = 0;
    if (stream->sink->prefix) run_sink_end_line(stream->sink);
    stream->sink->screen->owner = NULL;
}

void run_stream_close(run_stream *stream) {
    if (stream->fd < 0) return;
    pass_rest(stream);
    sink_flush(stream->sink);
    if (stream->sink->screen->owner == stream) run_sink_end_line(stream->sink);
    close(stream->fd);
    if (stream->log >= 0 && close(stream->log) != 0 && !stream->log_error) {
        stream->log_error = errno;
        run_say("cannot write rank %d's log: %s", stream->rank, strerror(errno));
    }
    stream->fd = stream->log = -1;
    free(stream->line);
    stream->line = NULL;
    stream->used = stream->capacity = 0;
}

void run_stream_show(run_stream *stream) {
    if (stream->fd < 0 || stream->used == 0) return;
    put_piece(stream, stream->line, stream->used);
    stream->used = 0;
    sink_flush(stream->sink);
}

void run_stream_read(run_stream *stream) {
    if (!make_room(stream)) pass_rest(stream);
    size_t scanned = stream->used;
    if (stream->capacity == scanned) { /* not even a first buffer */
        run_stream_close(stream);
        return;
    }
    size_t room = stream->capacity - scanned;
    ssize_t n = read(stream->fd, stream->line + scanned, room < CHUNK ? room : CHUNK);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (n < 0) run_say("cannot read the output of rank %d: %s", stream->rank, strerror(errno));
    if (n > 0) keep(stream, stream->line + scanned, (size_t)n);
    if (n > 0 && !stream->quiet) {
        stream->used += (size_t)n;
        pass_lines(stream, scanned);
        if (stream->used >= LONGEST_LINE) pass_rest(stream);
        sink_flush(stream->sink);
    }
    /* Without a reader of our output the rank gets a broken pipe, as if it had written there itself. */
    if (n <= 0 || (stream->sink->broken && !stream->quiet)) run_stream_close(stream);
}
