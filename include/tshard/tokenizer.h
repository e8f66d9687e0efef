/* tokenizer: texts to ids and back, as the tokenizer.json of a Hugging Face folder or a GGUF file says. See
 * docs/files.md.
 *
 * Nothing here is collective, belongs to a world, or waits.
 *
 * Thread safety: a tokenizer and its streams may be used by any thread, but only by one at a time; two tokenizers are
 * independent. */
#ifndef TSHARD_TOKENIZER_H
#define TSHARD_TOKENIZER_H

#include "tshard/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A tokenizer: byte-level BPE (GPT-2, Llama 3, Qwen), BPE with byte fallback (Llama 2, Mistral) or WordPiece (BERT),
 * with the file's normalizers, pre-tokenizers, added tokens, template and decoders. The file's truncation and padding
 * are not applied. */
typedef struct tsh_tokenizer tsh_tokenizer;

/* Loads a tokenizer from a tokenizer.json, from a folder that has one, or from a GGUF file. In a GGUF file the
 * tokenizer may be byte-level BPE (tokenizer.ggml.model gpt2, with the pre-tokenizer of GPT-2, Llama 3 or Qwen2),
 * SentencePiece's BPE (llama), or a whole tokenizer.json. The caller destroys the tokenizer. TSH_ERR_IO for a file that
 * cannot be read or is malformed; _UNSUPPORTED for a model or a step that tshard lacks, and for every file if the
 * library was built without PCRE2 and utf8proc; _MEMORY; *out is then NULL. */
TSH_API tsh_status tsh_tokenizer_load(const char *path, tsh_tokenizer **out);
TSH_API void tsh_tokenizer_destroy(tsh_tokenizer *tokenizer);

/* One more than the largest id, added tokens included. */
TSH_API int64_t tsh_tokenizer_size(const tsh_tokenizer *tokenizer);
/* The id of a token: an added one, such as "<|endoftext|>", or one of the model's, spelled as in the file; -1 if the
 * tokenizer has no such token. */
TSH_API int64_t tsh_tokenizer_id(const tsh_tokenizer *tokenizer, const char *token);

/* The ids of a text of `bytes` bytes, which may contain zeros. With `special` the template's special tokens are added,
 * <s> for example. *ids [*count] belongs to the tokenizer, and is valid until the next tsh_tokenizer_encode.
 * TSH_ERR_ARGUMENT for a text that is not UTF-8, _IO for a regular expression of the file that takes too long, _MEMORY;
 * *ids is then NULL and *count 0. */
TSH_API tsh_status tsh_tokenizer_encode(tsh_tokenizer *tokenizer, const char *text, size_t bytes, bool special,
                                        const int64_t **ids, int64_t *count);

/* The text of ids [count], in UTF-8, with special tokens if `special` is true, and with a terminating zero that *bytes
 * does not count. Ids without a token are left out; bytes that form no character become U+FFFD. bytes may be NULL.
 * *text belongs to the tokenizer, and is valid until the next call of this function or of a stream of the tokenizer.
 * TSH_ERR_RANGE for a negative id, _MEMORY; *text is then NULL. */
TSH_API tsh_status tsh_tokenizer_decode(tsh_tokenizer *tokenizer, const int64_t *ids, int64_t count, bool special,
                                        const char **text, size_t *bytes);

/* --- id by id ----------------------------------------------------------------------------------------------------- */

/* Decodes ids that come one at a time: gives whole characters, as soon as they are complete. */
typedef struct tsh_text_stream tsh_text_stream;

/* An empty stream of the tokenizer, which must outlive it. The caller destroys the stream. TSH_ERR_MEMORY; *out is then
 * NULL. */
TSH_API tsh_status tsh_text_stream_create(tsh_tokenizer *tokenizer, bool special, tsh_text_stream **out);
TSH_API void tsh_text_stream_destroy(tsh_text_stream *stream);

/* The text that the next id completes, which is often "". All these texts together are what tsh_tokenizer_decode gives
 * for all the ids, if the bytes of byte tokens form characters. *text belongs to the stream, and is valid until its
 * next call. bytes may be NULL. TSH_ERR_RANGE for a negative id, _MEMORY; *text is then NULL. */
TSH_API tsh_status tsh_text_stream_add(tsh_text_stream *stream, int64_t id, const char **text, size_t *bytes);

/* The rest of the text at the end: bytes that still form no character, as U+FFFD. The stream is then empty, and can be
 * used again. *text and errors as for tsh_text_stream_add. */
TSH_API tsh_status tsh_text_stream_end(tsh_text_stream *stream, const char **text, size_t *bytes);

#ifdef __cplusplus
}
#endif

#endif
