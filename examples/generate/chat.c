/* Conversations: their formats, their text, and the loop over turns. */
#define _POSIX_C_SOURCE 200809L
#include "chat.h"
#include "shared_file.h"

#include <jansson.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The marks that a family of models puts around what is said. A conversation is
 *     begin [system[0] SYSTEM system[1]] user USER assistant ANSWER end user USER ...
 * where system_inside puts the system's words after the first `user`. */
typedef struct chat_format {
    const char *name;
    const char *marker; /* a chat template that has this text is of this format */
    const char *begin, *system[2], *user, *assistant, *end;
    bool system_inside;
} chat_format;

/* As the published templates of these models write them; the first row whose marker is found counts. */
static const chat_format formats[] = {
    {"ChatML",
     "<|im_start|>",
     "",
     {"<|im_start|>system\n", "<|im_end|>\n"},
     "<|im_start|>user\n",
     "<|im_end|>\n<|im_start|>assistant\n",
     "<|im_end|>\n",
     false},
    {"Llama 3",
     "<|start_header_id|>",
     "<|begin_of_text|>",
     {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
     "<|start_header_id|>user<|end_header_id|>\n\n",
     "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
     "<|eot_id|>",
     false},
    {"Phi 3",
     "<|end|>",
     "",
     {"<|system|>\n", "<|end|>\n"},
     "<|user|>\n",
     "<|end|>\n<|assistant|>\n",
     "<|end|>\n",
     false},
    {"Zephyr", "<|user|>", "", {"<|system|>\n", "</s>\n"}, "<|user|>\n", "</s>\n<|assistant|>\n", "</s>\n", false},
    {"Llama 2", "<<SYS>>", "", {"<<SYS>>\n", "\n<</SYS>>\n\n"}, "<s>[INST] ", " [/INST] ", " </s>", true},
    {"Mistral", "[INST]", "<s>", {"", "\n\n"}, "[INST] ", " [/INST]", "</s>", true}};

/* --- formats ------------------------------------------------------------------------------------------------------ */

enum { TEMPLATE_BYTES = 1 << 20 };

/* The template in a GGUF file's keys. */
static char *template_of_file(const char *path, char words[MODEL_WORDS]) {
    char *text = malloc(TEMPLATE_BYTES);
    tsh_status status = text ? tsh_gguf_text(path, "tokenizer.chat_template", text, TEMPLATE_BYTES) : TSH_ERR_MEMORY;
    if (status == TSH_OK && text[0]) return text;
    if (status == TSH_OK)
        snprintf(words, MODEL_WORDS, "%.500s has no tokenizer.chat_template: the model continues texts (--prompt)",
                 path);
    else
        snprintf(words, MODEL_WORDS, "%.500s: %.500s", path, text ? tsh_error_message() : "out of memory");
    free(text);
    return NULL;
}

static char *template_of_folder(const char *folder, char words[MODEL_WORDS]) {
    char path[4096];
    shared_file file = {0};
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    json_t *json = json_load_file(path, 0, NULL);
    const char *found = json_string_value(json_object_get(json, "chat_template"));
    char *text = found ? strdup(found) : NULL;
    json_decref(json);
    if (text) return text;
    snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
    if (shared_file_read(NULL, path, &file, path, sizeof path)) return file.bytes;
    free(file.bytes);
    snprintf(words, MODEL_WORDS,
             "%.500s has no chat template, neither in tokenizer_config.json nor in "
             "chat_template.jinja: the model continues texts (--prompt)",
             folder);
    return NULL;
}

/* The format of a model, by the chat_template of a folder's tokenizer_config.json, its chat_template.jinja, or a GGUF
 * file's keys; NULL, with words, if there is no template or its format is unknown. */
static const chat_format *chat_format_of(const char *path, char words[MODEL_WORDS]) {
    struct stat about;
    bool is_file = stat(path, &about) == 0 && S_ISREG(about.st_mode);
    char *text = is_file ? template_of_file(path, words) : template_of_folder(path, words);
    const chat_format *found = NULL;
    for (size_t i = 0; text && !found && i < sizeof formats / sizeof *formats; i++) {
        if (strstr(text, formats[i].marker)) found = &formats[i];
    }
    if (text && !found)
        snprintf(words, MODEL_WORDS,
                 "%.500s: its chat template is none of ChatML, Llama 2, Llama 3, Mistral, Phi 3 and "
                 "Zephyr; --prompt takes a conversation that is written out",
                 path);
    free(text);
    return found;
}

/* --- the text ----------------------------------------------------------------------------------------------------- */

typedef struct chat {
    const chat_format *format;
    char *system; /* still to be said; or NULL */
    char *text;
    size_t length;
} chat;

static bool append(chat *c, const char *words, size_t length) {
    char *grown = realloc(c->text, c->length + length + 1);
    if (!grown) return false;
    c->text = grown;
    memcpy(c->text + c->length, words, length);
    c->length += length;
    c->text[c->length] = '\0';
    return true;
}

static bool append_words(chat *c, const char *words) {
    return append(c, words, strlen(words));
}

static void chat_destroy(chat *c) {
    if (!c) return;
    free(c->system);
    free(c->text);
    free(c);
}

/* system: NULL for none. NULL without memory. */
static chat *chat_create(const chat_format *format, const char *system) {
    chat *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->format = format;
    if (system) c->system = strdup(system);
    if ((!system || c->system) && append_words(c, format->begin)) return c;
    chat_destroy(c);
    return NULL;
}

static bool append_system(chat *c) {
    bool good = !c->system || (append_words(c, c->format->system[0]) && append_words(c, c->system) &&
                               append_words(c, c->format->system[1]));
    free(c->system);
    c->system = NULL;
    return good;
}

/* Adds what the user says; false without memory. */
static bool chat_say(chat *c, const char *words) {
    const chat_format *f = c->format;
    return (f->system_inside || append_system(c)) && append_words(c, f->user) &&
           (!f->system_inside || append_system(c)) && append_words(c, words) && append_words(c, f->assistant);
}

/* Adds the model's answer; false without memory. */
static bool chat_answer(chat *c, const char *words, size_t length) {
    return append(c, words, length) && append_words(c, c->format->end);
}

/* --- turns -------------------------------------------------------------------------------------------------------- */

enum { LINE_BYTES = 65536, POLL_MS = 1000 };
enum { NOTHING_YET = -1, END = -2, TOO_LONG = -3 };

/* A line as ranks exchange it: its length, or one of the numbers above. */
typedef struct said {
    int64_t length;
    int64_t read; /* bytes of the line so far, on rank 0 */
    char bytes[LINE_BYTES];
} said;

/* Rank 0's next line, if its end comes within a second: the other ranks must not wait for a person until their
 * deadline. What has come of it stays for the next call. */
static void read_line(int in, said *line) {
    struct pollfd ready = {.fd = in, .events = POLLIN};
    line->length = NOTHING_YET;
    while (poll(&ready, 1, POLL_MS) > 0) {
        char *to = line->bytes + line->read;
        bool ended = read(in, to, 1) != 1;
        if (!ended && *to != '\n' && ++line->read < LINE_BYTES) continue;
        line->length = ended && line->read == 0 ? END : line->read < LINE_BYTES ? line->read : TOO_LONG;
        if (line->length >= 0) line->bytes[line->length] = '\0';
        line->read = 0;
        return;
    }
}

static tsh_status next_line(tsh_world *world, int in, tsh_tensor *t, said *line) {
    tsh_status status = TSH_OK;
    bool speaks = tsh_world_rank(world) == 0;
    if (speaks && isatty(in)) fputs("> ", stderr);
    do {
        if (speaks) read_line(in, line);
        if (status == TSH_OK) status = tsh_tensor_write(t, line, sizeof *line);
        if (status == TSH_OK) status = tsh_broadcast(tsh_world_group(world), t, 0);
        if (status == TSH_OK) status = tsh_tensor_read(t, line, sizeof *line);
    } while (status == TSH_OK && line->length == NOTHING_YET);
    return status;
}

static bool no_memory(char words[MODEL_WORDS]) {
    snprintf(words, MODEL_WORDS, "no memory for the conversation");
    return false;
}

/* The conversation's tokens, which leave at least one position for the answer. */
static bool encode(const chat *c, const tokenizer *t, const model *m, id_lines *out, char words[MODEL_WORDS]) {
    const int64_t *ids;
    int64_t count;
    if (tsh_tokenizer_encode(tokenizer_library(t), c->text, c->length, false, &ids, &count) != TSH_OK) {
        snprintf(words, MODEL_WORDS, "%s", tsh_error_message());
        return false;
    }
    if (count >= m->config.positions) {
        snprintf(words, MODEL_WORDS, "the conversation has %lld tokens, and the model has %lld positions",
                 (long long)count, (long long)m->config.positions);
        return false;
    }
    out->items = calloc(1, sizeof *out->items);
    if (!out->items) return no_memory(words);
    out->count = 1;
    out->longest = out->items[0].count = count;
    out->items[0].ids = malloc((size_t)count * sizeof *ids);
    if (!out->items[0].ids) return no_memory(words);
    memcpy(out->items[0].ids, ids, (size_t)count * sizeof *ids);
    return true;
}

/* The whole conversation is the prompt of each answer. */
static bool answer(model *m, const options *o, const tokenizer *t, bool speaks, chat *c, char words[MODEL_WORDS]) {
    id_lines prompt = {0};
    outcome result = {0};
    options own = *o;
    size_t length = 0;
    bool good = encode(c, t, m, &prompt, words);
    if (good && own.tokens > m->config.positions - prompt.longest) own.tokens = m->config.positions - prompt.longest;
    good = good && generate(m, &own, &prompt, t, speaks, &result, words);
    char *text = good ? tokenizer_text(t, result.ids, result.count[0], &length) : NULL;
    if (good && !(text && chat_answer(c, text, length))) good = no_memory(words);
    if (good && speaks) puts("");
    if (good && speaks) fflush(stdout);
    free(text);
    free(result.ids);
    free(result.count);
    id_lines_free(&prompt);
    return good;
}

bool chat_run(model *m, const options *o, const tokenizer *t, tsh_world *world, int in, char words[MODEL_WORDS]) {
    const tsh_tensor_config config = {.dtype = TSH_UINT8, .ndim = 1, .shape = {sizeof(said)}};
    const chat_format *format = chat_format_of(o->model, words);
    if (!format) return false;
    chat *c = chat_create(format, o->system);
    said *line = calloc(1, sizeof *line);
    tsh_tensor *shared = NULL;
    tsh_status status = c && line ? tsh_tensor_create(tsh_world_mesh(world), &config, &shared) : TSH_ERR_MEMORY;
    bool good = (c && line) || no_memory(words);
    while (good && (status = next_line(world, in, shared, line)) == TSH_OK && line->length != END) {
        if (line->length == 0) continue;
        good = line->length != TOO_LONG;
        if (!good) snprintf(words, MODEL_WORDS, "a line has more than %d bytes", LINE_BYTES - 1);
        good = good && (chat_say(c, line->bytes) || no_memory(words));
        good = good && answer(m, o, t, tsh_world_rank(world) == 0, c, words);
    }
    if (good && status != TSH_OK) snprintf(words, MODEL_WORDS, "%s", tsh_error_message());
    tsh_tensor_release(shared);
    free(line);
    chat_destroy(c);
    return good && status == TSH_OK;
}
