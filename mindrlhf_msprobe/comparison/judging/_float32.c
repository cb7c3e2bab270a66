/* What sums.py computes of two float32 blocks, in one pass at the speed of memory.

   Built if there is a C compiler, loaded by sums.py; without it numpy does the same in about
   twenty passes. No Python in here: plain arrays in, numbers out. */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* The order in which products are summed, the same as in sums.py, so that both give the same digits
   on every machine: every lane takes each 128th product of a chunk, in float, one after the other;
   then the halves of the lanes are added in double, the halves of that, and so on; then the chunks.
   What is missing of a chunk counts as zeros. Built without fused multiply-add (-ffp-contract=off),
   which rounds otherwise. */
#define LANES 128
#define CHUNK 2048

typedef struct {
    int64_t equal;      /* elements */
    int64_t first;      /* index of the first different element, -1 without one */
    int64_t below[3];   /* elements whose relative error is below each bound */
    double aa, bb, ab;  /* sums of products; d is a - b */
    double dd, ad;
    int64_t abs_at;     /* index of the largest |a - b|, the first of equal ones in float */
    int64_t rel_at;     /* index of the largest relative error, likewise */
    float max_abs, max_rel;
    int32_t non_finite; /* whether an element is NaN, infinite or too large to be squared: then
                           nothing else counts */
    int32_t outside;    /* whether a distance may exceed the tolerance */
} float32_sums;

/* Four times the error of a relative error in float: two roundings of 2^-24 each. */
#define MARGIN 0x1p-21

/* The smallest float above 0, which stands in for a larger one of 0. */
#define TINY 1.40129846e-45f

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EVERY_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EVERY_CPU
#endif

static float absolute_larger(float p, float q)
{
    const float u = fabsf(p), v = fabsf(q), larger = u > v ? u : v;
    return larger > TINY ? larger : TINY;
}

/* Adds the elements whose relative error is below 1 / shares; where float cannot tell, by double:
   so close to a bound a - b is exact in float already, and so is its multiple in double. */
FOR_EVERY_CPU
static void count_below(const float *restrict x, const float *restrict y,
                        const float *restrict relative, int count, const double *restrict shares,
                        const float *restrict lower, const float *restrict upper,
                        float32_sums *restrict out)
{
    const float l0 = lower[0], l1 = lower[1], l2 = lower[2];
    const float h0 = upper[0], h1 = upper[1], h2 = upper[2];
    int n0 = 0, n1 = 0, n2 = 0, m0 = 0, m1 = 0, m2 = 0;
#pragma omp simd reduction(+ : n0, n1, n2, m0, m1, m2)
    for (int i = 0; i < count; i++) {
        n0 += relative[i] < l0;
        n1 += relative[i] < l1;
        n2 += relative[i] < l2;
        m0 += relative[i] < h0;
        m1 += relative[i] < h1;
        m2 += relative[i] < h2;
    }
    const int surely[3] = {n0, n1, n2}, possibly[3] = {m0, m1, m2};
    for (int k = 0; k < 3; k++) {
        out->below[k] += surely[k];
        if (surely[k] == possibly[k])
            continue;
        for (int i = 0; i < count; i++)
            if (relative[i] >= lower[k] && relative[i] < upper[k]) {
                const double p = x[i], q = y[i], u = fabs(p), v = fabs(q);
                out->below[k] += shares[k] * fabs(p - q) < (u > v ? u : v);
            }
    }
}

/* Whether a distance exceeds the tolerance, by float's arithmetic. */
FOR_EVERY_CPU
static int exceeds(const float *restrict x, const float *restrict y, int count, float rtol,
                   float atol)
{
    int found = 0;
#pragma omp simd reduction(| : found)
    for (int i = 0; i < count; i++)
        found |= (x[i] != y[i]) &
                 (fabsf(x[i] - y[i]) > absolute_larger(x[i], y[i]) * rtol + atol);
    return found;
}

#if defined(__GNUC__)
#define WIDTH 16
#define ALWAYS_INLINE inline __attribute__((always_inline))
typedef float floats __attribute__((vector_size(4 * WIDTH), aligned(4)));
#else
#define WIDTH 1
#define ALWAYS_INLINE
typedef float floats;
#endif

#define ROW(pointer, row) (*(const floats *)((pointer) + (row) * LANES))
#define FOUR(sum, term, r) ((((sum) + term(r)) + term((r) + 1)) + term((r) + 2)) + term((r) + 3)
#define EIGHT(sum, term, r) FOUR((FOUR(sum, term, r)), term, (r) + 4)
#define SIXTEEN(term) EIGHT((FOUR((((term(0) + term(1)) + term(2)) + term(3)), term, 4)), term, 8)
#define P(r) ROW(x + lane, r)
#define Q(r) ROW(y + lane, r)
#define PP(r) (P(r) * P(r))
#define QQ(r) (Q(r) * Q(r))
#define PQ(r) (P(r) * Q(r))
#define DD(r) ((P(r) - Q(r)) * (P(r) - Q(r)))
#define PD(r) (P(r) * (P(r) - Q(r)))

