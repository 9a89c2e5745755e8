/* Data types and reductions. */
#include "nccl.h"

#include <math.h>
#include <string.h>

static const struct {
    size_t size;
    const char *name;
} types[ncclNumTypes] = {
    [ncclInt8] = {1, "int8"},        [ncclUint8] = {1, "uint8"},
    [ncclInt32] = {4, "int32"},      [ncclUint32] = {4, "uint32"},
    [ncclInt64] = {8, "int64"},      [ncclUint64] = {8, "uint64"},
    [ncclFloat16] = {2, "float16"},  [ncclFloat32] = {4, "float32"},
    [ncclFloat64] = {8, "float64"},  [ncclBfloat16] = {2, "bfloat16"},
    [ncclFloat8e4m3] = {1, "e4m3"},  [ncclFloat8e5m2] = {1, "e5m2"},
};

size_t sim_item_size(int datatype) { return types[datatype].size; }

const char *sim_type_name(int datatype) { return types[datatype].name; }

/* ---- floating-point formats without a C type -------------------------------------------------------- */

typedef struct Format {
    int exponent_bits, fraction_bits;
    bool has_infinity; /* without one, all ones are NaN and the rest of that exponent are numbers */
    bool saturates;    /* CUDA's conversions to 8 bits give the largest number instead of infinity */
} Format;

static const Format half = {5, 10, true, false};
static const Format bfloat16 = {8, 7, true, false};
static const Format e4m3 = {4, 3, false, true};
static const Format e5m2 = {5, 2, true, true};

static const Format *format_of(int datatype) {
    switch (datatype) {
    case ncclFloat16: return &half;
    case ncclBfloat16: return &bfloat16;
    case ncclFloat8e4m3: return &e4m3;
    case ncclFloat8e5m2: return &e5m2;
    default: return NULL;
    }
}

static int bias_of(const Format *format) { return (1 << (format->exponent_bits - 1)) - 1; }

static double decode(const Format *format, unsigned int bits) {
    unsigned int ones = (1u << format->exponent_bits) - 1;
    unsigned int fraction = bits & ((1u << format->fraction_bits) - 1);
    unsigned int exponent = (bits >> format->fraction_bits) & ones;
    bool is_negative = bits >> (format->exponent_bits + format->fraction_bits) & 1;
    double value;
    if (exponent == ones && format->has_infinity) {
        value = fraction ? NAN : INFINITY;
    } else if (exponent == ones && fraction == (1u << format->fraction_bits) - 1) {
        value = NAN;
    } else if (exponent == 0) {
        value = ldexp(fraction, 1 - bias_of(format) - format->fraction_bits);
    } else {
        value = ldexp(fraction + (1u << format->fraction_bits),
                      (int)exponent - bias_of(format) - format->fraction_bits);
    }
    return is_negative ? -value : value;
}

/* Round to nearest, ties to even. The sum and the product of two numbers of these formats, computed
 * in double precision, round as the exact ones do: 53 bits are more than twice theirs and two. */
static unsigned int encode(const Format *format, double value) {
    unsigned int ones = (1u << format->exponent_bits) - 1;
    unsigned int infinity = ones << format->fraction_bits;
    unsigned int all_ones = (infinity | ((1u << format->fraction_bits) - 1));
    unsigned int sign = signbit(value) ? 1u << (format->exponent_bits + format->fraction_bits) : 0;
    unsigned int largest = format->has_infinity ? infinity - 1 : all_ones - 1;
    if (isnan(value)) {
        return all_ones;
    }
    int exponent = 1 - bias_of(format);
    if (value != 0 && isfinite(value) && ilogb(value) > exponent) {
        exponent = ilogb(value);
    }
    double steps = rint(ldexp(fabs(value), format->fraction_bits - exponent));
    double bits = ldexp(exponent + bias_of(format) - 1, format->fraction_bits) + steps;
    if (bits > largest) {
        return sign | (format->saturates ? largest : infinity);
    }
    return sign | (unsigned int)bits;
}

static unsigned int load(const char *address, size_t size) {
    uint16_t two;
    if (size == 1) {
        return (uint8_t)*address;
    }
    memcpy(&two, address, sizeof two);
    return two;
}

static void store(char *address, size_t size, unsigned int bits) {
    uint16_t two = (uint16_t)bits;
    if (size == 1) {
        *address = (char)bits;
    } else {
        memcpy(address, &two, sizeof two);
    }
}

static double combine(double left, double right, int operation) {
    switch (operation) {
    case ncclProd: return left * right;
    case ncclMax: return fmax(left, right);
    case ncclMin: return fmin(left, right);
    default: return left + right;
    }
}

