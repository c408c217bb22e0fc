/* The kernel table: every operation a model needs, once per backend.
 *
 * kernels_cpu and kernels_cuda are two constant instances of struct Kernels with one contract. A
 * slot that is NULL, or that has no case in the op table (tests/ops), fails a test.
 *
 * Contract of every slot:
 *  - outputs first; tensors are dense, on the device, and do not overlap unless a comment allows
 * it;
 *  - "act" dtype is F32 or BF16 and is the same for all tensors marked act of one call; everything
 *    unmarked is F32. Accumulation is F32 (or better) in a fixed order: same inputs, same bits;
 *  - Grad outputs: t.data == NULL is skipped, add == false overwrites, add == true accumulates;
 *  - any size >= 1 works (odd, 1, no multiple of the vector width); a size that cannot is refused;
 *  - kernels allocate nothing but from d->scratch, which is empty again when they return;
 *  - shapes were checked by the caller (nn/ops); a kernel still refuses dtypes that it does not
 * know.
 *
 * Notation: B batch, N = H*W tokens (row-major), C channels, nh heads, d = C/nh, M rows.
 */
#ifndef TTV_KERNELS_KERNELS_H
#define TTV_KERNELS_KERNELS_H

#include "kernels/kernel_types.h"

struct Kernels {
    const char *name;

    /* ---- elementwise ---------------------------------------------------------------------- */

    /* y = 0 (any dtype). */
    Status (*zero)(Device *d, Tensor y);
    /* y (+)= alpha x; y and x each F32 or BF16: also the cast. alpha 1 and equal dtypes is a plain
     * copy. */
    Status (*copy)(Device *d, Grad y, Tensor x, float alpha);
    /* y = a + alpha b, act or F32; a may have leading dimension 1 where y and b have B (broadcast).
     * y may be a or b. */
    Status (*add)(Device *d, Tensor y, Tensor a, Tensor b, float alpha);
    /* y (+)= a * b. */
    Status (*mul)(Device *d, Grad y, Tensor a, Tensor b);
    /* y (+)= f(x). */
    Status (*unary)(Device *d, Grad y, UnaryKind f, Tensor x);
    /* y (+)= dy * f(x): the chain rule when f is a derivative. */
    Status (*unary_mul)(Device *d, Grad y, UnaryKind f, Tensor x, Tensor dy);
    /* y[1,...] (+)= alpha * sum over the leading dimension of x[B,...]. */
    Status (*sum_batch)(Device *d, Grad y, Tensor x, float alpha);
    /* y[b,...] = x[b,...] + scale[b] branch[b,...], act; scale F32 [B] or none (1): residual with
     * stochastic depth (vittt.md 4.1). y may be x. */
    Status (*residual)(Device *d, Tensor y, Tensor x, Tensor branch, Tensor scale);
    /* y[b,...] (+)= scale[b] x[b,...], act; scale none: 1. */
    Status (*scale_rows)(Device *d, Grad y, Tensor x, Tensor scale);

    /* y = value; F32 or BF16. */
    Status (*fill)(Device *d, Tensor y, float value);

    /* ---- matrix products ------------------------------------------------------------------ */

    /* C (+)= alpha op(A) op(B), rank 2 to 4, batched over leading dimensions; op transposes the
     * last two when ta/tb. A leading dimension of 1 in A or B broadcasts; 1 in C where A or B has
     * more sums over it. A and B share a dtype (act); C is act or F32. */
    Status (*matmul)(Device *d, Grad c, Tensor a, bool ta, Tensor b, bool tb, float alpha);
    /* y[M,O] = act(x[M,I] w[O,I]' + bias[O]); bias none: 0. `pre` (act, optional): the value before
     * the activation, for the backward. x, w, y, pre act; bias F32. */
    Status (*linear)(Device *d, Tensor y, Tensor pre, Tensor x, Tensor w, Tensor bias,
                     Activation act);
    /* y[M,O] = residual[M,O] + scale[r / (M/B)] (x[M,I] w[O,I]' + bias[O]) for row r; scale F32
     * [B], B divides M, or none (1); bias F32 or none. The sum is F32; with a scale, a BF16 product
     * may be rounded before it. y may be residual. x, w, y, residual act. */
    Status (*linear_residual)(Device *d, Tensor y, Tensor x, Tensor w, Tensor bias, Tensor residual,
                              Tensor scale);
    /* dx[M,I] (+)= (dy[M,O] w[O,I]) * act'(pre[M,I]); pre none with ACT_NONE. All act. sums[I] F32
     * (+)= sum of the rows of dx: the bias gradient of the layer before; dx is then overwritten
     * (dx.add false), and the values before or after rounding to act are summed. */
    Status (*linear_dx)(Device *d, Grad dx, Grad sums, Tensor dy, Tensor w, Tensor pre,
                        Activation act);
    /* dw[O,I] (+)= dy' x and dbias[O] (+)= sum of the rows of dy, both F32. */
    Status (*linear_dw)(Device *d, Grad dw, Grad dbias, Tensor dy, Tensor x);

