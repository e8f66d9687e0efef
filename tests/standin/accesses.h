// What the threads of a kernel do to memory: the compiler calls the hooks of a thread sanitizer before each access
// (accesses.cc has them), which let other threads run in between and look for races.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace tshi {

// What TSHARD_TEST_SEED says; 0: threads run from one barrier to the next without interruption, and nothing is looked
// for.
uint64_t standin_seed();
// A number of the seeded sequence, below `limit`; within a launch.
uint32_t standin_draw(uint32_t limit);

// A launch, a block, and what follows a barrier begin. Accesses of one memory by two threads, one of which writes, end
// the program where no barrier lies between, or where the threads are of two blocks of a launch.
void standin_accesses_launch(const char *kernel);
void standin_accesses_block();
void standin_accesses_barrier();

// launch.cc: the running thread gives way; whether the address lies on its stack, or is one of where the thread is.
void standin_give_way();
bool standin_is_private(uintptr_t address, bool thread_local_memory);

} // namespace tshi