static void reduce_formatted(char *total, const char *part, size_t count, int datatype, int operation) {
    const Format *format = format_of(datatype);
    size_t size = sim_item_size(datatype);
    for (size_t k = 0; k < count * size; k += size) {
        double left = decode(format, load(total + k, size));
        double right = decode(format, load(part + k, size));
        store(total + k, size, encode(format, combine(left, right, operation)));
    }
}

/* ---- types of C ------------------------------------------------------------------------------------- */

/* Integers wrap around: their sums and products are those of unsigned numbers. */
#define REDUCE(NAME, TYPE, WIDE, MAXIMUM, MINIMUM)                                                          \
    static void reduce_##NAME(char *total, const char *part, size_t count, int operation) {                \
        for (size_t k = 0; k < count; k++) {                                                                \
            TYPE left, right;                                                                               \
            memcpy(&left, total + k * sizeof left, sizeof left);                                            \
            memcpy(&right, part + k * sizeof right, sizeof right);                                          \
            switch (operation) {                                                                            \
            case ncclProd: left = (TYPE)((WIDE)left * (WIDE)right); break;                                  \
            case ncclMax: left = MAXIMUM(left, right); break;                                               \
            case ncclMin: left = MINIMUM(left, right); break;                                               \
            default: left = (TYPE)((WIDE)left + (WIDE)right);                                               \
            }                                                                                               \
            memcpy(total + k * sizeof left, &left, sizeof left);                                            \
        }                                                                                                   \
    }                                                                                                       \
    static void divide_##NAME(char *total, size_t count, int ranks) {                                      \
        for (size_t k = 0; k < count; k++) {                                                                \
            TYPE value;                                                                                     \
            memcpy(&value, total + k * sizeof value, sizeof value);                                         \
            value = (TYPE)(value / (TYPE)ranks);                                                            \
            memcpy(total + k * sizeof value, &value, sizeof value);                                         \
        }                                                                                                   \
    }
#define LARGER(left, right) ((left) > (right) ? (left) : (right))
#define SMALLER(left, right) ((left) < (right) ? (left) : (right))

REDUCE(int8, int8_t, uint32_t, LARGER, SMALLER)
REDUCE(uint8, uint8_t, uint32_t, LARGER, SMALLER)
REDUCE(int32, int32_t, uint32_t, LARGER, SMALLER)
REDUCE(uint32, uint32_t, uint32_t, LARGER, SMALLER)
REDUCE(int64, int64_t, uint64_t, LARGER, SMALLER)
REDUCE(uint64, uint64_t, uint64_t, LARGER, SMALLER)
REDUCE(float, float, float, fmaxf, fminf)
REDUCE(double, double, double, fmax, fmin)

void sim_reduce(char *total, const char *part, size_t count, int datatype, int operation) {
    switch (datatype) {
    case ncclInt8: reduce_int8(total, part, count, operation); return;
    case ncclUint8: reduce_uint8(total, part, count, operation); return;
    case ncclInt32: reduce_int32(total, part, count, operation); return;
    case ncclUint32: reduce_uint32(total, part, count, operation); return;
    case ncclInt64: reduce_int64(total, part, count, operation); return;
    case ncclUint64: reduce_uint64(total, part, count, operation); return;
    case ncclFloat32: reduce_float(total, part, count, operation); return;
    case ncclFloat64: reduce_double(total, part, count, operation); return;
    default: reduce_formatted(total, part, count, datatype, operation);
    }
}

static void divide_formatted(char *total, size_t count, int datatype, int ranks) {
    const Format *format = format_of(datatype);
    size_t size = sim_item_size(datatype);
    for (size_t k = 0; k < count * size; k += size) {
        store(total + k, size, encode(format, decode(format, load(total + k, size)) / ranks));
    }
}

void sim_divide(char *total, size_t count, int datatype, int ranks) {
    switch (datatype) {
    case ncclInt8: divide_int8(total, count, ranks); return;
    case ncclUint8: divide_uint8(total, count, ranks); return;
    case ncclInt32: divide_int32(total, count, ranks); return;
    case ncclUint32: divide_uint32(total, count, ranks); return;
    case ncclInt64: divide_int64(total, count, ranks); return;
    case ncclUint64: divide_uint64(total, count, ranks); return;
    case ncclFloat32: divide_float(total, count, ranks); return;
    case ncclFloat64: divide_double(total, count, ranks); return;
    default: divide_formatted(total, count, datatype, ranks);
    }
}
