/* The graph learner: what is refused, and what must hold whatever the numbers (fastweight.md 1 to
 * 3). The numbers themselves: golden_check on fastweight/graph_* and ttt_*. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "core/rng.h"
#include "nn/tape.h"
#include "ttt/graph.h"

#define B  2
#define H  2
#define D  4
#define N  11
#define BH (B * H)

/* ---- text ---- */

static void refused(const char *text, const char *part) {
    Graph g;
    assert_int_equal(graph_parse(&g, text, D, 6), STATUS_USAGE);
    if (!strstr(status_message(), part)) fail_msg("'%s' lacks '%s'", status_message(), part);
}

static void test_refusals(void **state) {
    (void)state;
    refused("", "a node's name");
    refused("w = linear(input)", "'w': linear needs a width");
    refused("w = liner(input d)", "did you mean 'linear'");
    refused("w = linear(nobody d)", "no node is called 'nobody'");
    refused("a = silu(b), b = silu(a), w = linear(a d)", "cycle");
    refused("w = linear(input d), idle = silu(w), y = linear(w d)", "'idle' is disconnected");
    refused("w = linear(input h)", "'w' is the output of width 6, not 4");
    refused("a = linear(input h), b = add(a input), y = linear(b d)", "'b' joins widths 6 and 4");
    refused("a = silu(input)", "no fast node");
    refused("w0 = linear(input h zero), w1 = linear(w0 d zero)", "'w1' is behind two");
    refused("a = linear(input h zero), b = linear(input h zero), m = mul(a b), y = linear(m d)",
            "'m' is behind two");
    refused("w = linear(input d) trailing", "',' or the end");
    refused("w = linear(input d, y = silu(w)", "')'");
    refused("n = norm(input eps=-1), w = linear(n d)", "'eps=-1'");
    refused("w = linear(input d), w = silu(w)", "two nodes are called 'w'");
    Graph g;
    assert_int_equal(graph_parse(&g, "w0=linear(input h zero),w1=linear(w0 d)", D, 6), STATUS_OK);
    /* Any order of the text gives parents before children. */
    assert_int_equal(graph_parse(&g, "a = silu(w), w = linear(input d), r = add(a input)", D, 6),
                     STATUS_OK);
    assert_string_equal(g.nodes[0].name, "w");
}

static void test_presets(void **state) {
    (void)state;
    for (int i = 0; graph_preset_name(i); i++) {
        Graph g;
        if (graph_parse(&g, graph_preset(graph_preset_name(i)), D, 6) != STATUS_OK)
            fail_msg("%s: %s", graph_preset_name(i), status_message());
    }
    assert_null(graph_preset("no such preset"));
}

/* ---- running a learner ---- */

typedef struct World {
    Device *device;
    Tape *t;
    float q[BH * N * D], k[BH * N * D], v[BH * N * D], w[H * D * D], eta[BH * N], logf[BH * N];
    float out[BH * N * D], end[BH * D * D];
} World;

static int setup(void **state) {
    static World w;
    memset(&w, 0, sizeof w);
    assert_int_equal(device_open("cpu", &w.device), STATUS_OK);
    assert_int_equal(tape_new(w.device, &w.t), STATUS_OK);
    Rng r = rng_stream(3, 0, 0, 0);
    float *all[] = {w.q, w.k, w.v};
    for (int a = 0; a < 3; a++)
        for (int i = 0; i < BH * N * D; i++) all[a][i] = 0.5f * (float)rng_normal(&r);
    for (int i = 0; i < H * D * D; i++) w.w[i] = 0.3f * (float)rng_normal(&r);
    for (int i = 0; i < BH * N; i++) {
        w.eta[i] = 0.1f + 0.2f * (float)rng_uniform(&r);
        w.logf[i] = -0.4f * (float)rng_uniform(&r);
    }
    *state = &w;
    return 0;
}

static int teardown(void **state) {
    World *w = *state;
    tape_free(w->t);
    device_close(w->device);
    return 0;
}

static Var *value(World *w, const float *host, int rank, const int64_t *shape) {
    Tensor x;
    assert_int_equal(tape_take(w->t, DTYPE_F32, rank, shape, &x), STATUS_OK);
    assert_int_equal(device_push(w->device, x, host), STATUS_OK);
    return tape_input(w->t, x, "value");
}

/* One pass of a linear learner over tokens [first, first + n); weights `start` [BH,D,D] or the
 * world's own. */
typedef struct Call {
    const GraphRule *rule;
    const float *start;
    int first, n;
    bool rates, decays;
} Call;

static void take_run(float *to, const float *from, int first, int n, int width) {
    for (int g = 0; g < BH; g++)
        memcpy(to + g * n * width, from + (g * N + first) * width,
               (size_t)(n * width) * sizeof *to);
}