    /* ---- a layer norm within the product behind it, without gradients --------------------- */

    /* folded[O,I] act and offset[O] F32 so that layernorm(x; gain, shift) w' + bias = rstd x
     * folded' + offset: rows gain w less their mean, rounded so that they sum to 0 within half of a
     * last digit, or the mean of x would not cancel. w act; bias[O] (optional), gain[I], shift[I]
     * F32. */
    Status (*norm_fold)(Device *d, Tensor folded, Tensor offset, Tensor w, Tensor bias, Tensor gain,
                        Tensor shift);
    /* y[M,O] = act(rstd x[M,I] w[O,I]' + bias[O]), rstd of a row being stats[r,1] of layernorm's
     * stats[M,2]. x, w, y act; bias F32. */
    Status (*linear_rated)(Device *d, Tensor y, Tensor stats, Tensor x, Tensor w, Tensor bias,
                           Activation act);
    /* linear_residual without a scale, and stats[M,2] of y, before or after it is rounded, as
     * layernorm's. */
    Status (*linear_residual_stats)(Device *d, Tensor y, Tensor stats, Tensor x, Tensor w,
                                    Tensor bias, Tensor residual, float eps);
    /* y[B,C] = mean over N of layernorm(x[B,N,C]; gain, shift), x having stats[B*N,2]. x act. */
    Status (*norm_mean_tokens)(Device *d, Tensor y, Tensor x, Tensor stats, Tensor gain,
                               Tensor shift);

    /* ---- normalisation -------------------------------------------------------------------- */

    /* y = (x-mean)*rstd*w + b over the last dimension C; biased variance; stats[M,2] = mean, rstd
     * (optional). x, y act; w, b, stats F32 (vittt.md 3.4). y none: stats alone; w, b none. y
     * [B,n,C] and x [B,N,C], n < N: of the first n tokens of each sample (stats[B*n,2]). */
    Status (*layernorm)(Device *d, Tensor y, Tensor stats, Tensor x, Tensor w, Tensor b, float eps);
    /* scaled[M,C] = scale[r / (M/B)] dx for row r, the gradient of a branch with stochastic depth
     * (optional; of dx as it is afterwards); scale F32 [B], B divides M. y (optional, act): what
     * layernorm gave, once more, with its b (none: 0); it may be dy, whose gradients are then used
     * up. dx, scaled act. dy and y [B,n,C], x and dx [B,N,C], n < N: as in layernorm; other tokens
     * of dx stay as they are (dx.add true, no scaled). */
    Status (*layernorm_backward)(Device *d, Grad dx, Grad dw, Grad db, Tensor y, Tensor dy,
                                 Tensor x, Tensor w, Tensor b, Tensor stats, Tensor scaled,
                                 Tensor scale);
    /* Over the middle dimension of g[outer, reduce, inner]: n = sqrt(sum g^2), y = c g/(n+offset):
     * the soft norm of inner gradients with offset 1 (vittt.md 2.1, 2.2), unit vectors with a small
     * one, weights kept at a given norm (lact_nvs.md 3.3, 4). y, g act; y none: norms only.
     * norms[outer, inner] = n (optional). gain[p, inner] = c, F32, repeats where p < outer: o takes
     * row o mod p; none: 1. */
    Status (*softnorm)(Device *d, Tensor y, Tensor norms, Tensor g, Tensor gain, float offset);
    /* dg (+)= c (r dy - (r^2 t / n) g), r = 1/(n+offset), t = sum g dy; second term 0 where n = 0
     * (vittt.md 3.1, lact_nvs.md 5.2); c is a constant. dg, dy, g act. */
    Status (*softnorm_backward)(Device *d, Grad dg, Tensor dy, Tensor g, Tensor norms, Tensor gain,
                                float offset);
    /* y = w x r over the last dimension C, r = 1/sqrt(mean(x^2) + eps); rstd[M] = r (optional).
     * x, y act; w[C], rstd F32 (lact_nvs.md 3.2). */
    Status (*rmsnorm)(Device *d, Tensor y, Tensor rstd, Tensor x, Tensor w, float eps);
    /* dx (+)= r w dy - x r^3 mean(x w dy), dw[C] (+)= sum over rows of dy x r. dx, dy, x act.
     * y (optional, act) = w x r once more; it may be dy, whose gradients are then used up. */
    Status (*rmsnorm_backward)(Device *d, Grad dx, Grad dw, Tensor y, Tensor dy, Tensor x, Tensor w,
                               Tensor rstd);
    /* y = softmax(scale x) over the last dimension; act, F32 inside. */
    Status (*softmax)(Device *d, Tensor y, Tensor x, float scale);
    /* dx (+)= scale y (dy - sum(dy y)); act. */
    Status (*softmax_backward)(Device *d, Grad dx, Tensor dy, Tensor y, float scale);
    /* s[r] (+)= sum_c x[r,c] y[r,c]: the gradient of a factor per row (scale_rows). x, y act; s F32
     * with one value per row of x. */
    Status (*row_dot)(Device *d, Grad s, Tensor x, Tensor y);

