/* Safetensors files: one that Python has written, headers that the format forbids, and boxes against loops. */
#include "device/cpu/isa/kernels.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "support/values.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/tshard-io-XXXXXX";
static char path[64];

static void enter(void) {
    cr_assert(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
}

static void leave(void) {
    unlink(path);
    rmdir(folder);
}

static tsh_allocator memory(void) {
    return tshi_allocator_resolve(NULL);
}

/* --- files of others ---------------------------------------------------------------------------------------------- */

static tsh_box whole_of(const tshi_safetensors_entry *e) {
    tsh_box box = {0};
    memcpy(box.length, e->shape, sizeof box.length);
    return box;
}

/* Element i of the tensors that tests/data/io/python.safetensors was made of. */
static double golden(int64_t i, double more) {
    return (double)(i * 7 % 17) - 8 + more;
}

static void check_golden(tshi_safetensors *file, const char *name, double more) {
    char raw[60 * 16];
    const tshi_safetensors_entry *e = tshi_safetensors_find(file, name);
    cr_assert(e && e->ndim == 3 && e->shape[0] == 3 && e->shape[1] == 5 && e->shape[2] == 4, "%s", name);
    tsh_box box = whole_of(e);
    cr_assert_eq(tshi_safetensors_read_box(file, e, &box, raw), TSH_OK, "%s", tsh_error_message());
    for (int64_t i = 0; i < 60; i++) {
        cr_assert(tshi_is(e->dtype, raw, i, (tshi_number){golden(i, more), 0}), "%s[%d]", name, (int)i);
    }
}

Test(safetensors, opens_what_python_has_written, .timeout = 60) {
    static const char *const names[] = {"f64", "f32", "f16", "bf16", "i64", "i32", "c64"};
    tsh_allocator allocator = memory();
    tshi_safetensors *file = NULL;
    tsh_box box = {.length = {7}};
    float scalar = 0, two[2];
    unsigned char bytes[8];
    cr_assert_eq(tshi_safetensors_open(&allocator, TSHARD_TEST_DATA "/io/python.safetensors", &file), TSH_OK, "%s",
                 tsh_error_message());
    cr_assert_eq(file->count, 14);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) check_golden(file, names[i], 0);
    check_golden(file, "u8", 8);
    cr_assert_eq(tshi_safetensors_read_box(file, tshi_safetensors_find(file, "scalar"), &(tsh_box){{0}, {0}}, &scalar),
                 TSH_OK);
    cr_assert_eq(scalar, 2.5f);
    const tshi_safetensors_entry *empty = tshi_safetensors_find(file, "empty");
    box = whole_of(empty);
    cr_assert_eq(tshi_safetensors_read_box(file, empty, &box, NULL), TSH_OK);
    const tshi_safetensors_entry *odd = tshi_safetensors_find(file, "name.with \"quotes\" and \xc3\xbc\xe4\xb8\xad");
    cr_assert(odd);
    box = whole_of(odd);
    cr_assert_eq(tshi_safetensors_read_box(file, odd, &box, two), TSH_OK);
    cr_assert(two[0] == 1 && two[1] == -2);
    const tshi_safetensors_entry *flags = tshi_safetensors_find(file, "bool");
    box = whole_of(flags);
    cr_assert_eq(tshi_safetensors_read_box(file, flags, &box, bytes), TSH_OK);
    for (int i = 0; i < 6; i++) cr_assert_eq(bytes[i], golden(i, 0) > 0);
    const tshi_safetensors_entry *signed_bytes = tshi_safetensors_find(file, "i8");
    box = whole_of(signed_bytes);
    cr_assert_eq(tshi_safetensors_read_box(file, signed_bytes, &box, bytes), TSH_ERR_DTYPE);
    cr_assert(strstr(tsh_error_message(), "'i8' is I8, which is not a dtype of tshard"));
    cr_assert_str_eq(tshi_safetensors_metadata(file, "format"), "pt");
    cr_assert_null(tshi_safetensors_metadata(file, "nothing"));
    cr_assert_null(tshi_safetensors_find(file, "f"));
    tshi_safetensors_close(file);
}

