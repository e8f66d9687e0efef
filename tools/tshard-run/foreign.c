/* Options of other launchers that tshard-run does not have, and what to write instead. */
#include "run.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *names; /* each between two spaces */
    const char *instead;
} options[] = {
    {" -N -npernode --npernode -ppn --ppn --ntasks --ntasks-per-node ",
     "-n N is the number of ranks on this machine, --nnodes that of the machines"},
    {" -H -host --host -hosts --hosts -w --nodelist ",
     "--nodes A,B names the machines, and tshard-run is started on each of them"},
    {" -f -hostfile -machinefile --machinefile ", "--hostfile FILE names the machines, one a line"},
    {" -x -env -genv --export ", "all variables of the environment reach the ranks, so set it before tshard-run"},
    {" -bind-to --bind-to --bind-to-core --cpu-bind -map-by --map-by -c --cpus-per-task ",
     "--bind says on which cores ranks run"},
    {" -oversubscribe --oversubscribe --overcommit ", "more ranks than cores need no option"},
    {" --allow-run-as-root ", "root needs no option"},
    {" -output-filename --output-filename --output -t --tee ",
     "--log-dir DIR writes each rank's output to a file, too"},
    {" -l --label --tag-output ", "each line begins with its rank, unless --no-prefix is there"},
    {" -m --module --no-python --no_python ",
     "PROGRAM is started as it is: tshard-run -n N python3 -m MODULE starts a module"},
};

const char *run_foreign_option(const char *word) {
    char name[32];
    int length = snprintf(name, sizeof name, " %.*s ", (int)strcspn(word, "= "), word);
    if (word[0] != '-' || length >= (int)sizeof name) return NULL;
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        if (strstr(options[i].names, name)) return options[i].instead;
    }
    return NULL;
}
