/* The rendezvous file with any contents: only records with a valid HMAC are read, and whole records are kept, in order.
 * The script writes good records, spoiled ones and any bytes. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/rendezvous/file_records.h"
#include "stage.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const unsigned char mine[TSHI_NONCE_SIZE] = "my own", dead[TSHI_NONCE_SIZE] = "a dead process";

typedef struct file {
    tshi_records records, expected;
    bool pure; /* nothing but records that the script made well: then it is known what is kept */
    bool ours;
} file;

/* A record of this rank or another, of this job or another, by a process that lives, that is dead, or on another
 * machine. */
static void add_record(file *f, script *s, const tshi_rendezvous *meet) {
    tshi_frame frame = {.port = (int)script_byte(s)};
    unsigned kind = script_byte(s), change = script_byte(s);
    unsigned char bytes[TSHI_WIRE_MOST];
    const unsigned char other_key[TSHI_KEY_SIZE] = "of another job";
    bool ours = kind & 1, good = true;
    memcpy(frame.nonce,
           kind & 2   ? mine
           : kind & 4 ? dead
                      : (const unsigned char *)"the nonce of another rank, 32 b.",
           32);
    memset(frame.group, ours ? 'g' : 'o', sizeof frame.group);
    memset(frame.process.machine, kind & 8 ? 'h' : 'e', sizeof frame.process.machine);
    frame.process.number = kind & 16 ? (uint32_t)getpid() : 0;
    memset(frame.process.host, 'n', script_byte(s) % (sizeof frame.process.host - 1));
    tshi_seal seal = {kind & 32 ? other_key : meet->settings->key, NULL};
    size_t size = tshi_wire_write(TSHI_LEADER, &frame, &seal, bytes);
    if (kind & 64) bytes[change % size] ^= (unsigned char)(1u << change % 8);
    if (kind & 128) size = change % size;
    if (kind & (64 | 128) || kind & 8) f->pure = false;
    good = !(kind & (2 | 4)) && !(ours && (kind & 32));
    if (f->records.size + size >= sizeof f->records.bytes) return;
    memcpy(f->records.bytes + f->records.size, bytes, size);
    f->records.size += size;
    if (!good) return;
    memcpy(f->expected.bytes + f->expected.size, bytes, size);
    f->expected.size += size;
    f->ours = f->ours || ours;
}

static void write_file(file *f, script *s, const tshi_rendezvous *meet) {
    while (!script_over(s)) {
        unsigned op = script_byte(s);
        if (op < 192) {
            add_record(f, s, meet);
        } else {
            size_t room = sizeof f->records.bytes - f->records.size, most = script_byte(s);
            f->records.size += script_bytes(s, f->records.bytes + f->records.size, most < room ? most : room);
            f->pure = false;
        }
    }
}

static void check_leader(const tshi_frame *leader, const tshi_rendezvous *meet) {
    stage_require(!memcmp(leader->group, meet->group, sizeof leader->group));
    stage_require(memcmp(leader->nonce, mine, sizeof mine) && memcmp(leader->nonce, dead, sizeof dead));
    stage_require(strnlen(leader->process.host, sizeof leader->process.host) < sizeof leader->process.host);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static file f;
    static tshi_records before;
    tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tshi_settings settings;
    tshi_rendezvous meet;
    tshi_frame leader;
    script s = {data, data + size};
    bool found, again;
    f.records.size = f.expected.size = 0;
    f.pure = true;
    f.ours = false;
    stage_begin(NULL, NULL);
    stage_settings(&settings, TSHI_ANY_RANK, 2);
    stage_meet(&meet, &settings, &allocator);
    write_file(&f, &s, &meet);
    before.size = f.records.size;
    memcpy(before.bytes, f.records.bytes, before.size);
    tshi_records_possible(&f.records);
    bool changed = tshi_records_sort(&f.records, &meet, mine, dead, &leader, &found);
    stage_require(f.records.size <= before.size && changed == (f.records.size != before.size));
    if (found) check_leader(&leader, &meet);
    if (f.pure) {
        stage_require(found == f.ours && f.records.size == f.expected.size);
        stage_require(!memcmp(f.records.bytes, f.expected.bytes, f.expected.size));
    }
    stage_require(!tshi_records_sort(&f.records, &meet, mine, dead, &leader, &again) && again == found);
    tshi_frame record = {.port = 1, .process = meet.me};
    memcpy(record.group, meet.group, sizeof record.group);
    record.process.number = (uint32_t)getpid();
    memset(record.process.machine, 'e', sizeof record.process.machine); /* or its start would be looked at */
    if (tshi_records_add(&f.records, &meet, &record)) {
        stage_require(!tshi_records_sort(&f.records, &meet, mine, dead, &leader, &found) && found);
        stage_require(leader.port == 1);
    }
    stage_end();
    return 0;
}