/* --- headers ------------------------------------------------------------------------------------------------------ */

/* A file of a header of `length` bytes, as it says, and `data` bytes of zeros. */
static void write_raw(const char *header, size_t size, uint64_t length, long data) {
    FILE *f = fopen(path, "wb");
    cr_assert(f);
    for (int i = 0; i < 8; i++) fputc((int)(length >> (8 * i) & 0xff), f);
    fwrite(header, 1, size, f);
    for (long i = 0; i < data; i++) fputc(0, f);
    fclose(f);
}

static void refused(const char *header, long data, const char *words) {
    tsh_allocator allocator = memory();
    tshi_safetensors *file = (void *)1;
    write_raw(header, strlen(header), strlen(header), data);
    cr_assert_eq(tshi_safetensors_open(&allocator, path, &file), TSH_ERR_IO, "%.200s", header);
    cr_assert_null(file);
    cr_assert(strstr(tsh_error_message(), words) && strstr(tsh_error_message(), path), "%.200s: %s", header,
              tsh_error_message());
}

static void accepted(const char *header, long data) {
    tsh_allocator allocator = memory();
    tshi_safetensors *file = NULL;
    write_raw(header, strlen(header), strlen(header), data);
    cr_assert_eq(tshi_safetensors_open(&allocator, path, &file), TSH_OK, "%s: %s", header, tsh_error_message());
    tshi_safetensors_close(file);
}

#define F32(shape, begin, end) "{\"dtype\":\"F32\",\"shape\":[" shape "],\"data_offsets\":[" #begin "," #end "]}"

Test(safetensors, accepts_what_the_format_allows, .timeout = 60, .init = enter, .fini = leave) {
    accepted("{}", 0);
    accepted("{}      ", 0);
    accepted("{\"a\":" F32("2", 0, 8) "}", 8);
    accepted("{\"b\":" F32("1", 4, 8) ",\"a\":" F32("", 0, 4) ",\"e\":" F32("0,5", 4, 4) "}   ", 8);
    accepted("{\"__metadata__\":{\"k\":\"v\"},\"a\":" F32("0,9223372036854775807,9223372036854775807", 0, 0) "}", 0);
    accepted("{\"a\":{\"dtype\":\"F4\",\"shape\":[3,2],\"data_offsets\":[0,3]}}", 3);
}

