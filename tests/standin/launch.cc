// Threads of a block as fibers.
#include "device/cuda/cuda.h"

#include "standin/accesses.h"
#include "standin/launch.h"
#include "standin/standin.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

namespace {

constexpr int MOST_THREADS = 1024, WARP = 32, STACK_BYTES = 128 * 1024, WORD = 16;

// A stack that runs threads, one after another while they do not wait; a thread that waits keeps it.
struct fiber {
    ucontext_t start;
    jmp_buf place;
    bool started;
    char *stack;
    fiber *next_free;
};

enum state { RUNS, AT_BARRIER, AT_EXCHANGE, DONE };

struct one_thread {
    state at;
    fiber *on;
    unsigned exchanges;                        // so far
    alignas(WORD) unsigned char word[2][WORD]; // its values in two exchanges, used by turns
};

struct scheduler {
    const char *what;
    const std::function<void()> *body;
    int threads, next;
    one_thread thread[MOST_THREADS];
    fiber *running, *free;
    ucontext_t home_context;
    jmp_buf home;
};

thread_local scheduler *s; // of this thread of the host, made once

[[noreturn]] void die(const char *message) {
    fprintf(stderr, "%s: block %u: %s\n", s ? s->what : "stand-in", blockIdx.x, message);
    abort();
}

// longjmp between stacks saves the system calls of swapcontext, which only sanitizers need.
#ifdef __SANITIZE_ADDRESS__
void leave() {
    swapcontext(&s->running->start, &s->home_context);
}

void enter(fiber *f) {
    s->running = f;
    swapcontext(&s->home_context, &f->start);
}
#else
__attribute__((noinline)) void leave() {
    if (_setjmp(s->running->place) == 0) _longjmp(s->home, 1);
}

__attribute__((noinline)) void enter(fiber *f) {
    s->running = f;
    if (_setjmp(s->home) != 0) return;
    if (f->started) _longjmp(f->place, 1);
    f->started = true;
    setcontext(&f->start);
}
#endif

void fiber_main() {
    for (;;) {
        while (s->next < s->threads) {
            int me = s->next++;
            threadIdx.x = (unsigned)me;
            s->thread[me].at = RUNS;
            s->thread[me].on = s->running;
            (*s->body)();
            s->thread[threadIdx.x].at = DONE;
        }
        s->running->next_free = s->free;
        s->free = s->running;
        leave();
    }
}

fiber *new_fiber() {
    fiber *f = new fiber();
    if (getcontext(&f->start) != 0) die("no context for a thread");
    f->stack = new char[STACK_BYTES];
    f->start.uc_stack.ss_sp = f->stack;
    f->start.uc_stack.ss_size = STACK_BYTES;
    makecontext(&f->start, fiber_main, 0);
    return f;
}

fiber *take_fiber() {
    fiber *f = s->free;
    if (!f) return new_fiber();
    s->free = f->next_free;
    return f;
}

void wait_at(state at) {
    unsigned me = threadIdx.x;
    s->thread[me].at = at;
    leave();
    threadIdx.x = me;
}

// All of [first, first + count) wait at `at`: they continue.
bool release(int first, int count, state at) {
    for (int i = first; i < first + count; i++)
        if (s->thread[i].at != at) return false;
    for (int i = first; i < first + count; i++) s->thread[i].at = RUNS;
    return true;
}

// Runs each thread that can run until it waits, gives way or is done. False where there was none.
bool run_released(bool descending) {
    int first = tshi::standin_seed() ? (int)tshi::standin_draw((uint32_t)s->threads) : 0;
    bool any = false;
    for (int i = 0; i < s->threads; i++) {
        int t = (first + (descending ? s->threads - 1 - i : i)) % s->threads;
        if (s->thread[t].at != RUNS) continue;
        any = true;
        enter(s->thread[t].on);
    }
    return any;
}

[[noreturn]] void explain() {
    int count[DONE + 1] = {};
    for (int i = 0; i < s->threads; i++) count[s->thread[i].at]++;
    char message[160];
    snprintf(message, sizeof message,
             "of %d threads %d wait at a barrier and %d at a shuffle that the other threads never reach", s->threads,
             count[AT_BARRIER], count[AT_EXCHANGE]);
    die(message);
}

bool release_all() {
    bool barrier = release(0, s->threads, AT_BARRIER), any = barrier;
    if (barrier) tshi::standin_accesses_barrier();
    for (int w = 0; w < s->threads; w += WARP) any |= release(w, WARP, AT_EXCHANGE);
    return any;
}

void run_block(bool descending) {
    s->next = 0;
    tshi::standin_accesses_block();
    while (s->next < s->threads) enter(take_fiber());
    do {
        descending = !descending;
        while (run_released(descending)) descending = !descending;
    } while (release_all());
    if (!release(0, s->threads, DONE)) explain();
}

struct launch_data {
    const char *what;
    unsigned blocks, threads;
    int gpu;
    std::function<void()> body;
};

void run(void *data) {
    const launch_data *l = (const launch_data *)data;
    if (!s) s = new scheduler();
    s->what = l->what;
    s->body = &l->body;
    s->threads = (int)l->threads;
    blockDim = {l->threads, 1, 1};
    gridDim = {l->blocks, 1, 1};
    tshi::standin_accesses_launch(l->what);
    standin_reach(l->gpu);
    unsigned first = tshi::standin_seed() ? tshi::standin_draw(l->blocks) : 0;
    for (unsigned b = 0; b < l->blocks; b++) {
        blockIdx = {(first + b) % l->blocks, 0, 0};
        threadIdx = {0, 0, 0};
        run_block(b % 2 == 1);
    }
    standin_reach(-1);
    tshi::standin_accesses_launch(nullptr);
}

void drop(void *data) {
    delete (launch_data *)data;
}

} // namespace

namespace tshi {

void standin_barrier() {
    wait_at(AT_BARRIER);
}

void standin_give_way() {
    wait_at(RUNS);
}

bool standin_is_private(uintptr_t address, bool thread_local_memory) {
    if (!thread_local_memory) return address - (uintptr_t)s->running->stack < STACK_BYTES;
    const void *own[] = {&threadIdx, &blockIdx, &blockDim, &gridDim};
    for (const void *p : own)
        if (address - (uintptr_t)p < sizeof threadIdx) return true;
    return false;
}

void standin_exchange(const void *value, size_t size, int lane, void *out) {
    one_thread *me = &s->thread[threadIdx.x];
    unsigned turn = me->exchanges++ % 2; // no thread is two exchanges ahead
    if (size > WORD || lane < 0 || lane >= WARP) die("a shuffle of too large a value, or with a lane outside the warp");
    memcpy(me->word[turn], value, size);
    wait_at(AT_EXCHANGE);
    const one_thread *other = &s->thread[threadIdx.x / WARP * WARP + (unsigned)lane];
    memcpy(out, other->word[turn], size);
}

void standin_launch(cudaStream_t stream, const char *what, unsigned blocks, unsigned threads,
                    const std::function<void()> &thread) {
    if (threads == 0 || threads > MOST_THREADS || threads % WARP != 0 || blocks > INT32_MAX) {
        fprintf(stderr, "%s: %u blocks of %u threads\n", what, blocks, threads);
        abort();
    }
    standin_load(what);
    launch_data *data = new launch_data{what, blocks, threads, standin_current(), thread};
    if (standin_capture(stream, run, data, drop)) return;
    run(data);
    drop(data);
}

} // namespace tshi
