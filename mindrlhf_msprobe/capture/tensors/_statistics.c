/* What summary.py says of a tensor of floats, in one pass at the speed of memory.

   Built if there is a C compiler, loaded by summary.py; without it numpy does the same in four
   passes. No Python in here: a plain array in, numbers out. */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    double sum, squares; /* of the elements, in double from the first addition on */
    float max, min;
    int32_t non_finite;  /* whether an element is NaN or infinite: then nothing else counts */
} statistics;

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EVERY_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EVERY_CPU
#endif

#define PASS(name, type, load)                                                        \
    FOR_EVERY_CPU                                                                     \
    void name(const type *restrict x, int64_t size, statistics *restrict out)         \
    {                                                                                 \
        double sum = 0, squares = 0;                                                  \
        float max = -INFINITY, min = INFINITY;                                        \
        int bad = 0;                                                                  \
        _Pragma("omp simd reduction(+ : sum, squares) reduction(max : max)            \
                 reduction(min : min) reduction(| : bad)")                            \
        for (int64_t i = 0; i < size; i++) {                                          \
            const float value = load;                                                 \
            const double wide = value;                                                \
            bad |= !(fabsf(value) <= FLT_MAX);                                        \
            max = value > max ? value : max;                                          \
            min = value < min ? value : min;                                          \
            sum += wide;                                                              \
            squares += wide * wide;                                                   \
        }                                                                             \
        out->sum = sum;                                                               \
        out->squares = squares;                                                       \
        out->max = max;                                                               \
        out->min = min;                                                               \
        out->non_finite = bad;                                                        \
    }

static inline float from_bfloat16(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

PASS(msprobe_float32, float, x[i])
PASS(msprobe_bfloat16, uint16_t, from_bfloat16(x[i]))