Test(safetensors, refuses_what_the_format_forbids, .timeout = 60, .init = enter, .fini = leave) {
    refused("", 0, "does not begin with '{'");
    refused(" {}", 0, "does not begin with '{'");
    refused("[]", 0, "does not begin with '{'");
    refused("{", 0, "is not JSON");
    refused("{}}", 0, "is padded with something other than spaces");
    refused("{}\n", 0, "is padded with something other than spaces");
    refused("{}", 1, "has 1 bytes after its last tensor");
    refused("{\"a\":" F32("1", 0, 4) ",\"a\":" F32("1", 0, 4) "}", 4, "duplicate object key");
    refused("{\"a\":" F32("1", 0, 4) ",\"b\":" F32("1", 0, 4) "}", 4, "overlaps");
    refused("{\"a\":" F32("2", 0, 8) ",\"b\":" F32("1", 4, 8) "}", 8, "overlaps");
    refused("{\"a\":" F32("1", 0, 4) ",\"b\":" F32("1", 8, 12) "}", 12, "comes after a gap");
    refused("{\"a\":" F32("1", 4, 8) "}", 8, "comes after a gap");
    refused("{\"a\":" F32("1", 0, 4) "}", 5, "bytes after its last tensor");
    refused("{\"a\":" F32("2", 0, 8) "}", 4, "ends at byte 8 of the data, but the file has only 4");
    refused("{\"a\":" F32("1", 0, 8) "}", 8, "has 8 bytes, which do not fit [1] of F32");
    refused("{\"a\":" F32("1", 4, 0) "}", 4, "data_offsets");
    refused("{\"a\":" F32("1", -4, 0) "}", 4, "data_offsets");
    refused("{\"a\":" F32("1", 0.0, 4.0) "}", 4, "data_offsets");
    refused("{\"a\":" F32("1", 0, 4e0) "}", 4, "data_offsets");
    refused("{\"a\":" F32("1", 0, 9223372036854775807) "}", 4, "ends at byte 9223372036854775807");
    refused("{\"a\":" F32("1", 0, 9223372036854775808) "}", 4, "too big integer");
    refused("{\"a\":" F32("-1", 0, 4) "}", 4, "not a list of sizes");
    refused("{\"a\":" F32("1.5", 0, 4) "}", 4, "not a list of sizes");
    refused("{\"a\":" F32("\"1\"", 0, 4) "}", 4, "not a list of sizes");
    refused("{\"a\":" F32("1,1,1,1,1,1,1,1,1", 0, 4) "}", 4, "9 dims");
    refused("{\"a\":" F32("9223372036854775807,2", 0, 4) "}", 4, "more elements than");
    refused("{\"a\":" F32("4611686018427387904", 0, 4) "}", 4, "more elements than");
    refused("{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1, "which do not fit [3] of F4");
    refused("{\"a\":{\"dtype\":\"Q8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
            "'Q8', which the format does not know");
    refused("{\"a\":{\"dtype\":8,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "no dtype");
    refused("{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "no dtype");
    refused("{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "no shape");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":{},\"data_offsets\":[0,1]}}", 1, "no shape");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "data_offsets");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,1]}}", 1, "data_offsets");
    refused("{\"a\":[1]}", 0, "no description");
    refused("{\"a\":null}", 0, "no description");
    refused("{\"__metadata__\":{\"k\":1}}", 0, "'k' in __metadata__ is not a string");
    refused("{\"__metadata__\":[]}", 0, "__metadata__ is not an object");
    refused("{\"\\u0000\":" F32("1", 0, 4) "}", 4, "is not JSON");
    refused("{\"\xff\xfe\":" F32("1", 0, 4) "}", 4, "is not JSON");
    refused("{\"\\ud800\":" F32("1", 0, 4) "}", 4, "is not JSON");
    refused("{\"a\":NaN}", 0, "is not JSON");
}

Test(safetensors, refuses_headers_of_any_size, .timeout = 60, .init = enter, .fini = leave) {
    enum { DEEP = 1000000 };
    tsh_allocator allocator = memory();
    tshi_safetensors *file;
    char *deep = malloc(DEEP + 1);
    cr_assert(deep);
    memset(deep, '[', DEEP);
    memcpy(deep, "{\"a\":", 5);
    deep[DEEP] = '\0';
    refused(deep, 0, "maximum parsing depth");
    free(deep);
    write_raw("{}", 2, 100000001, 0);
    cr_assert_eq(tshi_safetensors_open(&allocator, path, &file), TSH_ERR_IO);
    cr_assert(strstr(tsh_error_message(), "its header would have 100000001 bytes, at most 100000000"));
    write_raw("{}", 2, UINT64_MAX, 0);
    cr_assert_eq(tshi_safetensors_open(&allocator, path, &file), TSH_ERR_IO);
    write_raw("{}", 2, 3, 0);
    cr_assert_eq(tshi_safetensors_open(&allocator, path, &file), TSH_ERR_IO);
    cr_assert(strstr(tsh_error_message(), "is truncated: a header of 3 bytes in a file of 10"));
    cr_assert_eq(truncate(path, 7), 0);
    cr_assert_eq(tshi_safetensors_open(&allocator, path, &file), TSH_ERR_IO);
    cr_assert(strstr(tsh_error_message(), "it has only 7 bytes"));
}