    /* ---- prefixes of tokens (fastweight.md 2.4, 2.5) ---------------------------------------- */

    /* y_t = e^f_t y_{t-1} + x_t over the tokens of x[G,n,C], y_{-1} = start[G,C] (none: 0); log
     * decays f[G,n,C] or [G,n,1], none: 0. */
    Status (*decay_scan)(Device *d, Tensor y, Tensor x, Tensor f, Tensor start);
    /* dx_t = dy_t + e^f_{t+1} dx_{t+1}, df_t (+)= e^f_t y_{t-1} dx_t (summed over C where f has one
     * value a token), dstart (+)= e^f_0 dx_0; y: what decay_scan gave. */
    Status (*decay_scan_backward)(Device *d, Grad dx, Grad df, Grad dstart, Tensor dy, Tensor y,
                                  Tensor f, Tensor start);
    /* y[g,t,:] (+)= x[g,n-1-t,:] for x[G,n,C], F32: the order of backward scans. */
    Status (*reverse_tokens)(Device *d, Grad y, Tensor x);
    /* a[G,n,n]: a[t,s] = sum_i q[t,i] k[s,i] e^(l[t,i] - l[s,i]) for s <= t, else 0; q, k [G,n,C];
     * l [G,n,C] or [G,n,1] must not grow with t, none: 0. No e^(-l) is ever formed. */
    Status (*decay_scores)(Device *d, Tensor a, Tensor q, Tensor k, Tensor l);
    /* dq[t,i] = sum_{s<=t} da[t,s] k[s,i] e^(..), dk alike, dl (+)= q dq - k dk of this call
     * (summed over C where l has one value a token). */
    Status (*decay_scores_backward)(Device *d, Grad dq, Grad dk, Grad dl, Tensor da, Tensor q,
                                    Tensor k, Tensor l);

    /* ---- depthwise 3x3 -------------------------------------------------------------------- */

    /* y[B,H,W,C] (+)= taps of x with w[Bw,C,9], Bw 1 or B, plus bias[C] (optional), plus x itself
     * when `add_input` (the conditional position encoding x + dwconv(x)). x, y act; w, bias F32. */
    Status (*dwconv3)(Device *d, Grad y, Tensor x, Tensor w, Tensor bias, TapMode mode,
                      bool add_input);
    /* g[Bg,C,9] (+)= alpha sum_p x[p+t] y[p], per sample (Bg = B) or summed over the batch (Bg =
     * 1): the gradient with respect to the taps. sum_y[C] (optional, with Bg = 1) (+)= sum of y:
     * the bias gradient. x, y act; g F32. */
    Status (*dwconv3_taps)(Device *d, Grad g, Grad sum_y, Tensor x, Tensor y, float alpha);

