/* Trains the GPT of train_gpt while ranks die and join: the others continue, with the losses that any number of ranks
 * has. Each rank's part of the weights and of the optimizer's moments is also kept on another rank.
 *
 *     TSHARD_TOKEN=secret tshard-run -n 4 --min-ranks 2 --port 4242 any_machines --survive
 *     TSHARD_TOKEN=secret tshard-run -n 2 --join localhost:4242 any_machines --survive */
#include "command_line.h"
#include "program.h"
#include "progress.h"
#include "train_gpt.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

enum { MOST_KILLS = 8, MOST_WAITS = 8, MOST_RANKS = 64, WARM_UP = 5 };

/* A death of this rank, to try it. */
typedef struct death {
    int rank; /* in the first world */
    long long step;
    long microseconds; /* after the step has begun */
    int ranks;         /* > 0: it dies in the first step from `step` on that a world of so many ranks makes */
    bool armed;
} death;

/* A step before which the job waits until it has so many ranks. */
typedef struct waiting {
    long long step;
    int ranks;
} waiting;

typedef struct program {
    options model; /* of train_gpt */
    int64_t steps, every;
    bool survive, timed_lines; /* timed_lines: --times */
    const char *share, *kill, *wait;
    waiting waits[MOST_WAITS];
    int wait_count;
    death deaths[MOST_KILLS];
    int death_count;
    int first_rank;             /* this rank's number in its first world */
    int64_t weight[MOST_RANKS]; /* of the ranks of the first world; weight_count 0: they are equal */
    int weight_count;
    text t;
    windows training, validation;
    int64_t *inputs, *targets; /* [batch, block] */
    double *times;             /* [steps] seconds */
    int64_t timed;
} program;

/* All that belongs to one world. */
typedef struct job {
    tsh_world *world;
    model *m;
    tsh_protection *protection;
    bool moved; /* the parameters have values, and the protection has a step */
    options o;
    char axis[256]; /* o.model_parallel */
} job;

/* --- the model on a world ----------------------------------------------------------------------------------------- */

/* The weights that ranks had in the first world stay with them. */
static tsh_status weights_of(tsh_world *world, const program *p, char *axis, size_t size) {
    int64_t weights[MOST_RANKS] = {0};
    int n = tsh_world_size(world);
    const tsh_tensor_config config = {.dtype = TSH_INT64, .ndim = 1, .shape = {n}};
    tsh_tensor *all = NULL;
    weights[tsh_world_rank(world)] = p->first_rank < p->weight_count ? p->weight[p->first_rank] : 1;
    tsh_status status = tsh_tensor_create(tsh_world_mesh(world), &config, &all);
    if (status == TSH_OK) status = tsh_tensor_write(all, weights, n);
    if (status == TSH_OK) status = tsh_all_reduce(tsh_world_group(world), all, TSH_REDUCE_SUM);
    if (status == TSH_OK) status = tsh_tensor_read(all, weights, n);
    tsh_tensor_release(all);
    int length = 0;
    for (int i = 0; n > 1 && i < n && length >= 0 && (size_t)length < size; i++)
        length += snprintf(axis + length, size - (size_t)length, "%s%lld", i ? ":" : "", (long long)weights[i]);
    return status;
}

/* The ranks that share a copy of the model: fewer than asked for where their number does not divide. */
static tsh_status choose_share(tsh_world *world, const program *p, char *axis, size_t size) {
    int share = atoi(p->share);
    if (p->weight_count && tsh_world_size(world) > 1) return weights_of(world, p, axis, size);
    if (share > tsh_world_size(world)) share = tsh_world_size(world);
    while (tsh_world_size(world) % share) share--;
    snprintf(axis, size, "%d", share);
    return TSH_OK;
}

/* Not the world. */
static void job_destroy(job *j) {
    if (!j) return;
    tsh_protection_destroy(j->protection);
    model_destroy(j->m);
    free(j);
}

/* The model of a world, with its initial values. */
static tsh_status job_create(tsh_world *world, const program *p, job **out) {
    job *j = *out = calloc(1, sizeof *j);
    if (!j) return TSH_ERR_MEMORY;
    *j = (job){.world = world, .o = p->model};
    j->o.model_parallel = j->axis;
    tsh_status status = choose_share(world, p, j->axis, sizeof j->axis);
    if (status == TSH_OK) status = model_create(world, &j->o, p->t.vocabulary, &j->m);
    if (status == TSH_OK && p->survive)
        status = tsh_protection_create(model_list(j->m), model_optimizer(j->m), (int)p->every, &j->protection);
    return status;
}

