/* The rows of a tensor: signed sums of their blocks of columns, and a fingerprint of their bytes.

   Built if there is a C compiler, loaded by sketch.py; without it numpy and xxhash find the same
   bits. No Python in here: a plain array in, numbers out.

   xxh3_64 is XXH3 with 64 bits and seed 0, as its specification has it:
   https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md (Yann Collet, BSD 2-clause). */

#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#define AVX2 __attribute__((target("avx2")))
#define AVX512 __attribute__((target("avx512f")))
#define BEST(function) (__builtin_cpu_supports("avx2") ? function##_avx2 : function)
#else
#define BEST(function) function
#endif

#define COLUMNS 64 /* of one sum */

/* Bit i of it: the sign of column i is minus. */
static const uint64_t MINUS = UINT64_C(0x045bdc7c91948a70);

/* ---- xxh3_64 of one row ---- */

static const uint8_t SECRET[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};
#define PRIME32_1 UINT64_C(0x9E3779B1)
#define PRIME32_2 UINT64_C(0x85EBCA77)
#define PRIME32_3 UINT64_C(0xC2B2AE3D)
#define PRIME64_1 UINT64_C(0x9E3779B185EBCA87)
#define PRIME64_2 UINT64_C(0xC2B2AE3D27D4EB4F)
#define PRIME64_3 UINT64_C(0x165667B19E3779F9)
#define PRIME64_4 UINT64_C(0x85EBCA77C2B2AE63)
#define PRIME64_5 UINT64_C(0x27D4EB2F165667C5)
#define PRIME_MX1 UINT64_C(0x165667919E3779F9)
#define PRIME_MX2 UINT64_C(0x9FB21C651E98DF25)

static inline uint64_t read64(const uint8_t *p)
{
    uint64_t value;
    memcpy(&value, p, sizeof value);
    return value;
}

static inline uint32_t read32(const uint8_t *p)
{
    uint32_t value;
    memcpy(&value, p, sizeof value);
    return value;
}

static inline uint64_t rotated(uint64_t x, int by) { return (x << by) | (x >> (64 - by)); }