    /* sum = x + taps of x + bias, y = its layer norm over C, stats[B*H*W,2] as layernorm
     * (optional): dwconv3 with a shared w [1,C,9] and `add_input`, then layernorm. All maps
     * [B,H,W,C] act; w, bias, gain[C], shift[C] F32. y none: sum and stats alone; gain, shift none.
     */
    Status (*dwconv3_norm)(Device *d, Tensor sum, Tensor y, Tensor stats, Tensor x, Tensor w,
                           Tensor bias, Tensor gain, Tensor shift, float eps);
    /* The gradients of y = dwconv3(x, shared w, bias): dx (+)= adjoint of dy (plus dy when
     * `add_input`), dw[1,C,9] (+)= dwconv3_taps(x, dy), sum_dy[C] (+)= sum of dy; scaled[b,...] =
     * scale[b] dx (optional, as in layernorm_backward). dx, scaled act. */
    Status (*dwconv3_backward)(Device *d, Grad dx, Grad dw, Grad sum_dy, Tensor dy, Tensor x,
                               Tensor w, bool add_input, Tensor scaled, Tensor scale);

    /* ---- attention within windows (lact_nvs.md 3.2, 5.5) ------------------------------------- */

    /* o[W,l,d] = softmax(q^ k^' / sqrt(dh)) v in each window and head, without a mask. packed
     * [W,l,3d] holds q | k | v, each head-major, dh = d/heads; q^ = q_w q / sqrt(mean(q^2) + eps)
     * over a head, k^ likewise; q_w, k_w [dh], both or none: q^ = q. lse[W,heads,l] (optional) =
     * log sum exp of the scaled scores, for the backward. packed, o act. */
    Status (*attention)(Device *d, Tensor o, Tensor lse, Tensor packed, Tensor q_w, Tensor k_w,
                        int64_t heads, float eps);
    /* Writes all of dpacked, from dout, what the forward took and what it gave; dq_w, dk_w F32.
     * dpacked, dout act. */
    Status (*attention_backward)(Device *d, Tensor dpacked, Grad dq_w, Grad dk_w, Tensor dout,
                                 Tensor o, Tensor lse, Tensor packed, Tensor q_w, Tensor k_w,
                                 int64_t heads, float eps);

    /* ---- tokens, images, heads ------------------------------------------------------------- */

    /* y (act) = (x/255 - mean) / std; x U8 [B,H,W,3]; mean, std: 3 host floats each. y is a map
     * [B,H,W,3] with patch 0, else its patches [B,(H/p)(W/p),3*p*p] as patchify would make them. */
    Status (*image_normalise)(Device *d, Tensor y, Tensor x, const float *mean, const float *std,
                              int64_t patch);
    /* Training images in one pass: normalise, flip, erase, mix (vittt.md 7.3, 7.4). y act,
     * map or patches as above, x U8 [B,H,W,3]; mean, std: 3 host floats each. With e(b,p) = noise
     * where p lies in sample b's erased box, else (x[b, flipped p]/255 - mean)/std, and r = B-1-b
     * the partner: y[b,p] = e(r,p) inside the batch's cut box, else lambda e(b,p) + (1-lambda)
     * e(r,p). samples I32 [B,8]: flip (0, 1), erased top, left, height, width, then key0, key1 of
     * the noise and one unused; the noise is N(0,1) per pixel and channel from Philox block (pixel
     * index, 0, 0, 0). mix F32 [8]: lambda, cut top, left, height, width; the rest unused. */
    Status (*image_prepare)(Device *d, Tensor y, Tensor x, Tensor samples, Tensor mix,
                            const float *mean, const float *std, int64_t patch);
    /* y[B,(H/p)(W/p),ch*p*p] from x[B,H,W,ch]; column order (channel, ky, kx), the order of the
     * published convolution weight; act. */
    Status (*patchify)(Device *d, Tensor y, Tensor x, int64_t patch);
    /* Tokens of posed views (lact_nvs.md 2): y[B,V*l,12p^2] (act), l = (height/p)(width/p), in the
     * order view, patch row, patch column; row, column, channel. Channels of pixel (i,j): O, D,
     * O x D, 2 rgb - 1, with r = ((j+1/2-cx)/fx, (i+1/2-cy)/fy, 1), D = R r / |r|, in F32. cameras
     * F32 [B,V,16] = the rows of [R|O], then fx, fy, cx, cy. rgb U8 [B,I,height*width,3], the
     * colours of the first I <= V views; zeros for the others; none: I = 0. */
    Status (*view_tokens)(Device *d, Tensor y, Tensor cameras, Tensor rgb, int64_t height,
                          int64_t width, int64_t patch);
    /* y[B,nh,N,dh] (+)= channels [offset, offset+nh*dh) of packed[B,N,P]. */
    Status (*split_heads)(Device *d, Grad y, Tensor packed, int64_t offset);
    /* The reverse: channels [offset, ...) of packed (+)= x[B,nh,N,dh]; other channels are left
     * alone. */
    Status (*merge_heads)(Device *d, Grad packed, Tensor x, int64_t offset);
    /* y[B,C] (F32) = mean over the tokens of x[B,N,C] (act). */
    Status (*mean_tokens)(Device *d, Tensor y, Tensor x);
    /* dx[B,N,C] (+)= dy[B,C]/N for every token. */
    Status (*mean_tokens_backward)(Device *d, Grad dx, Tensor dy);

