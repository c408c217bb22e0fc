/* Prefixes of tokens: running sums with decay, and scores of earlier tokens (fastweight.md 2.4,
 * 2.5). All F32. Differences of log decays are at most 0 before they meet an exponential.
 */
#include "kernels/cpu/table.h"
#include "kernels/cpu/values.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/vmath.h"

/* Sizes of [G, n, C], and whether a log decay has one value a token or C of them. */
typedef struct Prefix {
    int64_t groups, tokens, width, decays; /* decays: 0 (none), 1 or width */
} Prefix;

static Prefix prefix_of(Tensor x, Tensor decay) {
    return (Prefix){x.shape[0], x.shape[1], x.shape[2],
                    tensor_is_none(decay) ? 0 : tensor_last(decay)};
}

static Status refuse_decay(const char *kernel, Tensor x, Tensor decay) {
    if (x.rank != 3 || x.dtype != DTYPE_F32) return refuse_dtype(kernel, x.dtype);
    if (!tensor_is_none(decay) && tensor_last(decay) != 1 && tensor_last(decay) != x.shape[2])
        return status_set(STATUS_INTERNAL, "%s: log decays of width %lld for tokens of %lld",
                          kernel, (long long)tensor_last(decay), (long long)x.shape[2]);
    return STATUS_OK;
}

/* e^f of token `row` into out; ones without decay. */
static void factors(float *out, const float *f, Prefix s, int64_t row) {
    if (s.decays == s.width && s.decays > 0) {
        const float *in = f + row * s.width;
#pragma omp simd
        for (int64_t i = 0; i < s.width; i++) out[i] = exp_value(in[i]);
        return;
    }
    const float same = s.decays ? exp_value(f[row]) : 1.0f;
    for (int64_t i = 0; i < s.width; i++) out[i] = same;
}

/* ---- running sum ---- */

static void scan_group(float *y, const float *x, const float *f, const float *start, float *power,
                       Prefix s, int64_t g) {
    const float *before = start ? start + g * s.width : NULL;
    for (int64_t t = 0; t < s.tokens; t++) {
        const int64_t row = g * s.tokens + t;
        float *out = y + row * s.width;
        const float *in = x + row * s.width;
        if (!before) {
            memcpy(out, in, (size_t)s.width * sizeof *out);
        } else {
            factors(power, f, s, row);
#pragma omp simd
            for (int64_t i = 0; i < s.width; i++) out[i] = power[i] * before[i] + in[i];
        }
        before = out;
    }
}

Status decay_scan_cpu(Device *d, Tensor y, Tensor x, Tensor f, Tensor start) {
    TRY(refuse_decay("decay_scan", x, f));
    const Prefix s = prefix_of(x, f);
    float *power;
    TRY(scratch_floats(d, s.groups * s.width, &power));
#pragma omp parallel for schedule(static) if (s.groups * s.tokens * s.width >= PARALLEL_MIN)
    for (int64_t g = 0; g < s.groups; g++)
        scan_group(y.data, x.data, f.data, start.data, power + g * s.width, s, g);
    return scratch_done(d, STATUS_OK);
}

/* df of a token: e^f y_before dx. */
static void scan_decay(Grad df, const float *carry, const float *before, Prefix s, int64_t row) {
    float *to = df.t.data;
    if (s.decays == 1) {
        const float sum = before ? vec_dot(carry, before, s.width) : 0.0f;
        to[row] = (df.add ? to[row] : 0.0f) + sum;
        return;
    }
    to += row * s.width;
    for (int64_t i = 0; i < s.width; i++)
        to[i] = (df.add ? to[i] : 0.0f) + (before ? carry[i] * before[i] : 0.0f);
}

/* carry: e^f dx of the token behind, then of this one. */
static void scan_group_backward(Grad dx, Grad df, const float *dy, const float *y, const float *f,
                                const float *start, float *carry, float *power, Prefix s,
                                int64_t g) {
    memset(carry, 0, (size_t)s.width * sizeof *carry);
    for (int64_t t = s.tokens - 1; t >= 0; t--) {
        const int64_t row = g * s.tokens + t, at = row * s.width;
        const float *before = t ? y + at - s.width : start ? start + g * s.width : NULL;
#pragma omp simd
        for (int64_t i = 0; i < s.width; i++) carry[i] += dy[at + i];
        if (dx.t.data) values_write(&dx, at, s.width, carry);
        factors(power, f, s, row);
#pragma omp simd
        for (int64_t i = 0; i < s.width; i++) carry[i] *= power[i];
        if (df.t.data) scan_decay(df, carry, before, s, row);
    }
}

Status decay_scan_backward_cpu(Device *d, Grad dx, Grad df, Grad dstart, Tensor dy, Tensor y,
                               Tensor f, Tensor start) {
    TRY(refuse_decay("decay_scan_backward", dy, f));
    const Prefix s = prefix_of(dy, f);
    float *work;
    TRY(scratch_floats(d, 2 * s.groups * s.width, &work));
#pragma omp parallel for schedule(static) if (s.groups * s.tokens * s.width >= PARALLEL_MIN)
    for (int64_t g = 0; g < s.groups; g++) {
        float *carry = work + 2 * g * s.width;
        scan_group_backward(dx, df, dy.data, y.data, f.data, start.data, carry, carry + s.width, s,
                            g);
        if (dstart.t.data) values_write(&dstart, g * s.width, s.width, carry);
    }
    return scratch_done(d, STATUS_OK);
}

