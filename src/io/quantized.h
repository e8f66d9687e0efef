/* Weights of linear layers that stay quantized in memory, as a GGUF file has them. */
#ifndef TSHI_QUANTIZED_H
#define TSHI_QUANTIZED_H

#include "io/gguf/gguf.h"
#include "tensor/tensor.h"

/* True where the weight may become groups of this tensor of a file: a linear layer's, without memory so far, and in a
 * format for which there are products. */
bool tshi_may_stay_quantized(const tsh_tensor *weight, const tshi_gguf_tensor *source);
/* A weight of float [out, in] becomes uint8 [out, groups x bytes of a group], its memory not zeroed, and wants no
 * gradient. Split by rows, it keeps its split, or, where `rows_move` on the tensor says so, is split by groups of rows,
 * as the next layer's columns are; split by columns, whole groups are the units. Not collective, but every rank makes
 * the same call. */
tsh_status tshi_stay_quantized(tsh_tensor *weight, const tshi_quant_format *format);
/* The tensor of the file as uint8 [rows, groups x bytes of a group]; its entry's texts are the tensor's. */
tshi_gguf_tensor tshi_gguf_as_bytes(const tshi_gguf_tensor *tensor);

#endif
