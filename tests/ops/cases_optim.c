#include <math.h>

#include "op_case.h"

#define BETA1 0.9f
#define BETA2 0.999f

static double step_value(int64_t i, void *user) {
    (void)i;
    return (double)((const Run *)user)->p[2];
}

/* p[1]: infinite gradient (1) or NaN (2) at the last element; the largest normal one (3): its
 * square is not an F32. */
static double gradient_value(int64_t i, void *user) {
    Run *r = user;
    if (i == r->p[0] - 1 && r->p[1] == 1) return INFINITY;
    if (i == r->p[0] - 1 && r->p[1] == 2) return NAN;
    return r->p[1] == 3 ? 1e30 : random_normal(r);
}

/* p: count, kind, steps taken before, max_norm in tenths, skip_norm in tenths. */
static void grad_norm_body(Run *r) {
    const double max_norm = (double)((float)r->p[3] / 10.0f);
    const double skip_norm = (double)((float)r->p[4] / 10.0f);
    Tensor g = input_of(r, "g", DTYPE_F32, SHAPE(r->p[0]), gradient_value, r);
    Tensor taken = in_place_of(r, "taken", DTYPE_I64, SHAPE(1), step_value, r);
    Tensor control = output(r, "control", DTYPE_F32, SHAPE(4));
    CALL(r, grad_norm, control, taken, g, (float)max_norm, (float)skip_norm, BETA1, BETA2);
    if (!r->reference) return;
    double norm = 0.0, *e = expected(r, control), *k = expected(r, taken);
    for (int64_t i = 0; i < r->p[0]; i++) norm += values(r, g)[i] * values(r, g)[i];
    norm = sqrt(norm);
    const bool usable = isfinite(norm) && !(skip_norm > 0.0 && norm > skip_norm);
    k[0] = (double)r->p[2] + (usable ? 1.0 : 0.0);
    e[0] = norm;
    e[1] = usable ? max_norm > 0.0 ? fmin(1.0, max_norm / (norm + 1e-6)) : 1.0 : 0.0;
    /* After a skipped first step there is no correction to speak of: adamw does not read it then.
     */
    e[2] = 1.0 / (1.0 - pow((double)BETA1, fmax(k[0], 1.0)));
    e[3] = 1.0 / (1.0 - pow((double)BETA2, fmax(k[0], 1.0)));
}

static double control_value(int64_t i, void *user) {
    return ((const double *)user)[i];
}
static double square_value(int64_t i, void *user) {
    const double x = random_normal(user);
    (void)i;
    return x * x;
}

/* p: count; p[1]: 1 with a BF16 shadow; p[2]: the step is skipped: its norm is not finite (1) or
 * too large (2). */
static void adamw_body(Run *r) {
    const int64_t n = r->p[0], steps = 7;
    const double eps = 1e-8, decay = 0.05, rate = 1e-3;
    const double control[4] = {r->p[2] == 1 ? NAN : 3.0, r->p[2] ? 0.0 : 0.5,
                               1.0 / (1.0 - pow((double)BETA1, steps)),
                               1.0 / (1.0 - pow((double)BETA2, steps))};
    double lr = rate;
    Tensor p = in_place(r, "p", DTYPE_F32, SHAPE(n), 1.0);
    Tensor m = in_place(r, "m", DTYPE_F32, SHAPE(n), 0.1);
    Tensor v = in_place_of(r, "v", DTYPE_F32, SHAPE(n), square_value, r);
    Tensor shadow = r->p[1] ? in_place(r, "shadow", DTYPE_BF16, SHAPE(n), 1.0) : tensor_none();
    Tensor g = input(r, "g", DTYPE_F32, SHAPE(n), 1.0);
    Tensor rate_t = input_of(r, "lr", DTYPE_F32, SHAPE(1), control_value, &lr);
    Tensor c =
        input_of(r, "control", DTYPE_F32, SHAPE(4), control_value, (void *)(uintptr_t)control);
    CALL(r, adamw, p, m, v, shadow, g, rate_t, c, BETA1, BETA2, (float)eps, (float)decay);
    if (!r->reference) return;
    const double *k = values(r, c), b1 = (double)BETA1, b2 = (double)BETA2;
    double *ep = expected(r, p), *em = expected(r, m), *ev = expected(r, v);
    double *es = expected(r, shadow);
    for (int64_t i = 0; i < n; i++) {
        ep[i] = values(r, p)[i];
        em[i] = values(r, m)[i];
        ev[i] = values(r, v)[i];
        if (es) es[i] = values(r, shadow)[i];
        if (r->p[2]) continue;
        const double x = k[1] * values(r, g)[i];
        em[i] = b1 * em[i] + (1.0 - b1) * x;
        ev[i] = b2 * ev[i] + (1.0 - b2) * x * x;
        ep[i] = ep[i] * (1.0 - values(r, rate_t)[0] * decay) -
                values(r, rate_t)[0] * k[2] * em[i] / (sqrt(ev[i] * k[3]) + eps);
        if (es) es[i] = ep[i];
    }
}

