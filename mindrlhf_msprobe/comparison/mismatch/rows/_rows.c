/* How far rows of one float32 tensor are from rows of another: what distance.py computes, in one
   pass and without copies of the rows.

   Built if there is a C compiler, loaded by distance.py; without it numpy does the same. No Python
   in here: plain arrays in, numbers out. */

#include <stdint.h>

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EVERY_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EVERY_CPU
#endif

#define CHUNK 4096 /* columns that are summed in float; then the sums are added in double */

/* Measures row at_x[i] of x [rows_x, columns] against row at_y[i] of y [rows_y, columns]: their
   squared distance, the squared norm of y's, and whether any element differs (NaN is equal to NaN).
   Returns how many were measured: fewer where there is no such row. */
FOR_EVERY_CPU
int64_t msprobe_float32_rows(const float *restrict x, const float *restrict y,
                             const int64_t *restrict at_x, const int64_t *restrict at_y,
                             int64_t rows_x, int64_t rows_y, int64_t count, int64_t columns,
                             double *restrict squared, double *restrict norms,
                             uint8_t *restrict unequal)
{
    for (int64_t row = 0; row < count; row++) {
        if (at_x[row] < 0 || at_x[row] >= rows_x || at_y[row] < 0 || at_y[row] >= rows_y)
            return row;
        const float *restrict p = x + at_x[row] * columns, *restrict q = y + at_y[row] * columns;
        double all_squared = 0, all_norm = 0;
        int any = 0;
        for (int64_t start = 0; start < columns; start += CHUNK, p += CHUNK, q += CHUNK) {
            const int here = columns - start < CHUNK ? (int)(columns - start) : CHUNK;
            float of_squared = 0, of_norm = 0;
            int different = 0;
#pragma omp simd reduction(+ : of_squared, of_norm) reduction(| : different)
            for (int i = 0; i < here; i++) {
                const float a = p[i], b = q[i], apart = a - b;
                of_squared += apart * apart;
                of_norm += b * b;
                different |= (a != b) & ((a == a) | (b == b));
            }
            all_squared += of_squared;
            all_norm += of_norm;
            any |= different;
        }
        squared[row] = all_squared;
        norms[row] = all_norm;
        unequal[row] = (uint8_t)any;
    }
    return count;
}
