/* Meeting by a file: under its lock the first to come writes down where it listens, the others read it.
 *
 * The file holds one LEADER frame for each job that meets there (records.c). */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/bootstrap/rendezvous.h"

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

/* A leader on another machine that is not to be reached for so long is dead. */
#define PATIENCE 5.0
/* How long a rank that is done waits for the lock, to take its record out. */
#define PARTING 1.0

typedef struct file_meeting {
    tshi_meet *meet;
    tshi_frame mine; /* what I write down when I lead */
    unsigned char dead[TSHI_NONCE_SIZE];
    double unreachable_since;
    unsigned char doubtful[TSHI_NONCE_SIZE];
    /* The file, locked. */
    int fd;
    double lock_until;
    tshi_records records;
} file_meeting;

/* --- the file ----------------------------------------------------------------------------------------------------- */

static tsh_status file_fail(const file_meeting *f, const char *what) {
    return tshi_fail_errno(errno, "rendezvous: %s %.200s", what, f->meet->settings->path);
}

static void unlock_file(file_meeting *f) {
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
}

static tsh_status wait_for_lock(file_meeting *f) {
    while (flock(f->fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) return file_fail(f, "locking");
        if (tshi_clock() >= f->lock_until) {
            return tshi_fail(TSH_ERR_TIMEOUT, "rendezvous: another process keeps %.200s locked",
                             f->meet->settings->path);
        }
        tshi_sleep(0.002);
    }
    return TSH_OK;
}

/* Whether the path still means the file that is locked: it may have been removed while we waited. */
static bool is_current(const file_meeting *f, struct stat *mine) {
    struct stat there;
    return fstat(f->fd, mine) == 0 && stat(f->meet->settings->path, &there) == 0 && mine->st_dev == there.st_dev &&
           mine->st_ino == there.st_ino;
}

static tsh_status read_file(file_meeting *f) {
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
    return tshi_fail(TSH_ERR_IO, "rendezvous: %.200s holds something else; it is left alone", f->meet->settings->path);
}

/* Open (and make), lock and read it, unless another file takes its place again and again until it is too late. */
static tsh_status lock_file(file_meeting *f, bool make) {
    const char *path = f->meet->settings->path;
    struct stat mine;
    for (;;) {
        f->fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW | (make ? O_CREAT : 0), 0600);
        if (f->fd < 0) return file_fail(f, "opening");
        tsh_status status = wait_for_lock(f);
        if (status == TSH_OK && is_current(f, &mine)) {
            if (!S_ISREG(mine.st_mode)) status = tshi_fail(TSH_ERR_IO, "rendezvous: %.200s is no file", path);
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

/* Put these bytes in place of what it holds; a file with nothing in it goes, one that was made in vain too. */
static tsh_status write_file(file_meeting *f) {
    const tshi_records *r = &f->records;
    struct stat s;
    if (r->size == 0) return unlink(f->meet->settings->path) == 0 ? TSH_OK : file_fail(f, "removing");
    bool written = tshi_file_fits(r->size) && pwrite(f->fd, r->bytes, r->size, 0) == (ssize_t)r->size &&
                   ftruncate(f->fd, (off_t)r->size) == 0;
    if (written) return TSH_OK;
    tsh_status status = file_fail(f, "writing");
    if (fstat(f->fd, &s) == 0 && s.st_size == 0) unlink(f->meet->settings->path);
    return status;
}

/* Take out the records of this process and of the dead; without others the file goes. */
static void tidy_file(file_meeting *f, double lock_until) {
    tshi_frame leader;
    bool found;
    f->lock_until = lock_until;
    if (lock_file(f, false) != TSH_OK) return;
    bool changed = tshi_records_sort(&f->records, f->meet, f->mine.nonce, f->dead, &leader, &found);
    if (changed || f->records.size == 0) write_file(f);
    unlock_file(f);
}

/* --- looking ------------------------------------------------------------------------------------------------------ */

/* Write myself down unless somebody leads already. */
static tsh_status look_or_lead(file_meeting *f, tshi_frame *leader, bool *found) {
    f->lock_until = f->meet->deadline;
    tsh_status status = lock_file(f, true);
    if (status != TSH_OK) return status;
    bool changed = tshi_records_sort(&f->records, f->meet, f->mine.nonce, f->dead, leader, found);
    if (!*found) {
        if (tshi_records_add(&f->records, f->meet, &f->mine)) {
            status = write_file(f);
        } else {
            status = tshi_fail(TSH_ERR_IO, "rendezvous: too many jobs meet at %.200s", f->meet->settings->path);
        }
    } else if (changed) {
        status = write_file(f);
    }
    unlock_file(f);
    return status;
}

/* --- leading ------------------------------------------------------------------------------------------------------ */

/* A file on a disk of this machine is seen by this machine alone. */
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
static tsh_status listen_somewhere(file_meeting *f, int listeners[2], int *n) {
    tshi_place_at place = {.length = sizeof(struct sockaddr_in)};
    struct sockaddr_in *v4 = (void *)&place.address;
    bool local = is_local_file(f->meet->settings->path);
    *v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(local ? INADDR_LOOPBACK : INADDR_ANY)};
    listeners[0] = tshi_dial_listen(&place, false);
    *n = 0;
    if (listeners[0] < 0) return tshi_fail_errno(errno, "rendezvous: listening");
    f->mine.port = tshi_dial_port(listeners[0]);
    *n = 1;
    if (local) return TSH_OK;
    tshi_place_at both = {.length = sizeof(struct sockaddr_in6)};
    struct sockaddr_in6 *v6 = (void *)&both.address;
    *v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)f->mine.port)};
    listeners[1] = tshi_dial_listen(&both, false);
    if (listeners[1] >= 0) *n = 2;
    return TSH_OK;
}

