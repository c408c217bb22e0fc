/* What holds of slot token_basis for any rows: x = r q, inv r = 1, and q q' = 1 as far as the shift
 * leaves it; on a card too, where there is one. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "vittt_fixture.h"

typedef enum Rows { RANDOM, ALIKE, EQUAL, ZEROS } Rows;

/* x [n,c]: rows apart; with a part in common, beside which their own is little, yet has ten times
 * the shift's energy; all but the first ones equal to those; zeros, but for one. */
static void fill_rows(float *x, Rows kind, int64_t n, int64_t c) {
    float *common = malloc(sizeof *common * (size_t)c);
    fill_normal(x, n * c, 1, kind == ALIKE ? sqrt(10.0 * (double)TOKEN_SHIFT) : 1.0);
    fill_normal(common, c, 2, 1);
    for (int64_t t = 0; t < n; t++)
        for (int64_t i = 0; i < c; i++) {
            if (kind == ALIKE) x[t * c + i] += common[i];
            if (kind == EQUAL && t >= 3) x[t * c + i] = x[t % 3 * c + i];
            if (kind == ZEROS && t != 1) x[t * c + i] = 0;
        }
    free(common);
}

/* |a b - want| where want is the unit matrix or, with x, [n,c]; turned: b as [.., k]. */
static double off(const double *a, const double *b, bool turned, int64_t n, int64_t c, int64_t k,
                  const double *want) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < c; j++) {
            double v = want ? -want[i * c + j] : i == j ? -1.0 : 0.0;
            for (int64_t p = 0; p < k; p++)
                v += a[i * k + p] * (turned ? b[j * k + p] : b[p * c + j]);
            sum += v * v;
        }
    return sqrt(sum);
}

typedef struct Limits {
    double product, inverse, basis; /* |r q - x|/|x|, |inv r - 1|, |q q' - 1| */
} Limits;

static void check_sizes(const char *name, Rows kind, DType act, int64_t n, int64_t c,
                        Limits limits) {
    Device *d;
    Tape *t;
    check_ok(device_open(name, &d));
    check_ok(tape_new(d, &t));
    tape_reset(t, false);
    float *in = malloc(sizeof *in * (size_t)(n * c));
    fill_rows(in, kind, n, c);
    const int64_t wide[] = {1, n, c}, square[] = {1, n, n};
    const Tensor x = push_floats(t, in, act, 3, wide);
    Tensor q, r, inv;
    check_ok(tape_take(t, act, 3, wide, &q));
    check_ok(tape_take(t, act, 3, square, &r));
    check_ok(tape_take(t, act, 3, square, &inv));
    check_ok(d->k->token_basis(d, q, r, inv, x));
    double *dx = pull_doubles(d, x), *dq = pull_doubles(d, q), *dr = pull_doubles(d, r);
    double *di = pull_doubles(d, inv);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = i + 1; j < n; j++) assert_true(dr[i * n + j] == 0 && di[i * n + j] == 0);
    for (int64_t i = 0; i < n; i++) assert_true(dr[i * n + i] > 0 && di[i * n + i] < 1e11);
    assert_true(off(dr, dq, false, n, c, n, dx) <= limits.product * norm_of(dx, n * c));
    assert_true(off(di, dr, false, n, n, n, NULL) <= limits.inverse);
    assert_true(off(dq, dq, true, n, n, c, NULL) <= limits.basis);
    free(dx), free(dq), free(dr), free(di), free(in);
    tape_free(t);
    device_close(d);
}

/* |q q' - 1| where rows give but one or three directions: q = 0 would be off by sqrt(n). */
static double missing(int64_t n) {
    return sqrt((double)n - 0.5);
}

/* Sizes that any form takes, and in BF16 those of a card's own form. */
static void check_rows(const char *name, Rows kind, DType act, Limits limits) {
    check_sizes(name, kind, act, 40, 72, limits);
    if (act != DTYPE_BF16) return;
    if (kind != RANDOM) limits.inverse *= 10;
    if (kind == ALIKE) limits.basis *= 2.5;
    if (kind == EQUAL || kind == ZEROS) limits.basis = missing(192);
    check_sizes(name, kind, act, 192, 256, limits);
}

typedef enum Scene { PLAIN, JITTER, RAMP } Scene;

/* Tokens of a picture that is all but plain: five colours in patches; the same with a little of
 * each token's own here and there; a ramp between two. */
static void fill_scene(float *x, Scene kind, int64_t n, int64_t c) {
    float *colours = malloc(sizeof *colours * (size_t)(5 * c));
    fill_normal(colours, 5 * c, 3, 1);
    fill_normal(x, n * c, 4, kind == JITTER ? 4e-3f : 0.0f);
    for (int64_t t = 0; t < n; t++)
        for (int64_t i = 0; i < c; i++) {
            const float part = (float)t / (float)n;
            const int64_t colour = t < n / 2 ? 0 : 1 + t / 37 % 4;
            if (kind == JITTER && (t + i) % 20) x[t * c + i] = 0;
            x[t * c + i] += kind == RAMP ? part * colours[i] + (1 - part) * colours[c + i]
                                         : colours[colour * c + i];
        }
    free(colours);
}