static void run(World *w, const char *text, Call c, float *out, float *end) {
    static float q[BH * N * D], k[BH * N * D], v[BH * N * D], eta[BH * N], logf[BH * N];
    Graph g;
    assert_int_equal(graph_parse(&g, text, D, 6), STATUS_OK);
    const int64_t tokens[] = {B, H, c.n, D}, scalars[] = {B, H, c.n};
    take_run(q, w->q, c.first, c.n, D);
    take_run(k, w->k, c.first, c.n, D);
    take_run(v, w->v, c.first, c.n, D);
    take_run(eta, w->eta, c.first, c.n, 1);
    take_run(logf, w->logf, c.first, c.n, 1);
    tape_reset(w->t, false);
    GraphTokens in = {
        .q = value(w, q, 4, tokens), .k = value(w, k, 4, tokens), .v = value(w, v, 4, tokens)};
    in.weight[0] = value(w, c.start ? c.start : w->w, 4, (int64_t[]){c.start ? B : 1, H, D, D});
    if (c.rates) in.rate[0] = value(w, eta, 3, scalars);
    if (c.decays) in.decay[0] = value(w, logf, 3, scalars);
    GraphState state;
    Var *y = graph_forward(&g, c.rule, w->t, &in, &state);
    if (tape_status(w->t) != STATUS_OK) fail_msg("%s", status_message());
    assert_int_equal(device_pull(w->device, out, y->value), STATUS_OK);
    if (end) assert_int_equal(device_pull(w->device, end, state.weight[0]->value), STATUS_OK);
}

static void near(const float *a, const float *b, int n, float limit) {
    for (int i = 0; i < n; i++)
        if (!(fabsf(a[i] - b[i]) <= limit)) fail_msg("[%d] %g, expected %g", i, a[i], b[i]);
}

/* ---- the primal form: token by token ---- */

/* W_t = f_t W_{t-1} - eta_t k_t' g_t with g_t = (k_t W_start - v_t) / s at the chunk's start. */
static void primal(const World *w, const GraphRule *r, bool rates, bool decays, double *out) {
    for (int g = 0; g < BH; g++) {
        double start[D][D], now[D][D];
        for (int i = 0; i < D * D; i++) now[i / D][i % D] = (double)w->w[(g % H) * D * D + i];
        for (int t = 0; t < N; t++) {
            const int row = g * N + t;
            if (t % r->chunk == 0) memcpy(start, now, sizeof start);
            for (int o = 0; o < D; o++) {
                double x = 0;
                for (int i = 0; i < D; i++) x += (double)w->k[row * D + i] * start[i][o];
                const double slope = x - (double)w->v[row * D + o];
                for (int i = 0; i < D; i++)
                    now[i][o] =
                        (decays ? exp((double)w->logf[row]) : 1) * now[i][o] -
                        (rates ? (double)w->eta[row] : 1) * (double)w->k[row * D + i] * slope;
            }
            for (int o = 0; o < D; o++) {
                out[row * D + o] = 0;
                for (int i = 0; i < D; i++)
                    out[row * D + o] += (double)w->q[row * D + i] * now[i][o];
            }
        }
    }
}

static void test_dual_is_primal(void **state) {
    World *w = *state;
    static double want[BH * N * D];
    static float expected[BH * N * D];
    const int chunks[] = {1, 4, N};
    for (int c = 0; c < 3; c++)
        for (int kind = 0; kind < 4; kind++) {
            const GraphRule rule = {.loss = GRAPH_MSE, .chunk = chunks[c], .steps = 1};
            const bool rates = kind & 1, decays = kind & 2;
            primal(w, &rule, rates, decays, want);
            for (int i = 0; i < BH * N * D; i++) expected[i] = (float)want[i];
            run(w, "w = linear(input d)", (Call){&rule, NULL, 0, N, rates, decays}, w->out, NULL);
            near(w->out, expected, BH * N * D, 2e-5f);
        }
}

/* ---- linear attention (fastweight.md 3) ---- */

/* From W = 0, rate 1/2 of the gradient 2(kW - v), one chunk: exactly causal linear attention. */
static void test_linear_attention(void **state) {
    World *w = *state;
    static float zero[BH * D * D], expected[BH * N * D];
    const GraphRule batch = {.loss = GRAPH_MSE, .chunk = 0, .steps = 1};
    run(w, "w = linear(input d zero)", (Call){&batch, zero, 0, N, false, false}, w->out, NULL);
    for (int row = 0; row < BH * N; row++)
        for (int o = 0; o < D; o++) {
            double sum = 0;
            for (int s = row / N * N; s <= row; s++) {
                double score = 0;
                for (int i = 0; i < D; i++)
                    score += (double)w->q[row * D + i] * (double)w->k[s * D + i];
                sum += score * (double)w->v[s * D + o];
            }
            expected[row * D + o] = (float)sum;
        }
    near(w->out, expected, BH * N * D, 1e-5f);
    /* Online, it is the delta rule, which is something else. */
    const GraphRule online = {.loss = GRAPH_MSE, .chunk = 1, .steps = 1};
    run(w, "w = linear(input d zero)", (Call){&online, zero, 0, N, false, false}, w->out, NULL);
    float most = 0;
    for (int i = 0; i < BH * N * D; i++) most = fmaxf(most, fabsf(w->out[i] - expected[i]));
    assert_true(most > 1e-2f);
}

