/* The rendezvous by a file: under its lock the first rank records where it listens, and its peers read the record.
 *
 * The file holds one LEADER frame for each job that uses it (file_records.c). */
#include "dist/rendezvous/acceptor.h"
#include "dist/rendezvous/connector.h"
#include "dist/rendezvous/file_records.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Seconds after which a leader on another machine that cannot be reached counts as dead. */
#define PATIENCE 5.0
/* Seconds for which a rank that is done waits for the lock, to remove its record. */
#define TIDY_SECONDS 1.0

typedef struct file_rendezvous {
    tshi_rendezvous *r;
    tshi_frame mine; /* the record of this rank when it leads */
    unsigned char dead[TSHI_NONCE_SIZE];
    double unreachable_since;
    unsigned char doubtful[TSHI_NONCE_SIZE];
    /* The file, locked. */
    int fd;
    double lock_until;
    tshi_records records;
} file_rendezvous;

/* --- the file ----------------------------------------------------------------------------------------------------- */

static tsh_status file_fail(const file_rendezvous *f, const char *what) {
    return tshi_fail_errno(errno, "rendezvous: %s %.200s", what, f->r->settings->path);
}

static void unlock_file(file_rendezvous *f) {
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
}

static tsh_status wait_for_lock(file_rendezvous *f) {
    while (flock(f->fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) return file_fail(f, "locking");
        if (tshi_clock() >= f->lock_until) {
            return tshi_fail(TSH_ERR_TIMEOUT, "rendezvous: another process keeps %.200s locked", f->r->settings->path);
        }
        tshi_sleep(0.002);
    }
    return TSH_OK;
}

/* The path still means the file that is locked: it may have been removed during the wait. */
static bool is_current(const file_rendezvous *f, struct stat *mine) {
    struct stat there;
    return fstat(f->fd, mine) == 0 && stat(f->r->settings->path, &there) == 0 && mine->st_dev == there.st_dev &&
           mine->st_ino == there.st_ino;
}

static tsh_status read_file(file_rendezvous *f) {
    tshi_records *r = &f->records;
    r->size = 0;
    for (;;) {
        ssize_t n = pread(f->fd, r->bytes + r->size, sizeof r->bytes - r->size, (off_t)r->size);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return file_fail(f, "reading");
        if (n == 0) break;
        r->size += (size_t)n;
    }
    if (tshi_records_possible(r)) return TSH_OK;
    return tshi_fail(TSH_ERR_IO, "rendezvous: %.200s is the file of another program, and has not been changed",
                     f->r->settings->path);
}

/* Opens (and makes), locks and reads the file, again when another has replaced it meanwhile. */
static tsh_status lock_file(file_rendezvous *f, bool make) {
    const char *path = f->r->settings->path;
    struct stat mine;
    for (;;) {
        f->fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW | (make ? O_CREAT : 0), 0600);
        if (f->fd < 0) return file_fail(f, "opening");
        tsh_status status = wait_for_lock(f);
        if (status == TSH_OK && is_current(f, &mine)) {
            if (!S_ISREG(mine.st_mode))
                status = tshi_fail(TSH_ERR_IO, "rendezvous: %.200s is not a regular file", path);
            if (status == TSH_OK) status = read_file(f);
            if (status == TSH_OK) return status;
            unlock_file(f);
            return status;
        }
        unlock_file(f);
        if (status != TSH_OK) return status;
        if (tshi_clock() >= f->lock_until) {
            return tshi_fail(TSH_ERR_TIMEOUT, "rendezvous: other processes keep replacing %.200s", path);
        }
    }
}

/* Replaces the content of the file by the records; a file without records is removed, also one that this rank has just
 * made. */
static tsh_status write_file(file_rendezvous *f) {
    const tshi_records *records = &f->records;
    struct stat s;
    if (records->size == 0) return unlink(f->r->settings->path) == 0 ? TSH_OK : file_fail(f, "removing");
    bool written = tshi_file_fits(records->size) &&
                   pwrite(f->fd, records->bytes, records->size, 0) == (ssize_t)records->size &&
                   ftruncate(f->fd, (off_t)records->size) == 0;
    if (written) return TSH_OK;
    tsh_status status = file_fail(f, "writing");
    if (fstat(f->fd, &s) == 0 && s.st_size == 0) unlink(f->r->settings->path);
    return status;
}