    /* ---- loss ------------------------------------------------------------------------------ */

    /* loss[1] = mean over rows of -sum_c target log softmax(logits); logits F32 [B,classes], soft
     * targets F32 [B,classes]. A fixed-order sum over rows. */
    Status (*cross_entropy)(Device *d, Tensor loss, Tensor logits, Tensor targets);
    /* dlogits (+)= dloss[0] (softmax * sum(target) - target) / B. */
    Status (*cross_entropy_backward)(Device *d, Grad dlogits, Tensor dloss, Tensor logits,
                                     Tensor targets);

    /* loss[1] = mean of (x - target)^2 in a fixed order; x act, target F32. */
    Status (*mse)(Device *d, Tensor loss, Tensor x, Tensor target);
    /* dx (+)= dloss[0] 2 (x - target) / count. */
    Status (*mse_backward)(Device *d, Grad dx, Tensor dloss, Tensor x, Tensor target);

    /* ---- optimiser -------------------------------------------------------------------------- */

    /* control[4] = {norm of g, clip coefficient min(1, max_norm/(norm+1e-6)) (1 when max_norm <=
     * 0), 1/(1-beta1^k), 1/(1-beta2^k)}, k = ++taken[0] (I64). When the norm is not finite, or
     * above skip_norm > 0, the coefficient is 0, taken stays, and adamw will leave everything
     * untouched. */
    Status (*grad_norm)(Device *d, Tensor control, Tensor taken, Tensor g, float max_norm,
                        float skip_norm, float beta1, float beta2);
    /* AdamW on a flat range (vittt.md 7.2), g scaled by control[1]; lr F32 [1] on the device;
     * `shadow` (BF16, optional) receives the rounded weights. No change at all when control[1] is
     * 0. */
    Status (*adamw)(Device *d, Tensor p, Tensor m, Tensor v, Tensor shadow, Tensor g, Tensor lr,
                    Tensor control, float beta1, float beta2, float eps, float weight_decay);

    /* Muon (nn/muon.h), of G matrices of n elements that lie `stride` elements apart; m, g, p and
     * shadow are flat from the first one on, (G-1) stride + n elements. m = momentum m +
     * (1-momentum) c g, c = control[1], then u[G,r,c] = momentum m + (1-momentum) c g: the step
     * that Nesterov's momentum looks ahead to. u F32 or BF16. When c is 0, m stays and u is 0. */
    Status (*muon_momentum)(Device *d, Tensor u, Tensor m, Tensor g, Tensor control, int64_t stride,
                            float momentum);
    /* p = p (1 - lr weight_decay) - lr scale u; `shadow` as with adamw. No change at all when
     * control[1] is 0. */
    Status (*muon_step)(Device *d, Tensor p, Tensor shadow, Tensor u, Tensor lr, Tensor control,
                        int64_t stride, float scale, float weight_decay);

    /* average = decay average + (1-decay) p over a flat range: the moving average of the weights.
     * What equals p stays. */
    Status (*ema)(Device *d, Tensor average, Tensor p, float decay);

    /* ---- fused ViTTT inner step (vittt.md 2.1, 2.2, 3.1, 3.2) -------------------------------- */

