/* Which network devices UCX is given. Left to itself it may choose the bridge of a container engine, which has one
 * address on every machine, or the loopback. */
#include "dist/rendezvous/sockets.h"
#include "dist/transport/ucx/ucx.h"

#include <dirent.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <string.h>

/* Seconds to resolve a name, and for an interface that has come up to run: UCX takes only those that run. */
#define PATIENCE 5.0
#define RUNNING  2.0

static void add(char *text, size_t size, const char *name) {
    if (strlen(text) + strlen(name) + 2 < size) tshi_append(text, size, "%s%s", text[0] ? "," : "", name);
}

/* The address from which this machine reaches `address`; false where that is not known. */
static bool source_of(const char *address, tshi_endpoint *source) {
    tshi_endpoint there[TSHI_ENDPOINTS];
    int n = 0;
    if (!address[0] || tshi_tcp_resolve(address, 0, tshi_clock() + PATIENCE, there, &n) != TSH_OK) return false;
    for (int i = 0; i < n; i++) {
        if (tshi_endpoint_source(&there[i], source)) return true;
    }
    return false;
}

/* Adds the interfaces that are up and not a loopback: of that address, or all of them for NULL. */
static void add_interfaces(const tshi_endpoint *source, char *text, size_t size) {
    struct ifaddrs *mine = NULL;
    const char *last = "";
    if (getifaddrs(&mine) != 0) return;
    for (const struct ifaddrs *m = mine; m; m = m->ifa_next) {
        bool has_address = m->ifa_addr && (m->ifa_addr->sa_family == AF_INET || m->ifa_addr->sa_family == AF_INET6);
        if (!has_address || !(m->ifa_flags & IFF_UP) || (m->ifa_flags & IFF_LOOPBACK)) continue;
        if ((source && !tshi_same_host(m->ifa_addr, (const void *)&source->address)) || !strcmp(last, m->ifa_name))
            continue;
        if (!strstr(text, m->ifa_name)) add(text, size, m->ifa_name);
        last = m->ifa_name;
    }
    freeifaddrs(mine);
}

/* Adds "mlx5_0:1" and the others. */
static void add_ports(char *text, size_t size) {
    DIR *folder = opendir("/sys/class/infiniband");
    for (const struct dirent *device; folder && (device = readdir(folder)) != NULL;) {
        char path[512], name[512];
        if (device->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/sys/class/infiniband/%.200s/ports", device->d_name);
        DIR *ports = opendir(path);
        for (const struct dirent *port; ports && (port = readdir(ports)) != NULL;) {
            if (port->d_name[0] == '.') continue;
            snprintf(name, sizeof name, "%.200s:%.20s", device->d_name, port->d_name);
            add(text, size, name);
        }
        if (ports) closedir(ports);
    }
    if (folder) closedir(folder);
}

static bool all_run(const char *text) {
    struct ifaddrs *mine = NULL;
    bool all = true;
    if (getifaddrs(&mine) != 0) return true;
    for (const struct ifaddrs *m = mine; m; m = m->ifa_next) {
        if (strstr(text, m->ifa_name) && !(m->ifa_flags & IFF_RUNNING)) all = false;
    }
    freeifaddrs(mine);
    return all;
}

void tshi_ucx_devices(const char *address, bool alone, char *text, size_t size) {
    tshi_endpoint source;
    text[0] = '\0';
    if (alone) {
        add(text, size, "lo");
        return;
    }
    if (source_of(address, &source)) add_interfaces(&source, text, size);
    for (double end = tshi_clock() + RUNNING; text[0] && !all_run(text) && tshi_clock() < end;) tshi_sleep(10e-3);
    if (!text[0]) add_interfaces(NULL, text, size);
    add_ports(text, size);
}