/* --- training ----------------------------------------------------------------------------------------------------- */

static bool dies_in(const death *d, int rank, int64_t step, int ranks) {
    if (d->rank != rank || d->armed) return false;
    return d->ranks ? d->step <= step && d->ranks == ranks : d->step == step;
}

/* The timer's signal ends the process. */
static void arm_death(const job *j, program *p, int64_t step) {
    for (int i = 0; i < p->death_count; i++) {
        death *d = &p->deaths[i];
        const struct itimerval when = {
            .it_value = {.tv_sec = d->microseconds / 1000000, .tv_usec = d->microseconds % 1000000}};
        if (!dies_in(d, p->first_rank, step, tsh_world_size(j->world))) continue;
        d->armed = true;
        if (p->timed_lines) printf("dies at %.3f\n", seconds_now() + 1e-6 * (double)d->microseconds);
        if (d->microseconds == 0) raise(SIGKILL);
        setitimer(ITIMER_REAL, &when, NULL);
    }
}

static tsh_status say_step(const program *p, int64_t step, double loss) {
    printf("step %lld: %.9g", (long long)step, loss);
    if (p->timed_lines) printf(" at %.3f", seconds_now());
    printf("\n");
    return fflush(stdout) == 0 ? TSH_OK : TSH_ERR_SYSTEM;
}

static tsh_status make_step(job *j, program *p, int64_t step) {
    double loss = 0, begin = seconds_now();
    arm_death(j, p, step);
    windows_draw(&p->training, &j->o, step, p->inputs, p->targets);
    tsh_status status = model_step(j->m, p->inputs, p->targets, j->o.lr, &loss);
    if (status == TSH_OK && tsh_world_rank(j->world) == 0) status = say_step(p, step, loss);
    if (status == TSH_OK && j->protection) status = tsh_protection_step(j->protection, step + 1);
    if (status == TSH_OK && p->timed < p->steps) p->times[p->timed++] = seconds_now() - begin;
    return status;
}

/* Gives the model the values of the last step that all ranks of its world have whole between them. A rank that has just
 * joined has none. */
static tsh_status take_values(job *now, const job *before, int64_t *step) {
    const tsh_protection *from = before && before->moved ? before->protection : NULL;
    tsh_status status = tsh_protection_move(from, model_list(now->m), model_optimizer(now->m), step);
    if (status == TSH_OK) status = tsh_protection_step(now->protection, *step);
    now->moved = status == TSH_OK;
    return status;
}

/* After deaths, or when ranks wait to join: the world of the ranks that there are, and the model on it. More ranks may
 * die in the meantime. */
static tsh_status go_on(job **j, const program *p, int64_t *step) {
    tsh_world *first = (*j)->world, *broken = first, *next;
    job *now = NULL;
    for (;;) {
        tsh_status status = tsh_world_continue(broken, &(tsh_continue_config){.step = *step}, &next, NULL);
        if (broken != first) tsh_world_destroy(broken);
        if (status != TSH_OK) return status;
        status = job_create(next, p, &now);
        if (status == TSH_OK) status = take_values(now, *j, step);
        if (status == TSH_OK) break;
        job_destroy(now);
        if (status != TSH_ERR_PEER && status != TSH_ERR_TIMEOUT) {
            tsh_world_destroy(next);
            return status;
        }
        broken = next; /* another one follows it */
    }
    if (tsh_world_rank(next) == 0) printf("%d ranks go on after step %lld\n", tsh_world_size(next), (long long)*step);
    job_destroy(*j);
    tsh_world_destroy(first);
    *j = now;
    return TSH_OK;
}

static tsh_status begin(job *j, int64_t *step) {
    if (!j->protection) return TSH_OK;
    if (tsh_world_has_joined(j->world)) return take_values(j, NULL, step);
    j->moved = true;
    return tsh_protection_step(j->protection, 0);
}

static bool is_short_of_ranks(const program *p, const tsh_world *world, int64_t step) {
    bool is_short = false;
    for (int i = 0; i < p->wait_count; i++)
        is_short = is_short || (p->waits[i].step == step && p->waits[i].ranks > tsh_world_size(world));
    return is_short;
}