    /* GLU branch: writes channels [0,C) of cat (act). g [B,nh,2,d,d] F32 (optional): the raw inner
     * gradients G1, G2, which the backward needs; w1, w2 [1,nh,d,d] F32. W' is kept in F32. */
    Status (*vittt_glu)(Device *d, VitttShape s, Tensor cat, Tensor g, Tensor qkv, Tensor w1,
                        Tensor w2);
    /* Writes channels [0,3C) of dqkv; dw1, dw2 F32. */
    Status (*vittt_glu_backward)(Device *d, VitttShape s, Tensor dqkv, Grad dw1, Grad dw2,
                                 Tensor dcat, Tensor qkv, Tensor g, Tensor w1, Tensor w2);
    /* Depthwise branch: writes channels [C,C+d) of cat; g [B,d,9] F32 (optional); w3 [d,9] F32. */
    Status (*vittt_dwc)(Device *d, VitttShape s, Tensor cat, Tensor g, Tensor qkv, Tensor w3);
    /* Writes channels [3C,3C+3d) of dqkv; dw3 F32. */
    Status (*vittt_dwc_backward)(Device *d, VitttShape s, Tensor dqkv, Grad dw3, Tensor dcat,
                                 Tensor qkv, Tensor g, Tensor w3);

    /* ---- orthogonalisation of inner gradients (lact_nvs.md 4.3, 5.3; fastweight.md 4.3) -------
     */

    /* u[G,r,c], each matrix for itself: X = g/(|g|_F + 1e-7), then per step A = XX' and
     * X <- aX + (bA + cAA)X with the step's triple; of a matrix with r > c the transpose is worked
     * on. g and u F32 or BF16, not necessarily the same; norms[G] = |g|_F (optional). Products are
     * F32, or of BF16 operands with F32 sums where s.bf16 and the backend gains by it. */
    Status (*newton_schulz)(Device *d, Tensor u, Tensor norms, Tensor g, NewtonSchulz s);
    /* dg (+)= the gradient through all of that, X recomputed from g; 0 where norms < 1e-20. dg and
     * g, du: F32 or BF16. u[G,r,c] (optional, F32 or BF16; also without dg) = the last X, as of
     * newton_schulz, which is a product more here. */
    Status (*newton_schulz_backward)(Device *d, Grad dg, Tensor u, Tensor du, Tensor g,
                                     Tensor norms, NewtonSchulz s);

    /* The span of rows: x[G,n,c], n <= c, as r q with r[G,n,n] lower triangular and q[G,n,c] of
     * rows orthonormal as far as x tells them apart. rr' = S + TOKEN_SHIFT diag(S), S = xx'
     * (Cholesky; pivots at least TOKEN_SHIFT/2 S_tt and TOKEN_LEAST^2; below one that is under
     * TOKEN_SHIFT S_tt, which rounding makes it alone, r may be 0), inv[G,n,n] = r^-1, q = inv x of
     * the unrounded inv. F32 or better, then rounded to act. Above their diagonals r, inv are 0. */
    Status (*token_basis)(Device *d, Tensor q, Tensor r, Tensor inv, Tensor x);

    /* w[G,n,n] (act): rows of the Walsh matrix, which is orthogonal: with p the largest power of 2,
     * WALSH_RUN at most, that divides n, (-1)^(bits of i and j) / sqrt(p) in row i and column j of
     * one run of p, else 0; in the order of falling energy[G,n], F32 and not negative, equal ones
     * as they are. */
    Status (*walsh_rows)(Device *d, Tensor w, Tensor energy);
    /* energy[G,n] F32 = |(W x)_i|^2 with rows x[G,n,c] (act) and W as of walsh_rows, unsorted. */
    Status (*walsh_energy)(Device *d, Tensor energy, Tensor x);

    /* ---- LaCT fast-weight layer (lact_nvs.md 3.3, 4, 5) -------------------------------------- */
    /* e = d/H of the layer's width d by heads H; h hidden; n writing tokens. [A|B] is one matrix of
     * two side by side. */

