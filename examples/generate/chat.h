/* A conversation with a model that was trained for it. */
#ifndef GENERATE_CHAT_H
#define GENERATE_CHAT_H

#include "generate.h"

#include <stdio.h>

/* How a family of models marks who speaks. A conversation is
 *     begin [system[0] SYSTEM system[1]] user USER assistant ANSWER end user USER ...
 * where system_inside puts the system's words after the first `user`. */
typedef struct chat_format {
    const char *name;
    const char *marker; /* a folder's chat template that has this text is of this format */
    const char *begin, *system[2], *user, *assistant, *end;
    bool system_inside;
} chat_format;

/* The format of a folder, by the chat_template of its tokenizer_config.json or its chat_template.jinja; NULL, with
 * words, if there is none or it is of no known format. */
const chat_format *chat_format_of(const char *folder, char words[MODEL_WORDS]);

typedef struct chat chat;
/* system: NULL for none. NULL without memory. */
chat *chat_create(const chat_format *format, const char *system);
void chat_destroy(chat *c);
/* Adds what the user says, or the model's answer; false without memory. */
bool chat_say(chat *c, const char *words);
bool chat_answer(chat *c, const char *words, size_t length);
/* The conversation so far, which ends where the model is to speak or has spoken. */
const char *chat_text(const chat *c);

/* Asks for lines on rank 0's `in` until it ends, and prints the answers to stdout. Collective over the world. False,
 * with words, on failure. */
bool chat_run(model *m, const options *o, const tokenizer *t, tsh_world *world, FILE *in, char words[MODEL_WORDS]);

#endif