/* Removes the records of this process and of dead ones, and a file without other records. */
static void tidy_file(file_rendezvous *f, double lock_until) {
    tshi_frame leader;
    bool found;
    f->lock_until = lock_until;
    if (lock_file(f, false) != TSH_OK) return;
    bool changed = tshi_records_sort(&f->records, f->r, f->mine.nonce, f->dead, &leader, &found);
    if (changed || f->records.size == 0) write_file(f);
    unlock_file(f);
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* Finds the leader of this job, or records this rank as the leader. */
static tsh_status find_or_lead(file_rendezvous *f, tshi_frame *leader, bool *found) {
    f->lock_until = f->r->deadline;
    tsh_status status = lock_file(f, true);
    if (status != TSH_OK) return status;
    bool changed = tshi_records_sort(&f->records, f->r, f->mine.nonce, f->dead, leader, found);
    if (!*found) {
        if (tshi_records_add(&f->records, f->r, &f->mine)) {
            status = write_file(f);
        } else {
            status = tshi_fail(TSH_ERR_IO, "rendezvous: too many jobs use %.200s", f->r->settings->path);
        }
    } else if (changed) {
        status = write_file(f);
    }
    unlock_file(f);
    return status;
}

/* --- leading ------------------------------------------------------------------------------------------------------ */

/* Other machines cannot see a file on a disk of this one. */
static bool is_local_file(const char *path) {
    static const long kinds[] = {EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC,  BTRFS_SUPER_MAGIC,    TMPFS_MAGIC,
                                 RAMFS_MAGIC,      F2FS_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC};
    char folder[TSHI_PATH_SIZE];
    struct statfs s;
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    slash[slash == folder] = '\0';
    if (statfs(folder, &s) != 0) return false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if ((long)s.f_type == kinds[i]) return true;
    }
    return false;
}

