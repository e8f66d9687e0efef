/* Ranks as threads, each with a world, that run one program after another; and the truth beside them. */
#ifndef TSHI_TEST_TEAM_H
#define TSHI_TEST_TEAM_H

#include "differential/trace.h"

typedef struct tshi_teams tshi_teams;

/* Made as they are needed, one for each number of ranks. */
tshi_teams *tshi_teams_open(void);
void tshi_teams_close(tshi_teams *teams);
/* Run a program on its ranks and on one, and compare. */
void tshi_teams_judge(tshi_teams *teams, const tshi_program *p, tshi_verdict *v);

#endif
