/* What studies of fast-weight layers rest on: replaced queries, several inner steps, layers whose
 * tokens write and read apart, and which graphs have a linear form. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "core/memory.h"
#include "ttt/identity.h"
#include "ttt/lact.h"
#include "ttt/query_swap.h"
#include "vittt_fixture.h"

/* ---- replaced queries ---- */

enum { BATCH = 2, TOKENS = 7, HEADS = 2, WIDTH = 5, ROW = 3 * HEADS * WIDTH };
static const QueryPlace place = {0, HEADS *WIDTH, HEADS, WIDTH};

static double at(const double *x, int b, int t, int c) {
    return x[(b * TOKENS + t) * ROW + c];
}

/* before and after [BATCH, TOKENS, ROW] of one swap. */
static void swap_once(QueryKind kind, DType dtype, double *before, double *after) {
    const int64_t shape[] = {BATCH, TOKENS, ROW};
    const QuerySwap swap = {kind, 3, 1};
    Device *d;
    Tape *t;
    float values[BATCH * TOKENS * ROW];
    check_ok(device_open("cpu", &d));
    check_ok(tape_new(d, &t));
    tape_reset(t, false);
    fill_normal(values, BATCH * TOKENS * ROW, 9, 1);
    Var *packed = tape_input(t, push_floats(t, values, dtype, 3, shape), "packed");
    Var *other = query_swap(t, packed, &swap, place);
    check_ok(tape_status(t));
    double *a = pull_doubles(d, packed->value), *b = pull_doubles(d, other->value);
    memcpy(before, a, BATCH * TOKENS * ROW * sizeof *a);
    memcpy(after, b, BATCH * TOKENS * ROW * sizeof *b);
    free(a);
    free(b);
    tape_free(t);
    device_close(d);
}

static void keys_and_values_stay(const double *before, const double *after) {
    for (int b = 0; b < BATCH; b++)
        for (int t = 0; t < TOKENS; t++)
            for (int c = HEADS * WIDTH; c < ROW; c++)
                assert_true(at(before, b, t, c) == at(after, b, t, c));
}

static void queries_become_keys(void **state) {
    (void)state;
    double x[BATCH * TOKENS * ROW], y[BATCH * TOKENS * ROW];
    for (int k = 0; k < 2; k++) {
        swap_once(QUERY_KEYS, k ? DTYPE_BF16 : DTYPE_F32, x, y);
        keys_and_values_stay(x, y);
        for (int b = 0; b < BATCH; b++)
            for (int t = 0; t < TOKENS; t++)
                for (int c = 0; c < HEADS * WIDTH; c++)
                    assert_true(at(y, b, t, c) == at(x, b, t, HEADS * WIDTH + c));
    }
}

/* Every token's query turns up once, in one order for all samples. */
static void queries_are_shuffled(void **state) {
    (void)state;
    double x[BATCH * TOKENS * ROW], y[BATCH * TOKENS * ROW];
    int order[TOKENS], moved = 0;
    swap_once(QUERY_SHUFFLED, DTYPE_F32, x, y);
    keys_and_values_stay(x, y);
    for (int t = 0; t < TOKENS; t++) {
        order[t] = -1;
        for (int s = 0; s < TOKENS; s++)
            if (at(y, 0, t, 0) == at(x, 0, s, 0)) order[t] = s;
        assert_true(order[t] >= 0);
        moved += order[t] != t;
        for (int s = 0; s < t; s++) assert_int_not_equal(order[s], order[t]);
    }
    assert_true(moved > 0);
    for (int b = 0; b < BATCH; b++)
        for (int t = 0; t < TOKENS; t++)
            for (int c = 0; c < HEADS * WIDTH; c++)
                assert_true(at(y, b, t, c) == at(x, b, order[t], c));
}