/* One port, for IPv4 and where it can be had for IPv6. */
static tsh_status listen_somewhere(file_rendezvous *f, int listeners[2], int *n) {
    tshi_endpoint v4 = tshi_endpoint_any(AF_INET), v6 = tshi_endpoint_any(AF_INET6);
    bool local = is_local_file(f->r->settings->path);
    if (local) ((struct sockaddr_in *)(void *)&v4.address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listeners[0] = tshi_socket_listen(&v4, false);
    *n = 0;
    if (listeners[0] < 0) return tshi_fail_errno(errno, "rendezvous: listening");
    f->mine.port = tshi_tcp_port(listeners[0]);
    *n = 1;
    if (local) return TSH_OK;
    tshi_endpoint_set_port(&v6, f->mine.port);
    listeners[1] = tshi_socket_listen(&v6, false);
    if (listeners[1] >= 0) *n = 2;
    return TSH_OK;
}

static void remove_record(void *user) {
    file_rendezvous *f = user;
    double soon = tshi_clock() + TIDY_SECONDS;
    tidy_file(f, soon > f->r->deadline ? soon : f->r->deadline);
}

/* Reads without the lock, so that a record which another rank is writing may be missed. */
static bool is_recorded(file_rendezvous *f) {
    int fd = open(f->r->settings->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0) return false;
    ssize_t n = read(fd, f->records.bytes, sizeof f->records.bytes);
    close(fd);
    return n > 0 && memmem(f->records.bytes, (size_t)n, f->mine.nonce, sizeof f->mine.nonce);
}

/* A removed file hides this rank from later ones: it is written again, unless another rank has done so and leads. */
static bool still_leads(void *user) {
    file_rendezvous *f = user;
    tshi_frame leader;
    bool found = false;
    if (is_recorded(f)) return true;
    return find_or_lead(f, &leader, &found) == TSH_OK && !found;
}

/* --- following ---------------------------------------------------------------------------------------------------- */

static tshi_connect_end follow(file_rendezvous *f, const tshi_frame *leader, tsh_status *status, tshi_roster *out) {
    tshi_endpoint endpoints[TSHI_ENDPOINTS];
    tshi_attempt t = {.leader = leader->nonce, .patience = 3.0, .out = out};
    int n = 0;
    bool here = tshi_process_same_machine(&leader->process, &f->r->me);
    tshi_connect_end end = TSHI_CONNECT_FAILED;
    tsh_status known =
        tshi_tcp_resolve(here ? "127.0.0.1" : leader->process.host, leader->port, f->r->deadline, endpoints, &n);
    if (known == TSH_OK)
        end = tshi_connector_try(f->r, endpoints, n, &t);
    else
        snprintf(t.reasons, sizeof t.reasons, "%.200s", tsh_error_message());
    *status = t.status;
    if (end == TSHI_CONNECT_ANSWERED) return end;
    if (tshi_warning_due(&f->r->next_warning, f->r->settings->warn_every)) {
        tshi_log(f->r->log, TSH_LOG_WARNING, "rendezvous: process %u waits for process %u on %s (%s)", f->r->me.number,
                 leader->process.number, leader->process.host, t.reasons);
    }
    /* The next reading of the file finds out whether a process of this machine is alive. */
    if (here) return end;
    if (memcmp(f->doubtful, leader->nonce, sizeof f->doubtful) != 0) {
        memcpy(f->doubtful, leader->nonce, sizeof f->doubtful);
        f->unreachable_since = tshi_clock();
    } else if (tshi_clock() - f->unreachable_since > PATIENCE) {
        memcpy(f->dead, leader->nonce, sizeof f->dead);
    }
    return end;
}

static tsh_status find_each_other(file_rendezvous *f, int *listeners, int n, tshi_roster *out) {
    tsh_status status = TSH_OK;
    tshi_acceptor_plan plan = {.listeners = listeners,
                               .n = n,
                               .leader = f->mine.nonce,
                               .tick = still_leads,
                               .closing = remove_record,
                               .user = f};
    for (double pause = 0.002;; pause = pause < 0.1 ? pause * 2 : pause) {
        tshi_frame leader;
        bool found = false, stopped = false;
        status = find_or_lead(f, &leader, &found);
        if (status != TSH_OK) return status;
        if (!found) {
            status = tshi_roster_gather(f->r, &plan, &stopped, out);
            if (!stopped) return status;
        } else if (follow(f, &leader, &status, out) == TSHI_CONNECT_ANSWERED) {
            return status;
        }
        if (tshi_clock() >= f->r->deadline) {
            return tshi_fail(TSH_ERR_TIMEOUT, "rendezvous: %.200s names process %u on %s, which does not answer",
                             f->r->settings->path, leader.process.number, leader.process.host);
        }
        tshi_sleep(pause);
    }
}

/* After a failure this rank leaves no record, neither its own nor that of a dead leader. The message of the failure is
 * kept. */
static void give_up(file_rendezvous *f, tsh_status status) {
    tshi_failure own;
    tshi_failure_keep(&own, status);
    tidy_file(f, tshi_clock() + TIDY_SECONDS);
    tshi_failure_report(&own);
}

tsh_status tshi_rendezvous_file(tshi_rendezvous *r, tshi_roster *out) {
    int listeners[2] = {-1, -1}, n = 0;
    file_rendezvous *f = tshi_calloc(r->allocator, 1, sizeof *f);
    if (!f) return TSH_ERR_MEMORY;
    f->r = r;
    f->fd = -1;
    f->mine.process = r->me;
    memcpy(f->mine.group, r->group, sizeof f->mine.group);
    tsh_status status = TSH_OK;
    if (!tshi_random_bytes(f->mine.nonce, sizeof f->mine.nonce)) status = tshi_fail_errno(errno, "rendezvous: random");
    if (status == TSH_OK) status = listen_somewhere(f, listeners, &n);
    if (status == TSH_OK) status = find_each_other(f, listeners, n, out);
    if (status != TSH_OK) give_up(f, status);
    tshi_socket_close(listeners, n);
    tshi_free(r->allocator, f);
    return status;
}

void tshi_rendezvous_tidy(const char *init_method) {
    static const char scheme[] = "file://";
    tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tshi_settings *settings = tshi_calloc(&allocator, 1, sizeof *settings);
    file_rendezvous *f = tshi_calloc(&allocator, 1, sizeof *f);
    tshi_rendezvous r = {.settings = settings, .allocator = &allocator};
    bool named = init_method && !strncmp(init_method, scheme, strlen(scheme));
    const char *path = named ? init_method + strlen(scheme) : "";
    bool usable = settings && f && path[0] == '/' && strlen(path) < sizeof settings->path;
    if (usable && tshi_process_self(&r.me) == TSH_OK) {
        memcpy(settings->path, path, strlen(path) + 1);
        f->r = &r;
        f->fd = -1;
        tidy_file(f, tshi_clock() + TIDY_SECONDS);
    }
    tshi_free(&allocator, settings);
    tshi_free(&allocator, f);
}