static inline uint64_t folded(uint64_t a, uint64_t b)
{
    const unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t avalanche(uint64_t h)
{
    h = (h ^ (h >> 37)) * PRIME_MX1;
    return h ^ (h >> 32);
}

static inline uint64_t avalanche_64(uint64_t h) /* that of XXH64 */
{
    h = (h ^ (h >> 33)) * PRIME64_2;
    h = (h ^ (h >> 29)) * PRIME64_3;
    return h ^ (h >> 32);
}

static inline uint64_t mix16(const uint8_t *p, const uint8_t *secret)
{
    return folded(read64(p) ^ read64(secret), read64(p + 8) ^ read64(secret + 8));
}

static uint64_t short_hash(const uint8_t *p, uint64_t size) /* of up to 240 bytes */
{
    if (size == 0)
        return avalanche_64(read64(SECRET + 56) ^ read64(SECRET + 64));
    if (size < 4) {
        const uint32_t combined = (uint32_t)p[0] << 16 | (uint32_t)p[size >> 1] << 24 |
                                  (uint32_t)p[size - 1] | (uint32_t)size << 8;
        return avalanche_64(combined ^ (uint64_t)(read32(SECRET) ^ read32(SECRET + 4)));
    }
    if (size <= 8) {
        uint64_t h = read32(p + size - 4) + ((uint64_t)read32(p) << 32);
        h ^= read64(SECRET + 8) ^ read64(SECRET + 16);
        h ^= rotated(h, 49) ^ rotated(h, 24);
        h *= PRIME_MX2;
        h ^= (h >> 35) + size;
        h *= PRIME_MX2;
        return h ^ (h >> 28);
    }
    if (size <= 16) {
        const uint64_t low = read64(p) ^ read64(SECRET + 24) ^ read64(SECRET + 32);
        const uint64_t high = read64(p + size - 8) ^ read64(SECRET + 40) ^ read64(SECRET + 48);
        return avalanche(size + __builtin_bswap64(low) + high + folded(low, high));
    }
    uint64_t h = size * PRIME64_1;
    if (size <= 128) {
        for (uint64_t i = 0; 32 * i < size; i++) {
            h += mix16(p + 16 * i, SECRET + 32 * i);
            h += mix16(p + size - 16 * (i + 1), SECRET + 32 * i + 16);
        }
        return avalanche(h);
    }
    for (uint64_t i = 0; i < 8; i++)
        h += mix16(p + 16 * i, SECRET + 16 * i);
    h = avalanche(h);
    for (uint64_t i = 8; i < size / 16; i++)
        h += mix16(p + 16 * i, SECRET + 16 * (i - 8) + 3);
    return avalanche(h + mix16(p + size - 16, SECRET + 136 - 17));
}

/* Eight accumulators take a stripe of 64 bytes at a time, each with a secret that begins 8 bytes
   later; after 16 stripes they are scrambled. */
typedef struct {
    uint64_t one[8];
} accumulators;

static inline void accumulate(accumulators *acc, const uint8_t *p, const uint8_t *secret)
{
    for (int i = 0; i < 8; i += 2) {
        const uint64_t a = read64(p + 8 * i), b = read64(p + 8 * i + 8);
        const uint64_t x = a ^ read64(secret + 8 * i), y = b ^ read64(secret + 8 * i + 8);
        acc->one[i] += b + (uint64_t)(uint32_t)x * (x >> 32);
        acc->one[i + 1] += a + (uint64_t)(uint32_t)y * (y >> 32);
    }
}

static inline void scramble(accumulators *acc)
{
    for (int i = 0; i < 8; i++) {
        const uint64_t x = acc->one[i] ^ (acc->one[i] >> 47) ^ read64(SECRET + 128 + 8 * i);
        acc->one[i] = x * PRIME32_1;
    }
}

#if defined(AVX2)
typedef struct {
    __m256i low, high;
} accumulators_avx2;

#define LOAD256(p) _mm256_loadu_si256((const __m256i *)(p))
#define ODD(x) _mm256_srli_epi64(x, 32)

AVX2 static inline __m256i mixed_avx2(__m256i acc, const uint8_t *p, const uint8_t *secret)
{
    const __m256i data = LOAD256(p), keyed = _mm256_xor_si256(data, LOAD256(secret));
    const __m256i product = _mm256_mul_epu32(keyed, ODD(keyed));
    const __m256i beside = _mm256_shuffle_epi32(data, 0x4E); /* neighbours change places */
    return _mm256_add_epi64(acc, _mm256_add_epi64(product, beside));
}

AVX2 static inline void
accumulate_avx2(accumulators_avx2 *acc, const uint8_t *p, const uint8_t *secret)
{
    acc->low = mixed_avx2(acc->low, p, secret);
    acc->high = mixed_avx2(acc->high, p + 32, secret + 32);
}

AVX2 static inline __m256i scrambled_avx2(__m256i acc, const uint8_t *secret)
{
    const __m256i prime = _mm256_set1_epi32((int)PRIME32_1);
    const __m256i x =
        _mm256_xor_si256(_mm256_xor_si256(acc, _mm256_srli_epi64(acc, 47)), LOAD256(secret));
    const __m256i high = _mm256_slli_epi64(_mm256_mul_epu32(ODD(x), prime), 32);
    return _mm256_add_epi64(_mm256_mul_epu32(x, prime), high);
}

AVX2 static inline void scramble_avx2(accumulators_avx2 *acc)
{
    acc->low = scrambled_avx2(acc->low, SECRET + 128);
    acc->high = scrambled_avx2(acc->high, SECRET + 160);
}
#endif

#define ONE_BY_ONE _Pragma("GCC unroll 1") /* unrolled, GCC 12 would spill every register */

#if defined(AVX2)
typedef struct {
    __m512i all;
} accumulators_avx512;

AVX512 static inline void
accumulate_avx512(accumulators_avx512 *acc, const uint8_t *p, const uint8_t *secret)
{
    const __m512i data = _mm512_loadu_si512(p);
    const __m512i keyed = _mm512_xor_si512(data, _mm512_loadu_si512(secret));
    const __m512i product = _mm512_mul_epu32(keyed, _mm512_srli_epi64(keyed, 32));
    const __m512i beside = _mm512_shuffle_epi32(data, (_MM_PERM_ENUM)0x4E);
    acc->all = _mm512_add_epi64(acc->all, _mm512_add_epi64(product, beside));
}

AVX512 static inline void scramble_avx512(accumulators_avx512 *acc)
{
    const __m512i prime = _mm512_set1_epi32((int)PRIME32_1);
    __m512i x = _mm512_xor_si512(acc->all, _mm512_srli_epi64(acc->all, 47));
    x = _mm512_xor_si512(x, _mm512_loadu_si512(SECRET + 128));
    const __m512i high = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), prime);
    acc->all = _mm512_add_epi64(_mm512_mul_epu32(x, prime), _mm512_slli_epi64(high, 32));
}
#endif