Test(safetensors, refuses_what_is_no_file, .timeout = 60, .init = enter, .fini = leave) {
    tsh_allocator allocator = memory();
    tshi_safetensors *file;
    cr_assert_eq(tshi_safetensors_open(&allocator, path, &file), TSH_ERR_IO);
    cr_assert(strstr(tsh_error_message(), "No such file or directory") && strstr(tsh_error_message(), path));
    cr_assert_eq(tshi_safetensors_open(&allocator, folder, &file), TSH_ERR_IO);
    cr_assert(strstr(tsh_error_message(), "is not a regular file"));
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_assert_eq(tshi_safetensors_open(&allocator, path, &file), TSH_ERR_IO);
    cr_assert(strstr(tsh_error_message(), "is not a regular file"));
    cr_assert_eq(tshi_safetensors_open(&allocator, "/dev/zero", &file), TSH_ERR_IO);
}

/* --- boxes -------------------------------------------------------------------------------------------------------- */

static uint64_t state = 1;

static int64_t draw(int64_t n) {
    state = tshi_mix(state);
    return (int64_t)(state % (uint64_t)n);
}

/* The element of the whole that is element i of the box. */
static int64_t place(int ndim, const int64_t *shape, const tsh_box *box, int64_t i) {
    int64_t at = 0, stride = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        at += (box->start[d] + i % box->length[d]) * stride;
        i /= box->length[d];
        stride *= shape[d];
    }
    return at;
}

static tshi_safetensors_entry draw_entry(const char *name) {
    tshi_safetensors_entry e = {.name = name, .dtype = (tsh_dtype)draw(TSH_COMPLEX64), .ndim = (int)draw(5)};
    for (int d = 0; d < e.ndim; d++) e.shape[d] = draw(8) ? 1 + draw(draw(4) ? 9 : 60) : 0;
    return e;
}

static tsh_box draw_box(const tshi_safetensors_entry *e) {
    tsh_box box = {0};
    for (int d = 0; d < e->ndim; d++) {
        box.start[d] = draw(3) ? draw(e->shape[d] + 1) : 0;
        box.length[d] = draw(3) ? draw(e->shape[d] - box.start[d] + 1) : e->shape[d] - box.start[d];
    }
    return box;
}

static tshi_number value(const tshi_safetensors_entry *e, int64_t i) {
    return tshi_value(e->dtype, TSH_REDUCE_SUM, 0, i);
}

/* Writes the whole of an entry in two boxes, as two ranks do. */
static void write_halves(int fd, const tshi_safetensors_entry *e) {
    char *raw = malloc((size_t)e->bytes + 1);
    cr_assert(raw);
    int d = e->ndim ? (int)draw(e->ndim) : 0;
    for (int half = 0; half < (e->ndim ? 2 : 1); half++) {
        tsh_box box = whole_of(e);
        if (e->ndim) tsh_split(e->shape[d], 2, half, &box.start[d], &box.length[d]);
        int64_t n = tshi_box_numel(e->ndim, &box);
        for (int64_t i = 0; i < n; i++) tshi_put(e->dtype, raw, i, value(e, place(e->ndim, e->shape, &box, i)));
        cr_assert_eq(tshi_safetensors_write_box(fd, path, e, &box, raw), TSH_OK, "%s", tsh_error_message());
    }
    free(raw);
}

static void check_box(tshi_safetensors *file, const tshi_safetensors_entry *e) {
    tsh_box box = draw_box(e);
    int64_t n = tshi_box_numel(e->ndim, &box);
    size_t bytes = (size_t)n * tsh_dtype_size(e->dtype);
    char *raw = malloc(bytes + 1);
    cr_assert(raw);
    raw[bytes] = 'x';
    uint64_t before = file->bytes_read;
    cr_assert_eq(tshi_safetensors_read_box(file, e, &box, raw), TSH_OK, "%s", tsh_error_message());
    cr_assert_leq(file->bytes_read - before, 2 * bytes);
    for (int64_t i = 0; i < n; i++) {
        cr_assert(tshi_is(e->dtype, raw, i, value(e, place(e->ndim, e->shape, &box, i))), "%s, element %d", e->type,
                  (int)i);
    }
    cr_assert_eq(raw[bytes], 'x');
    free(raw);
}

