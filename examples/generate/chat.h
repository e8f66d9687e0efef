/* A conversation with a model that was trained for it. */
#ifndef GENERATE_CHAT_H
#define GENERATE_CHAT_H

#include "generate.h"

/* Reads lines of rank 0's file descriptor `in` until it ends, and prints the answers to stdout. Collective over the
 * world. False, with words, on failure. */
bool chat_run(model *m, const options *o, const tokenizer *t, tsh_world *world, int in, char words[MODEL_WORDS]);

#endif
