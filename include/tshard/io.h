/* io: parameters in safetensors files, as Hugging Face writes them, and from GGUF files. See docs/files.md.
 *
 * Thread safety: everything here is for the world's thread. */
#ifndef TSHARD_IO_H
#define TSHARD_IO_H

#include "tshard/layers.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Maps a parameter's name to a tensor's name in the files. Each may have one '*', which stands for the same text in
 * both: {"model.*", "*"} drops a prefix, {"*.weight", "*.kernel", true} renames and transposes.
 *
 * With a length, elements [parameter_start, parameter_start + length) of dim `dim` of the parameter are elements
 * [tensor_start, tensor_start + length) of the tensor: the parameter is a slice of a fused tensor, or several tensors
 * fill it. dim is the parameter's dim, after a transposition. With `squeeze` the tensor lacks the parameter's first
 * dim: it is index parameter_start of it, as a file has a tensor for each expert of a stack. */
typedef struct tsh_name_rule {
    const char *parameter, *tensor;
    bool transpose; /* the tensor has its two dims in reverse order, as GPT-2's weights [in, out] */
    int dim;
    int64_t length; /* 0: the tensor is the parameter */
    int64_t parameter_start, tensor_start;
    bool squeeze; /* with dim 0 and length 1 */
} tsh_name_rule;

/* Options of tsh_load; zeros are the defaults. */
typedef struct tsh_load_options {
    /* The first rule that matches a parameter applies to it; if that has a length, all matching rules with a length
     * apply, and together they must fill the parameter. Without a matching rule the names are the same. */
    const tsh_name_rule *rules;
    int rule_count;        /* entries of rules */
    bool allow_missing;    /* parameters that the files lack keep their values */
    bool allow_unexpected; /* the files may have tensors that no parameter takes */
    /* Names of unexpected tensors that are ignored, each with at most one '*', which stands for any text; NULL ends the
     * list. NULL: none. */
    const char *const *ignored;
    /* Weights of linear layers, and tables of embeddings without max_norm, that have no memory yet and that a GGUF file
     * holds as Q8_0 or Q4_0 stay quantized, for inference: the parameter becomes a uint8 tensor [out_features,
     * groups x bytes of a group], groups of 32 along in_features, which wants no gradient and cannot want one. A rank
     * holds whole groups. tsh_linear_forward and tsh_embedding_project quantize up to 8 rows of x to groups of 8 bits
     * and multiply integers, and multiply more rows with the weights' float32 values; no input may lead to a gradient
     * (tsh_tape_set_recording). tsh_embedding_forward dequantizes the rows that it looks up. Other parameters are
     * floats as without it. */
    bool keep_quantized;
} tsh_load_options;

/* Fills the parameters of the list, in any layouts except PARTIAL and LOCAL, from a file, or from a folder: its
 * model.safetensors, else the files that its model.safetensors.index.json lists. Each rank reads only its own boxes.
 * The file may also be a GGUF file of version 3: the tensors of a Llama or Qwen2 model then have the names and the
 * order of rows of Hugging Face's folders, and those of other models keep the file's. Quantized weights (Q8_0, Q4_0,
 * Q4_K, Q5_K and Q6_K) are read as float32; TSH_ERR_UNSUPPORTED for a file with other types. Elements are converted to
 * the parameter's dtype: between float64, float32, bfloat16 and float16, rounding once, and from integers to wider
 * ones. options may be NULL. Collective over the world; waits. Every rank returns an error when one does. One message
 * lists all missing parameters, unexpected tensors, different shapes and dtypes that cannot be converted (the log of
 * rank 0 has those that do not fit), and then nothing changes; only a file that cannot be read after its header leaves
 * parameters partly filled. TSH_ERR_IO for files and their contents, _ARGUMENT for rules and ignored names, _LAYOUT,
 * _STATE, _MEMORY, _MISMATCH when ranks have different parameters or files. */
TSH_API tsh_status tsh_load(tsh_parameters *list, const char *path, const tsh_load_options *options);