static void noise_keeps_lengths(void **state) {
    (void)state;
    double x[BATCH * TOKENS * ROW], y[BATCH * TOKENS * ROW];
    swap_once(QUERY_NOISE, DTYPE_F32, x, y);
    keys_and_values_stay(x, y);
    for (int b = 0; b < BATCH; b++)
        for (int t = 0; t < TOKENS; t++)
            for (int h = 0; h < HEADS; h++) {
                double own = 0, drawn = 0, dot = 0;
                for (int c = h * WIDTH; c < (h + 1) * WIDTH; c++) {
                    own += at(x, b, t, c) * at(x, b, t, c);
                    drawn += at(y, b, t, c) * at(y, b, t, c);
                    dot += at(x, b, t, c) * at(y, b, t, c);
                }
                assert_true(fabs(sqrt(own) - sqrt(drawn)) < 1e-5 * sqrt(own));
                assert_true(fabs(dot) < 0.9999 * own); /* another direction */
            }
    /* the same noise for every sample, up to lengths */
    const double ratio = at(y, 0, 3, 0) / at(y, 1, 3, 0);
    assert_true(fabs(at(y, 0, 3, 1) - ratio * at(y, 1, 3, 1)) < 1e-4);
}

static void no_swap_while_recording(void **state) {
    (void)state;
    const int64_t shape[] = {BATCH, TOKENS, ROW};
    const QuerySwap swap = {QUERY_KEYS, 0, 0};
    float values[BATCH * TOKENS * ROW] = {0};
    Device *d;
    Tape *t;
    check_ok(device_open("cpu", &d));
    check_ok(tape_new(d, &t));
    tape_reset(t, true);
    query_swap(t, tape_input(t, push_floats(t, values, DTYPE_F32, 3, shape), "packed"), &swap,
               place);
    assert_int_equal(tape_status(t), STATUS_USAGE);
    tape_free(t);
    device_close(d);
}

/* ---- LaCT layers ---- */

enum { N = 9, WRITING = 6, D = 8, INTER = 1 };

typedef struct Layer {
    Device *device;
    Tape *tape;
    Params params;
    LactLayer lact;
    LactTrace trace;
    float x[N * D];
    double *owned[9];
} Layer;

static void layer_open(Layer *l, const char *variant, int64_t steps) {
    LactVariant v;
    *l = (Layer){0};
    check_ok(device_open("cpu", &l->device));
    params_init(&l->params, l->device);
    check_ok(lact_variant_by_name(variant, &v));
    check_ok(lact_register(&l->lact, &l->params, "f.", D, 2, INTER, v, 0.3f));
    check_ok(params_build(&l->params, DTYPE_F32, false));
    params_fill_normal(&l->params, 0.4);
    check_ok(tape_new(l->device, &l->tape));
    l->lact.steps = steps;
    l->lact.trace = &l->trace;
    fill_normal(l->x, N * D, 100, 1);
}

static void layer_close(Layer *l) {
    for (int i = 0; i < 9; i++) free(l->owned[i]);
    tape_free(l->tape);
    params_free(&l->params);
    device_close(l->device);
}

static Var *tokens_of(Layer *l, int from, int count) {
    const int64_t shape[] = {1, count, D};
    return tape_input(l->tape, push_floats(l->tape, l->x + from * D, DTYPE_F32, 3, shape), "x");
}

/* The layer as the identity takes it, all N tokens in front. */
static IdentityLact input_of(Layer *l) {
    const LactLayer *m = &l->lact;
    const Tensor from[] = {m->qkv_w->value, m->rate_w->value, m->rate_b->value, m->w[0]->value,
                           m->w[1]->value,  m->w[2]->value,   l->trace.o->value};
    for (int i = 0; i < 7; i++) l->owned[i] = pull_doubles(l->device, from[i]);
    l->owned[7] = malloc(sizeof(double) * N * D);
    for (int i = 0; i < N * D; i++) l->owned[7][i] = (double)l->x[i];
    return (IdentityLact){.variant = m->variant,
                          .query_rows = m->qkv_w->value.shape[0] == 3 * D,
                          .steps = m->steps,
                          .tokens = N,
                          .writing = WRITING,
                          .width = D,
                          .heads = 2,
                          .inter_multi = INTER,
                          .x = l->owned[7],
                          .qkv_w = l->owned[0],
                          .rate_w = l->owned[1],
                          .rate_b = l->owned[2],
                          .w = {l->owned[3], l->owned[4], l->owned[5]},
                          .out = l->owned[6]};
}