Test(safetensors, boxes_hold_what_the_whole_does, .timeout = 120, .init = enter, .fini = leave) {
    enum { FILES = 60, ENTRIES = 4 };
    static const char *const names[ENTRIES] = {"a", "z", "a.b", "\xc3\xbc \"\\\n"};
    static const char *const metadata[] = {"format", "pt", "k", "\"v\"", NULL};
    tsh_allocator allocator = memory();
    for (int i = 0; i < FILES; i++) {
        tshi_safetensors_entry entries[ENTRIES];
        tshi_safetensors *file;
        uint64_t file_bytes;
        size_t size;
        char *header;
        int fd;
        for (int k = 0; k < ENTRIES; k++) entries[k] = draw_entry(names[k]);
        cr_assert_eq(tshi_safetensors_header(&allocator, entries, ENTRIES, metadata, &header, &size, &file_bytes),
                     TSH_OK, "%s", tsh_error_message());
        cr_assert_eq(tshi_file_create(path, file_bytes, &fd), TSH_OK, "%s", tsh_error_message());
        cr_assert_eq(tshi_file_write(fd, path, header, size, 0), TSH_OK);
        for (int k = 0; k < ENTRIES; k++) write_halves(fd, &entries[k]);
        cr_assert_eq(tshi_file_sync(fd, path), TSH_OK);
        tshi_file_close(&fd);
        tshi_free(&allocator, header);
        cr_assert_eq(tshi_safetensors_open(&allocator, path, &file), TSH_OK, "%s", tsh_error_message());
        cr_assert_str_eq(tshi_safetensors_metadata(file, "k"), "\"v\"");
        for (int k = 0; k < 8 * ENTRIES; k++) {
            const tshi_safetensors_entry *e = tshi_safetensors_find(file, names[k % ENTRIES]);
            cr_assert(e && e->ndim == entries[k % ENTRIES].ndim && e->dtype == entries[k % ENTRIES].dtype);
            cr_assert_eq(e->offset % tsh_dtype_size(e->dtype), 0);
            check_box(file, e);
        }
        tshi_safetensors_close(file);
    }
}

