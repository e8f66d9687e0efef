/* io: parameters in safetensors files, as Hugging Face writes them. See docs/files.md.
 *
 * Thread safety: everything here is for the world's thread. */
#ifndef TSHARD_IO_H
#define TSHARD_IO_H

#include "tshard/layers.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where the elements of a parameter are in files, when its name there is another one. `parameter` is the name in the
 * list and `tensor` that in the files; each may have one '*', and what that of `parameter` stands for, that of `tensor`
 * stands for too: {"model.*", "*"} drops a prefix, {"*.weight", "*.kernel", true} renames and transposes.
 *
 * With a length, elements [parameter_start, parameter_start + length) of dim `dim` of the parameter are elements
 * [tensor_start, tensor_start + length) of the tensor: a parameter that is a slice of a fused tensor, or one of several
 * tensors that fill a parameter. dim is that of the parameter, after a transposition. */
typedef struct tsh_name_rule {
    const char *parameter, *tensor;
    bool transpose; /* the tensor has two dims, in the other order: GPT-2's weights are [in, out] */
    int dim;
    int64_t length; /* 0: the tensor is the parameter */
    int64_t parameter_start, tensor_start;
} tsh_name_rule;

/* What tsh_load takes beside the list. */
typedef struct tsh_load_options {
    /* A parameter takes the first rule that it matches; where that has a length, every rule with a length that it
     * matches, which must fill it together. Without a rule the names are the same. */
    const tsh_name_rule *rules;
    int rule_count;        /* entries of rules */
    bool allow_missing;    /* parameters that the files lack keep their values */
    bool allow_unexpected; /* the files may have tensors that no parameter takes */
    /* Names of tensors that the files may have though no parameter takes them, each with one '*' at most, which stands
     * for anything; NULL ends them. NULL: none. */
    const char *const *ignored;
} tsh_load_options;

/* Fills the parameters of the list, of any layouts but PARTIAL and LOCAL, from a file, or from a folder: its
 * model.safetensors, or else the files that its model.safetensors.index.json names. Each rank reads its own boxes
 * alone. Elements become the parameter's dtype: float64, float32, bfloat16 and float16 convert into each other,
 * rounding once; integers into wider ones. options may be NULL. Collective over the world; waits. Every rank returns an
 * error when one does. Parameters that are missing, tensors that are unexpected, shapes that differ and dtypes that
 * cannot be converted are all named in one message (the log of rank 0 has those for which it has no room), and nothing
 * changes then; only a file that cannot be read to its end after its header was leaves parameters partly filled.
 * TSH_ERR_IO for files and what they hold, _ARGUMENT for rules and ignored names, _LAYOUT, _STATE, _MEMORY, _MISMATCH
 * when ranks have other parameters or files. */
TSH_API tsh_status tsh_load(tsh_parameters *list, const char *path, const tsh_load_options *options);

/* What tsh_save takes beside the list. */
typedef struct tsh_save_options {
    const tsh_name_rule *rules;  /* as in loading: parameters that are slices of one tensor make it together */
    int rule_count;              /* entries of rules */
    const char *const *metadata; /* keys and values in turns, then NULL; NULL: "format", "pt" */
    uint64_t max_shard_bytes;    /* 0: one file; else several of at most so many bytes of elements, and an index */
} tsh_save_options;

/* Writes the parameters of the list, of any layouts but PARTIAL and LOCAL, to a file or, where `path` is a folder, to
 * model.safetensors in it; with max_shard_bytes path is a folder, which gets model-00001-of-0000N.safetensors, ... and
 * model.safetensors.index.json, or model.safetensors where one file is enough. Each rank writes its own boxes, in
 * place: ranks on several machines need a file system that they share. What several ranks hold is written once, by each
 * of them a part. Files are written under the name PATH.partial, and renamed when all ranks' bytes are on the disk; of
 * an old set of several files the index is removed first. options may be NULL. Collective over the world; waits. Every
 * rank returns an error when one does, and what was there before is still there; the list does not change. TSH_ERR_IO
 * for files, _ARGUMENT for rules that make no whole tensors, _DTYPE for complex128, _LAYOUT, _STATE, _MEMORY,
 * _OVERFLOW, _MISMATCH. */
TSH_API tsh_status tsh_save(tsh_parameters *list, const char *path, const tsh_save_options *options);

#ifdef __cplusplus
}
#endif

#endif