static ALWAYS_INLINE double folded(const float *restrict lanes)
{
    double sums[LANES / 2];
    for (int k = 0; k < LANES / 2; k++)
        sums[k] = (double)lanes[k] + (double)lanes[LANES / 2 + k];
    for (int half = LANES / 4; half; half /= 2)
        for (int k = 0; k < half; k++)
            sums[k] += sums[half + k];
    return sums[0];
}

/* Adds the products of a chunk that is the same on both sides; false if they are not finite. */
FOR_EVERY_CPU
static int add_squares(const float *restrict x, float32_sums *restrict out)
{
    float lanes[LANES];
    for (int lane = 0; lane < LANES; lane += WIDTH)
        *(floats *)(lanes + lane) = SIXTEEN(PP);
    const double aa = folded(lanes);
    out->aa += aa;
    out->bb += aa;
    out->ab += aa;
    return aa <= DBL_MAX;
}

/* Adds the sums of a chunk's products; false if one of squares is not finite. */
FOR_EVERY_CPU
static int add_products(const float *restrict x, const float *restrict y,
                        float32_sums *restrict out)
{
    float lanes[5][LANES];
    for (int lane = 0; lane < LANES; lane += WIDTH) {
        *(floats *)(lanes[0] + lane) = SIXTEEN(PP);
        *(floats *)(lanes[1] + lane) = SIXTEEN(QQ);
        *(floats *)(lanes[2] + lane) = SIXTEEN(PQ);
        *(floats *)(lanes[3] + lane) = SIXTEEN(DD);
        *(floats *)(lanes[4] + lane) = SIXTEEN(PD);
    }
    const double aa = folded(lanes[0]), bb = folded(lanes[1]), dd = folded(lanes[3]);
    out->aa += aa;
    out->bb += bb;
    out->ab += folded(lanes[2]);
    out->dd += dd;
    out->ad += folded(lanes[4]);
    return aa + bb + dd <= DBL_MAX;
}

/* The same of a chunk that ends early. */
static int add_last_products(const float *restrict x, const float *restrict y, int count,
                             float32_sums *restrict out)
{
    float last[2][CHUNK] = {{0}};
    memcpy(last[0], x, count * sizeof *x);
    memcpy(last[1], y, count * sizeof *y);
    return add_products(last[0], last[1], out);
}

FOR_EVERY_CPU
void msprobe_float32_exactly(const float *restrict a, const float *restrict b, int64_t size,
                     const double *restrict shares, /* 1 / the three bounds, the smallest first */
                     int32_t with_tolerance, float rtol, float atol, float32_sums *restrict out)
{
    float relative[CHUNK], lower[3], upper[3];
    for (int k = 0; k < 3; k++) {
        lower[k] = (float)(1 / shares[k] * (1 - MARGIN));
        upper[k] = (float)(1 / shares[k] * (1 + MARGIN));
    }
    out->first = -1;
    for (int64_t start = 0; start < size; start += CHUNK) {
        const float *restrict x = a + start, *restrict y = b + start;
        const int count = (int)(size - start < CHUNK ? size - start : CHUNK);
        int equal = 0;
        float top = 0, top_rel = 0;
#pragma omp simd reduction(+ : equal) reduction(max : top, top_rel)
        for (int i = 0; i < count; i++) {
            const float p = x[i], q = y[i], distance = fabsf(p - q);
            const float share = distance / absolute_larger(p, q);
            relative[i] = share;
            equal += p == q;
            top = distance > top ? distance : top;
            top_rel = share > top_rel ? share : top_rel;
        }
        const int finite = count < CHUNK    ? add_last_products(x, y, count, out)
                           : equal == count ? add_squares(x, out)
                                            : add_products(x, y, out);
        /* NaN and infinity leave no sum of squares finite; one that overflowed is no use either. */
        if (!finite) {
            out->non_finite = 1;
            return;
        }
        out->equal += equal;
        if (top_rel < lower[0])
            for (int k = 0; k < 3; k++)
                out->below[k] += count;
        else
            count_below(x, y, relative, count, shares, lower, upper, out);
        if (equal == count)
            continue;
        for (int i = 0; out->first < 0 && i < count; i++)
            if (x[i] != y[i])
                out->first = start + i;
        if (with_tolerance)
            out->outside |= exceeds(x, y, count, rtol, atol);
        if (top > out->max_abs) {
            out->max_abs = top;
            for (int i = 0; i < count; i++)
                if (fabsf(x[i] - y[i]) == top) {
                    out->abs_at = start + i;
                    break;
                }
        }
        if (top_rel > out->max_rel) {
            out->max_rel = top_rel;
            for (int i = 0; i < count; i++)
                if (relative[i] == top_rel) {
                    out->rel_at = start + i;
                    break;
                }
        }
    }
}
