/* What float_sums.py computes of two float32 blocks, in one pass at the speed of memory.

   Built if there is a C compiler, loaded by accelerator.py; without it numpy does the same in about
   twenty passes. No Python in here: plain arrays in, numbers out. */

#include <float.h>
#include <math.h>
#include <stdint.h>

/* Products are summed in float over so many elements, and in double beyond. */
#define CHUNK 1024

typedef struct {
    int64_t equal;      /* elements */
    int64_t first;      /* index of the first different element, -1 without one */
    int64_t below[3];   /* elements whose relative error is below each bound */
    double aa, bb, ab;  /* sums of products; d is a - b */
    double dd, ad;
    int64_t abs_at;     /* index of the largest |a - b| */
    int64_t rel_at;     /* index of the largest relative error */
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

/* Adds the elements whose relative error is below each bound; where float cannot tell, by double. */
FOR_EVERY_CPU
static void count_below(const float *restrict x, const float *restrict y,
                        const float *restrict relative, int count, const double *restrict bounds,
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
                out->below[k] += fabs(p - q) / (u > v ? u : v) < bounds[k];
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

FOR_EVERY_CPU
void msprobe_float32(const float *restrict a, const float *restrict b, int64_t size,
                     const double *restrict bounds, /* three, the smallest first */
                     int32_t with_tolerance, float rtol, float atol, float32_sums *restrict out)
{
    float relative[CHUNK], lower[3], upper[3];
    for (int k = 0; k < 3; k++) {
        lower[k] = (float)(bounds[k] * (1 - MARGIN));
        upper[k] = (float)(bounds[k] * (1 + MARGIN));
    }
    out->first = -1;
    for (int64_t start = 0; start < size; start += CHUNK) {
        const float *restrict x = a + start, *restrict y = b + start;
        const int count = (int)(size - start < CHUNK ? size - start : CHUNK);
        int equal = 0;
        float aa = 0, bb = 0, ab = 0, dd = 0, ad = 0, top = 0, top_rel = 0;
#pragma omp simd reduction(+ : equal, aa, bb, ab, dd, ad) reduction(max : top, top_rel)
        for (int i = 0; i < count; i++) {
            const float p = x[i], q = y[i], d = p - q, distance = fabsf(d);
            const float share = distance / absolute_larger(p, q);
            relative[i] = share;
            equal += p == q;
            aa += p * p;
            bb += q * q;
            ab += p * q;
            dd += d * d;
            ad += p * d;
            top = distance > top ? distance : top;
            top_rel = share > top_rel ? share : top_rel;
        }
        /* NaN and infinity leave no sum of squares finite; one that overflowed is no use either. */
        if (!(aa <= FLT_MAX) || !(bb <= FLT_MAX)) {
            out->non_finite = 1;
            return;
        }
        out->equal += equal;
        out->aa += aa;
        out->bb += bb;
        out->ab += ab;
        out->dd += dd;
        out->ad += ad;
        if (top_rel < lower[0])
            for (int k = 0; k < 3; k++)
                out->below[k] += count;
        else
            count_below(x, y, relative, count, bounds, lower, upper, out);
        for (int i = 0; out->first < 0 && equal < count; i++)
            if (x[i] != y[i])
                out->first = start + i;
        if (with_tolerance && equal < count)
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