/* Writes into json [size] the text of the config.json that a Hugging Face folder with the same model as the GGUF file
 * would have: model_type, sizes, rotary positions and the tokens that end a text, for the architectures llama and
 * qwen2. 2,000 bytes are enough. Not collective. TSH_ERR_IO for a malformed file or missing keys, _UNSUPPORTED for
 * other architectures and for mixtures of experts, _ARGUMENT when the text does not fit, _MEMORY; the text is then
 * empty. */
TSH_API tsh_status tsh_gguf_config(const char *path, char *json, size_t size);
/* Writes into text [size] the text that a GGUF file has under a key, such as "tokenizer.chat_template"; "" without that
 * key. Not collective. TSH_ERR_IO for a malformed file and for a value that is no text, _ARGUMENT when the text does
 * not fit, _MEMORY; the text is then empty. */
TSH_API tsh_status tsh_gguf_text(const char *path, const char *key, char *text, size_t size);

/* Options of tsh_save; zeros are the defaults. */
typedef struct tsh_save_options {
    const tsh_name_rule *rules;  /* as for tsh_load: parameters that are slices of one tensor fill it together */
    int rule_count;              /* entries of rules */
    const char *const *metadata; /* key, value, key, value, ..., NULL; NULL: "format", "pt" */
    /* 0: one file; else several files of at most so many bytes of elements, and an index */
    uint64_t max_shard_bytes;
} tsh_save_options;

/* Writes the parameters of the list, in any layouts except PARTIAL and LOCAL, to a file or, if `path` is a folder, to
 * its model.safetensors; with max_shard_bytes path is a folder, which gets model-00001-of-0000N.safetensors, ... and
 * model.safetensors.index.json, or model.safetensors if one file is enough. Each rank writes its own boxes in place:
 * ranks on several machines need a shared file system. Each replica of a box writes a part of it. Files are written as
 * PATH.partial, and renamed when all ranks' bytes are on the disk; the index of an old set of files is removed first.
 * options may be NULL. Collective over the world; waits. Every rank returns an error when one does, and the old files
 * are still there. TSH_ERR_IO for files, _ARGUMENT for rules that do not fill tensors, _DTYPE for complex128, _LAYOUT,
 * _STATE, _MEMORY, _OVERFLOW, _MISMATCH. */
TSH_API tsh_status tsh_save(tsh_parameters *list, const char *path, const tsh_save_options *options);

/* --- adapters ----------------------------------------------------------------------------------------------------- */

/* Reads FOLDER/adapter_config.json, which PEFT writes for a LoRA adapter: r, lora_alpha, use_rslora and target_modules,
 * a list of names or "all-linear". The caller destroys *out. Collective over the world; waits. TSH_ERR_IO for a file
 * that is not such a configuration; _UNSUPPORTED for an adapter that computes something else (use_dora), has other
 * ranks r for some layers (rank_pattern) or trains whole layers (modules_to_save); _ARGUMENT, _MEMORY, _MISMATCH. */
TSH_API tsh_status tsh_adapter_config_read(tsh_world *world, const char *folder, tsh_lora_config **out);
TSH_API void tsh_adapter_config_destroy(tsh_lora_config *config);
/* Fills the adapters' parameters in the list, which tsh_linear_adapt has named, from FOLDER/adapter_model.safetensors,
 * where their names begin with "base_model.model.". Layers must have the names that the base's Hugging Face files use,
 * and adapters must not be merged. Collective over the world; waits. Errors as tsh_load; TSH_ERR_ARGUMENT for a list
 * without adapters. */
TSH_API tsh_status tsh_adapter_load(tsh_parameters *list, const char *folder);
/* Writes the adapters' parameters in the list, and the configuration, into a folder that PEFT can load; the folder may
 * exist. base: the name or path of the base model, or NULL. Collective over the world; waits. Errors as tsh_save;
 * TSH_ERR_ARGUMENT for a list without adapters. */
TSH_API tsh_status tsh_adapter_save(tsh_parameters *list, const char *folder, const tsh_lora_config *config,
                                    const char *base);

#ifdef __cplusplus
}
#endif

#endif
