/* Stand-ins for the CUDA runtime, cuBLASLt and NCCL in tests.
 *
 * "Device memory" is host memory that the host's own code cannot access: it is accessible only while queued work runs
 * (standin_protect). Other processes map it by a handle, as with CUDA IPC. Work queued on a stream runs at once, or,
 * with standin_lazy, as late as CUDA allows, when the host waits (with TSHARD_TEST_SEED any time before). Calls are
 * counted by name, and the n-th can be made to fail. Every object has to be released. A misuse that CUDA would not
 * report (memory that is not the device's, a copy past its end, a stream of another GPU in a call of NCCL) ends the
 * program with a message. */
#ifndef STANDIN_H
#define STANDIN_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Reset counters, failures and settings to those of the start. */
void standin_reset(void);
/* Calls of `name` since then; NULL: of all that can fail. */
uint64_t standin_calls(const char *name);
/* From now on the nth call of `name` (NULL: of any that can fail), 1 for the next, fails once, with `code` or, for 0,
 * with what fits it. */
void standin_fail(const char *name, uint64_t nth, int code);
/* From now on every call of CUDA's fails with this code, as after a kernel's access to what is no memory; 0: none. */
void standin_break(int code);
/* The name of the call that was made to fail last; NULL: none has. */
const char *standin_failed(void);
/* Allocations, streams, events, graphs and handles not given back; names them in text. */
int standin_live(char *text, size_t size);
void standin_lazy(bool on);
void standin_protect(bool on);
/* GPUs that there are (-1: not even a driver) and the memory of each. */
void standin_gpus(int count);
/* Sets whether GPUs reach each other's memory. */
void standin_peers(bool on);
void standin_memory(size_t bytes);
/* The operations of the graph, NCCL's apart, that its edges order neither before nor after NCCL's call of that number,
 * counted from 0; -1: there are fewer calls. */
int standin_graph_beside(cudaGraphExec_t exec, int call);
/* A function that no library has; NULL: they have all. */
void standin_lack(const char *function);

/* --- for the stand-ins -------------------------------------------------------------------------------------------- */

/* Count a call; true when it has to fail, with *code (left alone for 0 as the code). code may be NULL. */
bool standin_call(const char *name, int *code);
/* Something that `name`s was made (+1) or given back (-1). */
void standin_count(const char *name, int change);
/* Queue run(data), then drop(data). ready (may be NULL) says whether it can run yet: until then the stream stands. On
 * a stream that is captured, into the graph. False where `stream` is none of ours; nothing is done then. */
bool standin_queue(cudaStream_t stream, bool (*ready)(void *data), void (*run)(void *data), void *data,
                   void (*drop)(void *data));
/* Like standin_queue, for an operation whose data serves once: each launch of a graph has what again(data) returns, and
 * data itself is dropped with the graph. *captured: it went into one. */
bool standin_queue_again(cudaStream_t stream, bool (*ready)(void *data), void *(*again)(void *data), void *data,
                         void (*drop)(void *data), bool *captured);
/* A launch on a stream that is being captured: run(data) runs at each launch of the graph, drop(data) when the graph is
 * destroyed. Returns false for a stream that is not captured, and does nothing then. */
bool standin_capture(cudaStream_t stream, void (*run)(void *data), void *data, void (*drop)(void *data));
/* Everything that can run, on all streams. */
void standin_progress(void);
/* Waits for all streams of a GPU; false: they have not come to an end within some seconds. */
bool standin_wait_idle(int gpu);
/* This thread's GPU; whether a stream is one of such a GPU, or captured. */
int standin_current(void);
bool standin_stream_is_of(cudaStream_t stream, int gpu);
bool standin_is_captured(cudaStream_t stream);
/* A number below `limit` that TSHARD_TEST_SEED and the calls before decide; 0 without a seed. */
uint32_t standin_choose(uint32_t limit);
/* Comes before a launch of this kernel: the first launch waits for the GPU, unless CUDA's setting was to load all
 * kernels at its start. The process dies where that wait never ends. */
void standin_load(const char *kernel);
/* The GPU of memory; -1: of none. */
int standin_gpu_of(const void *pointer);
/* Around work that may touch device memory, outside of what is queued. */
void standin_open(void);
void standin_close(void);
/* Within: for work of this GPU's kernels only what they reach is open. -1: all of it again. */
void standin_reach(int gpu);
/* Memory of a GPU that is nobody's pointer; false: there is too little. */
bool standin_charge(int gpu, size_t bytes);
void standin_discharge(int gpu, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
