/* libucp, opened when a world needs it. */
#include "dist/transport/ucx/ucx.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* UCX has a thread that outlives a world: it is opened once in a process, and stays. */
static struct {
    pthread_once_t once;
    tsh_status status;
    char message[TSHI_MESSAGE_SIZE];
    tshi_ucx_library functions;
} process = {.once = PTHREAD_ONCE_INIT};

/* UCX reads these when it is loaded. Unless the user sets them, it installs no signal handlers, prints nothing, and
 * replaces no functions of memory, which only a cache of RDMA registrations needs. */
static void *open_quietly(void) {
    static const char *const quiet[][2] = {
        {"UCX_HANDLE_ERRORS", "none"}, {"UCX_ERROR_SIGNALS", ""}, {"UCX_LOG_LEVEL", "fatal"}, {"UCX_MEM_EVENTS", "n"}};
    size_t n = sizeof quiet / sizeof *quiet - (tshi_has_adapter() ? 1 : 0);
    bool set[sizeof quiet / sizeof *quiet] = {false};
    for (size_t i = 0; i < n; i++) set[i] = !tshi_variable(quiet[i][0]) && setenv(quiet[i][0], quiet[i][1], 1) == 0;
    void *library = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < n; i++) {
        if (set[i]) unsetenv(quiet[i][0]);
    }
    return library;
}

static tsh_status find_functions(void *library) {
    tshi_ucx_library *f = &process.functions;
    const struct {
        const char *name;
        void *function;
    } symbols[] = {
        {"ucp_get_version", &f->get_version},
        {"ucp_config_read", &f->config_read},
        {"ucp_config_modify", &f->config_modify},
        {"ucp_config_release", &f->config_release},
        {"ucp_init_version", &f->init_version},
        {"ucp_cleanup", &f->cleanup},
        {"ucp_worker_create", &f->worker_create},
        {"ucp_worker_destroy", &f->worker_destroy},
        {"ucp_worker_get_address", &f->worker_get_address},
        {"ucp_worker_release_address", &f->worker_release_address},
        {"ucp_worker_progress", &f->worker_progress},
        {"ucp_worker_flush_nbx", &f->worker_flush_nbx},
        {"ucp_ep_create", &f->ep_create},
        {"ucp_ep_close_nbx", &f->ep_close_nbx},
        {"ucp_tag_send_nbx", &f->tag_send_nbx},
        {"ucp_tag_recv_nbx", &f->tag_recv_nbx},
        {"ucp_tag_msg_recv_nbx", &f->tag_msg_recv_nbx},
        {"ucp_tag_probe_nb", &f->tag_probe_nb},
        {"ucp_tag_recv_request_test", &f->tag_recv_request_test},
        {"ucp_request_check_status", &f->request_check_status},
        {"ucp_request_cancel", &f->request_cancel},
        {"ucp_request_free", &f->request_free},
        {"ucs_status_string", &f->status_string},
    };
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *function = dlsym(library, symbols[i].name);
        if (!function) return tshi_fail(TSH_ERR_UNSUPPORTED, "world_init: libucp.so.0 has no %s", symbols[i].name);
        *(void **)symbols[i].function = function;
    }
    unsigned major, minor, patch;
    f->get_version(&major, &minor, &patch);
    if (major == UCP_API_MAJOR && minor >= UCP_API_MINOR) return TSH_OK;
    return tshi_fail(TSH_ERR_UNSUPPORTED, "world_init: UCX is %u.%u.%u, but tshard was built with %d.%d", major, minor,
                     patch, UCP_API_MAJOR, UCP_API_MINOR);
}

static void open_once(void) {
    void *library = open_quietly();
    process.status =
        library ? find_functions(library)
                : tshi_fail(TSH_ERR_UNSUPPORTED,
                            "world_init: ranks on several machines need UCX: %.300s (Debian: apt-get install libucx0)",
                            dlerror());
    if (process.status != TSH_OK) snprintf(process.message, sizeof process.message, "%s", tsh_error_message());
}

tsh_status tshi_ucx_library_open(const tshi_ucx_library **out) {
    pthread_once(&process.once, open_once);
    *out = process.status == TSH_OK ? &process.functions : NULL;
    return process.status == TSH_OK ? TSH_OK : tshi_fail(process.status, "%s", process.message);
}
