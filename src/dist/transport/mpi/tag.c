/* Tags. All groups of a world share a communicator, so a tag names the group, and the epoch: the number of recoveries,
 * after which no message of before may match.
 *
 *   bits            of the tag, from the lowest
 *   MESSAGE_BITS    the number of the call or message; fewer for an MPI whose tags are short
 *   2               the purpose
 *   EPOCH_BITS      the epoch
 *   the rest        the number of the group
 *
 * Invariant: no two groups with a member in common have the same number. It holds because the members of a new group
 * take a number that none of them has in use. A number is used again as late as possible: a message to a group that has
 * been closed may still be in flight. */
#include "dist/control/agree.h"
#include "dist/transport/mpi/mpi.h"

#include <string.h>

#define EPOCH_BITS   4
#define PURPOSE_BITS 2
#define MESSAGE_BITS 13
#define FEWEST       6 /* bits for groups */
#define MOST         12
#define BITS         64u

typedef struct tshi_mpi_claim {
    uint64_t next;
    uint64_t taken[];
} tshi_mpi_claim;

tsh_status tshi_mpi_count_tags(tsh_world *world) {
    tshi_mpi *mpi = tshi_mpi_of(world);
    int *most = NULL, known = 0, bits = 15; /* the least that the standard allows */
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, (void *)&most, &known);
    while (known && bits < 31 && *most >= (int)((UINT32_C(2) << bits) - 1)) bits++;
    int groups = bits - EPOCH_BITS - PURPOSE_BITS - MESSAGE_BITS;
    if (groups < FEWEST) groups = FEWEST;
    if (groups > MOST) groups = MOST;
    int messages = bits - EPOCH_BITS - PURPOSE_BITS - groups;
    mpi->group_numbers = UINT32_C(1) << groups;
    mpi->message_numbers = UINT32_C(1) << (messages < MESSAGE_BITS ? messages : MESSAGE_BITS);
    mpi->taken = tshi_calloc(&world->allocator, mpi->group_numbers / BITS, sizeof *mpi->taken);
    if (!mpi->taken) return TSH_ERR_MEMORY;
    mpi->taken[0] = 1; /* the world's group */
    mpi->next_group = 1;
    return TSH_OK;
}

int tshi_mpi_tag(const tsh_group *group, uint64_t packed) {
    const tshi_mpi *mpi = tshi_mpi_of(group->world);
    const tshi_mpi_group *mg = group->state;
    uint64_t tag = (uint64_t)mg->number << EPOCH_BITS | group->world->recoveries % (1u << EPOCH_BITS);
    tag = tag << PURPOSE_BITS | packed >> TSHI_PURPOSE_SHIFT;
    return (int)(tag * mpi->message_numbers + packed % mpi->message_numbers);
}

size_t tshi_mpi_claim_bytes(const tshi_mpi *mpi) {
    return sizeof(tshi_mpi_claim) + mpi->group_numbers / BITS * sizeof(uint64_t);
}

static void combine_claims(void *mine, const void *theirs, size_t bytes) {
    tshi_mpi_claim *all = mine;
    const tshi_mpi_claim *claim = theirs;
    if (claim->next > all->next) all->next = claim->next;
    for (size_t k = 0; k < (bytes - sizeof *all) / sizeof *all->taken; k++) all->taken[k] |= claim->taken[k];
}

static uint64_t bit_of(uint32_t number) {
    return UINT64_C(1) << number % BITS;
}

tsh_status tshi_mpi_number_take(tsh_group *group) {
    tshi_mpi *mpi = tshi_mpi_of(group->world);
    tshi_mpi_group *mg = group->state;
    tshi_mpi_claim *mine = mg->claim;
    mine->next = mpi->next_group;
    memcpy(mine->taken, mpi->taken, mpi->group_numbers / BITS * sizeof *mine->taken);
    group->calls = UINT64_MAX; /* the reduction has the number 0 */
    tsh_status status =
        tshi_control_reduce(group, "group_create", TSH_OK, mine, tshi_mpi_claim_bytes(mpi), combine_claims);
    group->calls = 0; /* the group's first call is the program's */
    if (status != TSH_OK) return status;
    for (uint32_t i = 0; i < mpi->group_numbers; i++) {
        uint32_t number = (uint32_t)(mine->next + i) % mpi->group_numbers;
        if (mine->taken[number / BITS] & bit_of(number)) continue;
        mpi->taken[number / BITS] |= bit_of(number);
        mpi->next_group = (number + 1) % mpi->group_numbers;
        mg->number = number;
        return TSH_OK;
    }
    return tshi_fail(TSH_ERR_UNSUPPORTED, "group_create: the tags of this MPI tell %u groups apart, and all are in use",
                     (unsigned)mpi->group_numbers);
}

void tshi_mpi_number_give(tshi_mpi *mpi, uint32_t number) {
    mpi->taken[number / BITS] &= ~bit_of(number);
}
