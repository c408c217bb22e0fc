/* t-SNE (fastweight.md 10.3): entropies of the rows, clusters that stay apart, the same bits twice.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "core/rng.h"
#include "ttt/tsne.h"

#define N 60
#define D 5

/* Two clouds far apart. */
static void clouds(double *x) {
    Rng r = rng_stream(5, 0, 0, 0);
    for (int i = 0; i < N * D; i++) x[i] = rng_normal(&r) + (i / D < N / 2 ? 0 : 30);
}

static void test_entropies(void **state) {
    (void)state;
    static double x[N * D], p[N * N], entropy[N];
    double sum = 0;
    clouds(x);
    assert_int_equal(tsne_affinities(x, N, D, 10, p, entropy), STATUS_OK);
    for (int i = 0; i < N; i++) assert_true(fabs(entropy[i] - log(10)) < 1e-5);
    for (int i = 0; i < N * N; i++) sum += p[i];
    assert_true(fabs(sum - 1) < 1e-12);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) assert_true(p[i * N + j] == p[j * N + i]);
}

static void test_clusters(void **state) {
    (void)state;
    static double x[N * D], a[2 * N], b[2 * N];
    clouds(x);
    assert_int_equal(tsne(x, N, D, 10, 500, a), STATUS_OK);
    assert_int_equal(tsne(x, N, D, 10, 500, b), STATUS_OK);
    assert_memory_equal(a, b, sizeof a);
    double nearest_other = INFINITY, farthest_own = 0;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            const double d = hypot(a[2 * i] - a[2 * j], a[2 * i + 1] - a[2 * j + 1]);
            assert_true(isfinite(d));
            if ((i < N / 2) == (j < N / 2))
                farthest_own = fmax(farthest_own, d);
            else
                nearest_other = fmin(nearest_other, d);
        }
    assert_true(nearest_other > farthest_own / 2);
    assert_int_equal(tsne(x, 2, D, 10, 5, b), STATUS_USAGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_entropies),
                                       cmocka_unit_test(test_clusters)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