static void withdraw(void *user) {
    file_meeting *f = user;
    double parting = tshi_clock() + PARTING;
    tidy_file(f, parting > f->meet->deadline ? parting : f->meet->deadline);
}

/* A look without the lock: my nonce is there or, perhaps, not. */
static bool is_written(file_meeting *f) {
    int fd = open(f->meet->settings->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0) return false;
    ssize_t n = read(fd, f->records.bytes, sizeof f->records.bytes);
    close(fd);
    return n > 0 && memmem(f->records.bytes, (size_t)n, f->mine.nonce, sizeof f->mine.nonce);
}

/* Whoever removes the file makes those who come later find nobody: write it again, or give way to who has. */
static bool still_leading(void *user) {
    file_meeting *f = user;
    tshi_frame leader;
    bool found = false;
    if (is_written(f)) return true;
    return look_or_lead(f, &leader, &found) == TSH_OK && !found;
}

/* --- following ---------------------------------------------------------------------------------------------------- */

static tshi_guest_end follow(file_meeting *f, const tshi_frame *leader, tsh_status *status, tshi_roster *out) {
    tshi_place_at places[TSHI_PLACES];
    char words[160] = "", where[TSHI_PLACE_TEXT] = "";
    int n = 0;
    bool here = tshi_who_same_host(&leader->who, &f->meet->me);
    tshi_guest_end end = TSHI_GUEST_NOBODY;
    tsh_status known = tshi_dial_resolve(here ? "127.0.0.1" : leader->who.host, leader->port, places, &n);
    if (known != TSH_OK) snprintf(words, sizeof words, "%.150s", tsh_error_message());
    for (int i = 0; i < n && end != TSHI_GUEST_DONE; i++) {
        tshi_dial_text(&places[i], where);
        end = tshi_guest_try(f->meet, &places[i], leader->nonce, 3.0, status, out, words, sizeof words);
    }
    if (end == TSHI_GUEST_DONE) return end;
    if (tshi_warning_due(&f->meet->next_word, f->meet->settings->warn_every)) {
        tshi_log(f->meet->log, TSH_LOG_WARNING, "rendezvous: process %u waits for process %u on %s at %s (%s)",
                 f->meet->me.process, leader->who.process, leader->who.host, where, words);
    }
    /* Of a process here the file's next reading tells whether it is alive. */
    if (here) return end;
    if (memcmp(f->doubtful, leader->nonce, sizeof f->doubtful) != 0) {
        memcpy(f->doubtful, leader->nonce, sizeof f->doubtful);
        f->unreachable_since = tshi_clock();
    } else if (tshi_clock() - f->unreachable_since > PATIENCE) {
        memcpy(f->dead, leader->nonce, sizeof f->dead);
    }
    return end;
}