    /* y[B,nh,N,dh] = s, with offset > 0 s/(|s| + offset) by row, where s is silu of channels
     * [at, at + nh*dh) of packed[B,N,P]; act. */
    Status (*silu_heads)(Device *d, Tensor y, Tensor packed, int64_t at, float offset);
    /* Channels [at, at + nh*dh) of dpacked (+)= the gradient; other channels are left alone. y
     * (optional): what silu_heads gives, once more; it may be dy, which is then used up. */
    Status (*silu_heads_backward)(Device *d, Grad dpacked, Tensor y, Tensor dy, Tensor packed,
                                  int64_t at, float offset);
    /* eta[R,J] = softplus(x[R,C] w[J,C]' + b[J] + shift); x act, products and sums in F32; J is
     * small. */
    Status (*token_rates)(Device *d, Tensor eta, Tensor x, Tensor w, Tensor b, float shift);
    /* With dz = deta (1 - e^-eta), which is sigma of what softplus took: dx (+)= dz w,
     * dw (+)= dz' x, db (+)= sum of the rows of dz. dx, x act. */
    Status (*token_rates_backward)(Device *d, Grad dx, Grad dw, Grad db, Tensor deta, Tensor eta,
                                   Tensor x, Tensor w);
    /* What the inner gradients are products of, with ac[B,H,n,2h] = [A|C] and t[B,H,n,h] = T:
     * e[3,B*H,n,h] = eta0 T C silu'(A), eta2 T silu(A), eta1 silu(A) C. Without t the last alone,
     * e[1,B*H,n,h]. e, ac, t act; eta[B,n,3H], columns eta0 of all heads, eta1, eta2. */
    Status (*lact_write)(Device *d, Tensor e, Tensor ac, Tensor t, Tensor eta);
    /* e comes as the gradients of lact_write's e and leaves as its values. dac[B,H,n,2h] = [dA|dC]
     * and dt are written, deta (+)= (5.4). Without t: dt none, and only eta1 has a gradient (the
     * others are 0). */
    Status (*lact_write_backward)(Device *d, Tensor dac, Tensor dt, Grad deta, Tensor e, Tensor ac,
                                  Tensor t, Tensor eta);
    /* p[R,h] = silu(a) b of ab[R,2h] = [a|b]; act. */
    Status (*lact_gate)(Device *d, Tensor p, Tensor ab);
    /* dab = [dp b silu'(a)|dp silu(a)], and p once more; p may be dp. All act. */
    Status (*lact_gate_backward)(Device *d, Tensor dab, Tensor p, Tensor dp, Tensor ab);
    /* x[B,N,d] (act) through `count` blocks in turn, windows of l tokens attending: layernorm,
     * linear, attention, linear_residual; layernorm, linear, silu_heads, matmul, lact_gate, matmul,
     * rmsnorm, linear_residual; layernorm, linear with GELU, linear_residual. Then, where they are
     * wanted, colours = sigmoid(layernorm(x; end_norm_w) colours_w'). */
    Status (*view_blocks)(Device *d, Tensor x, int count, const ViewBlock *block,
                          const ViewForm *form);
    /* Of each part: columns [at, at + C) of y[O,R,P] (act) = M/(|M| + offset) |W| with M = W + sign
     * U, norms over the R rows of a column; offset 0: M itself. u[O,R,C] F32 or BF16, none: 0;
     * w[q,R,C]: o takes matrix o mod q of w. stats[O,C,2] (optional, with an offset) for the
     * backward: |W|/(|M| + offset) and 1/(|W| |M|), 0 where that product is 0. The y of all parts
     * have one dtype, so have the u. */
    Status (*weight_step)(Device *d, int parts, const WeightStep *part, float sign, float offset);
    /* |W| is a constant (5.2). Of each part: dM = s0 g - s1 (sum over the column of y g) y with g
     * and y columns [at, at + C) of dy and y (act, [O,R,P]); without stats dM = g. du (+)= sign dM,
     * F32 or BF16, dw (+)= dM summed over all o of a matrix, before or after it was rounded to
     * BF16. */
    Status (*weight_step_backward)(Device *d, int parts, const WeightSlope *part, float sign);

    /* ---- LaCT over chunks, without gradients (fastweight.md 4.1, 4.4) ------------------------ */

