/* LPIPS against plain loops in double precision, with random weights of VGG16's sizes. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/memory.h"
#include "core/safetensors.h"
#include "tools/lpips.h"

enum { CONVOLUTIONS = 13, HEIGHT = 19, WIDTH = 16 };
/* Channels of the convolutions, 0 for a pooling: VGG16's configuration D. */
static const int plan[] = {64, 64,  0,   128, 128, 0,   256, 256, 256,
                           0,  512, 512, 512, 0,   512, 512, 512};
enum { STEPS = sizeof plan / sizeof *plan };

static char path[64];
static uint16_t *weights[CONVOLUTIONS], *biases[CONVOLUTIONS], *lins[5]; /* BF16 */

static uint32_t draw(void) {
    static uint32_t state = 12345;
    state = state * 1664525u + 1013904223u;
    return state >> 8;
}

static double uniform(void) {
    return draw() / 16777216.0;
}

static uint16_t to_bf16(double x) {
    const float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return (uint16_t)(bits >> 16);
}

static double value(uint16_t b) {
    const uint32_t bits = (uint32_t)b << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static uint16_t *fill(int64_t count, double low, double high) {
    uint16_t *out = malloc((size_t)count * sizeof *out);
    assert_non_null(out);
    for (int64_t i = 0; i < count; i++) out[i] = to_bf16(low + (high - low) * uniform());
    return out;
}

/* Names as torchvision has them, or as the package lpips; one value may be spoilt. */
static void write_weights(bool package, const char *leave_out, int spoil) {
    static char names[31][64];
    SafeItem items[31];
    int count = 0, inputs = 3, number = 0, slice = 1, k = 0;
    for (int s = 0; s < STEPS; s++) {
        if (plan[s] == 0) {
            number++, slice++;
            continue;
        }
        char before[32];
        snprintf(before, sizeof before, package ? "net.slice%d." : "features.", slice);
        snprintf(names[count], 64, "%s%d.weight", before, number);
        items[count] =
            (SafeItem){names[count], tensor_4d(weights[k], DTYPE_BF16, plan[s], inputs, 3, 3)};
        count++;
        snprintf(names[count], 64, "%s%d.bias", before, number);
        items[count] = (SafeItem){names[count], tensor_1d(biases[k], DTYPE_BF16, plan[s])};
        count++, k++, number += 2;
        inputs = plan[s];
    }
    static const int channels[5] = {64, 128, 256, 512, 512};
    for (int i = 0; i < 5; i++) {
        snprintf(names[count], 64, "lin%d.model.1.weight", i);
        items[count] =
            (SafeItem){names[count], tensor_4d(lins[i], DTYPE_BF16, 1, channels[i], 1, 1)};
        count++;
    }
    for (int i = 0; leave_out && i < count; i++)
        if (strcmp(names[i], leave_out) == 0) items[i].name = "something.else";
    if (spoil == 1) lins[2][3] = to_bf16(-0.5);
    if (spoil == 2) biases[4][7] = 0x7FC0; /* NaN */
    assert_int_equal(safetensors_write(path, items, count, NULL, 0), STATUS_OK);
    if (spoil == 1) lins[2][3] = to_bf16(0.5);
    if (spoil == 2) biases[4][7] = to_bf16(0);
}

/* ---- the plain way: planes [channels][height][width] ---- */

static double *convolve(const double *x, int k, int m, int n, int h, int w) {
    double *y = malloc((size_t)(n * h * w) * sizeof *y);
    assert_non_null(y);
    for (int o = 0; o < n; o++)
        for (int r = 0; r < h; r++)
            for (int c = 0; c < w; c++) {
                double sum = value(biases[k][o]);
                for (int i = 0; i < m; i++)
                    for (int dr = 0; dr < 3; dr++)
                        for (int dc = 0; dc < 3; dc++) {
                            const int a = r + dr - 1, b = c + dc - 1;
                            if (a < 0 || b < 0 || a >= h || b >= w) continue;
                            sum += value(weights[k][((o * m + i) * 3 + dr) * 3 + dc]) *
                                   x[(i * h + a) * w + b];
                        }
                y[(o * h + r) * w + c] = sum > 0 ? sum : 0;
            }
    return y;
}

static double *pool(const double *x, int n, int h, int w) {
    double *y = malloc((size_t)(n * (h / 2) * (w / 2)) * sizeof *y);
    assert_non_null(y);
    for (int o = 0; o < n; o++)
        for (int r = 0; r < h / 2; r++)
            for (int c = 0; c < w / 2; c++) {
                double best = -1;
                for (int q = 0; q < 4; q++)
                    best = fmax(best, x[(o * h + 2 * r + q / 2) * w + 2 * c + q % 2]);
                y[(o * (h / 2) + r) * (w / 2) + c] = best;
            }
    return y;
}

static double compare(const double *x, const double *y, int n, int pixels, const uint16_t *lin) {
    double total = 0;
    for (int p = 0; p < pixels; p++) {
        double a = 0, b = 0;
        for (int c = 0; c < n; c++) a += pow(x[c * pixels + p], 2), b += pow(y[c * pixels + p], 2);
        for (int c = 0; c < n; c++)
            total += value(lin[c]) * pow(x[c * pixels + p] / (sqrt(a) + 1e-10) -
                                             y[c * pixels + p] / (sqrt(b) + 1e-10),
                                         2);
    }
    return total / pixels;
}

static double plain(const float *a, const float *b) {
    static const double shift[3] = {-.030, -.088, -.188}, scale[3] = {.458, .448, .450};
    const float *const pictures[2] = {a, b};
    double *x[2], total = 0;
    int h = HEIGHT, w = WIDTH, n = 3, k = 0, slice = 0;
    for (int q = 0; q < 2; q++) {
        x[q] = malloc(3 * HEIGHT * WIDTH * sizeof *x[q]);
        for (int i = 0; i < HEIGHT * WIDTH; i++)
            for (int c = 0; c < 3; c++)
                x[q][c * HEIGHT * WIDTH + i] =
                    (2 * (double)pictures[q][3 * i + c] - 1 - shift[c]) / scale[c];
    }
    for (int s = 0; s <= STEPS; s++) {
        if (s == STEPS || plan[s] == 0) total += compare(x[0], x[1], n, h * w, lins[slice++]);
        if (s == STEPS) break;
        for (int q = 0; q < 2; q++) {
            double *y = plan[s] ? convolve(x[q], k, n, plan[s], h, w) : pool(x[q], n, h, w);
            free(x[q]);
            x[q] = y;
        }
        if (plan[s])
            n = plan[s], k++;
        else
            h /= 2, w /= 2;
    }
    free(x[0]);
    free(x[1]);
    return total;
}

static void pictures(float *a, float *b, double noise) {
    for (int i = 0; i < HEIGHT * WIDTH * 3; i++) {
        a[i] = (float)uniform();
        b[i] = (float)fmin(1, fmax(0, a[i] + noise * (uniform() - 0.5)));
    }
}

static void equals_plain_loops(void **state) {
    (void)state;
    float a[HEIGHT * WIDTH * 3], b[HEIGHT * WIDTH * 3];
    for (int package = 0; package < 2; package++) {
        Lpips *l;
        double got, back, same;
        write_weights(package, NULL, 0);
        assert_int_equal(lpips_open(path, &l), STATUS_OK);
        pictures(a, b, package ? 2 : 0.2);
        const double want = plain(a, b);
        assert_int_equal(lpips_distance(l, a, b, HEIGHT, WIDTH, &got), STATUS_OK);
        assert_int_equal(lpips_distance(l, b, a, HEIGHT, WIDTH, &back), STATUS_OK);
        assert_int_equal(lpips_distance(l, a, a, HEIGHT, WIDTH, &same), STATUS_OK);
        print_message("distance %.9f, plain loops %.9f\n", got, want);
        assert_true(want > 1e-3 && fabs(got - want) < 2e-5 * want);
        assert_true(fabs(got - back) < 1e-12 && same == 0);
        lpips_close(l);
    }
}

static void small_pictures_are_refused(void **state) {
    (void)state;
    float a[16 * 16 * 3] = {0};
    double d;
    Lpips *l;
    assert_int_equal(lpips_open(path, &l), STATUS_OK);
    assert_int_equal(lpips_distance(l, a, a, 15, 16, &d), STATUS_DATA);
    assert_int_equal(lpips_distance(l, a, a, 16, 15, &d), STATUS_DATA);
    assert_int_equal(lpips_distance(l, a, a, 16, 16, &d), STATUS_OK);
    lpips_close(l);
    lpips_close(NULL);
}

static void other_files_are_refused(void **state) {
    (void)state;
    const int64_t live = mem_live();
    Lpips *l;
    static const char *const names[] = {"features.28.bias", "features.0.weight",
                                        "lin4.model.1.weight"};
    for (int i = 0; i < 3; i++) {
        write_weights(false, names[i], 0);
        assert_int_equal(lpips_open(path, &l), STATUS_DATA);
        assert_non_null(strstr(status_message(), names[i]));
        assert_null(l);
    }
    write_weights(false, NULL, 1);
    assert_int_equal(lpips_open(path, &l), STATUS_DATA);
    assert_non_null(strstr(status_message(), "negative"));
    write_weights(false, NULL, 2);
    assert_int_equal(lpips_open(path, &l), STATUS_DATA);
    assert_non_null(strstr(status_message(), "not finite"));
    float few[3] = {0};
    const SafeItem item = {"features.0.weight", tensor_1d(few, DTYPE_F32, 3)};
    assert_int_equal(safetensors_write(path, &item, 1, NULL, 0), STATUS_OK);
    assert_int_equal(lpips_open(path, &l), STATUS_DATA);
    assert_int_equal(lpips_open("/no/such/file.safetensors", &l), STATUS_IO);
    assert_int_equal(mem_live(), live);
}

static Status open_and_compare(void) {
    static const float a[16 * 16 * 3];
    Lpips *l;
    double d;
    Status s = lpips_open(path, &l);
    if (s == STATUS_OK) s = lpips_distance(l, a, a, 16, 16, &d);
    lpips_close(l);
    return s;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    write_weights(true, NULL, 0);
    assert_int_equal(open_and_compare(), STATUS_OK);
    const int64_t live = mem_live();
    int n, refused = 0;
    for (n = 1; n < 400; n++) {
        mem_fail_at(n);
        const Status s = open_and_compare();
        const int pending = mem_fail_pending();
        mem_fail_at(0);
        assert_int_equal(mem_live(), live);
        refused += s == STATUS_MEMORY;
        if (s != STATUS_OK && s != STATUS_MEMORY) fail_msg("%d: %s", n, status_message());
        if (pending) break;
    }
    print_message("%d allocations, %d times one was missed\n", n - 1, refused);
    assert_true(n > 40 && n < 400 && refused > 40);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_plain_loops),
        cmocka_unit_test(small_pictures_are_refused),
        cmocka_unit_test(other_files_are_refused),
        cmocka_unit_test(every_allocation_may_fail),
    };
    int inputs = 3, k = 0;
    snprintf(path, sizeof path, "/tmp/ttv-lpips-%ld.safetensors", (long)getpid());
    for (int s = 0; s < STEPS; s++) {
        if (plan[s] == 0) continue;
        const double reach = sqrt(6.0 / (9 * inputs)); /* keeps the size of activations */
        weights[k] = fill((int64_t)plan[s] * inputs * 9, -reach, reach);
        biases[k] = fill(plan[s], -0.1, 0.1);
        inputs = plan[s], k++;
    }
    static const int channels[5] = {64, 128, 256, 512, 512};
    for (int i = 0; i < 5; i++) lins[i] = fill(channels[i], 0, 1);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; i < CONVOLUTIONS; i++) free(weights[i]), free(biases[i]);
    for (int i = 0; i < 5; i++) free(lins[i]);
    remove(path);
    return failed;
}