/* The hash of more than 240 bytes. */
#define LONG_HASH(target, suffix)                                                             \
    target static uint64_t long_hash##suffix(const uint8_t *p, uint64_t size)                 \
    {                                                                                         \
        uint64_t all[8] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3,                        \
                           PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};                       \
        accumulators##suffix acc;                                                             \
        memcpy(&acc, all, sizeof acc);                                                        \
        const uint64_t blocks = (size - 1) / 1024, rest = size - 1024 * blocks;               \
        for (uint64_t block = 0; block < blocks; block++, p += 1024) {                        \
            ONE_BY_ONE for (int stripe = 0; stripe < 16; stripe++)                            \
                accumulate##suffix(&acc, p + 64 * stripe, SECRET + 8 * stripe);               \
            scramble##suffix(&acc);                                                           \
        }                                                                                     \
        for (uint64_t stripe = 0; stripe < (rest - 1) / 64; stripe++)                         \
            accumulate##suffix(&acc, p + 64 * stripe, SECRET + 8 * stripe);                   \
        accumulate##suffix(&acc, p + rest - 64, SECRET + 128 - 7);                            \
        memcpy(all, &acc, sizeof acc);                                                        \
        uint64_t h = size * PRIME64_1;                                                        \
        for (int i = 0; i < 8; i += 2)                                                        \
            h += folded(all[i] ^ read64(SECRET + 11 + 8 * i),                                 \
                        all[i + 1] ^ read64(SECRET + 19 + 8 * i));                            \
        return avalanche(h);                                                                  \
    }

LONG_HASH(, )
#if defined(AVX2)
LONG_HASH(AVX2, _avx2)
LONG_HASH(AVX512, _avx512)
#endif

/* Finds fingerprints [rows] of rows of `size` bytes. */
void msprobe_row_fingerprints(const uint8_t *x, int64_t rows, int64_t size, uint64_t *out)
{
    uint64_t (*hash)(const uint8_t *, uint64_t) = size <= 240 ? short_hash : BEST(long_hash);
#if defined(AVX512)
    if (size > 240 && __builtin_cpu_supports("avx512f"))
        hash = long_hash_avx512;
#endif
    for (int64_t row = 0; row < rows; row++, x += size)
        out[row] = hash(x, (uint64_t)size);
}

/* ---- signed sums ---- */

/* Vectors of 8: GCC and Clang compile them for any processor. */
typedef float float8 __attribute__((vector_size(32)));
typedef double double8 __attribute__((vector_size(64)));
typedef int32_t int8x32 __attribute__((vector_size(32)));
typedef int64_t int8x64 __attribute__((vector_size(64)));
typedef uint32_t uint8x32 __attribute__((vector_size(32)));
typedef uint16_t uint8x16 __attribute__((vector_size(16)));

/* … wherever they lie in memory. */
typedef float loose_float8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef double loose_double8 __attribute__((vector_size(64), aligned(8), may_alias));
typedef uint16_t loose_uint8x16 __attribute__((vector_size(16), aligned(2), may_alias));

