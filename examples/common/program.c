#define _POSIX_C_SOURCE 200809L
#include "program.h"

#include <fcntl.h>
#include <stdio.h>

/* If stdin, stdout or stderr is closed at the start, the next file or socket would get its number and the program's
 * output: here the number goes to a descriptor that cannot be read or written. */
static void take_missing_descriptors(void) {
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) < 0) open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
    }
}

tsh_world *program_begin(const char *program) {
    tsh_world *world = NULL;
    take_missing_descriptors();
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (tsh_world_init(NULL, &world) != TSH_OK) fprintf(stderr, "%s: %s\n", program, tsh_error_message());
    return world;
}

int program_end(const char *program, tsh_world *world, int code) {
    tsh_world_destroy(world);
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    fprintf(stderr, "%s: not all of the output could be written\n", program);
    return 1;
}