/* As a layer takes them: in BF16, mixed by Walsh rows in the order of their energy. What is left of
 * equal tokens are rows of rounding or of nothing. */
static void check_scene(const char *name, Scene kind) {
    const int64_t n = 512, c = 768;
    const int64_t wide[] = {1, n, c}, square[] = {1, n, n};
    Device *d;
    Tape *t;
    Tensor energy, w, x, q, r, inv;
    check_ok(device_open(name, &d));
    check_ok(tape_new(d, &t));
    tape_reset(t, false);
    float *in = malloc(sizeof *in * (size_t)(n * c));
    fill_scene(in, kind, n, c);
    const Tensor tokens = push_floats(t, in, DTYPE_BF16, 3, wide);
    check_ok(tape_take(t, DTYPE_F32, 2, wide, &energy));
    check_ok(tape_take(t, DTYPE_BF16, 3, square, &w));
    check_ok(tape_take(t, DTYPE_BF16, 3, wide, &x));
    check_ok(tape_take(t, DTYPE_BF16, 3, wide, &q));
    check_ok(tape_take(t, DTYPE_BF16, 3, square, &r));
    check_ok(tape_take(t, DTYPE_BF16, 3, square, &inv));
    check_ok(d->k->walsh_energy(d, energy, tokens));
    check_ok(d->k->walsh_rows(d, w, energy));
    check_ok(d->k->matmul(d, grad_set(x), w, false, tokens, false, 1));
    check_ok(d->k->token_basis(d, q, r, inv, x));
    double *dx = pull_doubles(d, x), *dq = pull_doubles(d, q), *dr = pull_doubles(d, r);
    double *di = pull_doubles(d, inv);
    for (int64_t i = 0; i < n * n; i++) assert_true(isfinite(dr[i]) && fabs(di[i]) < 1e12);
    for (int64_t i = 0; i < n * c; i++) assert_true(fabs(dq[i]) < 1.1);
    assert_true(off(dr, dq, false, n, c, n, dx) <= 1e-2 * norm_of(dx, n * c));
    free(dx), free(dq), free(dr), free(di), free(in);
    tape_free(t);
    device_close(d);
}

/* 1 - q q' = shift inv D inv' with D the diagonal of S: of random rows 22 times the shift. Equal
 * rows leave n - 3 directions of q that x does not have: q q' is 0 there. */
static void check_device(const char *name) {
    const double shifted = 100.0 * (double)TOKEN_SHIFT;
    check_rows(name, RANDOM, DTYPE_F32, (Limits){1e-6, 1e-4, shifted});
    check_rows(name, RANDOM, DTYPE_BF16, (Limits){1e-2, 0.1, 0.05 + shifted});
    check_rows(name, ALIKE, DTYPE_F32, (Limits){1e-5, 1e-2, 2});
    check_rows(name, ALIKE, DTYPE_BF16, (Limits){1e-2, 5, 2});
    check_rows(name, EQUAL, DTYPE_F32, (Limits){1e-5, 1e-2, missing(40)});
    check_rows(name, EQUAL, DTYPE_BF16, (Limits){1e-2, 5, missing(40)});
    check_rows(name, ZEROS, DTYPE_F32, (Limits){1e-6, 1e-4, missing(40)});
    check_rows(name, ZEROS, DTYPE_BF16, (Limits){1e-2, 0.1, missing(40)});
    check_scene(name, PLAIN);
    check_scene(name, JITTER);
    check_scene(name, RAMP);
}

/* Energies that are no numbers have places, too: every row of the matrix is there once. */
static void check_order(const char *name) {
    enum { ROWS = 64 };
    float energy[ROWS];
    Device *d;
    Tape *t;
    check_ok(device_open(name, &d));
    check_ok(tape_new(d, &t));
    tape_reset(t, false);
    for (int i = 0; i < ROWS; i++) energy[i] = i % 3 == 0 ? NAN : (float)(i % 7);
    const Tensor from = push_floats(t, energy, DTYPE_F32, 2, (int64_t[]){1, ROWS});
    Tensor w;
    check_ok(tape_take(t, DTYPE_F32, 3, (int64_t[]){1, ROWS, ROWS}, &w));
    check_ok(d->k->zero(d, w));
    check_ok(d->k->walsh_rows(d, w, from));
    double *rows = pull_doubles(d, w);
    assert_true(off(rows, rows, true, ROWS, ROWS, ROWS, NULL) <= 1e-5);
    free(rows);
    tape_free(t);
    device_close(d);
}

static void cpu(void **state) {
    (void)state;
    check_order("cpu");
    check_device("cpu");
}

static void card(void **state) {
    (void)state;
    Device *d;
    if (device_open("cuda", &d) != STATUS_OK) {
        print_message("skipped: %s\n", status_message());
        return;
    }
    device_close(d);
    check_order("cuda");
    check_device("cuda");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(cpu), cmocka_unit_test(card)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
