/* Point to point. */
#include "dist/local.h"

tshi_watch tshi_message_watch(tsh_work *work) {
    (void)work;
    return (tshi_watch){NULL, 0, NULL, -1};
}
tsh_status tshi_message_start(tsh_work *work) {
    return tshi_fail(TSH_ERR_UNSUPPORTED, "%s", tsh_collective_name(work->call.op));
}
void tshi_message_progress(tsh_work *work) {
    (void)work;
}
void tshi_messages_reset(tsh_group *group) {
    (void)group;
}