/* Rows of a kilobyte, of which each rank of two or four wants a part: not a byte too much is read. */
Test(safetensors, long_rows_are_read_without_their_gaps, .timeout = 60, .init = enter, .fini = leave) {
    tsh_allocator allocator = memory();
    tshi_safetensors_entry e = {.name = "w", .dtype = TSH_FLOAT32, .ndim = 2, .shape = {64, 384}};
    tshi_safetensors *file;
    uint64_t file_bytes;
    size_t size;
    char *header;
    float part[64 * 192];
    int fd;
    cr_assert_eq(tshi_safetensors_header(&allocator, &e, 1, NULL, &header, &size, &file_bytes), TSH_OK);
    cr_assert_eq(tshi_file_create(path, file_bytes, &fd), TSH_OK);
    cr_assert_eq(tshi_file_write(fd, path, header, size, 0), TSH_OK);
    tshi_file_close(&fd);
    tshi_free(&allocator, header);
    cr_assert_eq(tshi_safetensors_open(&allocator, path, &file), TSH_OK);
    uint64_t before = file->bytes_read;
    cr_assert_eq(before, size);
    cr_assert_eq(tshi_safetensors_read_box(file, file->entries, &(tsh_box){{0, 192}, {64, 192}}, part), TSH_OK);
    cr_assert_eq(file->bytes_read - before, sizeof part);
    cr_assert_eq(tshi_safetensors_read_box(file, file->entries, &(tsh_box){{0, 193}, {64, 192}}, part), TSH_ERR_RANGE);
    cr_assert(strstr(tsh_error_message(), "a box of 192 from 193 on in dim 1 of 384"));

    /* A file that has become shorter since it was opened. */
    cr_assert_eq(truncate(path, (off_t)size + 5000), 0);
    cr_assert_eq(tshi_safetensors_read_box(file, file->entries, &(tsh_box){{0, 0}, {2, 384}}, part), TSH_OK);
    cr_assert_eq(tshi_safetensors_read_box(file, file->entries, &(tsh_box){{0, 192}, {64, 192}}, part), TSH_ERR_IO);
    cr_assert(strstr(tsh_error_message(), "ends before byte ") && strstr(tsh_error_message(), path), "%s",
              tsh_error_message());
    tshi_safetensors_close(file);
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

Test(safetensors, headers_that_cannot_be_written, .timeout = 60) {
    tsh_allocator allocator = memory();
    tshi_safetensors_entry e[2] = {{.name = "a"}, {.name = "a"}};
    uint64_t file_bytes;
    size_t size;
    char *header;
    cr_assert_eq(tshi_safetensors_header(&allocator, e, 2, NULL, &header, &size, &file_bytes), TSH_ERR_ARGUMENT);
    cr_assert_null(header);
    e[1].name = "__metadata__";
    cr_assert_eq(tshi_safetensors_header(&allocator, e, 2, NULL, &header, &size, &file_bytes), TSH_ERR_ARGUMENT);
    e[1].name = "\xff";
    cr_assert_eq(tshi_safetensors_header(&allocator, e, 2, NULL, &header, &size, &file_bytes), TSH_ERR_ARGUMENT);
    cr_assert(strstr(tsh_error_message(), "not UTF-8"));
    e[1].name = "b";
    e[1].dtype = TSH_COMPLEX128;
    cr_assert_eq(tshi_safetensors_header(&allocator, e, 2, NULL, &header, &size, &file_bytes), TSH_ERR_DTYPE);
    cr_assert(strstr(tsh_error_message(), "no complex128, which 'b' is"));
    e[1] = (tshi_safetensors_entry){.name = "b", .ndim = 2, .shape = {INT64_MAX / 2, 2}};
    cr_assert_eq(tshi_safetensors_header(&allocator, e, 2, NULL, &header, &size, &file_bytes), TSH_ERR_OVERFLOW);
    cr_assert_eq(tshi_safetensors_header(&allocator, NULL, 0, NULL, &header, &size, &file_bytes), TSH_OK);
    cr_assert_eq(size, 16);
    cr_assert_arr_eq(header, "\x08\0\0\0\0\0\0\0{}      ", 16);
    tshi_free(&allocator, header);
}

/* A size limit (ulimit -f) is an error, not a signal. */
Test(safetensors, files_that_cannot_be_made, .timeout = 60, .init = enter, .fini = leave) {
    struct rlimit limit = {4096, 4096};
    int fd;
    cr_assert_eq(tshi_file_create("/tmp/no such folder/x", 1, &fd), TSH_ERR_IO);
    cr_assert(strstr(tsh_error_message(), "/tmp/no such folder/x: cannot be created: No such file"), "%s",
              tsh_error_message());
    cr_assert_eq(tshi_file_create("/proc/self/x", 1, &fd), TSH_ERR_IO);
    cr_assert_eq(tshi_file_open_for_writing(path, 0, &fd), TSH_ERR_IO);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    cr_assert_eq(tshi_file_create(path, 4097, &fd), TSH_ERR_IO);
    cr_assert(strstr(tsh_error_message(), "the limit on file sizes forbids 4097 bytes: File too large"), "%s",
              tsh_error_message());
    cr_assert_eq(fd, -1);
    cr_assert_neq(access(path, F_OK), 0);
    cr_assert_eq(tshi_file_create(path, 4096, &fd), TSH_OK);
    tshi_file_close(&fd);
}