static inline __attribute__((always_inline)) void float16_of(const uint8x32 *bits, float8 *out)
{
    const uint8x32 size = *bits & 0x7fff, below = (uint8x32)(size < 0x0400);
    const float8 subnormal = __builtin_convertvector((int8x32)size, float8) * 0x1p-24f;
    uint8x32 wide = (size << 13) + ((127 - 15) << 23);
    wide |= (uint8x32)(size >= 0x7c00) & 0x7f800000; /* infinite, or no number */
    wide = (below & (uint8x32)subnormal) | (~below & wide) | ((*bits & 0x8000) << 16);
    *out = (float8)wide;
}

#define WIDEN(p) __builtin_convertvector(*(const loose_uint8x16 *)(p), uint8x32)
#define WIDEN_AVX2(p) ((uint8x32)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p))))

#define FROM_FLOAT32(p, out, widen) *(out) = *(const loose_float8 *)(p)
#define FROM_FLOAT64(p, out, widen) *(out) = *(const loose_double8 *)(p)
#define FROM_BFLOAT16(p, out, widen) *(out) = (float8)(widen(p) << 16)
#define FROM_FLOAT16(p, out, widen)                                                           \
    do {                                                                                      \
        const uint8x32 bits = widen(p);                                                       \
        float16_of(&bits, out);                                                               \
    } while (0)

#if defined(__clang__)
#define SHUFFLE(mask, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(mask, a, b, ...) __builtin_shuffle(a, b, (mask){__VA_ARGS__})
#endif

/* The sums of blocks of 64: halves are added to each other until one number is left, so that the
   order of the additions, and with it the result, is the same everywhere.

   target: what it is compiled for. load: brings 8 columns into a vector, by `widen`. */
