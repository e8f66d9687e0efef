/* graph: work on a GPU, captured once and launched any number of times.
 *
 * Between capture_begin and capture_end, work queued on the device does not run: it becomes a graph, which a launch
 * runs as a whole. Tensors keep their addresses: write new input into the tensors that the captured step has read
 * (tsh_tensor_write, outside the capture), launch, and read the tensors that it has written. docs/gpus.md says what a
 * launch repeats (learning rate, dropout, counters) and what memory a graph holds.
 *
 * Thread safety: everything here is for the world's thread. */
#ifndef TSHARD_GRAPH_H
#define TSHARD_GRAPH_H

#include "tshard/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Captured work of a device. */
typedef struct tsh_graph tsh_graph;

/* Begin a capture; does not wait. Work that needs the host cannot be captured: reading and writing tensors from the
 * host, messages, collectives that wait for other ranks (backends "local", "ucx" and "mpi"). Such a call fails, or
 * makes tsh_graph_capture_end fail. TSH_ERR_UNSUPPORTED on a CPU, TSH_ERR_STATE inside a capture or with
 * TSHARD_CUDA_MANAGED=1. */
TSH_API tsh_status tsh_graph_capture_begin(tsh_device *device);
/* End the capture; afterwards the device works as before, also when the capture has failed. The caller destroys *out
 * before the world. On failure *out is NULL, the message names the call that could not be captured, and nothing has
 * run. */
TSH_API tsh_status tsh_graph_capture_end(tsh_device *device, tsh_graph **out);
/* Queue the graph behind all work queued so far, including collectives in flight but not messages; does not wait.
 * Collective when collectives were captured. TSH_ERR_STATE inside a capture. */
TSH_API tsh_status tsh_graph_launch(tsh_graph *graph);
/* The graph is freed when its launches have ended; does not wait. NULL is accepted. Not inside a capture. */
TSH_API void tsh_graph_destroy(tsh_graph *graph);

#ifdef __cplusplus
}
#endif

#endif
