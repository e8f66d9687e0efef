/* Low-rank adapters in PEFT's folders. */
#ifndef TSHI_ADAPTER_H
#define TSHI_ADAPTER_H

#include "layers/layers.h"
#include "tshard/io.h"

/* PEFT's names for an adapter's files. */
#define TSHI_ADAPTER_CONFIG  "adapter_config.json"
#define TSHI_ADAPTER_WEIGHTS "adapter_model.safetensors"

/* Where ".lora_A.weight" or ".lora_embedding_A" begins in the name of a factor, 'A' or 'B'; NULL in other names. */
const char *tshi_adapter_part(const char *name, char factor);
/* Writes the configuration of an adapter whose parameters are in the list; base (NULL: none) names its model. Not
 * collective. */
tsh_status tshi_adapter_config_write(const char *path, const tsh_lora_config *config, const char *base,
                                     const tsh_parameters *list);

#endif
