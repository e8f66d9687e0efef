/* Variables, configurations and meshes that cannot be. */
#include "misuse.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static void init_with(const tsh_world_config *config) {
    tsh_world *world = NULL;
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    unsetenv("LOCAL_RANK");
    unsetenv("LOCAL_WORLD_SIZE");
    say(tsh_world_init(config, &world));
    tsh_world_destroy(world);
}

static void rank_out_of_range(job *j) {
    (void)j;
    init_with(&(tsh_world_config){.rank = 5, .world_size = 2});
}

static void negative_size(job *j) {
    (void)j;
    init_with(&(tsh_world_config){.world_size = -1});
}

static void unknown_method(job *j) {
    (void)j;
    init_with(&(tsh_world_config){.init_method = "http://here"});
}

static void unknown_device(job *j) {
    (void)j;
    init_with(&(tsh_world_config){.device = (tsh_device_kind)77});
}

static void no_out(job *j) {
    (void)j;
    say(tsh_world_init(NULL, NULL));
}

/* Rank 1 comes late to the rendezvous. */
static void late_to_rendezvous(job *j) {
    (void)j;
    const char *rank = getenv("RANK");
    tsh_world *world = NULL;
    if (rank && rank[0] == '1') usleep(800000);
    say(tsh_world_init(NULL, &world));
    tsh_world_destroy(world);
}

static void seed_by_rank(job *j) {
    (void)j;
    tsh_world *world = NULL;
    setenv("TSHARD_SEED", getenv("RANK"), 1);
    say(tsh_world_init(NULL, &world));
    tsh_world_destroy(world);
}

static void mesh_of(const job *j, const char *axes) {
    tsh_mesh *mesh = NULL;
    say(tsh_mesh_create(j->world, axes, &mesh));
}

static void mesh_too_large(job *j) {
    mesh_of(j, "data=3,model=5");
}

static void mesh_without_size(job *j) {
    mesh_of(j, "data");
}

static void mesh_with_one_name_twice(job *j) {
    mesh_of(j, "a=1,a=-1");
}

static void mesh_without_world(job *j) {
    tsh_mesh *mesh = NULL;
    (void)j;
    say(tsh_mesh_create(NULL, "data=1", &mesh));
}

static void group_of_strangers(job *j) {
    tsh_group *group = NULL;
    say(tsh_group_create(j->world, (int[]){0, 9}, 2, &group));
}

static void tape_without_world(job *j) {
    tsh_tape *tape = NULL;
    (void)j;
    say(tsh_tape_create(NULL, &tape));
}

/* SIGUSR1 asks for the last calls. */
static void asked_for_calls(job *j) {
    say(tsh_barrier(j->group));
    raise(SIGUSR1);
    say(tsh_tape_reset(j->tape));
}

const misuse settings_rows[] = {
    {"switch_value", BOTH, "TSHARD_CHECK=maybe", "TSHARD_CHECK is \"maybe\"; it must be 0, 1 or nan", NULL, false},
    {"negative_timeout", BOTH, "TSHARD_TIMEOUT=-1", "TSHARD_TIMEOUT is \"-1\"; it must be a positive number", NULL,
     false},
    {"heap_in_words", BOTH, "TSHARD_HEAP=lots", "TSHARD_HEAP is \"lots\"", NULL, false},
    {"log_level", BOTH, "TSHARD_LOG=loud", "it must be error, warning, info or debug", NULL, false},
    {"unknown_variable", BOTH, "TSHARD_TIMEUOT=5",
     "TSHARD_TIMEUOT is not a setting of tshard; did you mean TSHARD_TIMEOUT?", NULL, false},
    {"rank_out_of_range", ONE, "", "rank is 5, but world_size is 2: ranks go from 0 to 1", rank_out_of_range, true},
    {"negative_world_size", ONE, "", "world_size -1", negative_size, true},
    {"unknown_method", ONE, "", "it must be env://, tcp://HOST:PORT", unknown_method, true},
    {"unknown_device", ONE, "", "77 is not a kind of device", unknown_device, true},
    {"no_out", BOTH, "", "world_init: out is NULL", no_out, true},
    {"seed_by_rank", TWO, "", "rendezvous: rank 1 has the seed 1, the listening rank 0", seed_by_rank, true},
    {"late_to_rendezvous", TWO, "TSHARD_WARN=0.2", "rendezvous: 1/2 joined, missing rank 1", late_to_rendezvous, true},
    {"mesh_too_large", BOTH, "", "is a mesh of 15 ranks, the world has", mesh_too_large, false},
    {"mesh_without_size", BOTH, "", "with names of up to 15 letters, digits and _; this is not: \"data\"",
     mesh_without_size, false},
    {"mesh_with_one_name_twice", BOTH, "", "has the axis a twice", mesh_with_one_name_twice, false},
    {"mesh_without_world", BOTH, "", "mesh_create: ", mesh_without_world, false},
    {"group_of_strangers", TWO, "", "group_create: rank 9 in a world of 2", group_of_strangers, false},
    {"tape_without_world", BOTH, "", "tape_create: a world is required", tape_without_world, false},
    {"asked_for_calls", TWO, "", "last calls, newest first: #2 barrier", asked_for_calls, false},
    {0}};
