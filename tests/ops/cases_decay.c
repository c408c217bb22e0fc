#include <math.h>

#include "op_case.h"

/* p: groups, tokens, channels, log decay (0 none, 1 a value a token, 2 one per channel), start. */
typedef struct Sizes {
    int64_t groups, tokens, width, decays;
} Sizes;

static Sizes sizes(const Run *r) {
    return (Sizes){r->p[0], r->p[1], r->p[2], r->p[3] == 2 ? r->p[2] : r->p[3]};
}

static double decay_value(int64_t i, void *user) {
    (void)i;
    return -3.0 * random_uniform(user) * random_uniform(user);
}

static Tensor decay_input(Run *r, Sizes s) {
    if (!s.decays) return tensor_none();
    return input_of(r, "f", DTYPE_F32, SHAPE(s.groups, s.tokens, s.decays), decay_value, r);
}

static Tensor token_input(Run *r, const char *name, Sizes s) {
    return input(r, name, DTYPE_F32, SHAPE(s.groups, s.tokens, s.width), 1.0);
}

static Tensor start_input(Run *r, Sizes s) {
    return r->p[4] ? input(r, "start", DTYPE_F32, SHAPE(s.groups, s.width), 1.0) : tensor_none();
}

/* Log decay of channel c of a token. */
static double decay_of(Run *r, Tensor f, Sizes s, int64_t row, int64_t c) {
    return s.decays ? values(r, f)[row * s.decays + (s.decays == 1 ? 0 : c)] : 0.0;
}

static void scan_body(Run *r) {
    const Sizes s = sizes(r);
    Tensor x = token_input(r, "x", s), f = decay_input(r, s), start = start_input(r, s);
    Tensor y = output(r, "y", DTYPE_F32, SHAPE(s.groups, s.tokens, s.width));
    CALL(r, decay_scan, y, x, f, start);
    double *e = r->reference ? expected(r, y) : NULL;
    for (int64_t g = 0; e && g < s.groups; g++)
        for (int64_t c = 0; c < s.width; c++) {
            double sum = r->p[4] ? values(r, start)[g * s.width + c] : 0.0;
            for (int64_t t = 0; t < s.tokens; t++) {
                const int64_t row = g * s.tokens + t, at = row * s.width + c;
                e[at] = sum = exp(decay_of(r, f, s, row, c)) * sum + values(r, x)[at];
            }
        }
}

static void scan_backward_body(Run *r) {
    const Sizes s = sizes(r);
    Tensor dy = token_input(r, "dy", s), y = token_input(r, "y", s), f = decay_input(r, s);
    Tensor start = start_input(r, s);
    Grad dx = gradient(r, "dx", DTYPE_F32, SHAPE(s.groups, s.tokens, s.width));
    Grad df =
        s.decays ? gradient(r, "df", DTYPE_F32, SHAPE(s.groups, s.tokens, s.decays)) : grad_none();
    Grad ds = r->p[4] ? gradient(r, "dstart", DTYPE_F32, SHAPE(s.groups, s.width)) : grad_none();
    CALL(r, decay_scan_backward, dx, df, ds, dy, y, f, start);
    if (!r->reference) return;
    double *ex = expected(r, dx.t), *ef = s.decays ? expected(r, df.t) : NULL;
    double *es = r->p[4] ? expected(r, ds.t) : NULL;
    r->cancelled = sqrt((double)(s.tokens * s.width));
    for (int64_t g = 0; g < s.groups; g++)
        for (int64_t c = 0; c < s.width; c++) {
            double carry = 0.0;
            for (int64_t t = s.tokens - 1; t >= 0; t--) {
                const int64_t row = g * s.tokens + t, at = row * s.width + c;
                const double first = r->p[4] ? values(r, start)[g * s.width + c] : 0.0;
                const double before = t ? values(r, y)[at - s.width] : first;
                carry += values(r, dy)[at];
                if (ex) ex[at] = carry;
                carry *= exp(decay_of(r, f, s, row, c));
                if (ef) ef[row * s.decays + (s.decays == 1 ? 0 : c)] += carry * before;
            }
            if (es) es[g * s.width + c] = carry;
        }
}

static void reverse_body(Run *r) {
    const Sizes s = sizes(r);
    Tensor x = token_input(r, "x", s);
    Grad y = gradient(r, "y", DTYPE_F32, SHAPE(s.groups, s.tokens, s.width));
    CALL(r, reverse_tokens, y, x);
    double *e = r->reference ? expected(r, y.t) : NULL;
    for (int64_t i = 0; e && i < s.groups * s.tokens * s.width; i++) {
        const int64_t row = i / s.width, first = row / s.tokens * s.tokens;
        e[i] = values(r, x)[(first + s.tokens - 1 - row % s.tokens) * s.width + i % s.width];
    }
}

/* Running sums of negative values: log decays from the first token on. */
static double running_value(int64_t i, void *user) {
    Run *r = user;
    const Sizes s = sizes(r);
    const double before = (double)(i / s.decays % s.tokens);
    return -0.3 * before - 0.2 * random_uniform(r);
}

