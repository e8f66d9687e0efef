#include "program.h"

#include <stdio.h>

tsh_world *program_begin(const char *program) {
    tsh_world *world = NULL;
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
