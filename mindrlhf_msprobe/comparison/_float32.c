/* What float_sums.py computes of two float32 blocks, in one pass at the speed of memory.

   Built if there is a C compiler, loaded by accelerator.py; without it numpy does the same in about
   twenty passes. No Python in here: plain arrays in, numbers out. */

#include <float.h>
#include <math.h>
#include <stdint.h>

/* Products are summed in float over so many elements, and in double beyond. */
#define CHUNK 512

typedef struct {
    int64_t equal;      /* elements */
    int64_t below[3];   /* elements whose relative error is below each bound */
    double aa, bb, ab;  /* sums of products; d is a - b */
    double dd, ad;
    int64_t abs_at;     /* index of the largest |a - b| */
    int64_t rel_at;     /* index of the largest relative error */
    float max_abs, max_rel;
    int32_t non_finite; /* whether an element is NaN or infinite: then nothing else counts */
    int32_t undecided;  /* whether a relative error is too close to a bound for float */
    int32_t outside;    /* whether a distance may exceed the tolerance */
} float32_sums;

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
void msprobe_float32(const float *restrict a, const float *restrict b, int64_t size,
                     const float *restrict bounds, /* three, then their lower and upper limits */
                     float rtol, float atol, float32_sums *restrict out)
{
    const float b0 = bounds[0], b1 = bounds[1], b2 = bounds[2];
    const float l0 = bounds[3], l1 = bounds[4], l2 = bounds[5];
    const float h0 = bounds[6], h1 = bounds[7], h2 = bounds[8];
    for (int64_t start = 0; start < size; start += CHUNK) {
        const float *restrict x = a + start, *restrict y = b + start;
        const int count = (int)(size - start < CHUNK ? size - start : CHUNK);
        int equal = 0, n0 = 0, n1 = 0, n2 = 0, bad = 0, near = 0, out_of = 0;
        float aa = 0, bb = 0, ab = 0, dd = 0, ad = 0, top = 0, top_rel = 0;
#pragma omp simd reduction(+ : equal, n0, n1, n2, aa, bb, ab, dd, ad) \
    reduction(| : bad, near, out_of) reduction(max : top, top_rel)
        for (int i = 0; i < count; i++) {
            const float p = x[i], q = y[i], d = p - q;
            const float distance = fabsf(d), u = fabsf(p), v = fabsf(q);
            const float larger = u > v ? u : v;
            const float relative = distance / (larger > 0.0f ? larger : 1.0f);
            bad |= !(u <= FLT_MAX) | !(v <= FLT_MAX);
            equal += p == q;
            n0 += relative < b0;
            n1 += relative < b1;
            n2 += relative < b2;
            near |= ((relative >= l0) & (relative < h0)) | ((relative >= l1) & (relative < h1)) |
                    ((relative >= l2) & (relative < h2));
            out_of |= (p != q) & (distance > larger * rtol + atol);
            aa += p * p;
            bb += q * q;
            ab += p * q;
            dd += d * d;
            ad += p * d;
            top = distance > top ? distance : top;
            top_rel = relative > top_rel ? relative : top_rel;
        }
        if (bad) {
            out->non_finite = 1;
            return;
        }
        out->equal += equal;
        out->below[0] += n0;
        out->below[1] += n1;
        out->below[2] += n2;
        out->undecided |= near;
        out->outside |= out_of;
        out->aa += aa;
        out->bb += bb;
        out->ab += ab;
        out->dd += dd;
        out->ad += ad;
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
            for (int i = 0; i < count; i++) {
                const float u = fabsf(x[i]), v = fabsf(y[i]), larger = u > v ? u : v;
                if (fabsf(x[i] - y[i]) / (larger > 0.0f ? larger : 1.0f) == top_rel) {
                    out->rel_at = start + i;
                    break;
                }
            }
        }
    }
}
