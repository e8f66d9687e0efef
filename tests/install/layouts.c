/* Layouts as constants and as values, in C and C++, with every extension refused. */
#include <tshard/tshard.h>

static const tsh_layout row = TSH_SHARD_INIT(1);
static tsh_layout sum = TSH_PARTIAL_INIT;
static const tsh_layout table[][2] = {{TSH_SHARD_INIT(0), TSH_REPLICATED_INIT}, {TSH_LOCAL_INIT, TSH_SHARD_INIT(-1)}};
static const struct {
    int place;
    tsh_layout layout;
} places[] = {{1, TSH_SHARD_INIT(0)}, {2, TSH_LOCAL_INIT}};

int uses(bool split);
int uses(bool split) {
    static const tsh_layout within = TSH_SHARD_INIT(2);
    tsh_layout automatic = TSH_SHARD_INIT(3), value = split ? TSH_SHARD(0) : TSH_REPLICATED;
    tsh_tensor_config config;
    config.ndim = 0;
    automatic = TSH_PARTIAL;
    config.layout[0] = value.kind == TSH_KIND_SHARD ? TSH_SHARD(1) : TSH_LOCAL;
    sum = table[0][1];
    return row.dim + within.dim + automatic.dim + places[1].layout.dim + config.layout[0].dim;
}
