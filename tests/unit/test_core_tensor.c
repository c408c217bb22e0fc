/* Tensors, 16-bit floats and CRC-32C. */
#include "core_fixture.h"

#include <math.h>

#include "core/crc32c.h"
#include "core/tensor.h"

static void tensors_describe_memory(void **state) {
    (void)state;
    float data[24];
    Tensor t = tensor_3d(data, DTYPE_F32, 2, 3, 4);
    char text[64];
    assert_int_equal(tensor_count(t), 24);
    assert_int_equal(tensor_bytes(t), 96);
    assert_int_equal(tensor_last(t), 4);
    assert_int_equal(tensor_rows(t), 6);
    assert_string_equal(tensor_shape_text(t, text, sizeof text), "[2, 3, 4]");
    assert_string_equal(tensor_shape_text(t, text, 5), "[2, ");
    Tensor v = tensor_view2(t, 6, 4);
    assert_int_equal(v.rank, 2);
    assert_ptr_equal(v.data, data);
    assert_false(tensor_same_shape(t, v));
    assert_true(tensor_same_shape(t, tensor_view3(v, 2, 3, 4)));
    assert_int_equal(tensor_view4(t, 1, 2, 3, 4).shape[3], 4);
    Tensor s = tensor_0d(data, DTYPE_F64);
    assert_int_equal(tensor_count(s), 1);
    assert_int_equal(tensor_last(s), 1);
    assert_int_equal(tensor_rows(s), 1);
    assert_string_equal(tensor_shape_text(s, text, sizeof text), "[]");
    assert_true(tensor_is_none(tensor_none()));
    assert_false(tensor_is_none(t));
}

static void element_counts_are_overflow_checked(void **state) {
    (void)state;
    int64_t count;
    assert_ok(shape_count(3, (const int64_t[]){2, 3, 4}, &count));
    assert_int_equal(count, 24);
    assert_ok(shape_count(0, NULL, &count));
    assert_int_equal(count, 1);
    assert_ok(shape_count(2, (const int64_t[]){5, 0}, &count));
    assert_int_equal(count, 0);
    assert_int_equal(shape_count(1, (const int64_t[]){-1}, &count), STATUS_DATA);
    assert_message("negative");
    assert_int_equal(shape_count(2, (const int64_t[]){INT64_MAX, 2}, &count), STATUS_DATA);
    assert_message("overflow");
    const int64_t huge[] = {INT64_MAX, 2, 0};
    assert_int_equal(shape_count(3, huge, &count), STATUS_DATA);
}

static void every_dtype_has_size_and_name(void **state) {
    (void)state;
    static const size_t sizes[] = {4, 2, 2, 8, 8, 4, 1};
    static const char *const names[] = {"F32", "BF16", "F16", "F64", "I64", "I32", "U8"};
    for (int d = DTYPE_F32; d <= DTYPE_U8; d++) {
        assert_int_equal(dtype_size((DType)d), sizes[d]);
        assert_string_equal(dtype_name((DType)d), names[d]);
    }
}

/* Slow and obvious: sign * mantissa * 2^exponent of a format with `fraction` bits and bias `bias`.
 */
static double small_float(uint32_t bits, int fraction, int exponent_bits) {
    int bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (int)(bits >> fraction) & ((1 << exponent_bits) - 1);
    double mantissa = bits & ((1u << fraction) - 1);
    double sign = bits >> (fraction + exponent_bits) ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) return mantissa != 0 ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexp(mantissa, 1 - bias - fraction);
    return sign * ldexp(mantissa + (1 << fraction), exponent - bias - fraction);
}

/* All 65536 patterns: exact to f32, back to themselves; halfway points go to even, neighbours of
 * the halfway points to their side. */
static void check_format(int fraction, int exponent_bits, uint16_t (*narrow)(float),
                         float (*widen)(uint16_t)) {
    uint32_t infinity = ((1u << exponent_bits) - 1) << fraction;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        double expected = small_float(bits, fraction, exponent_bits);
        float x = widen((uint16_t)bits);
        if (isnan(expected)) {
            assert_true(isnan(x));
            assert_true(isnan(widen(narrow(x))));
            assert_int_equal(narrow(x) & 0x8000u, bits & 0x8000u);
            continue;
        }
        assert_true((double)x == expected);
        assert_int_equal(narrow(x), bits);
        uint32_t magnitude = bits & 0x7fffu;
        if (magnitude >= infinity) continue;
        /* The spacing above the largest finite value continues: halfway from it rounds to infinity.
         */
        double above =
            magnitude + 1 == infinity
                ? 2 * fabs(expected) - small_float(magnitude - 1, fraction, exponent_bits)
                : small_float(magnitude + 1, fraction, exponent_bits);
        float middle = (float)((fabs(expected) + above) / 2);
        if (!isfinite(middle)) continue;
        float sign = bits & 0x8000u ? -1.0f : 1.0f;
        assert_int_equal(narrow(sign * middle), bits + (magnitude & 1u));
        assert_int_equal(narrow(sign * nextafterf(middle, 0)), bits);
        assert_int_equal(narrow(sign * nextafterf(middle, INFINITY)), bits + 1);
    }
}

static void half_formats_round_to_nearest_even(void **state) {
    (void)state;
    check_format(7, 8, bf16_from_f32, f32_from_bf16);
    check_format(10, 5, f16_from_f32, f32_from_f16);
    assert_int_equal(f16_from_f32(1e30f), 0x7c00);
    assert_int_equal(f16_from_f32(-1e30f), 0xfc00);
    assert_int_equal(f16_from_f32(1e-30f), 0);
    assert_int_equal(bf16_from_f32(3.4028235e38f), 0x7f80);
}

static void crc32c_matches_known_answers(void **state) {
    (void)state;
    unsigned char bytes[32] = {0};
    assert_int_equal(crc32c(0, "123456789", 9), 0xe3069283u);
    assert_int_equal(crc32c(0, "", 0), 0);
    assert_int_equal(crc32c(0, bytes, 32), 0x8a9136aau); /* RFC 3720 B.4 */
    memset(bytes, 0xff, 32);
    assert_int_equal(crc32c(0, bytes, 32), 0x62a8ab43u);
    for (int i = 0; i < 32; i++) bytes[i] = (unsigned char)i;
    assert_int_equal(crc32c(0, bytes, 32), 0x46dd794eu);
    for (size_t cut = 0; cut <= 32; cut++) {
        assert_int_equal(crc32c(crc32c(0, bytes, cut), bytes + cut, 32 - cut), 0x46dd794eu);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_describe_memory),
        cmocka_unit_test(element_counts_are_overflow_checked),
        cmocka_unit_test(every_dtype_has_size_and_name),
        cmocka_unit_test(half_formats_round_to_nearest_even),
        cmocka_unit_test(crc32c_matches_known_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