/* ---- properties ---- */

/* Two calls split at a chunk's end equal one. */
static void test_hand_over(void **state) {
    World *w = *state;
    static float first[BH * N * D], second[BH * N * D], end[BH * D * D], whole[BH * D * D];
    const GraphVisibility views[] = {GRAPH_CAUSAL, GRAPH_INCLUSIVE, GRAPH_EXCLUSIVE};
    const char *text = "w = linear(input d), a = silu(w)";
    for (int i = 0; i < 3; i++) {
        const GraphRule rule = {.loss = GRAPH_MSE, .visibility = views[i], .chunk = 4, .steps = 1};
        run(w, text, (Call){&rule, NULL, 0, N, true, true}, w->out, whole);
        run(w, text, (Call){&rule, NULL, 0, 8, true, true}, first, end);
        run(w, text, (Call){&rule, end, 8, N - 8, true, true}, second, w->end);
        for (int g = 0; g < BH; g++) {
            near(first + g * 8 * D, w->out + g * N * D, 8 * D, 1e-6f);
            near(second + g * (N - 8) * D, w->out + (g * N + 8) * D, (N - 8) * D, 1e-6f);
        }
        near(w->end, whole, BH * D * D, 1e-6f);
    }
}

/* What later tokens change: nothing before them (causal), nothing in chunks before (inclusive). */
static void test_causality(void **state) {
    World *w = *state;
    static float before[BH * N * D];
    const GraphVisibility views[] = {GRAPH_CAUSAL, GRAPH_INCLUSIVE, GRAPH_EXCLUSIVE};
    const int changed = 6, first[] = {6, 4, 8}; /* chunks of 4 */
    for (int i = 0; i < 3; i++) {
        const GraphRule rule = {.loss = GRAPH_MSE, .visibility = views[i], .chunk = 4, .steps = 1};
        const Call call = {&rule, NULL, 0, N, true, false};
        run(w, "w = linear(input d)", call, before, NULL);
        for (int g = 0; g < BH; g++) w->v[(g * N + changed) * D] += 1.0f;
        run(w, "w = linear(input d)", call, w->out, NULL);
        for (int g = 0; g < BH; g++) w->v[(g * N + changed) * D] -= 1.0f;
        for (int g = 0; g < BH; g++)
            for (int t = 0; t < N; t++) {
                const bool same = memcmp(before + (g * N + t) * D, w->out + (g * N + t) * D,
                                         D * sizeof(float)) == 0;
                assert_int_equal(same, t < first[i]);
            }
    }
}

static void test_zero_rate(void **state) {
    World *w = *state;
    const GraphRule rule = {.loss = GRAPH_MSE, .chunk = 4, .steps = 1};
    static float zero[BH * N], kept[BH * N];
    memcpy(kept, w->eta, sizeof kept);
    memcpy(w->eta, zero, sizeof zero);
    run(w, "w = linear(input d)", (Call){&rule, NULL, 0, N, true, false}, w->out, w->end);
    memcpy(w->eta, kept, sizeof kept);
    for (int b = 0; b < B; b++) near(w->end + b * H * D * D, w->w, H * D * D, 0);
}

static void test_rule_refusals(void **state) {
    World *w = *state;
    const GraphRule rules[] = {{.loss = GRAPH_MSE, .steps = 0},
                               {.loss = GRAPH_MSE, .steps = 2},
                               {.loss = GRAPH_RMSE, .steps = 1}};
    const char *parts[] = {"at least 1", "2 inner steps", "rmse"};
    Graph g;
    assert_int_equal(graph_parse(&g, "w = linear(input d)", D, 6), STATUS_OK);
    for (int i = 0; i < 3; i++) {
        tape_reset(w->t, false);
        const int64_t tokens[] = {B, H, N, D};
        GraphTokens in = {.q = value(w, w->q, 4, tokens),
                          .k = value(w, w->k, 4, tokens),
                          .v = value(w, w->v, 4, tokens)};
        in.weight[0] = value(w, w->w, 4, (int64_t[]){1, H, D, D});
        graph_forward(&g, &rules[i], w->t, &in, NULL);
        assert_int_equal(tape_status(w->t), STATUS_USAGE);
        if (!strstr(status_message(), parts[i])) fail_msg("%s", status_message());
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_presets),
        cmocka_unit_test_setup_teardown(test_dual_is_primal, setup, teardown),
        cmocka_unit_test_setup_teardown(test_linear_attention, setup, teardown),
        cmocka_unit_test_setup_teardown(test_hand_over, setup, teardown),
        cmocka_unit_test_setup_teardown(test_causality, setup, teardown),
        cmocka_unit_test_setup_teardown(test_zero_rate, setup, teardown),
        cmocka_unit_test_setup_teardown(test_rule_refusals, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