#define SUMS(name, target, type, wide, vector, mask, load, widen)                             \
    target static inline __attribute__((always_inline)) void                                  \
    eight_blocks_##name(const type *x, const vector *sign, wide *out)      \
    {                                                                                         \
        vector r[8];                                                                          \
        _Pragma("GCC unroll 8") for (int block = 0; block < 8; block++, x += COLUMNS)         \
        {                                                                                     \
            vector y[8];                                                                      \
            _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++)                               \
                load(x + 8 * i, &y[i], widen);                                                \
            vector t[4];                                                                      \
            for (int i = 0; i < 4; i++)                                                       \
                t[i] = y[i] * sign[i] + y[i + 4] * sign[i + 4];                               \
            r[block] = (t[0] + t[2]) + (t[1] + t[3]);                                         \
        }                                                                                     \
        /* Two blocks share a vector, then four, then eight. */                               \
        for (int i = 0; i < 4; i++)                                                           \
            r[i] = SHUFFLE(mask, r[i], r[i + 4], 0, 1, 2, 3, 8, 9, 10, 11) +                  \
                   SHUFFLE(mask, r[i], r[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);                 \
        for (int i = 0; i < 2; i++)                                                           \
            r[i] = SHUFFLE(mask, r[i], r[i + 2], 0, 1, 8, 9, 4, 5, 12, 13) +                  \
                   SHUFFLE(mask, r[i], r[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);                 \
        r[0] = SHUFFLE(mask, r[0], r[1], 0, 8, 2, 10, 4, 12, 6, 14) +                         \
               SHUFFLE(mask, r[0], r[1], 1, 9, 3, 11, 5, 13, 7, 15);                          \
        memcpy(out, &r[0], sizeof r[0]);                                                      \
    }                                                                                         \
                                                                                              \
    target static void sums_##name(const type *x, int64_t columns, float *out)                \
    {                                                                                         \
        vector sign[8];                                                                       \
        wide found[8];                                                                        \
        for (int i = 0; i < COLUMNS; i++)                                                     \
            sign[i / 8][i % 8] = MINUS >> i & 1 ? -1 : 1;                                     \
        for (; columns >= 8 * COLUMNS; columns -= 8 * COLUMNS, x += 8 * COLUMNS) {            \
            eight_blocks_##name(x, sign, found);                                              \
            for (int i = 0; i < 8; i++)                                                       \
                *out++ = (float)found[i];                                                     \
        }                                                                                     \
        if (columns) {                                                                        \
            type rest[8 * COLUMNS] = {0};                                                     \
            memcpy(rest, x, columns * sizeof *x);                                             \
            eight_blocks_##name(rest, sign, found);                                           \
            for (int i = 0; i * COLUMNS < columns; i++)                                       \
                *out++ = (float)found[i];                                                     \
        }                                                                                     \
    }                                                                                         \
                                                                                              \
    /* Rows of few columns are padded with zeros, several beside each other. */               \
    target static void packed_##name(const type *x, int64_t rows, int64_t columns, float *out) \
    {                                                                                         \
        const int64_t blocks = (columns + COLUMNS - 1) / COLUMNS, at_once = 8 / blocks;       \
        type packed[8 * COLUMNS] = {0};                                                       \
        for (int64_t row = 0; row < rows; row += at_once) {                                   \
            const int64_t here = rows - row < at_once ? rows - row : at_once;                 \
            for (int64_t i = 0; i < here; i++, x += columns)                                  \
                memcpy(packed + i * blocks * COLUMNS, x, columns * sizeof *x);                \
            sums_##name(packed, here * blocks * COLUMNS, out);                                \
            out += here * blocks;                                                             \
        }                                                                                     \
    }                                                                                         \
                                                                                              \
    static void rows_##name(const type *x, int64_t rows, int64_t columns, float *out)         \
    {                                                                                         \
        const int64_t blocks = (columns + COLUMNS - 1) / COLUMNS;                             \
        if (columns % COLUMNS == 0)                                                           \
            sums_##name(x, rows * columns, out);                                              \
        else if (columns <= 4 * COLUMNS)                                                      \
            packed_##name(x, rows, columns, out);                                             \
        else                                                                                  \
            for (int64_t row = 0; row < rows; row++)                                          \
                sums_##name(x + row * columns, columns, out + row * blocks);                  \
    }

#define NEAR 65536 /* bytes that stay in the cache between the fingerprint and the sums */

/* Finds fingerprints [rows] and sums [rows, blocks] of x [rows, columns]. */
#define SKETCH(name, type)                                                                    \
    void msprobe_sketch_##name(const type *x, int64_t rows, int64_t columns,                  \
                               uint64_t *fingerprints, float *out)                            \
    {                                                                                         \
        const int64_t size = columns * (int64_t)sizeof *x;                                    \
        const int64_t near = size < NEAR ? NEAR / size : 1;                                   \
        const int64_t blocks = (columns + COLUMNS - 1) / COLUMNS;                             \
        for (int64_t row = 0; row < rows; row += near) {                                      \
            const int64_t here = rows - row < near ? rows - row : near;                       \
            msprobe_row_fingerprints((const uint8_t *)x, here, size, fingerprints + row);     \
            BEST(rows_##name)(x, here, columns, out);                                         \
            x += here * columns;                                                              \
            out += here * blocks;                                                             \
        }                                                                                     \
    }

#define FLOATS(target, suffix, widen)                                                         \
    SUMS(float32##suffix, target, float, float, float8, int8x32, FROM_FLOAT32, widen)         \
    SUMS(float64##suffix, target, double, double, double8, int8x64, FROM_FLOAT64, widen)              \
    SUMS(bfloat16##suffix, target, uint16_t, float, float8, int8x32, FROM_BFLOAT16, widen)    \
    SUMS(float16##suffix, target, uint16_t, float, float8, int8x32, FROM_FLOAT16, widen)

FLOATS(, , WIDEN)
#if defined(AVX2)
FLOATS(AVX2, _avx2, WIDEN_AVX2)
#endif

SKETCH(float32, float)
SKETCH(float64, double)
SKETCH(bfloat16, uint16_t)
SKETCH(float16, uint16_t)