static tsh_status look_for_joiners(tsh_world *world, const program *p, int64_t step, int *joiners) {
    const struct timespec pause = {.tv_nsec = 5000000};
    for (;;) {
        tsh_status status = tsh_world_joiners(world, joiners);
        if (status != TSH_OK || *joiners > 0 || !is_short_of_ranks(p, world, step)) return status;
        nanosleep(&pause, NULL);
    }
}

static tsh_status train(job **j, program *p) {
    int64_t step = 0;
    tsh_status status = begin(*j, &step);
    while (step < p->steps) {
        int joiners = 0;
        if (status == TSH_OK && p->survive) status = look_for_joiners((*j)->world, p, step, &joiners);
        if (status == TSH_OK && joiners == 0) status = make_step(*j, p, step);
        bool broken = p->survive && (status == TSH_ERR_PEER || status == TSH_ERR_TIMEOUT);
        if (broken || joiners)
            status = go_on(j, p, &step);
        else if (status == TSH_OK)
            step++;
        if (status != TSH_OK) break;
    }
    return status;
}

/* A mean, not a median, since only some steps copy. */
static double mean_seconds(const program *p) {
    int64_t skipped = p->timed > WARM_UP ? WARM_UP : 0;
    double sum = 0;
    for (int64_t i = skipped; i < p->timed; i++) sum += p->times[i];
    return sum / (double)(p->timed - skipped);
}

static tsh_status run(tsh_world **world, program *p) {
    job *j = NULL;
    tsh_status status = job_create(*world, p, &j);
    if (status == TSH_OK) status = train(&j, p);
    if (j) *world = j->world;
    if (status == TSH_OK && tsh_world_rank(*world) == 0) printf("%.3f ms a step\n", 1e3 * mean_seconds(p));
    if (status != TSH_OK) fprintf(stderr, "any_machines: %s\n", tsh_error_message());
    job_destroy(j);
    return status;
}

/* --- the command line --------------------------------------------------------------------------------------------- */

static const char help[] =
    "usage: [tshard-run -n RANKS --min-ranks N] any_machines [options]\n"
    "\n"
    "Trains the model of train_gpt, and continues when ranks die, and when others join (tshard-run --join).\n"
    "\n"
    "  --survive            continue when ranks die, and let others join\n"
    "  --every N            steps between copies of the values; 0: no copies (10)\n"
    "  --model M            ranks that share one copy of the model, or a weight for each of them, such as 2:1:1 (1)\n"
    "  --kill DEATHS        a list of RANK:STEP[:MICROSECONDS[:RANKS]], separated by commas: RANK dies in STEP,\n"
    "                       MICROSECONDS after the step begins; with RANKS, it dies in the first step from STEP on\n"
    "                       that a world of RANKS ranks makes\n"
    "  --steps N            training steps (60)\n"
    "  --times              print when steps end and ranks die, in seconds of the machine's clock\n"
    "  --text FILE          the text (default: the C sources of tshard)\n"
    "  --wait WAITS         a list of STEP:RANKS, separated by commas: before STEP, wait until the job has RANKS\n"
    "                       ranks; ranks that join are given the same list\n"
    "  --layers N, --heads N, --embed N, --block N, --batch N, --lr RATE, --seed N, --dtype TYPE\n"
    "                       as in train_gpt, but smaller (2, 4, 32, 16, 12, 0.001, 1337, float32)\n"
    "  --help               this text\n";

static const options defaults = {.layers = 2,
                                 .heads = 4,
                                 .embed = 32,
                                 .block = 16,
                                 .batch = 12,
                                 .lr = 1e-3,
                                 .weight_decay = 0.1,
                                 .clip = 1.0,
                                 .seed = 1337,
                                 .arithmetic = TSH_DTYPE_COUNT};

static bool read_deaths(program *p) {
    for (const char *at = p->kill; at && *at; at += *at == ',') {
        int read = 0;
        death *d = &p->deaths[p->death_count];
        if (p->death_count == MOST_KILLS || sscanf(at, "%d:%lld%n", &d->rank, &d->step, &read) < 2) return false;
        at += read;
        if (sscanf(at, ":%ld%n", &d->microseconds, &read) == 1) at += read;
        if (sscanf(at, ":%d%n", &d->ranks, &read) == 1) at += read;
        if ((*at && *at != ',') || d->microseconds < 0 || d->ranks < 0) return false;
        p->death_count++;
    }
    return true;
}

