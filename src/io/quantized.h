/* Weights of linear layers that stay quantized in memory, as a GGUF file has them. */
#ifndef TSHI_QUANTIZED_H
#define TSHI_QUANTIZED_H

#include "io/gguf/gguf.h"
#include "tensor/tensor.h"

/* True where the weight may become groups of this tensor of a file: a linear layer's, without memory so far, and in a
 * format for which there are products. */
bool tshi_may_stay_quantized(const tsh_tensor *weight, const tshi_gguf_tensor *source);
/* The groups of a weight of float [out, in]: uint8 [out, groups x bytes of a group], not zeroed. Where the weight is
 * split by rows, they keep its split, or, if its `rows_move` says so, are split by 32 rows, as the next layer's columns
 * are; split by columns, whole groups are the units. */
tsh_status tshi_quantized_create(const tsh_tensor *weight, const tshi_quant_format *format, tsh_tensor **out);
/* The weight becomes those groups, and wants no gradient. It fails on all ranks alike, or on none. */
tsh_status tshi_quantized_take(tsh_tensor *weight, const tshi_quant_format *format, tsh_tensor *groups);
/* The tensor of the file as uint8 [rows, groups x bytes of a group]; its entry's texts are the tensor's. */
tshi_gguf_tensor tshi_gguf_as_bytes(const tshi_gguf_tensor *tensor);

#endif