/* Several inner steps of the layer, against the recursion and the attention form on the host. */
static void steps_equal_the_identity(void **state) {
    (void)state;
    const char *const variants[] = {"base", "V1", "V2", "V4", "V6", "ascent", "query_is_key"};
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        for (int64_t steps = 1; steps <= 3; steps++) {
            Layer l;
            IdentityResult r;
            layer_open(&l, variants[i], steps);
            tape_reset(l.tape, false);
            lact_forward(&l.lact, l.tape, tokens_of(&l, 0, N), WRITING, NULL, NULL);
            check_ok(tape_status(l.tape));
            const IdentityLact in = input_of(&l);
            check_ok(identity_lact(&in, &r));
            assert_true(r.f64 < 1e-10);
            assert_true(r.layer < 5e-5);
            layer_close(&l);
        }
}

/* Writing and reading in two calls: the tokens that read are compared, no others. */
static void apart_equals_the_identity(void **state) {
    (void)state;
    Layer l;
    IdentityResult r;
    layer_open(&l, "base", 0);
    tape_reset(l.tape, false);
    const LactFast fast = lact_write(&l.lact, l.tape, tokens_of(&l, 0, WRITING));
    lact_read(&l.lact, l.tape, tokens_of(&l, WRITING, N - WRITING), NULL, fast);
    check_ok(tape_status(l.tape));
    assert_non_null(l.trace.read);
    assert_int_equal(l.trace.writing, WRITING);
    IdentityLact in = input_of(&l);
    in.first_read = WRITING;
    check_ok(identity_lact(&in, &r));
    assert_true(r.f64 < 1e-10 && r.layer < 5e-5);
    assert_true(r.controls > 0);
    for (int i = 0; i < r.controls; i++) assert_true(r.control[i].error > 1e-4);
    l.owned[7][0] += 1; /* another token that wrote */
    check_ok(identity_lact(&in, &r));
    assert_true(r.layer > 1e-3);
    layer_close(&l);
}

/* The inner loss from the traced weights is that of V6's closed form, W1' = W1 + K'V. */
static void inner_loop_of_linear_attention(void **state) {
    (void)state;
    Layer l;
    InnerLoop r;
    layer_open(&l, "V6", 0);
    tape_reset(l.tape, false);
    lact_forward(&l.lact, l.tape, tokens_of(&l, 0, N), WRITING, NULL, NULL);
    check_ok(tape_status(l.tape));
    const IdentityLact in = input_of(&l);
    l.owned[8] = pull_doubles(l.device, l.trace.fast.w[1]->value);
    const double *const written[3] = {in.w[0], l.owned[8], in.w[2]};
    check_ok(inner_lact(&in, written, &r));
    double before = 0, gained = 0;
    for (int64_t h = 0; h < 2; h++) {
        LactVectors v;
        check_ok(lact_vectors(&in, h, &v));
        const int64_t e = v.width;
        for (int s = 0; s < WRITING; s++) {
            for (int64_t i = 0; i < e; i++)
                for (int64_t j = 0; j < e; j++)
                    before += v.k[s * e + i] * in.w[1][h * e * e + i * e + j] * v.v[s * e + j];
            for (int u = 0; u < WRITING; u++) {
                double kk = 0, vv = 0;
                for (int64_t i = 0; i < e; i++) {
                    kk += v.k[s * e + i] * v.k[u * e + i];
                    vv += v.v[s * e + i] * v.v[u * e + i];
                }
                gained += kk * vv;
            }
        }
        mem_free(v.q);
    }
    assert_true(fabs(r.loss[0] + before / WRITING / 2) < 1e-6);
    assert_true(fabs(r.loss[1] + (before + gained) / WRITING / 2) < 1e-5);
    assert_true(r.moved > 0 && r.alignment[1] < r.alignment[0]);
    layer_close(&l);
}

