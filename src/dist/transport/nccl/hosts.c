/* The control transport of GPUs on several machines: ranks that the rendezvous has found agree, and hear of failures
 * and deaths, over the connections of the control channel, and NCCL moves the data. No MPI takes part. */
#include "dist/control/agree.h"
#include "dist/control/control.h"
#include "dist/registry.h"
#include "dist/rendezvous/rendezvous.h"
#include "dist/transport/nccl/nccl.h"

#define PLACE 5

/* Takes worlds of several machines on GPUs whose ranks the rendezvous has found, unless TSHARD_BACKEND says
 * otherwise. */
static tsh_status probe(const tshi_start *start, bool *takes) {
    bool asked = tshi_backend_is("nccl");
    if (start->communicator || !start->roster || start->roster->nodes == 1) return TSH_OK;
    if (tshi_setting_value(TSHI_SETTING_BACKEND) && !asked) return TSH_OK;
    *takes = start->settings->device == TSH_CUDA;
    return asked && !*takes ? tshi_nccl_refuse_cpu() : TSH_OK;
}

/* A rank that has failed returns at once. The other ranks see its state on the control page. */
static tsh_status join(tsh_world *world, tsh_status mine) {
    if (mine != TSH_OK) tshi_world_fail_in(world, tsh_error_message(), (tshi_tape_step){0});
    tsh_status status = mine == TSH_OK ? tshi_control_agree(world->group, "world_init", TSH_OK) : mine;
    if (status == TSH_OK && !tshi_machine_oversubscribed(world)) world->spins = TSHI_SPINS;
    return status;
}

const tshi_group_ops tshi_hosts_ops = {
    .name = "hosts",
    .place = PLACE,
    .probe = probe,
    .world_join = join,
    .check_peers = tshi_control_check_peers,
    .fails_later = tshi_control_fails_later,
};
