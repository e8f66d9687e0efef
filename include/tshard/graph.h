/* graph: a step of work on a GPU, captured once and run any number of times.
 *
 * Between capture_begin and capture_end what is queued on the device does not run: it becomes a graph, which a launch
 * runs as a whole, at the cost of one launch. Tensors keep their places: write new input into the tensors that the
 * captured step read (tsh_tensor_write, outside the capture), launch, read the tensors that it wrote.
 *
 *     train_step(...);                      // once or twice as usual: what is made at first use is made
 *     tsh_graph_capture_begin(device);
 *     train_step(...);                      // does not run
 *     tsh_graph_capture_end(device, &graph);
 *     for (...) { put the batch into x; tsh_graph_launch(graph); }
 *
 * What a replay repeats, and what it does not:
 *  - numbers that the host passed are those of the capture (the learning rate, the dropout probability, the loss
 *    scale);
 *  - tsh_adamw counts on: the n-th launch of a graph whose capture was step t is step t + n - 1. The optimizer itself
 *    does not hear of it: its own count stays at t;
 *  - dropout draws anew in each launch, from streams that no other step uses: launch n from streams + (n - 1) 2^32;
 *  - momentum of tsh_sgd has to have begun before the capture (one step as usual);
 *  - wrong ids and targets are told by the next call that checks, such as an optimizer's step outside a capture.
 *
 * Memory that is allocated during a capture belongs to the graph until it is destroyed, also when its tensors are
 * released, and memory that the captured work has read and that is released during the capture stays with it as well.
 * A graph is destroyed before its world.
 *
 * Thread safety: everything here is for the world's own thread. */
#ifndef TSHARD_GRAPH_H
#define TSHARD_GRAPH_H

#include "tshard/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tsh_graph tsh_graph;

/* Begin. Nothing waits. What needs the host in the middle cannot be captured: reading a tensor on the host, writing one
 * from it, collectives that wait for other ranks (backends "local" and "mpi"). Such a call fails inside the
 * capture, or leaves its words to capture_end. TSH_ERR_UNSUPPORTED for a CPU, TSH_ERR_STATE inside a capture or with
 * TSHARD_CUDA_MANAGED=1. */
TSH_API tsh_status tsh_graph_capture_begin(tsh_device *device);
/* End, whatever happened inside: afterwards the device works as before. *out is the caller's. On failure *out is NULL
 * and the words say which call could not be captured; what was captured has not run. */
TSH_API tsh_status tsh_graph_capture_end(tsh_device *device, tsh_graph **out);
/* Queue the graph behind all that was queued before; does not wait. Collective when collectives were captured.
 * TSH_ERR_STATE inside a capture. */
TSH_API tsh_status tsh_graph_launch(tsh_graph *graph);
/* Waits for nothing: launches under way end first. NULL is fine. Not inside a capture. */
TSH_API void tsh_graph_destroy(tsh_graph *graph);

#ifdef __cplusplus
}
#endif

#endif
