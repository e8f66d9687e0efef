/* Processes: the identity of this one, and whether another one of its machine has ended. */
#include "dist/rendezvous/rendezvous.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Ticks by which this process's time namespace is ahead of the machine. */
static int64_t ticks_ahead(void) {
    char line[80];
    long long seconds = 0, nanoseconds = 0;
    FILE *file = fopen("/proc/self/timens_offsets", "re");
    while (file && fgets(line, sizeof line, file) && sscanf(line, "boottime %lld %lld", &seconds, &nanoseconds) != 2) {
    }
    if (file) fclose(file);
    long ticks = sysconf(_SC_CLK_TCK);
    return seconds * ticks + nanoseconds / (1000000000 / ticks);
}

/* When a process started, in ticks since the machine did, from the 22nd field of its stat line; 0: there is none, or it
 * has ended and waits for its parent to reap it. The line is that of its first thread, which is the kernel's own where
 * QEMU runs the program and makes up the process's. */
static uint64_t start_of(uint32_t number, bool *readable) {
    char path[48], line[1024];
    snprintf(path, sizeof path, "/proc/%u/task/%u/stat", number, number);
    FILE *file = fopen(path, "re");
    *readable = file != NULL;
    if (!file) return 0;
    size_t n = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[n] = '\0';
    const char *rest = strrchr(line, ')'); /* the name may hold anything */
    unsigned long long start = 0;
    char state = 'Z';
    if (!rest || sscanf(rest + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                        &state, &start) != 2) {
        return 0;
    }
    return state == 'Z' || state == 'X' ? 0 : start - (uint64_t)ticks_ahead();
}

/* A file that the machine does not have is part of no rank's machine id. One that exists and that only this rank cannot
 * read is an error: without it this rank would count as one of another machine. */
static tsh_status missing(const char *path) {
    return errno == ENOENT ? TSH_OK : tshi_fail_errno(errno, "world_init: %s", path);
}

static tsh_status add_file(tshi_sha256 *hash, const char *path) {
    char text[64] = "";
    FILE *file = fopen(path, "re");
    if (!file) return missing(path);
    size_t n = fread(text, 1, sizeof text, file);
    fclose(file);
    tshi_sha256_add(hash, text, n);
    return TSH_OK;
}

static tsh_status add_inode(tshi_sha256 *hash, const char *path) {
    struct stat s;
    if (stat(path, &s) != 0) return missing(path);
    tshi_sha256_add(hash, &s.st_ino, sizeof s.st_ino);
    return TSH_OK;
}

/* The machine since its boot, and the namespaces of this process: memory is passed over sockets of the network
 * namespace, and processes are watched by their numbers in the process namespace. */
static tsh_status machine_of(const char *name, unsigned char out[TSHI_GROUP_SIZE]) {
    unsigned char digest[TSHI_HASH_SIZE];
    tshi_sha256 hash;
    tshi_sha256_begin(&hash);
    tshi_sha256_add(&hash, name, strlen(name) + 1);
    tsh_status status = add_file(&hash, "/proc/sys/kernel/random/boot_id");
    if (status == TSH_OK) status = add_inode(&hash, "/proc/self/ns/net");
    if (status == TSH_OK) status = add_inode(&hash, "/proc/self/ns/pid");
    tshi_sha256_end(&hash, digest);
    memcpy(out, digest, TSHI_GROUP_SIZE);
    return status;
}

tsh_status tshi_process_self(tshi_process *out) {
    bool readable;
    *out = (tshi_process){.number = (uint32_t)getpid()};
    if (gethostname(out->host, sizeof out->host - 1) != 0 && errno != ENAMETOOLONG) {
        return tshi_fail_errno(errno, "world_init: the machine's name");
    }
    out->start = start_of(out->number, &readable);
    return machine_of(out->host, out->machine);
}

uint64_t tshi_program_fingerprint(void) {
    /* The first page of an ELF file has its build id where it has one, and where its parts lie. */
    unsigned char page[4096];
    uint64_t fingerprint = TSHI_FINGERPRINT;
    FILE *file = fopen("/proc/self/exe", "re");
    if (!file) return 0;
    size_t n = fread(page, 1, sizeof page, file);
    fclose(file);
    for (size_t i = 0; i < n; i++) fingerprint = tshi_fingerprint_add(fingerprint, page[i]);
    return fingerprint;
}

bool tshi_process_same_machine(const tshi_process *a, const tshi_process *b) {
    return !memcmp(a->machine, b->machine, sizeof a->machine);
}

bool tshi_process_ended(const tshi_process *process, const tshi_process *me) {
    bool readable;
    if (!tshi_process_same_machine(process, me)) return false;
    if (process->number > INT32_MAX || process->number == 0) return true;
    if (kill((pid_t)process->number, 0) != 0 && errno == ESRCH) return true;
    uint64_t start = start_of(process->number, &readable);
    /* Ranks of two time namespaces may round differently. */
    return readable && start + 1 - process->start > 2;
}

bool tshi_has_adapter(void) {
    DIR *folder = opendir("/sys/class/infiniband");
    const struct dirent *entry = NULL;
    while (folder && (entry = readdir(folder)) != NULL && entry->d_name[0] == '.') continue;
    if (folder) closedir(folder);
    return entry != NULL;
}

const char *tshi_rank_name(int rank, const tshi_process *process, char *text, size_t size) {
    if (rank >= 0)
        snprintf(text, size, "rank %d", rank);
    else
        snprintf(text, size, "process %u on %s", process->number, process->host);
    return text;
}

bool tshi_rendezvous_contradict(const tshi_rendezvous *r, const tshi_frame *frame, char *text, double *deadline) {
    char me[TSHI_HOST_SIZE + 32], other[TSHI_HOST_SIZE + 32];
    const tshi_settings *s = r->settings;
    double soon = tshi_clock() + TSHI_RENDEZVOUS_GRACE;
    if (text[0]) return false;
    snprintf(text, TSHI_MESSAGE_SIZE, "%s says WORLD_SIZE=%d, %s says WORLD_SIZE=%d",
             tshi_rank_name(s->rank, &r->me, me, sizeof me), s->size,
             tshi_rank_name(frame->rank, &frame->process, other, sizeof other), frame->size);
    if (soon < *deadline) *deadline = soon;
    return true;
}