static Tensor running_input(Run *r, Sizes s) {
    if (!s.decays) return tensor_none();
    return input_of(r, "l", DTYPE_F32, SHAPE(s.groups, s.tokens, s.decays), running_value, r);
}

static double power(Run *r, Tensor l, Sizes s, int64_t t, int64_t key, int64_t c) {
    return exp(decay_of(r, l, s, t, c) - decay_of(r, l, s, key, c));
}

static void scores_body(Run *r) {
    const Sizes s = sizes(r);
    Tensor q = token_input(r, "q", s), k = token_input(r, "k", s), l = running_input(r, s);
    Tensor a = output(r, "a", DTYPE_F32, SHAPE(s.groups, s.tokens, s.tokens));
    CALL(r, decay_scores, a, q, k, l);
    double *e = r->reference ? expected(r, a) : NULL;
    r->cancelled = sqrt((double)s.width);
    for (int64_t row = 0; e && row < s.groups * s.tokens; row++)
        for (int64_t j = 0; j <= row % s.tokens; j++) {
            const int64_t key = row / s.tokens * s.tokens + j;
            for (int64_t c = 0; c < s.width; c++)
                e[row * s.tokens + j] += values(r, q)[row * s.width + c] *
                                         values(r, k)[key * s.width + c] *
                                         power(r, l, s, row, key, c);
        }
}

static void scores_backward_body(Run *r) {
    const Sizes s = sizes(r);
    Tensor da = input(r, "da", DTYPE_F32, SHAPE(s.groups, s.tokens, s.tokens), 1.0);
    Tensor q = token_input(r, "q", s), k = token_input(r, "k", s), l = running_input(r, s);
    Grad dq = gradient(r, "dq", DTYPE_F32, SHAPE(s.groups, s.tokens, s.width));
    Grad dk = gradient(r, "dk", DTYPE_F32, SHAPE(s.groups, s.tokens, s.width));
    Grad dl =
        s.decays ? gradient(r, "dl", DTYPE_F32, SHAPE(s.groups, s.tokens, s.decays)) : grad_none();
    CALL(r, decay_scores_backward, dq, dk, dl, da, q, k, l);
    if (!r->reference) return;
    double *eq = expected(r, dq.t), *ek = expected(r, dk.t);
    double *el = s.decays ? expected(r, dl.t) : NULL;
    r->cancelled = sqrt((double)(s.tokens * s.width));
    for (int64_t row = 0; row < s.groups * s.tokens; row++)
        for (int64_t j = 0; j <= row % s.tokens; j++)
            for (int64_t c = 0; c < s.width; c++) {
                const int64_t key = row / s.tokens * s.tokens + j, channel = s.decays == 1 ? 0 : c;
                const int64_t at = row * s.width + c, from = key * s.width + c;
                const double w = values(r, da)[row * s.tokens + j] * power(r, l, s, row, key, c);
                if (eq) eq[at] += w * values(r, k)[from];
                if (ek) ek[from] += w * values(r, q)[at];
                const double slope = w * values(r, q)[at] * values(r, k)[from];
                if (el) el[row * s.decays + channel] += slope;
                if (el) el[key * s.decays + channel] -= slope;
            }
}

#define F32 (IN_F32 | ANY_THREADS)

const OpCase cases_decay[] = {
    {"decay_scan", scan_body, {1, 1, 1}, F32, 0},
    {"decay_scan", scan_body, {3, 17, 5, 0, 1}, F32, 0},
    {"decay_scan", scan_body, {2, 40, 33, 1, 1}, F32, 0},
    {"decay_scan", scan_body, {4, 16, 130, 2}, F32, 0},
    {"decay_scan_backward", scan_backward_body, {1, 1, 1, 1, 1}, F32, 0},
    {"decay_scan_backward", scan_backward_body, {3, 17, 5, 0, 1}, F32, 0},
    {"decay_scan_backward", scan_backward_body, {2, 40, 33, 1, 1}, F32, 0},
    {"decay_scan_backward", scan_backward_body, {4, 16, 130, 2}, F32, 0},
    {"reverse_tokens", reverse_body, {1, 1, 1}, F32, 0},
    {"reverse_tokens", reverse_body, {3, 17, 5}, F32, 0},
    {"decay_scores", scores_body, {1, 1, 1}, F32, 0},
    {"decay_scores", scores_body, {3, 17, 5}, F32, 0},
    {"decay_scores", scores_body, {2, 40, 33, 1}, F32, 0},
    {"decay_scores", scores_body, {2, 16, 64, 2}, F32, 0},
    {"decay_scores_backward", scores_backward_body, {1, 1, 1, 2}, F32, 0},
    {"decay_scores_backward", scores_backward_body, {3, 17, 5}, F32, 0},
    {"decay_scores_backward", scores_backward_body, {2, 40, 33, 1}, F32, 0},
    {"decay_scores_backward", scores_backward_body, {2, 16, 64, 2}, F32, 0},
    {0},
};
