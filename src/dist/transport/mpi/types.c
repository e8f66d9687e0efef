/* MPI datatypes and reductions. */
#include "dist/transport/mpi/mpi.h"

#include "device/cpu/kernels/kernels.h"

MPI_Datatype tshi_mpi_type(tsh_dtype dtype) {
    switch (dtype) {
    case TSH_FLOAT32: return MPI_FLOAT;
    case TSH_FLOAT64: return MPI_DOUBLE;
    case TSH_BFLOAT16:
    case TSH_FLOAT16: return MPI_UINT16_T; /* moved as bits; reduced by the functions below */
    case TSH_INT32: return MPI_INT32_T;
    case TSH_INT64: return MPI_INT64_T;
    case TSH_UINT8: return MPI_UINT8_T;
    case TSH_COMPLEX64: return MPI_C_FLOAT_COMPLEX;
    case TSH_COMPLEX128: return MPI_C_DOUBLE_COMPLEX;
    default: return MPI_DATATYPE_NULL;
    }
}

/* MPI passes no context to a reduction function, so each pair of dtype and reduction needs a function of its own. */
#define REDUCTION(name, dtype, reduction)                                                                              \
    static void name(void *in, void *inout, int *n, MPI_Datatype *type) {                                              \
        const void *const ins[] = {in, inout};                                                                         \
        (void)type;                                                                                                    \
        tshi_cpu_reduce(NULL, dtype, reduction, *n, 2, ins, 1, &inout);                                                \
    }

REDUCTION(sum_bf16, TSH_BFLOAT16, TSHI_SUM)
REDUCTION(prod_bf16, TSH_BFLOAT16, TSHI_PROD)
REDUCTION(min_bf16, TSH_BFLOAT16, TSHI_MIN)
REDUCTION(max_bf16, TSH_BFLOAT16, TSHI_MAX)
REDUCTION(sum_f16, TSH_FLOAT16, TSHI_SUM)
REDUCTION(prod_f16, TSH_FLOAT16, TSHI_PROD)
REDUCTION(min_f16, TSH_FLOAT16, TSHI_MIN)
REDUCTION(max_f16, TSH_FLOAT16, TSHI_MAX)
/* MPI leaves min and max of NaNs unspecified; these propagate a NaN. */
REDUCTION(min_f32, TSH_FLOAT32, TSHI_MIN)
REDUCTION(max_f32, TSH_FLOAT32, TSHI_MAX)
REDUCTION(min_f64, TSH_FLOAT64, TSHI_MIN)
REDUCTION(max_f64, TSH_FLOAT64, TSHI_MAX)

static const struct {
    tsh_dtype dtype;
    tsh_reduce_op reduce;
    MPI_User_function *function;
} own[] = {
    {TSH_BFLOAT16, TSH_REDUCE_SUM, sum_bf16}, {TSH_BFLOAT16, TSH_REDUCE_PROD, prod_bf16},
    {TSH_BFLOAT16, TSH_REDUCE_MIN, min_bf16}, {TSH_BFLOAT16, TSH_REDUCE_MAX, max_bf16},
    {TSH_FLOAT16, TSH_REDUCE_SUM, sum_f16},   {TSH_FLOAT16, TSH_REDUCE_PROD, prod_f16},
    {TSH_FLOAT16, TSH_REDUCE_MIN, min_f16},   {TSH_FLOAT16, TSH_REDUCE_MAX, max_f16},
    {TSH_FLOAT32, TSH_REDUCE_MIN, min_f32},   {TSH_FLOAT32, TSH_REDUCE_MAX, max_f32},
    {TSH_FLOAT64, TSH_REDUCE_MIN, min_f64},   {TSH_FLOAT64, TSH_REDUCE_MAX, max_f64},
};
enum { OWN = sizeof own / sizeof *own };

int tshi_mpi_ops_create(tshi_mpi *mpi) {
    for (int d = 0; d < TSH_DTYPE_COUNT; d++) {
        for (int r = 0; r < TSH_REDUCE_OP_COUNT; r++) mpi->op[d][r] = MPI_OP_NULL;
    }
    for (int i = 0; i < OWN; i++) {
        int error = MPI_Op_create(own[i].function, 1, &mpi->op[own[i].dtype][own[i].reduce]);
        if (error != MPI_SUCCESS) return error;
    }
    return MPI_SUCCESS;
}

void tshi_mpi_ops_free(tshi_mpi *mpi) {
    for (int i = 0; i < OWN; i++) {
        MPI_Op *op = &mpi->op[own[i].dtype][own[i].reduce];
        if (*op != MPI_OP_NULL) MPI_Op_free(op);
    }
}

MPI_Op tshi_mpi_reduction(const tshi_mpi *mpi, tsh_dtype dtype, tsh_reduce_op reduce) {
    if (reduce == TSH_REDUCE_AVG) reduce = TSH_REDUCE_SUM;
    if (mpi->op[dtype][reduce] != MPI_OP_NULL) return mpi->op[dtype][reduce];
    switch (reduce) {
    case TSH_REDUCE_SUM: return MPI_SUM;
    case TSH_REDUCE_PROD: return MPI_PROD;
    case TSH_REDUCE_MIN: return MPI_MIN;
    case TSH_REDUCE_MAX: return MPI_MAX;
    case TSH_REDUCE_BAND: return MPI_BAND;
    case TSH_REDUCE_BOR: return MPI_BOR;
    case TSH_REDUCE_BXOR: return MPI_BXOR;
    default: return MPI_OP_NULL;
    }
}

/* --- averages ----------------------------------------------------------------------------------------------------- */

#define TILE 512

static void divide_halves(tsh_device *device, tsh_dtype dtype, int64_t n, int ranks, uint16_t *x) {
    float tile[TILE];
    for (int64_t i = 0; i < n; i += TILE) {
        int64_t some = n - i < TILE ? n - i : TILE;
        device->ops->copy.convert(device, some, dtype, x + i, TSH_FLOAT32, tile);
        for (int64_t k = 0; k < some; k++) tile[k] /= (float)ranks;
        device->ops->copy.convert(device, some, TSH_FLOAT32, tile, dtype, x + i);
    }
}

void tshi_mpi_divide(tsh_device *device, tsh_dtype dtype, int64_t n, int ranks, void *x) {
    bool complex_type = tshi_dtype_is_complex(dtype);
    if (dtype == TSH_BFLOAT16 || dtype == TSH_FLOAT16) {
        divide_halves(device, dtype, n, ranks, x);
    } else if (dtype == TSH_FLOAT32 || dtype == TSH_COMPLEX64) {
        float *f = x;
        for (int64_t i = 0; i < (complex_type ? 2 * n : n); i++) f[i] /= (float)ranks;
    } else if (dtype == TSH_FLOAT64 || dtype == TSH_COMPLEX128) {
        double *d = x;
        for (int64_t i = 0; i < (complex_type ? 2 * n : n); i++) d[i] /= (double)ranks;
    }
}
