/* slow_link NAMESPACE NAMESPACE DEVICE SECONDS LOSS: a link between two network namespaces over which each packet takes
 * so long, and LOSS of 100 packets get lost. It is a TUN device of that name in each, so that no module of the kernel
 * is needed. Prints "up" when they are there; 77 where they are not to be had. Ends with its input. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "support/clock.h"

#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { PACKETS = 4096, LARGEST = 2048, NOT_HERE = 77 };

typedef struct packet {
    double due;
    int to; /* a device */
    size_t size;
    unsigned char bytes[LARGEST];
} packet;

static packet queue[PACKETS];
static unsigned first, last; /* packets first to last - 1 are under way */

static int open_device(const char *space, const char *name) {
    char path[128];
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    snprintf(path, sizeof path, "/run/netns/%s", space);
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    int where = open(path, O_RDONLY | O_CLOEXEC);
    if (where < 0 || setns(where, CLONE_NEWNET) != 0) exit(NOT_HERE);
    close(where);
    int device = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (device < 0 || ioctl(device, TUNSETIFF, &request) != 0) exit(NOT_HERE);
    return device;
}

static void take_packet(int from, int to, double delay, double loss) {
    packet *p = &queue[last % PACKETS];
    ssize_t n = read(from, p->bytes, sizeof p->bytes);
    bool lost = rand() < loss / 100 * RAND_MAX || last - first == PACKETS - 1;
    if (n <= 0 || lost) return;
    p->due = tshi_now() + delay;
    p->to = to;
    p->size = (size_t)n;
    last++;
}

static void deliver_due(void) {
    for (; first != last && queue[first % PACKETS].due <= tshi_now(); first++) {
        const packet *p = &queue[first % PACKETS];
        if (write(p->to, p->bytes, p->size) < 0) continue;
    }
}

int main(int argc, char **argv) {
    if (argc != 6) return EXIT_FAILURE;
    const int device[2] = {open_device(argv[1], argv[3]), open_device(argv[2], argv[3])};
    const double delay = atof(argv[4]), loss = atof(argv[5]);
    struct pollfd polls[3] = {{device[0], POLLIN, 0}, {device[1], POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
    srand((unsigned)getpid());
    printf("up\n");
    fflush(stdout);
    while (polls[2].revents == 0) {
        poll(polls, 3, first == last ? 100 : 1);
        for (int i = 0; i < 2; i++) {
            if (polls[i].revents & POLLIN) take_packet(device[i], device[1 - i], delay, loss);
        }
        deliver_due();
    }
    return EXIT_SUCCESS;
}