/* p: matrices, rows, columns; p[3]: gap between them; p[4]: the step is skipped. */
static void muon_momentum_body(Run *r) {
    const int64_t groups = r->p[0], n = r->p[1] * r->p[2], stride = n + r->p[3];
    const int64_t flat = (groups - 1) * stride + n;
    const float momentum = 0.9f;
    const double control[4] = {3.0, r->p[4] ? 0.0 : 0.5, 1.0, 1.0};
    Tensor u = output(r, "u", r->act, SHAPE(groups, r->p[1], r->p[2]));
    Tensor m = in_place(r, "m", DTYPE_F32, SHAPE(flat), 0.1);
    Tensor g = input(r, "g", DTYPE_F32, SHAPE(flat), 1.0);
    Tensor c =
        input_of(r, "control", DTYPE_F32, SHAPE(4), control_value, (void *)(uintptr_t)control);
    CALL(r, muon_momentum, u, m, g, c, stride, momentum);
    if (!r->reference) return;
    const double beta = (double)momentum;
    double *eu = expected(r, u), *em = expected(r, m);
    for (int64_t i = 0; i < flat; i++) {
        const bool inside = i % stride < n;
        const double x = inside ? (1.0 - beta) * values(r, c)[1] * values(r, g)[i] : 0.0;
        em[i] = values(r, m)[i];
        if (inside && !r->p[4]) em[i] = beta * em[i] + x;
        if (inside) eu[i / stride * n + i % stride] = r->p[4] ? 0.0 : beta * em[i] + x;
    }
}

/* The same numbers, and p[5]: with a BF16 shadow. What lies in the gaps stays. */
static void muon_step_body(Run *r) {
    const int64_t groups = r->p[0], n = r->p[1] * r->p[2], stride = n + r->p[3];
    const int64_t flat = (groups - 1) * stride + n;
    const double control[4] = {3.0, r->p[4] ? 0.0 : 0.5, 1.0, 1.0}, scale = 1.5, decay = 0.05;
    double rate = 0.125;
    Tensor p = in_place(r, "p", DTYPE_F32, SHAPE(flat), 1.0);
    Tensor shadow = r->p[5] ? in_place(r, "shadow", DTYPE_BF16, SHAPE(flat), 1.0) : tensor_none();
    Tensor u = input(r, "u", r->act, SHAPE(groups, r->p[1], r->p[2]), 1.0);
    Tensor lr = input_of(r, "lr", DTYPE_F32, SHAPE(1), control_value, &rate);
    Tensor c =
        input_of(r, "control", DTYPE_F32, SHAPE(4), control_value, (void *)(uintptr_t)control);
    CALL(r, muon_step, p, shadow, u, lr, c, stride, (float)scale, (float)decay);
    if (!r->reference) return;
    double *ep = expected(r, p), *es = expected(r, shadow);
    for (int64_t i = 0; i < flat; i++) {
        ep[i] = values(r, p)[i];
        if (es) es[i] = values(r, shadow)[i];
        if (i % stride >= n || r->p[4]) continue;
        ep[i] =
            ep[i] * (1.0 - rate * decay) - rate * scale * values(r, u)[i / stride * n + i % stride];
        if (es) es[i] = ep[i];
    }
}

static void ema_body(Run *r) {
    const float decay = 0.97f;
    Tensor average = in_place(r, "average", DTYPE_F32, SHAPE(r->p[0]), 1.0);
    Tensor p = input(r, "p", DTYPE_F32, SHAPE(r->p[0]), 1.0);
    CALL(r, ema, average, p, decay);
    double *e = r->reference ? expected(r, average) : NULL;
    for (int64_t i = 0; e && i < r->p[0]; i++)
        e[i] = (double)decay * values(r, average)[i] + (1.0 - (double)decay) * values(r, p)[i];
}

#define F32  (IN_F32 | ANY_THREADS)
#define BOTH (F32 | IN_BF16)

const OpCase cases_optim[] = {
    {"grad_norm", grad_norm_body, {1}, F32, 0},
    {"grad_norm", grad_norm_body, {50021, 0, 6, 50}, F32, 0},
    {"grad_norm", grad_norm_body, {33, 0, 0, 1000}, F32, 0},
    {"grad_norm", grad_norm_body, {100, 3, 0, 50}, F32, 0},
    {"grad_norm", grad_norm_body, {20001, 1, 3, 50}, F32, 0},
    {"grad_norm", grad_norm_body, {7, 2, 0, 50}, F32, 0},
    {"grad_norm", grad_norm_body, {2000, 0, 5, 10, 400}, F32, 0}, /* norm about 45: skipped */
    {"grad_norm", grad_norm_body, {2000, 0, 5, 10, 500}, F32, 0},
    {"grad_norm", grad_norm_body, {2000, 2, 5, 10, 500}, F32, 0},
    {"adamw", adamw_body, {1}, F32, 0},
    {"adamw", adamw_body, {20011, 1}, F32, 0},
    {"adamw", adamw_body, {77}, F32, 0},
    {"adamw", adamw_body, {1033, 1, 1}, F32, 0},
    {"adamw", adamw_body, {1032, 1, 2}, F32, 0},
    {"adamw", adamw_body, {6149416, 1}, IN_F32 | ONLY_BENCH, 0},
    {"muon_momentum", muon_momentum_body, {1, 1, 1}, BOTH, 0},
    {"muon_momentum", muon_momentum_body, {3, 7, 5, 93}, BOTH, 0},
    {"muon_momentum", muon_momentum_body, {2, 64, 96, 128}, BOTH, 0},
    {"muon_momentum", muon_momentum_body, {2, 16, 30, 3}, BOTH, 0},
    {"muon_momentum", muon_momentum_body, {2, 12, 9, 20, 1}, BOTH, 0},
    {"muon_step", muon_step_body, {1, 1, 1}, BOTH, 0},
    {"muon_step", muon_step_body, {3, 7, 5, 93, 0, 1}, BOTH, 0},
    {"muon_step", muon_step_body, {2, 64, 96, 128, 0, 1}, BOTH, 0},
    {"muon_step", muon_step_body, {2, 16, 30, 3}, BOTH, 0},
    {"muon_step", muon_step_body, {2, 12, 9, 20, 1, 1}, BOTH, 0},
    {"ema", ema_body, {1}, F32, 0},
    {"ema", ema_body, {20011}, F32, 0},
    {"ema", ema_body, {20012}, F32, 0},
    {0},
};