/* ---- which graphs have a linear form ---- */

static void forms_of_presets(void **state) {
    (void)state;
    const struct {
        const char *preset, *why; /* of the output; NULL: it is one */
    } cases[] = {
        {"linear", NULL},
        {"swiglu", NULL},
        {"swiglu_static", NULL},
        {"gate", NULL},
        {"ttt_linear_plain", NULL},
        {"linear_silu", "silu 'a' follows"},
        {"linear_norm", "norm 'n' follows"},
        {"linear_rmsnorm_fast", NULL}, /* the gate is written and reads */
        {"linear_rmsnorm_slow", "norm 'n' follows"},
        {"glu", "silu 'a' follows"},
        {"res_norm", "norm 'n' follows"},
        {"ttt_linear", "norm 'n' follows"},
        {"ttt_mlp_pre", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Graph g;
        char why[96];
        check_ok(graph_parse(&g, graph_preset(cases[i].preset), 4, 8));
        const bool linear = graph_linear_form(&g, g.count, why, sizeof why);
        assert_int_equal(linear, cases[i].why == NULL);
        if (cases[i].why) assert_non_null(strstr(why, cases[i].why));
        for (int j = 0; j < g.count; j++)
            if (g.nodes[j].fast && g.nodes[j].op != GRAPH_BIAS)
                assert_true(graph_linear_form(&g, j, why, sizeof why));
    }
}

/* One linear node, inner loss, all tokens: the loss falls by |K'V|^2 over its tokens. */
static void inner_loop_of_a_graph(void **state) {
    (void)state;
    enum { T = 5, C = 3 };
    Graph g;
    GraphRule rule = {.loss = GRAPH_INNER, .visibility = GRAPH_INCLUSIVE, .steps = 1};
    double x[3][T * C], w[C * C], gained = 0;
    InnerLoop up, down;
    check_ok(graph_parse(&g, "w = linear(input d)", C, C));
    for (int i = 0; i < 3; i++) {
        float values[T * C];
        fill_normal(values, T * C, (uint64_t)i, 1);
        for (int j = 0; j < T * C; j++) x[i][j] = (double)values[j];
    }
    for (int i = 0; i < C * C; i++) w[i] = 0.1 * i;
    const IdentityGraph in = {
        .graph = &g, .rule = &rule, .tokens = T, .q = x[0], .k = x[1], .v = x[2], .weight = {w}};
    check_ok(inner_graph(&in, &down));
    for (int i = 0; i < C; i++)
        for (int j = 0; j < C; j++) {
            double sum = 0;
            for (int t = 0; t < T; t++) sum += x[1][t * C + i] * x[2][t * C + j];
            gained += sum * sum;
        }
    assert_true(fabs(down.loss[0] - down.loss[1] - gained / T) < 1e-9);
    rule.ascend = true;
    check_ok(inner_graph(&in, &up));
    assert_true(fabs(up.loss[1] - up.loss[0] - gained / T) < 1e-9);
    assert_true(fabs(up.moved - down.moved) < 1e-12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(queries_become_keys),
        cmocka_unit_test(queries_are_shuffled),
        cmocka_unit_test(noise_keeps_lengths),
        cmocka_unit_test(no_swap_while_recording),
        cmocka_unit_test(steps_equal_the_identity),
        cmocka_unit_test(apart_equals_the_identity),
        cmocka_unit_test(inner_loop_of_linear_attention),
        cmocka_unit_test(forms_of_presets),
        cmocka_unit_test(inner_loop_of_a_graph),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
