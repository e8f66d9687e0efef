/* The file of file:// rendezvous: one LEADER frame for each job that uses it. */
#ifndef TSHI_FILE_RECORDS_H
#define TSHI_FILE_RECORDS_H

#include "dist/rendezvous/rendezvous.h"

typedef struct tshi_records {
    size_t size;
    unsigned char bytes[65536];
} tshi_records;

/* True if a rendezvous may have written these bytes; otherwise the file belongs to another program. */
bool tshi_records_possible(const tshi_records *records);
/* Drops the records of dead processes (`dead`: the nonce of one known to be), of nonce `mine`, and what is cut off;
 * true when there were any. *leader is the last of this job, where *found. */
bool tshi_records_sort(tshi_records *records, const tshi_rendezvous *rendezvous, const unsigned char *mine,
                       const unsigned char *dead, tshi_frame *leader, bool *found);
/* False if the file has no room for it. */
bool tshi_records_add(tshi_records *records, const tshi_rendezvous *rendezvous, const tshi_frame *record);

#endif