static tsh_status meet_by(file_meeting *f, int *listeners, int n, tshi_roster *out) {
    tsh_status status = TSH_OK;
    tshi_host_plan plan = {
        .listeners = listeners, .n = n, .leader = f->mine.nonce, .tick = still_leading, .closing = withdraw, .user = f};
    for (double pause = 0.002;; pause = pause < 0.1 ? pause * 2 : pause) {
        tshi_frame leader;
        bool found = false, again = false;
        status = look_or_lead(f, &leader, &found);
        if (status != TSH_OK) return status;
        if (!found) {
            status = tshi_host_run(f->meet, &plan, &again, out);
            if (!again) return status;
        } else if (follow(f, &leader, &status, out) == TSHI_GUEST_DONE) {
            return status;
        }
        if (tshi_clock() >= f->meet->deadline) {
            return tshi_fail(TSH_ERR_TIMEOUT, "rendezvous: %.200s names process %u on %s, which does not answer",
                             f->meet->settings->path, leader.who.process, leader.who.host);
        }
        tshi_sleep(pause);
    }
}

/* Whatever has failed, this rank leaves no record, its own or that of a leader that has died. The words of the failure
 * stay. */
static void give_up(file_meeting *f) {
    char words[TSHI_MESSAGE_SIZE];
    snprintf(words, sizeof words, "%s", tsh_error_message());
    tidy_file(f, tshi_clock() + PARTING);
    tshi_fail(TSH_OK, "%s", words);
}

tsh_status tshi_meet_file(tshi_meet *meet, tshi_roster *out) {
    int listeners[2] = {-1, -1}, n = 0;
    file_meeting *f = tshi_calloc(meet->allocator, 1, sizeof *f);
    if (!f) return TSH_ERR_MEMORY;
    f->meet = meet;
    f->fd = -1;
    f->mine.who = meet->me;
    memcpy(f->mine.group, meet->group, sizeof f->mine.group);
    tsh_status status = TSH_OK;
    if (!tshi_random_bytes(f->mine.nonce, sizeof f->mine.nonce)) status = tshi_fail_errno(errno, "rendezvous: random");
    if (status == TSH_OK) status = listen_somewhere(f, listeners, &n);
    if (status == TSH_OK) status = meet_by(f, listeners, n, out);
    if (status != TSH_OK) give_up(f);
    tshi_dial_close(listeners, n);
    tshi_free(meet->allocator, f);
    return status;
}

void tshi_meet_tidy(const char *init_method) {
    static const char scheme[] = "file://";
    tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tshi_settings *settings = tshi_calloc(&allocator, 1, sizeof *settings);
    file_meeting *f = tshi_calloc(&allocator, 1, sizeof *f);
    tshi_meet meet = {.settings = settings, .allocator = &allocator};
    bool named = init_method && !strncmp(init_method, scheme, strlen(scheme));
    const char *path = named ? init_method + strlen(scheme) : "";
    bool usable = settings && f && path[0] == '/' && strlen(path) < sizeof settings->path;
    if (usable && tshi_who_am_i(&meet.me) == TSH_OK) {
        memcpy(settings->path, path, strlen(path) + 1);
        f->meet = &meet;
        f->fd = -1;
        tidy_file(f, tshi_clock() + PARTING);
    }
    tshi_free(&allocator, settings);
    tshi_free(&allocator, f);
}