Status reverse_tokens_cpu(Device *d, Grad y, Tensor x) {
    (void)d;
    if (!y.t.data) return STATUS_OK;
    TRY(refuse_decay("reverse_tokens", x, tensor_none()));
    const int64_t n = x.shape[1], width = x.shape[2];
    for (int64_t row = 0; row < x.shape[0] * n; row++) {
        const int64_t from = row / n * n + n - 1 - row % n;
        values_write(&y, row * width, width, (const float *)x.data + from * width);
    }
    return STATUS_OK;
}

/* ---- scores of earlier tokens ---- */

/* sum_i q[i] k[i] e^(lt[i] - ls[i]). */
static float score(const float *q, const float *k, const float *lt, const float *ls, Prefix s) {
    if (s.decays != s.width || !s.decays) {
        const float dot = vec_dot(q, k, s.width);
        return s.decays ? dot * exp_value(lt[0] - ls[0]) : dot;
    }
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < s.width; i++) sum += q[i] * k[i] * exp_value(lt[i] - ls[i]);
    return sum;
}

Status decay_scores_cpu(Device *d, Tensor a, Tensor q, Tensor k, Tensor l) {
    (void)d;
    TRY(refuse_decay("decay_scores", q, l));
    const Prefix s = prefix_of(q, l);
    const float *decays = l.data, *queries = q.data, *keys = k.data;
    const int64_t n = s.tokens;
#pragma omp parallel for schedule(static) if (s.groups * n * n * s.width >= PARALLEL_MIN)
    for (int64_t row = 0; row < s.groups * n; row++) {
        const int64_t first = row / n * n, t = row % n;
        float *out = (float *)a.data + row * n;
        for (int64_t i = 0; i < n; i++)
            out[i] = i > t ? 0.0f
                           : score(queries + row * s.width, keys + (first + i) * s.width,
                                   decays + row * s.decays, decays + (first + i) * s.decays, s);
    }
    return STATUS_OK;
}

/* y += w x e^(lt - ls) for one pair of tokens. */
static void add_pair(float *y, const float *x, float w, const float *lt, const float *ls,
                     Prefix s) {
    if (s.decays == s.width && s.decays) {
#pragma omp simd
        for (int64_t i = 0; i < s.width; i++) y[i] += w * x[i] * exp_value(lt[i] - ls[i]);
        return;
    }
    const float same = s.decays ? w * exp_value(lt[0] - ls[0]) : w;
#pragma omp simd
    for (int64_t i = 0; i < s.width; i++) y[i] += same * x[i];
}

typedef struct ScoreTensors {
    const float *da, *q, *k, *l;
} ScoreTensors;

/* dq and dk of one group, each [n,C]. */
static void scores_group(float *dq, float *dk, ScoreTensors in, Prefix s, int64_t g) {
    const int64_t n = s.tokens, w = s.width;
    memset(dq, 0, (size_t)(n * w) * sizeof *dq);
    memset(dk, 0, (size_t)(n * w) * sizeof *dk);
    for (int64_t t = 0; t < n; t++) {
        const int64_t row = g * n + t;
        for (int64_t i = 0; i <= t; i++) {
            const int64_t key = g * n + i;
            const float weight = in.da[row * n + i];
            const float *lt = in.l + row * s.decays, *ls = in.l + key * s.decays;
            add_pair(dq + t * w, in.k + key * w, weight, lt, ls, s);
            add_pair(dk + i * w, in.q + row * w, weight, lt, ls, s);
        }
    }
}

/* dl = q dq - k dk. */
static void scores_decay(Grad dl, const float *dq, const float *dk, ScoreTensors in, Prefix s,
                         int64_t g) {
    const int64_t w = s.width;
    for (int64_t t = 0; t < s.tokens; t++) {
        const int64_t row = g * s.tokens + t;
        const float *q = in.q + row * w, *k = in.k + row * w;
        float *to = (float *)dl.t.data + row * s.decays, sum = 0.0f;
        for (int64_t i = 0; i < w; i++) {
            const float slope = q[i] * dq[t * w + i] - k[i] * dk[t * w + i];
            if (s.decays == w) to[i] = (dl.add ? to[i] : 0.0f) + slope;
            sum += slope;
        }
        if (s.decays != w) to[0] = (dl.add ? to[0] : 0.0f) + sum;
    }
}

Status decay_scores_backward_cpu(Device *d, Grad dq, Grad dk, Grad dl, Tensor da, Tensor q,
                                 Tensor k, Tensor l) {
    TRY(refuse_decay("decay_scores_backward", q, l));
    const Prefix s = prefix_of(q, l);
    const ScoreTensors in = {da.data, q.data, k.data, l.data};
    const int64_t each = s.tokens * s.width;
    float *work;
    TRY(scratch_floats(d, 2 * s.groups * each, &work));
#pragma omp parallel for schedule(static) if (s.groups * each * s.tokens >= PARALLEL_MIN)
    for (int64_t g = 0; g < s.groups; g++) {
        float *q_part = work + 2 * g * each, *k_part = q_part + each;
        scores_group(q_part, k_part, in, s, g);
        if (dl.t.data) scores_decay(dl, q_part, k_part, in, s, g);
        if (dq.t.data) values_write(&dq, g * each, each, q_part);
        if (dk.t.data) values_write(&dk, g * each, each, k_part);
    }
    return scratch_done(d, STATUS_OK);
}
