/* dlopen and its family, for libraries whose functions the program itself holds. */
#include "standin/standin.h"

#include <dlfcn.h>
#include <string.h>

void *standin_dlopen(const char *path, int flags);
void *standin_dlsym(void *library, const char *name);
int standin_dlclose(void *library);
char *standin_dlerror(void);

static const char *lacked;

void standin_lack(const char *function) {
    lacked = function;
}

void *standin_dlopen(const char *path, int flags) {
    (void)path;
    if (standin_call("dlopen", NULL)) return NULL;
    standin_count("library", 1);
    return dlopen(NULL, flags);
}

void *standin_dlsym(void *library, const char *name) {
    bool lacks = lacked && strcmp(name, lacked) == 0;
    return standin_call("dlsym", NULL) || lacks ? NULL : dlsym(library, name);
}

int standin_dlclose(void *library) {
    standin_count("library", -1);
    return dlclose(library);
}

char *standin_dlerror(void) {
    static char message[] = "the stand-in has no such library";
    return message;
}
