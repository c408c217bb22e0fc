/* The linear-attention identity (fastweight.md 6): what a fast-weight layer reads equals
 *
 *     o_t = qhat_t (S0 + sum_s khat_s' vhat_s)
 *
 * with queries, keys, values and a start state that the layer's own update defines. Here both sides
 * are computed on the host in double precision, from what a layer saw: the layer as a recursion of
 * states, and the sum over pairs of tokens, which never forms a written weight.
 */
#ifndef TTV_TTT_IDENTITY_H
#define TTV_TTT_IDENTITY_H

#include "ttt/chunked.h"
#include "ttt/lact.h"
#include "ttt/vittt_mixer.h"

#define IDENTITY_CONTROLS 4

/* A wrong version of the identity, which must miss: otherwise the check would prove nothing. */
typedef struct IdentityControl {
    const char *name;
    double error; /* relative, as IdentityResult.f64 */
} IdentityControl;

typedef struct IdentityResult {
    double f64;    /* |layer in double - attention form| / |layer| */
    double layer;  /* |production output - attention form| / |production output| */
    double most;   /* largest absolute difference of production output and attention form */
    double cosine; /* of the two */
    double start;  /* |q S0| / |o|: the share of what was not written */
    /* GLU branch: the inner loss, -sum <f(k), v> / (3N), and the mean of -cos(f(k), v), before the
     * first and after the last inner step; |W1' - W1| / |W1|. */
    double loss[2], alignment[2], moved;
    int controls;
    IdentityControl control[IDENTITY_CONTROLS];
} IdentityResult;

/* Keeps the worst of two results (several heads, several images). */
void identity_merge(IdentityResult *into, const IdentityResult *other);

/* One head of the GLU branch: q, k, v, out [tokens, width], w1, w2 [width, width]. */
typedef struct IdentityGlu {
    int64_t tokens, width;
    VitttVariant variant;
    const double *q, *k, *v, *w1, *w2, *out;
} IdentityGlu;
Status identity_glu(const IdentityGlu *in, IdentityResult *out);

/* The depthwise branch: q, k, v, out [height * columns, width], w3 [width, 9]. */
typedef struct IdentityDwc {
    int64_t height, columns, width;
    VitttVariant variant;
    const double *q, *k, *v, *w3, *out;
} IdentityDwc;
Status identity_dwc(const IdentityDwc *in, IdentityResult *out);

/* One head of the chunked layer; rate and momentum may be NULL (1, none). */
typedef struct IdentityChunked {
    const ChunkedRule *rule;
    int64_t tokens, dk, dh, dv;
    const double *q, *k, *v;          /* [tokens, dk], [tokens, dk], [tokens, dv] */
    const double *rate[3], *momentum; /* [tokens] */
    const double *w[3], *out;         /* [dk,dh], [dh,dv], [dk,dh]; [tokens, dv] */
} IdentityChunked;
Status identity_chunked(const IdentityChunked *in, IdentityResult *out);

/* A whole LaCT layer (ttt/lact.h) on one sample: x [tokens, width], of which the first `writing`
 * write; weights as the layer has them; out [heads, tokens, width/heads], f_W'(q) before o_norm.
 * The worst of all heads. */
typedef struct IdentityLact {
    LactVariant variant;
    int64_t tokens, writing, width, heads, inter_multi;
    const double *x, *qkv_w, *rate_w, *rate_b, *w[3], *out;
} IdentityLact;
Status identity_lact(const IdentityLact *in, IdentityResult *out);

/* The parts of chunk `i`: qhat [n, dh], s0 [dh, dv], khat [pairs, dh], vhat [pairs, dv]: every
 * earlier event with all that its momentum still carries. For tests; identity_parts_free(). */
typedef struct IdentityParts {
    int64_t n, pairs;
    double *qhat, *s0, *khat, *vhat;
} IdentityParts;
Status identity_chunked_parts(const IdentityChunked *in, int64_t i, IdentityParts *out);
void identity_parts_free(IdentityParts *p);

#endif