    /* p[B,H,n,h] = rate[B,H,n] silu(a) c with [a|c] = x[B,H,n,e] w[q,H,e,2h]; sample b takes b mod
     * q of w; rate F32, none: 1. Products may be rounded to act before the gate. p, x, w act. */
    Status (*gate_product)(Device *d, Tensor p, Tensor x, Tensor w, Tensor rate);
    /* With p as of gate_product, rounded to act, for C chunks of N/C tokens each: reading without
     * rates, y[B,H,N,o] = p s with s[B*H,C,h,o]; writing, y[B*H,C,h,o] = p' v with v[B,H,N,o], y
     * act or F32. All others act. */
    Status (*gate_read)(Device *d, Tensor y, Tensor x, Tensor w, Tensor s);
    Status (*gate_write)(Device *d, Tensor y, Tensor x, Tensor v, Tensor w, Tensor rate);
    /* States of the chunks c of each group: s_c = f_c s_{c-1} + alpha x_c with x[G,C,E]; f_c is the
     * mean of m[q,C,n] over n, none: 1; s_{-1} = start[q,E], none: 0; group g takes row g mod q of
     * either. y[G,C,E] = s_c, or s_{c-1} with `before`; last[G,E] F32 = the last s_c (optional; may
     * be start). x and y: F32 or BF16, not necessarily the same. */
    Status (*state_scan)(Device *d, Tensor y, Tensor last, Tensor x, Tensor m, Tensor start,
                         float alpha, bool before);
    /* Of each part: w[O,R,C] F32 = M kept/(|M| + offset) with M = before + sign U, norms over the R
     * rows of a column; offset 0: M itself. before F32 [q,R,C], kept F32 [q,C] (none with offset
     * 0): o takes row o mod q of either; u[O,R,C] F32 or BF16. Columns [at, at + C) of y[O,R,P]
     * (act) = the same, rounded. w may be before. All parts have the same O, R, C and dtypes. */
    Status (*chunk_step)(Device *d, int parts, const ChunkStep *part, float sign, float offset);

    /* ---- stages of a hierarchical ViTTT (vittt.md 4.2, 4.3) ---------------------------------- */
    /* 3x3 convolution with padding 1: y[B,Ho,Wo,O] of x[B,H,W,C] with w[O,C,3,3], the i-th place
     * around i stride, Ho = ceil(H/stride); taps as in TapMode. y, x, w act. */
    Status (*conv3)(Device *d, Tensor y, Tensor x, Tensor w, int64_t stride);
    /* dx (+)= its adjoint, dw[O,C,3,3] F32 (+)= sum dy x. dx, dy, x, w act. */
    Status (*conv3_backward)(Device *d, Grad dx, Grad dw, Tensor dy, Tensor x, Tensor w,
                             int64_t stride);
    /* y[B,Ho,Wo,C] = relu(taps of relu(x) + bias) with w[1,C,9] and stride 2; x[B,H,W,C]. act. */
    Status (*dwconv3_down)(Device *d, Tensor y, Tensor x, Tensor w, Tensor bias);
    /* With e = dy where y > 0, else 0: dx (+)= the adjoint of e where x > 0, else 0;
     * dw[1,C,9] (+)= sum e relu(x), db[C] (+)= sum e. dx, dy, y, x act. */
    Status (*dwconv3_down_backward)(Device *d, Grad dx, Grad dw, Grad db, Tensor dy, Tensor y,
                                    Tensor x, Tensor w);
    /* y = (x - mean) rstd w + b, relu of it where asked, over the rows of x[M,C]; rstd = 1/sqrt(var
     * + eps). training: mean and (biased) variance of x; then seen_mean += momentum (mean -
     * seen_mean) and seen_var likewise with var M/(M-1), unless they are not finite. Otherwise mean
     * and var are those seen, which stay. stats[2,C] (optional) = mean, rstd. x, y act. */
    Status (*batchnorm)(Device *d, Tensor y, Tensor stats, Tensor seen_mean, Tensor seen_var,
                        Tensor x, Tensor w, Tensor b, float eps, float momentum, bool relu,
                        bool training);
    /* With n = (x - mean) rstd and e = dy, 0 where relu took n w + b <= 0: db (+)= sum e,
     * dw (+)= sum e n, dx (+)= w rstd (e - mean of e - n mean of e n), the means only when
     * training. dx, dy, x act. */
    Status (*batchnorm_backward)(Device *d, Grad dx, Grad dw, Grad db, Tensor dy, Tensor x,
                                 Tensor w, Tensor b, Tensor stats, bool relu, bool training);
    /* y[B,N,P] (+)= x, of which the pairs i of channels (2i, 2i+1) from 0 and again from C on are
     * turned: (u,v) -> (u cos - v sin, v cos + u sin) with (cos, sin) = table[N,C/2,2]; `back`: by
     * the opposite angle. P >= 2C. x, y act; y may be x when it is set. */
    Status (*rope)(Device *d, Grad y, Tensor x, Tensor table, bool back);
};

extern const Kernels kernels_cpu;
#ifdef TTV_HAVE_CUDA
extern const Kernels kernels_cuda;
#endif

/* Number of slots, and slot i as a name and pointer: so that tests can walk the table. */
int kernels_slot_count(void);
const char *kernels_slot_name(int i);
const void *kernels_slot(const Kernels *k, int i);

#endif
