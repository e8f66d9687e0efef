/* The heat equation on a square with cold edges, by explicit Euler: only MPI, with a decomposition and a halo exchange
 * of its own. */
#include "heat.h"

#include <math.h>
#include <stdlib.h>

#define NUMBER 0.2 /* time step times conductivity over the square of the grid's step; stable below 0.25 */

static double *at(const solver *s, double *field, int64_t row, int64_t column) {
    return field + (row + 1) * (s->columns + 2) + column + 1;
}

/* Equal blocks; the last one has what is left over. */
static void cut(int64_t size, int parts, int part, int64_t *start, int64_t *length) {
    *start = part * (size / parts);
    *length = part == parts - 1 ? size - *start : size / parts;
}

static double start_value(int64_t row, int64_t column, int64_t size) {
    static const double spots[][4] = {{0.3, 0.3, 0.1, 1}, {0.65, 0.4, 0.05, 0.8}, {0.5, 0.75, 0.15, -0.7}};
    double value = 0;
    for (int i = 0; i < 3; i++) {
        double y = (double)(row + 1) / (double)(size + 1) - spots[i][0];
        double x = (double)(column + 1) / (double)(size + 1) - spots[i][1];
        value += spots[i][3] * exp(-(x * x + y * y) / (spots[i][2] * spots[i][2]));
    }
    return value;
}

void solver_create(solver *s, MPI_Comm comm, int64_t size) {
    int ranks, rank, dims[2] = {0}, periods[2] = {0}, place[2];
    MPI_Comm_size(comm, &ranks);
    MPI_Dims_create(ranks, 2, dims);
    MPI_Cart_create(comm, 2, dims, periods, 0, &s->grid);
    MPI_Comm_rank(s->grid, &rank);
    MPI_Cart_coords(s->grid, rank, 2, place);
    MPI_Cart_shift(s->grid, 0, 1, &s->up, &s->down);
    MPI_Cart_shift(s->grid, 1, 1, &s->left, &s->right);
    s->size = size;
    cut(size, dims[0], place[0], &s->row, &s->rows);
    cut(size, dims[1], place[1], &s->column, &s->columns);
    MPI_Type_vector((int)s->rows, 1, (int)s->columns + 2, MPI_DOUBLE, &s->side);
    MPI_Type_commit(&s->side);
    size_t points = (size_t)(s->rows + 2) * (size_t)(s->columns + 2);
    s->now = calloc(points, sizeof *s->now); /* the edges stay 0 */
    s->next = calloc(points, sizeof *s->next);
    if (!s->now || !s->next) MPI_Abort(comm, EXIT_FAILURE);
    for (int64_t i = 0; i < s->rows; i++) {
        for (int64_t k = 0; k < s->columns; k++) *at(s, s->now, i, k) = start_value(s->row + i, s->column + k, size);
    }
}

void solver_destroy(solver *s) {
    free(s->now);
    free(s->next);
    MPI_Type_free(&s->side);
    MPI_Comm_free(&s->grid);
}

static void exchange_halo(solver *s) {
    int n = (int)s->columns;
    double *f = s->now;
    MPI_Sendrecv(at(s, f, 0, 0), n, MPI_DOUBLE, s->up, 0, at(s, f, s->rows, 0), n, MPI_DOUBLE, s->down, 0, s->grid,
                 MPI_STATUS_IGNORE);
    MPI_Sendrecv(at(s, f, s->rows - 1, 0), n, MPI_DOUBLE, s->down, 1, at(s, f, -1, 0), n, MPI_DOUBLE, s->up, 1, s->grid,
                 MPI_STATUS_IGNORE);
    MPI_Sendrecv(at(s, f, 0, 0), 1, s->side, s->left, 2, at(s, f, 0, s->columns), 1, s->side, s->right, 2, s->grid,
                 MPI_STATUS_IGNORE);
    MPI_Sendrecv(at(s, f, 0, s->columns - 1), 1, s->side, s->right, 3, at(s, f, 0, -1), 1, s->side, s->left, 3, s->grid,
                 MPI_STATUS_IGNORE);
}

void solver_step(solver *s, int64_t steps) {
    for (int64_t step = 0; step < steps; step++) {
        exchange_halo(s);
        for (int64_t i = 0; i < s->rows; i++) {
            const double *above = at(s, s->now, i - 1, 0), *u = at(s, s->now, i, 0), *below = at(s, s->now, i + 1, 0);
            double *out = at(s, s->next, i, 0);
            for (int64_t k = 0; k < s->columns; k++) {
                out[k] = u[k] + NUMBER * (above[k] + below[k] + u[k - 1] + u[k + 1] - 4 * u[k]);
            }
        }
        double *now = s->next;
        s->next = s->now;
        s->now = now;
    }
}

void solver_block(const solver *s, double *values) {
    for (int64_t i = 0; i < s->rows; i++) {
        for (int64_t k = 0; k < s->columns; k++) *values++ = *at(s, s->now, i, k);
    }
}

/* The exclusive or over all points of a hash of index and bits, which does not depend on the order of the ranks. */
uint64_t solver_hash(const solver *s) {
    uint64_t mine = 0, all = 0;
    for (int64_t i = 0; i < s->rows; i++) {
        for (int64_t k = 0; k < s->columns; k++) {
            union {
                double value;
                uint64_t bits;
            } point = {*at(s, s->now, i, k)};
            uint64_t h = point.bits ^ (uint64_t)((s->row + i) * s->size + s->column + k) * 0x9e3779b97f4a7c15;
            h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9;
            h = (h ^ h >> 27) * 0x94d049bb133111eb;
            mine ^= h ^ h >> 31;
        }
    }
    MPI_Reduce(&mine, &all, 1, MPI_UINT64_T, MPI_BXOR, 0, s->grid);
    return all;
}