static bool read_waits(program *p) {
    for (const char *at = p->wait; at && *at; at += *at == ',') {
        int read = 0;
        waiting *w = &p->waits[p->wait_count];
        if (p->wait_count == MOST_WAITS || sscanf(at, "%lld:%d%n", &w->step, &w->ranks, &read) < 2) return false;
        at += read;
        if (*at && *at != ',') return false;
        p->wait_count++;
    }
    return true;
}

/* A number, or as many weights as there are ranks. */
static bool read_share(program *p, const tsh_world *world) {
    if (!strchr(p->share, ':')) return atoi(p->share) > 0;
    for (const char *at = p->share; at; at = strchr(at, ':')) {
        at += *at == ':';
        if (p->weight_count == MOST_RANKS) return false;
        p->weight[p->weight_count++] = atoi(at);
    }
    return p->weight_count == tsh_world_size(world) || tsh_world_has_joined(world);
}

static int parse(int argc, char **argv, const tsh_world *world, program *p) {
    static const double size = 1e6, count = 1e9;
    bool speaks = tsh_world_rank(world) == 0;
    options *o = &p->model;
    *o = defaults;
    const option_row rows[] = {{"survive", OPTION_FLAG, &p->survive, 0, 0},
                               {"every", OPTION_COUNT, &p->every, 0, size},
                               {"model", OPTION_AXIS, &p->share, 0, 0},
                               {"kill", OPTION_TEXT, &p->kill, 0, 0},
                               {"wait", OPTION_TEXT, &p->wait, 0, 0},
                               {"steps", OPTION_COUNT, &p->steps, 1, count},
                               {"times", OPTION_FLAG, &p->timed_lines, 0, 0},
                               {"text", OPTION_PATH, &o->text, 0, 0},
                               {"layers", OPTION_COUNT, &o->layers, 1, size},
                               {"heads", OPTION_COUNT, &o->heads, 1, size},
                               {"embed", OPTION_COUNT, &o->embed, 1, size},
                               {"block", OPTION_COUNT, &o->block, 1, size},
                               {"batch", OPTION_COUNT, &o->batch, 1, size},
                               {"lr", OPTION_RATE, &o->lr, 0, 0},
                               {"seed", OPTION_SEED, &o->seed, 0, 0},
                               {"dtype", OPTION_DTYPE, &o->dtype, 0, 0},
                               {NULL, OPTION_FLAG, NULL, 0, 0}};
    int code = command_line_parse("any_machines", help, rows, argc, argv, speaks);
    o->survives = p->survive;
    bool good = code >= 0 || (read_deaths(p) && read_waits(p) && read_share(p, world) && o->embed % o->heads == 0);
    if (good) return code;
    if (speaks)
        fprintf(stderr, "any_machines: --kill, --wait, --model or --heads is malformed; --help says what they are\n");
    return 2;
}

static bool prepare(const tsh_world *world, program *p) {
    const options *o = &p->model;
    size_t numbers = (size_t)(o->batch * o->block);
    p->first_rank = tsh_world_rank(world);
    p->inputs = calloc(numbers, sizeof *p->inputs);
    p->targets = calloc(numbers, sizeof *p->targets);
    p->times = calloc((size_t)p->steps, sizeof *p->times);
    if (!p->inputs || !p->targets || !p->times) fprintf(stderr, "any_machines: no memory for a batch\n");
    return p->inputs && p->targets && p->times;
}

int main(int argc, char **argv) {
    program p = {.steps = 60, .every = 10, .share = "1"};
    tsh_world *world = program_begin("any_machines");
    if (!world) return EXIT_FAILURE;
    int code = parse(argc, argv, world, &p);
    if (code < 0) {
        bool good = prepare(world, &p) && text_read("any_machines", world, p.model.text, p.model.block, &p.t) &&
                    windows_split("any_machines", &p.t, &p.model, &p.training, &p.validation);
        code = good && run(&world, &p) == TSH_OK ? EXIT_SUCCESS : EXIT_FAILURE;
    }
    text_free(&p.t);
    free(p.times);
    free(p.targets);
    free(p.inputs);
    return program_end("any_machines", world, code);
}
