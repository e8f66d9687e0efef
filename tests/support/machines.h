/* Machines of a test: processes that stand for ranks. Those of one machine share a control page, which the test sees
 * too, and the first of them has a relay; the machines are connected over loopback. */
#ifndef TSHI_TEST_MACHINES_H
#define TSHI_TEST_MACHINES_H

#include "dist/control/relay.h"

#include <sys/types.h>

#define TSHI_TEST_MACHINES 8

typedef enum tshi_test_order {
    TSHI_ORDER_NONE = 0,
    TSHI_ORDER_FAIL,    /* with the words "rank R cannot go on" */
    TSHI_ORDER_RECOVER, /* make the step of that number; 3: and live again before it */
    TSHI_ORDER_LEAVE,   /* and end */
    TSHI_ORDER_CLOSE,   /* every descriptor from 3 on */
    TSHI_ORDER_FORK,    /* a child that stays when the rank dies */
    TSHI_ORDER_BYTES,   /* send `bytes` over the first connection, where the machine has no relay */
    TSHI_ORDER_ACT,     /* call m->act */
} tshi_test_order;

/* Shared by the test and a rank. */
typedef struct tshi_test_member {
    _Atomic int order, obeyed; /* the same: the order has been obeyed */
    int argument;
    pid_t child;
    double left_in; /* seconds that leaving took */
    double seconds; /* for m->act */
    size_t size;
    unsigned char bytes[4096];
} tshi_test_member;

typedef struct tshi_test_machines tshi_test_machines;
struct tshi_test_machines {
    int machines, ranks; /* of each machine */
    int fan_out;         /* of the tree of machines; 0: TSHI_FAN_OUT */
    double timeout;
    int raw;  /* this machine has connections, and no relay; -1: all have one */
    int port; /* of the rendezvous */
    const char *address;
    tshi_page *page[TSHI_TEST_MACHINES];
    int file[TSHI_TEST_MACHINES];
    pid_t *pid; /* [machines * ranks], 0 for one that has been reaped */
    tshi_test_member *member;
    tshi_packet_queue *queues[TSHI_TEST_MACHINES];
    /* Of a rank that is ordered to; what it writes to m->member[rank] is shared. */
    void (*act)(tshi_test_machines *m, int rank, int argument);
};

/* The roster of such machines, named a, b, ..., as this rank has it. */
void tshi_test_machines_roster(const tshi_test_machines *m, int rank, tshi_roster *out);
/* The connections of the machine of a rank. */
tsh_status tshi_test_machines_connect(const tshi_test_machines *m, const tshi_roster *roster, tshi_machine_links *out);
/* Starts all ranks and waits until all relays run. */
void tshi_test_machines_begin(tshi_test_machines *m);
/* Makes the pages, and one rank of a machine that this process is. */
void tshi_test_machines_prepare(tshi_test_machines *m);
pid_t tshi_test_machines_fork(tshi_test_machines *m, int rank);
/* Kills what is left, and returns the memory. */
void tshi_test_machines_end(tshi_test_machines *m);
void tshi_test_order_do(tshi_test_machines *m, int rank, tshi_test_order order, int argument);
void tshi_test_machines_kill(tshi_test_machines *m, int rank);
/* Waits for the end of a rank; its exit code, or minus a signal. */
int tshi_test_machines_reap(tshi_test_machines *m, int rank);
/* Seconds until rank `of` has that state on the page of that machine; negative: it has not for a minute. */
double tshi_test_await_state(const tshi_test_machines *m, int machine, int of, uint32_t state);

#endif
